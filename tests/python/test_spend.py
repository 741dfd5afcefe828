"""Spend caps against a server that keeps its own bill."""

import asyncio
import itertools
import threading
from decimal import Decimal

import pytest

import tidegate
from tidegate import AsyncClient, Client, ConfigError, Gate, SpendCap, SpendCapExceededError
from tidegate.testing import FaultServer

# 12 tokens of prompt and 5 of completion, the server's default answer, cost $0.0032.
PRICES = {"m": {"input": "100", "output": "400"}}
PRICE = Decimal("0.0032")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


@pytest.fixture
def server():
    with FaultServer(prices=PRICES, latency_ms=5) as server:
        yield server


def spent(gate):
    return Decimal(gate.snapshot()["spend"][0]["spent_usd"])


async def test_threads_and_tasks_never_go_over_the_cap_together(server):
    gate = Gate(spend=SpendCap("1.00"), prices=PRICES)
    refused = itertools.count()
    sync, asynchronous = Client(server.url, "k", gate=gate), AsyncClient(server.url, "k", gate=gate)

    def thread():
        for _ in range(4):
            try:
                sync.post("/chat/completions", json=BODY)
            except SpendCapExceededError:
                next(refused)

    async def task():
        for _ in range(4):
            try:
                await asynchronous.post("/chat/completions", json=BODY)
            except SpendCapExceededError:
                next(refused)

    threads = [threading.Thread(target=thread) for _ in range(64)]
    for each in threads:
        each.start()
    await asyncio.gather(*(task() for _ in range(200)))
    for each in threads:
        await asyncio.to_thread(each.join)
    billed = Decimal(server.ledger["bill"]["usd"])
    assert billed == spent(gate) <= 1
    # What could still be had was had: one more call at its highest price would not fit.
    most = sum(Decimal(tokens) * Decimal(price) / 10**6 for tokens, price in ((8, 400), (32, 100)))
    assert billed > 1 - most
    assert next(refused) == 64 * 4 + 200 * 4 - server.ledger["requests"]["total"]


async def test_the_error_says_by_figure_and_what_to_do(server):
    gate = Gate(spend=SpendCap("0.005", window="day"), prices=PRICES)
    client = AsyncClient(server.url, "k", gate=gate)
    await client.post("/chat/completions", json=BODY)
    with pytest.raises(SpendCapExceededError) as caught:
        await client.post("/chat/completions", json=BODY)
    text = str(caught.value)
    assert "the spend cap of $0.005 a day has no room: $0.0032 is spent" in text
    assert "raise the cap" in text
    assert caught.value.reason == "spend_cap"
    assert caught.value.attempts == 0
    assert 0 < caught.value.retry_after <= 86_400
    assert server.ledger["requests"]["total"] == 1


async def test_a_tag_has_a_cap_of_its_own(server):
    gate = Gate(spend=[SpendCap("0.004", tag="route=chat"), SpendCap("1")], prices=PRICES)
    client = AsyncClient(server.url, "k", gate=gate)
    with tidegate.tags(route="chat"):
        await client.post("/chat/completions", json=BODY)
        with pytest.raises(SpendCapExceededError, match="route=chat"):
            await client.post("/chat/completions", json=BODY)
    await client.post("/chat/completions", json=BODY, tags={"route": "other"})
    assert [standing["spent_usd"] for standing in gate.snapshot()["spend"]] == ["0.0032", "0.0064"]


@pytest.mark.parametrize("policy", ["refuse", "allow"])
async def test_a_model_without_a_price(server, policy):
    gate = Gate(spend=SpendCap("1", on_unpriced=policy), prices={"other": PRICES["m"]})
    client = AsyncClient(server.url, "k", gate=gate)
    if policy == "refuse":
        with pytest.raises(SpendCapExceededError, match="needs prices, and the model has none"):
            await client.post("/chat/completions", json=BODY)
        assert server.ledger["requests"]["total"] == 0
    else:
        await client.post("/chat/completions", json=BODY)
        assert gate.snapshot()["spend"][0]["unpriced_calls"] == 1


async def test_attempts_that_failed_cost_what_the_provider_bills(server):
    """An error is not billed; an answer that nobody waited for is counted at its highest price."""
    gate = Gate(spend=SpendCap("1"), prices=PRICES)
    client = AsyncClient(server.url, "k", gate=gate)
    server.script([{"status": 500}, {"status": 503}])
    await client.post("/chat/completions", json=BODY)
    assert spent(gate) == PRICE
    server.script([{"fault": "hang"}])
    with pytest.raises(tidegate.DeadlineExceededError):
        await client.post("/chat/completions", json=BODY, total_timeout=0.1)
    assert spent(gate) >= PRICE + Decimal("0.0032")
    assert Decimal(gate.snapshot()["spend"][0]["reserved_usd"]) == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"limit": "-1"}, "spend.limit"),
        ({"limit": "0"}, "spend.limit"),
        ({"limit": "ten"}, "spend.limit"),
        ({"limit": float("nan")}, "spend.limit"),
        ({"limit": True}, "spend.limit"),
        ({"limit": "1", "window": "week"}, "spend.window"),
        ({"limit": "1", "window": 0.5}, "spend.window"),
        ({"limit": "1", "tag": "route"}, "spend.tag"),
        ({"limit": "1", "tag": 5}, "spend.tag"),
        ({"limit": "1", "on_unpriced": "maybe"}, "spend.on_unpriced"),
    ],
)
def test_a_wrong_cap_is_refused_where_it_is_made(given, field):
    with pytest.raises(ConfigError) as caught:
        SpendCap(**given)
    assert caught.value.field == field


def test_a_gate_takes_caps_alone():
    with pytest.raises(ConfigError, match="SpendCap"):
        Gate(spend="1.00")
