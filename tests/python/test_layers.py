"""Retries around retries: found out, counted, and paid for out of the same budget."""

import asyncio
import logging

import httpx2
import openai
import pytest

import tidegate.httpx
from tidegate import AsyncClient, Client, Gate, InternalServerError, OpenAI, RetryBudget, RetryPolicy
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


def loop_around(call, attempts, error_class=InternalServerError):
    for left in reversed(range(attempts)):
        try:
            return call()
        except error_class as error:
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


def by_raw_response(url, gate):
    client = OpenAI(base_url=url, api_key="k", gate=gate, max_retries=1)
    return client, lambda: client.chat.completions.with_raw_response.create(**BODY)


def by_http_client(url, gate):
    client = OpenAI(base_url=url, api_key="k", gate=gate, max_retries=1, http_client=httpx2.Client())
    return client, lambda: client.chat.completions.create(**BODY)


def by_fast_path(url, gate):
    client = OpenAI(base_url=url, api_key="k", gate=gate, max_retries=1)
    return client, lambda: client.chat.completions.create(**BODY)


def by_transport(url, gate):
    client = httpx2.Client(transport=tidegate.httpx.Transport(gate))

    def call():
        answer = client.post(f"{url}/chat/completions", json=BODY)
        if answer.status_code == 500:
            raise openai.InternalServerError("500", response=answer, body=None)
        return answer

    return client, call


@pytest.mark.parametrize("way", [by_raw_response, by_http_client, by_fast_path, by_transport])
async def test_a_loop_around_any_client_is_found_out(down, way):
    gate = Gate(retry=QUICK, retry_budget=RetryBudget(capacity=3, trickle=0))
    client, call = way(down.url, gate)
    with client:
        await asyncio.to_thread(loop_around, call, 20, openai.InternalServerError)
    assert stacked(gate) == 19
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
