"""Each state that a person can meet says by figures what it is, and what to do about it."""

import asyncio
import re

import pytest

from tidegate import (
    AdmissionError,
    AsyncClient,
    BreakerPolicy,
    CircuitOpenError,
    Gate,
    InternalServerError,
    Limits,
    RequestTooLargeError,
    RetryBudget,
    RetryPolicy,
    SpendCap,
    SpendCapExceededError,
)
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}


async def ask(server, gate, body=BODY, **options):
    async with AsyncClient(server.url, "k", gate=gate) as client:
        return await client.post("/chat/completions", json=body, **options)


async def refused(error, *call, **options):
    with pytest.raises(error) as raised:
        await ask(*call, **options)
    return str(raised.value)


async def test_an_open_breaker():
    policy = BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0, open_for=60)
    gate = Gate(breaker=policy, retry=RetryPolicy(max_attempts=1))
    with FaultServer([{"status": 500}], repeat_last=True) as server:
        while True:
            try:
                await ask(server, gate)
            except InternalServerError:
                continue
            except CircuitOpenError as error:
                told = str(error)
                break
    figures = r"open \(failure_rate: (\d+) of the last (\d+) calls failed\), next try in (?:60|59)\."
    found = re.search(figures, told)
    assert found is not None, told
    assert found[1] == found[2]
    assert re.search(r"wait (60|59\.\d|5\d) s before trying again", told), told


async def test_an_exhausted_budget():
    gate = Gate(retry_budget=RetryBudget(capacity=1, trickle=0.5), retry=RetryPolicy(base=0.001))
    with FaultServer([{"status": 500}], repeat_last=True) as server:
        told = await refused(InternalServerError, server, gate)
    assert "gave up after 2 attempts" in told
    assert "the retry budget is empty" in told
    assert re.search(r"wait (?:2|1\.\d+|0\.\d+) s before trying again", told), told


async def test_a_spent_cap(server):
    gate = Gate(spend=SpendCap("0.02", window="day"), prices={"m": {"input": "100", "output": "400"}})
    with pytest.raises(SpendCapExceededError) as raised:
        await ask(server, gate, BODY | {"max_tokens": 500})
    told = str(raised.value)
    assert "the spend cap of $0.02 a day has no room: $0 is spent, $0 is reserved" in told
    assert "this call may cost $0.2" in told
    assert "raise the cap" in told


async def test_a_queue_that_is_too_long(server):
    gate = Gate(limits=Limits(rpm=60, concurrency=1))
    await ask(server, gate)
    told = await refused(AdmissionError, server, gate, total_timeout=0.2)
    assert "needs another" in told
    assert "(0 in flight, 0 waiting, 60 requests a minute)" in told
    assert "raise the limits or its timeout, or send less" in told


async def test_a_pause_that_the_server_asked_for():
    gate = Gate(retry=RetryPolicy(max_attempts=1))
    with FaultServer([{"status": 429, "headers": {"retry-after": "30"}}]) as server:
        with pytest.raises(Exception, match="429"):
            await ask(server, gate)
        told = await refused(AdmissionError, server, gate, total_timeout=0.2)
    assert re.search(r"none sent for (?:30|2\d)\.", told), told
    assert "because the server asked for that" in told


async def test_a_learned_limit():
    gate = Gate()
    with FaultServer(quota={"rpm": 60, "tpm": 600}) as server:
        await ask(server, gate, BODY | {"max_tokens": 5})
        told = await refused(RequestTooLargeError, server, gate, BODY | {"max_tokens": 5_000})
        assert "the limit is 600 tokens per minute" in told
        assert "shorten it or lower its output limit" in told
        results = await asyncio.gather(
            *(ask(server, gate, BODY | {"max_tokens": 100}, total_timeout=0.3) for _ in range(5)),
            return_exceptions=True,
        )
    told = " ".join(map(str, results))
    assert "60 requests a minute, 600 tokens a minute" in told
