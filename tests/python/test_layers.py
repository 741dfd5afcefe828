"""Retries around retries: found out, counted, and paid for out of the same budget."""

import asyncio
import logging

import pytest

from tidegate import AsyncClient, Client, Gate, InternalServerError, RetryBudget, RetryPolicy
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUICK = RetryPolicy(max_attempts=2, base=0.001, cap=0.002)
DOWN = {"responses": [{"status": 500}], "repeat_last": True}


@pytest.fixture
def down():
    with FaultServer([{"status": 500}], repeat_last=True) as server:
        yield server


def stacked(gate):
    name = "tidegate_stacked_retries_total "
    line = next(line for line in gate.metrics_text().splitlines() if line.startswith(name))
    return int(line.removeprefix(name))


def loop_around(call, attempts):
    for left in reversed(range(attempts)):
        try:
            return call()
        except InternalServerError as error:
            if not left:
                return error
    raise AssertionError


async def test_a_loop_around_the_client_is_warned_about_once_with_what_it_costs(down, caplog):
    gate = Gate(retry=QUICK, retry_budget=RetryBudget(capacity=1000))
    client = Client(down.url, "k", gate=gate)
    with caplog.at_level(logging.WARNING, "tidegate"):
        await asyncio.to_thread(loop_around, lambda: client.post("/chat/completions", json=BODY), 3)
    warnings = [record for record in caplog.records if record.event == "stacked"]
    assert [record.attempts for record in warnings] == [2]
    assert "set that layer's retries to 0" in warnings[0].getMessage()
    assert stacked(gate) == 2


async def test_the_budget_pays_for_the_loop_and_the_gate_adds_nothing_when_it_is_empty(down):
    gate = Gate(retry=QUICK, retry_budget=RetryBudget(capacity=3, trickle=0))
    client = Client(down.url, "k", gate=gate)
    error = await asyncio.to_thread(loop_around, lambda: client.post("/chat/completions", json=BODY), 20)
    assert error.attempts == 1
    assert gate.snapshot()["scopes"][0]["retry_budget"]["balance"] < 1
    assert down.ledger["requests"]["total"] <= 20 + 3, "the loop's own, and what the budget had"


async def test_tasks_that_ask_the_same_at_once_are_no_loop(down):
    gate = Gate(retry=QUICK, retry_budget=RetryBudget(capacity=1000))
    client = AsyncClient(down.url, "k", gate=gate)

    async def task():
        with pytest.raises(InternalServerError):
            await client.post("/chat/completions", json=BODY)

    for _ in range(3):
        await asyncio.gather(*(asyncio.create_task(task()) for _ in range(10)))
    assert stacked(gate) == 0


async def test_another_request_or_one_after_a_success_is_no_retry(down):
    gate = Gate(retry=QUICK)
    client = AsyncClient(down.url, "k", gate=gate)
    with pytest.raises(InternalServerError):
        await client.post("/chat/completions", json=BODY)
    down.script()
    await client.post("/chat/completions", json=BODY | {"n": 1})
    await client.post("/chat/completions", json=BODY)
    await client.post("/chat/completions", json=BODY)
    assert stacked(gate) == 0
