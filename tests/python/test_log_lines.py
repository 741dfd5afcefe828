"""The records of real calls: to `logging` in the caller's context, and to the file of JSON lines."""

import asyncio
import contextvars
import json
import logging
import subprocess
import sys

import pytest

from tidegate import AsyncClient, Client, Gate, RetryPolicy, TidegateError, tags
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "a prompt that nobody must log"}]}
FAST = RetryPolicy(base=0.01, cap=0.02)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def log_file(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.fixture
def gate(log_file):
    return Gate(
        retry=FAST,
        breaker=None,
        retry_budget=None,
        log_file=log_file,
        prices={"m": {"input": 1, "output": 2}},
    )


def test_each_call_is_told_of_whole(server, gate, log_file):
    server.script([{"status": 500}, {"status": 503}])
    client = Client(server.url, "key", gate=gate)
    with tags(route="r"):
        answer = client.post("/chat/completions", json=BODY)
    told = lines(log_file)
    assert [line["event"] for line in told] == ["attempt", "retry", "attempt", "retry", "attempt", "call"]
    assert {line["trace_id"] for line in told} == {answer.info.trace_id}
    assert {line["model"] for line in told} == {"m"}
    assert all(line["tags"] == {"route": "r"} for line in told)
    assert all(line["origin"] == server.url.removesuffix("/v1") for line in told)
    assert [line["ts"] for line in told] == sorted(line["ts"] for line in told)
    attempts = [line for line in told if line["event"] == "attempt"]
    assert [line["attempt"] for line in attempts] == [1, 2, 3]
    call = told[-1]
    assert (call["attempts"], call["outcome"]) == (3, "ok")
    assert (call["prompt_tokens"], call["completion_tokens"]) == (12, 5)
    assert call["cost_usd"] == str(answer.cost_usd)
    assert "prompt that nobody" not in log_file.read_text(encoding="utf-8")


def test_one_line_per_call_and_attempt(log_file, gate):
    rules = [
        {"match": {"every": 3}, "respond": {"status": 503}},
        {"match": {"every": 5}, "respond": {"status": 400}},
    ]
    with FaultServer(rules=rules) as server:
        client = AsyncClient(server.url, "key", gate=gate)

        async def main():
            calls = [client.post("/chat/completions", json=BODY) for _ in range(100)]
            return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(main())
        told = lines(log_file)
        of_calls = {line["trace_id"]: line for line in told if line["event"] == "call"}
        assert len(of_calls) == sum(line["event"] == "call" for line in told) == 100
        assert {result.info.trace_id for result in results} == of_calls.keys()
        for trace_id, call in of_calls.items():
            attempts = [
                line["attempt"] for line in told if (line["event"], line["trace_id"]) == ("attempt", trace_id)
            ]
            assert attempts == list(range(1, call["attempts"] + 1))
        assert server.ledger["requests"]["total"] == sum(line["event"] == "attempt" for line in told)
        failed = [result for result in results if isinstance(result, TidegateError)]
        assert failed
        assert sum(call["outcome"] != "ok" for call in of_calls.values()) == len(failed)


def test_equal_requests_are_known_by_their_fingerprint(server, gate, log_file):
    client = Client(server.url, "key", gate=gate)
    body = {**BODY, "input": "fit for every path"}
    key = {"Idempotency-Key": "order-7"}
    client.post("/chat/completions", json=body, headers=key)
    client.post("/chat/completions", json=body, headers=key)
    client.post("/chat/completions", json={**body, "n": 1})
    client.post("/embeddings", json=body, headers={"Idempotency-Key": "order-8"})
    other = Gate(log_file=log_file)
    Client(server.url, "key", gate=other).post("/chat/completions", json=body, headers=key)
    told = [line for line in lines(log_file) if line["event"] == "call"]
    assert [len(line["fingerprint"]) for line in told] == [16] * 5
    first, same, longer, path, apart = (line["fingerprint"] for line in told)
    assert first == same
    assert len({first, longer, path, apart}) == 4, "another body, another path, another gate"
    first, same, none, another, apart = (line.get("idempotency_key") for line in told)
    assert first == same
    assert none is None
    assert len({first, another, apart}) == 3
    assert len({line["gate"] for line in lines(log_file)}) == 2
    assert "order-7" not in log_file.read_text(encoding="utf-8")


WRITER = """
import sys
from tidegate import Client, Gate
client = Client(sys.argv[1], "key", gate=Gate(log_file=sys.argv[2], limits=None))
for _ in range(200):
    client.post("/chat/completions", json={"model": sys.argv[3], "messages": []})
"""


def test_two_processes_share_a_file(server, log_file):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, server.url, str(log_file), name])  # noqa: S603
        for name in ("one", "two" * 200)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    told = lines(log_file)
    kinds = [line["event"] for line in told]
    assert kinds.count("attempt") == kinds.count("call") == 400
    assert len({line["trace_id"] for line in told}) == 400


def test_a_full_disk_fails_no_call(server):
    gate = Gate(log_file="/dev/full")
    assert Client(server.url, "key", gate=gate).post("/chat/completions", json=BODY).status == 200
    assert gate.snapshot()["log_failed"] is True


@pytest.fixture
def heard():
    """The records of the logger, each with the value that `who` had where it was made."""
    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append((who.get(), record))

    handler, logger = Handler(), logging.getLogger("tidegate")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


who = contextvars.ContextVar("who", default="nobody")


def test_records_are_made_in_the_callers_context(heard, gate):
    with FaultServer(rules=[{"match": {"every": 2}, "respond": {"status": 500}}]) as server:
        client = AsyncClient(server.url, "key", gate=gate)
        traces = {}

        async def call(n):
            who.set(f"task {n}")
            answer = await client.post("/chat/completions", json=BODY, max_attempts=10)
            traces[answer.info.trace_id] = f"task {n}"

        async def main():
            await asyncio.gather(*[call(n) for n in range(20)])

        asyncio.run(main())
    assert len(traces) == 20
    assert sum(record.event == "retry" for _, record in heard) >= 10
    assert {record.trace_id for _, record in heard} == traces.keys()
    assert all(name == traces[record.trace_id] for name, record in heard)


def test_records_of_a_sync_call_come_on_its_thread(heard, server, gate):
    server.script([{"status": 500}])
    who.set("this thread")
    Client(server.url, "key", gate=gate).post("/chat/completions", json=BODY)
    who.set("nobody")
    assert [record.event for _, record in heard] == ["attempt", "retry", "attempt", "call"]
    assert {name for name, _ in heard} == {"this thread"}
    assert [record.levelno for _, record in heard] == [10, 30, 10, 20]


def test_the_level_of_the_logger_is_obeyed(heard, server, gate):
    logging.getLogger("tidegate").setLevel(logging.WARNING)
    server.script([{"status": 500}])
    asyncio.run(AsyncClient(server.url, "key", gate=gate).post("/chat/completions", json=BODY))
    assert [record.event for _, record in heard] == ["retry"]


def test_the_log_and_the_file_tell_the_same(heard, server, gate, log_file):
    server.script([{"status": 500}])
    Client(server.url, "key", gate=gate).post("/chat/completions", json=BODY)
    for (_, record), line in zip(heard, lines(log_file), strict=True):
        assert {name: getattr(record, name) for name in line} == line
