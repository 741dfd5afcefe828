"""The file of JSON lines: the story of every call, whole after a crash, of bounded size, by its reference."""

import asyncio
import collections
import contextlib
import json
import re
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from tidegate import (
    AsyncClient,
    BreakerPolicy,
    CallError,
    Client,
    ConfigError,
    Gate,
    Limits,
    RetryPolicy,
    tags,
)
from tidegate.testing import FaultServer

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "log-schema.md").read_text("utf-8")
EACH = Decimal("0.0000048")  # 12 tokens in, 5 out
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rebuilt(told):
    """Each call by its span id, from nothing but the lines."""
    calls = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in told:
        calls[line["span_id"]][line["event"]].append(line)
    return calls


def test_every_call_can_be_rebuilt_from_the_file_alone(tmp_path):
    """Two hundred concurrent calls through a queue, with failures of every kind."""
    rules = [
        {"match": {"every": 7}, "respond": {"status": 500, "error": "server_error"}},
        {"match": {"every": 11}, "respond": {"status": 429, "error": "rate_limit", "retry_after_s": 0.05}},
        {"match": {"every": 13}, "respond": {"fault": "cut"}},
        {"match": {"every": 17}, "respond": {"status": 400, "error": "invalid_request"}},
    ]
    log = tmp_path / "log.jsonl"
    prices = {"m": {"input": "0.15", "output": "0.60"}}
    gate = Gate(
        retry=RetryPolicy(base=0.01, cap=0.02, max_attempts=3),
        limits=Limits(concurrency=8, learn=False),
        breaker=None,
        retry_budget=None,
        log_file=log,
        prices=prices,
    )
    with FaultServer(rules=rules, prices=prices, latency_ms=2) as server:
        client = AsyncClient(server.url, "key", gate=gate)

        async def main():
            calls = [client.post("/chat/completions", json=CHAT) for _ in range(200)]
            return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(main())
        ledger = server.ledger
    calls = rebuilt(lines(log))
    infos = {result.info.trace_id: result for result in results}
    assert len(calls) == len(infos) == 200
    for events in calls.values():
        [call] = events["call"]
        result = infos[call["trace_id"]]
        info = result.info
        # How often, why again, and after what wait.
        assert [attempt["attempt"] for attempt in events["attempt"]] == list(range(1, info.attempts + 1))
        assert call["attempts"] == info.attempts
        assert [(retry["reason"], retry["delay_s"]) for retry in events["retry"]] == [
            (retry.reason, retry.delay_s) for retry in info.retries
        ]
        for retry, attempt in zip(events["retry"], events["attempt"], strict=False):
            # Of an attempt without an answer the outcome is what broke; the reason is its class.
            assert "status" not in attempt or retry["reason"] == attempt["outcome"]
        # Waits for admission below a millisecond have no line of their own.
        waited = sum(wait["queue_s"] for wait in events["wait"])
        assert waited == pytest.approx(info.queue_s, abs=0.001 * info.attempts)
        assert call["queue_s"] == info.queue_s
        assert call["latency_s"] == info.latency_s
        # How it ended, and what it cost.
        broken = [attempt for attempt in events["attempt"] if "status" not in attempt]
        if isinstance(result, CallError):
            assert (call["reason"], call["attempts"]) == (result.reason, result.attempts)
            assert call.get("status") == getattr(result, "status", None)
            assert ("cost_usd" in call) == bool(broken)
        else:
            assert call["outcome"] == events["attempt"][-1]["outcome"].replace("success", "ok")
            estimated = (call["usage"], call["prompt_tokens"] > 12, call["completion_tokens"])
            assert estimated == (("estimated", True, 5) if broken else ("reported", False, 5))
            assert Decimal(call["cost_usd"]) == info.cost_usd
    # The server has its own count of all that.
    attempts = [attempt for events in calls.values() for attempt in events["attempt"]]
    assert len(attempts) == ledger["requests"]["total"]
    cut = [attempt for attempt in attempts if "status" not in attempt or attempt["outcome"] == "malformed"]
    assert len(cut) == sum(not entry["finish"].startswith("complete") for entry in ledger["entries"]) > 0
    statuses = collections.Counter(str(attempt["status"]) for attempt in attempts if attempt not in cut)
    statuses["200"] += len(cut)
    assert statuses == ledger["requests"]["by_status"]
    ended = [call for events in calls.values() for call in events["call"]]
    stated = [call for call in ended if call["outcome"] == "ok" and call["usage"] == "reported"]
    assert sum(call["prompt_tokens"] for call in stated) == 12 * len(stated)
    assert sum(Decimal(call["cost_usd"]) for call in stated) == EACH * len(stated)
    # An answer that was cut is billed by the server; of it, only the prompt can be estimated.
    answered = EACH * sum(call["outcome"] == "ok" for call in ended)
    assert Decimal(ledger["bill"]["usd"]) == answered + EACH * len(cut)
    told = sum(Decimal(call.get("cost_usd", 0)) for call in ended)
    assert answered < told < answered + EACH * len(cut)


def test_calls_of_one_trace_are_told_apart(tmp_path, server):
    gate = Gate(log_file=tmp_path / "log.jsonl")
    client = Client(server.url, "key", gate=gate)
    for _ in range(3):
        client.post("/chat/completions", json=CHAT, trace_id="ab" * 16)
    told = lines(tmp_path / "log.jsonl")
    assert {line["trace_id"] for line in told} == {"ab" * 16}
    assert len({line["span_id"] for line in told}) == 3


def test_a_breaker_tells_of_its_opening_and_of_its_recovery(tmp_path):
    breaker = BreakerPolicy(
        window=1.0, minimum_calls=5, consecutive_hits=1, recency=0, open_for=0.05, reopen_for=0.05
    )
    gate = Gate(retry=None, retry_budget=None, breaker=breaker, log_file=tmp_path / "log.jsonl")

    def states():
        return [
            (line["outcome"], line.get("reason"))
            for line in lines(tmp_path / "log.jsonl")
            if line["event"] == "breaker"
        ]

    with FaultServer([{"status": 500}], repeat_last=True) as server:
        client = Client(server.url, "key", gate=gate)

        def call_until(condition):
            deadline = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < deadline, states()
                with contextlib.suppress(CallError):
                    client.post("/chat/completions", json=CHAT)

        call_until(lambda: ("open", "probe_failed") in states())
        server.script([])
        call_until(lambda: ("closed", None) in states())
    told = states()
    assert told[:3] == [("open", "failure_rate"), ("half_open", None), ("open", "probe_failed")]
    assert told[-2:] == [("half_open", None), ("closed", None)]
    assert "breaker_open_total 1\n" in gate.metrics_text(), "a failed probe opens nothing that was not"


def test_a_full_file_is_renamed(tmp_path, server):
    log = tmp_path / "log.jsonl"
    gate = Gate(log_file=log, log_max_bytes=4096, log_backups=2)
    client = Client(server.url, "key", gate=gate)
    traces = [client.post("/chat/completions", json=CHAT).info.trace_id for _ in range(60)]
    files = [tmp_path / "log.jsonl.2", tmp_path / "log.jsonl.1", log]
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in files), "log.jsonl.lock"}
    assert all(0 < path.stat().st_size <= 4096 for path in files)
    told = [line["trace_id"] for path in files for line in lines(path) if line["event"] == "call"]
    assert told == traces[-len(told) :]
    assert len(told) > 10


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path, server):
    """As logrotate does, where the size is looked at."""
    log = tmp_path / "log.jsonl"
    gate = Gate(log_file=log, log_max_bytes=4096)
    client = Client(server.url, "key", gate=gate)
    client.post("/chat/completions", json=CHAT)
    log.rename(tmp_path / "moved")
    for _ in range(10):
        client.post("/chat/completions", json=CHAT)
    files = [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert log in files
    told = [line for path in files for line in lines(path)]
    assert sum(line["event"] == "call" for line in told) == 11


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"log_max_bytes": 4095}, "log_max_bytes"),
        ({"log_max_bytes": "1 MB"}, "log_max_bytes"),
        ({"log_max_bytes": True}, "log_max_bytes"),
        ({"log_max_bytes": 4096, "log_backups": 0}, "log_backups"),
        ({"log_max_bytes": 4096, "log_backups": 1001}, "log_backups"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, field):
    with pytest.raises(ConfigError, match=field):
        Gate(log_file=tmp_path / "log.jsonl", **settings)


VICTIM = """
import asyncio, sys
from tidegate import AsyncClient, Gate
gate = Gate(log_file=sys.argv[2], log_max_bytes=int(sys.argv[3]), log_backups=1000)

async def main():
    client = AsyncClient(sys.argv[1], "key", gate=gate)
    async def forever():
        while True:
            await client.post("/chat/completions", json={"model": "m", "messages": []})
    await asyncio.gather(*[forever() for _ in range(8)])

asyncio.run(main())
"""


@pytest.mark.parametrize("max_bytes", [20_000, 2**31 - 1], ids=["rotating", "one file"])
def test_a_crash_of_all_writers_leaves_whole_lines(tmp_path, server, wait_until, max_bytes):
    script, folder = tmp_path / "victim.py", tmp_path / "logs"
    script.write_text(VICTIM, encoding="utf-8")
    folder.mkdir()
    log = folder / "log.jsonl"
    victims = [
        subprocess.Popen([sys.executable, script, server.url, log, str(max_bytes)])  # noqa: S603
        for _ in range(3)
    ]
    try:
        wait_until(lambda: server.ledger["requests"]["total"] > 500, 60.0)
    finally:
        for victim in victims:
            victim.kill()
            victim.wait(30)
    files = [path for path in folder.iterdir() if path.suffix != ".lock"]
    told = []
    for path in files:
        text = path.read_bytes()
        assert text.endswith(b"\n")
        # Who opens the file while another is writing ends a line that is about to end: an empty one is left.
        told += [json.loads(line) for line in text.splitlines() if line]
    attempts = sum(line["event"] == "attempt" for line in told)
    # At most those in flight were not told of.
    total = server.ledger["requests"]["total"]
    assert total - 3 * 8 <= attempts <= total
    assert (len(files) > 1) == (max_bytes == 20_000)


def rows(heading):
    section = re.split(r"(?m)^## ", REFERENCE.split(f"## {heading}", 1)[1])[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


def test_the_reference_lists_what_the_core_writes():
    source = (ROOT / "src" / "event.rs").read_text("utf-8")
    version = re.search(r"SCHEMA: u32 = (\d+)", source)[1]
    assert f"Schema version: **{version}**" in REFERENCE

    def fields(name):
        body = re.search(rf"pub struct {name} {{\n(.*?)\n}}", source, re.DOTALL)[1]
        return re.findall(r"(?m)^    pub (\w+):", body)

    written = [field for field in [*fields("Event"), *fields("Facts")] if field != "facts"]
    assert sorted(rows("Fields")) == sorted(written)
    kinds = re.search(r"pub enum Kind {\n(.*?)\n}", source, re.DOTALL)[1]
    assert sorted(rows("Events")) == sorted(kind.lower() for kind in re.findall(r"(?m)^    (\w+),", kinds))


NAMED_OTHERWISE = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-2026-01-01",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "A"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def test_real_lines_are_as_the_reference_says(tmp_path):
    types = {"integer": int, "number": (int, float), "string": str, "object": dict}
    reference = rows("Fields")
    gate = Gate(
        retry=RetryPolicy(base=0.001),
        retry_budget=None,
        limits=Limits(concurrency=1, learn=False),
        breaker=BreakerPolicy(window=1.0, minimum_calls=5, consecutive_hits=1, recency=0, open_for=60.0),
        log_file=tmp_path / "log.jsonl",
        prices={"m": {"input": 1, "output": 2}},
    )
    down, gone = ({"match": {"model": model}, "respond": {"status": 500}} for model in ("down", "gone"))
    hint = {"match": {"model": "hint"}, "respond": {"status": 429, "headers": {"retry-after": "100"}}}
    script = [{"status": 429, "headers": {"retry-after": "0.01"}}]
    with FaultServer(script, rules=[down, gone, hint], latency_ms=5) as server:
        client = AsyncClient(server.url, "key", gate=gate)

        async def crowd():
            with tags(route="r"):
                await asyncio.gather(*[client.post("/chat/completions", json=CHAT) for _ in range(4)])

        async def main():
            await crowd()
            await gate.call(crowd)
            await client.post("/chat/completions", json={**CHAT, "model": "hint"})

        with pytest.raises(CallError):
            asyncio.run(main())
        other = Client(server.url, "key", gate=gate, max_retries=0)

        def opened(model):
            told = lines(tmp_path / "log.jsonl")
            return any(line["event"] == "breaker" and line.get("model") == model for line in told)

        while not opened("down"):
            with pytest.raises(CallError), tags(route="r"):
                other.post("/chat/completions", json={**CHAT, "model": "down"})
        while not opened("gone"):
            with pytest.raises(CallError), tags(route="r"):
                gate.call(other.post, "/chat/completions", json={**CHAT, "model": "gone"})
        server.script([{"body_json": NAMED_OTHERWISE}])
        other.post("/chat/completions", json=CHAT, headers={"Idempotency-Key": "order-1"})
    seen = collections.defaultdict(set)
    for line in lines(tmp_path / "log.jsonl"):
        for field, value in line.items():
            kind, events, _ = reference[field]
            assert isinstance(value, types[kind]), field
            assert not isinstance(value, bool)
            seen[field].add(line["event"])
            assert events == "all" or line["event"] in events.split(", "), (field, line)
    # Each field was written by each event that the reference names; nothing runs tools or has substitutes.
    for field, (_, events, _) in reference.items():
        expected = set(rows("Events")) if events == "all" else set(events.split(", "))
        assert seen[field] == expected - {"tool", "degraded"}, field
