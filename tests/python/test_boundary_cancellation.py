"""Cancelling gives everything back, at whatever moment it comes."""

import asyncio
import gc
import json
import random

import pytest

from tidegate import AsyncClient, Client, Gate, Limits
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CONCURRENCY = 20


def scope(gate):
    (found,) = gate.snapshot()["scopes"]
    return found


def make(server, **limits):
    gate = Gate(limits=Limits(**limits), breaker=None, retry_budget=None, seed=1)
    return gate, AsyncClient(server.url, "key", gate=gate)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 it comes true outside the loop
            await asyncio.sleep(0.002)


async def test_a_thousand_cancelled_calls_leave_nothing():
    moment = random.Random(7)  # noqa: S311 the same moments in each run
    gc.collect()
    futures_before = count_futures()
    unretrieved = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    rules = [{"match": {"every": 3}, "respond": {"status": 500}}]
    with FaultServer(rules=rules, latency_ms=(0, 30)) as server:
        gate, client = make(server, concurrency=CONCURRENCY)

        async def cancelled_at(delay):
            task = asyncio.ensure_future(client.post("/chat/completions", json=BODY))
            await asyncio.sleep(delay)
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            return isinstance(result, asyncio.CancelledError)

        cancelled = await asyncio.gather(*[cancelled_at(moment.uniform(0, 0.3)) for _ in range(1000)])
        assert sum(cancelled) > 500
        await until(lambda: scope(gate)["in_flight"] == scope(gate)["queued"] == 0)
        await until(lambda: server.ledger["requests"]["in_flight"] == 0)
        # Every permit is back: as many calls as there are permits are in flight at the same time.
        server.script(rules=[{"respond": {"delay_s": 0.3}}])
        server.reset_ledger()
        burst = await asyncio.gather(
            *[client.post("/chat/completions", json=BODY) for _ in range(CONCURRENCY)]
        )
        assert [answer.status for answer in burst] == [200] * CONCURRENCY
        assert server.ledger["requests"]["max_in_flight"] == CONCURRENCY
    del burst
    gc.collect()
    assert count_futures() <= futures_before
    assert len(asyncio.all_tasks()) == 1
    assert unretrieved == []


def count_futures():
    return sum(isinstance(thing, asyncio.Future) and not thing.done() for thing in gc.get_objects())


async def test_calls_that_are_cancelled_before_they_start_never_do():
    with FaultServer() as server:
        gate, client = make(server)
        calls = [client.post("/chat/completions", json=BODY) for _ in range(12)]
        for call in calls:
            call.send(None)
        for call in calls:
            call.close()
        assert (await client.post("/chat/completions", json=BODY)).status == 200
        await until(lambda: scope(gate)["in_flight"] == scope(gate)["queued"] == 0)
        # A quiet loop starts a few at once, which may have been sent.
        assert server.ledger["requests"]["total"] <= 4


async def test_calls_are_admitted_in_the_order_in_which_they_are_made():
    with FaultServer() as server:
        _, client = make(server, concurrency=1)
        order = []

        async def call(number):
            await client.post("/chat/completions", json=BODY)
            order.append(number)

        await asyncio.gather(*[call(number) for number in range(100)])
        assert order == list(range(100))


async def test_the_server_sees_each_cancelled_call_close():
    with FaultServer([{"delay_s": 60}], repeat_last=True) as server:
        gate, client = make(server, concurrency=50)
        tasks = [asyncio.ensure_future(client.post("/chat/completions", json=BODY)) for _ in range(50)]
        await until(lambda: server.ledger["requests"]["in_flight"] == 50)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: server.ledger["connections"]["closed_by_client"] == 50)
        assert server.ledger["requests"]["by_finish"] == {"client_closed": 50}
        assert scope(gate)["in_flight"] == 0


@pytest.mark.parametrize(
    ("limits", "script", "waits_in"),
    [
        ({"concurrency": 1}, [{"delay_s": 60}], "gate"),
        ({"rpm": 1, "headroom": 0.0}, [{"delay_s": 60}], "limiter"),
        ({}, [{"status": 503, "headers": {"retry-after": "10"}}], "backoff"),
        ({}, [{"fault": "hang"}], "response"),
        ({}, [{"fault": "stall"}], "body"),
    ],
)
async def test_wherever_a_call_waits(limits, script, waits_in):
    with FaultServer(script, repeat_last=True) as server:
        gate, client = make(server, **limits)
        first = asyncio.ensure_future(client.post("/chat/completions", json=BODY))
        second = None
        await until(lambda: server.ledger["requests"]["total"] == 1)
        if waits_in in {"gate", "limiter"}:
            second = asyncio.ensure_future(client.post("/chat/completions", json=BODY))
            await until(lambda: scope(gate)["queued"] == 1)
        elif waits_in == "backoff":
            await until(lambda: gate.snapshot()["retries"] == 1)
        tasks = [task for task in (second, first) if task]
        for task in tasks:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: scope(gate)["in_flight"] == scope(gate)["queued"] == 0)
        assert server.ledger["requests"]["total"] == 1
        if not limits:
            server.script([])
            # Of another model: the wait that the server asked for holds for all calls of the first.
            assert (await client.post("/chat/completions", json={**BODY, "model": "n"})).status == 200


async def test_wait_for_cuts_a_call():
    with FaultServer([{"delay_s": 60}]) as server:
        gate, client = make(server)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.post("/chat/completions", json=BODY), 0.05)
        await until(lambda: server.ledger["requests"]["by_finish"] == {"client_closed": 1})
        assert scope(gate)["in_flight"] == 0


async def test_answers_in_any_order_reach_their_callers():
    delay = random.Random(3)  # noqa: S311 the same order in each run
    rules = [
        {"match": {"model": f"m{n}"}, "respond": {"content": f"answer {n}", "delay_s": delay.uniform(0, 0.1)}}
        for n in range(200)
    ]
    with FaultServer(rules=rules) as server:
        client = AsyncClient(server.url, "key", gate=Gate(limits=None))

        async def ask(n):
            answer = await client.post("/chat/completions", json={**BODY, "model": f"m{n}"})
            return answer.json()["choices"][0]["message"]["content"]

        assert await asyncio.gather(*[ask(n) for n in range(200)]) == [f"answer {n}" for n in range(200)]


async def test_a_slot_that_is_used_again_has_its_own_answer():
    """A cancelled call's answer may be under way to the slot that the next call has taken."""
    rules = [
        {"match": {"model": "old"}, "respond": {"content": "old"}},
        {"match": {"model": "new"}, "respond": {"content": "new"}},
    ]
    with FaultServer(rules=rules) as server:
        gate = Gate(limits=None)
        client, blocking = AsyncClient(server.url, "key", gate=gate), Client(server.url, "key", gate=gate)
        for _ in range(100):
            old = asyncio.ensure_future(client.post("/chat/completions", json={**BODY, "model": "old"}))
            await asyncio.sleep(0)
            # The loop is held until the old answer is in its inbox.
            blocking.post("/chat/completions", json={**BODY, "model": "old"})
            old.cancel()
            new = asyncio.ensure_future(client.post("/chat/completions", json={**BODY, "model": "new"}))
            answer = await new
            assert answer.json()["choices"][0]["message"]["content"] == "new"
            (result,) = await asyncio.gather(old, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError)


async def test_a_cancelled_call_is_told_of(tmp_path):
    log = tmp_path / "calls.jsonl"
    gate = Gate(log_file=str(log), breaker=None, retry_budget=None)
    with FaultServer(rules=[{"respond": {"fault": "hang"}}]) as server:
        client = AsyncClient(server.url, "key", gate=gate)
        task = asyncio.ensure_future(client.post("/chat/completions", json=BODY))
        await until(lambda: server.ledger["requests"]["in_flight"] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: gate.snapshot()["calls"] == 1)
        assert gate.snapshot()["attempts"] == 1
        await until(lambda: len(log.read_text().splitlines()) == 2)
    attempt, call = (json.loads(line) for line in log.read_text().splitlines())
    assert (attempt["event"], attempt["attempt"], attempt["outcome"]) == ("attempt", 1, "cancelled")
    assert (call["event"], call["attempts"], call["reason"]) == ("call", 1, "cancelled")
    assert attempt["trace_id"] == call["trace_id"]
