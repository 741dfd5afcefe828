"""Tools with gates around them: a breaker, a queue and retries of their own."""

import asyncio
import inspect
import itertools

import pytest

from tidegate import (
    BreakerPolicy,
    CallPolicy,
    CircuitOpenError,
    ConfigError,
    DeadlineExceededError,
    Gate,
    Limits,
    NoEffectError,
    OutcomeUnknownError,
    RetryBudget,
    RetryPolicy,
    Skipped,
    ToolPolicy,
    current_execution,
)

QUICK = RetryPolicy(max_attempts=3, base=0.001, cap=0.002)
PATIENT = RetryBudget(capacity=100)


def made(**settings):
    return Gate(**{"retry": QUICK, "retry_budget": PATIENT, "breaker": None, **settings})


def counted(gate, tool, status):
    line = f'tool_call_total{{tool="{tool}",status="{status}"}} '
    return sum(int(text.removeprefix(line)) for text in gate.metrics_text().splitlines() if line in text)


@pytest.fixture(params=["sync", "async"])
def as_tool(request):
    """Make a tool of a plain function, or of an async one that does the same, and a way to call it."""

    def make(gate, function, **settings):
        if request.param == "sync":
            return gate.tool(function, **settings)

        async def body(*args, **keywords):
            return function(*args, **keywords)

        body.__name__, body.__signature__ = function.__name__, inspect.signature(function)
        tool = gate.tool(body, **settings)
        return lambda *args, **keywords: asyncio.run(tool(*args, **keywords))

    return make


def test_an_idempotent_tool_is_repeated_under_one_downstream_key(as_tool):
    gate, keys = made(), []

    def pay(order):
        keys.append(current_execution().downstream_key)
        if len(keys) < 3:
            raise ConnectionError("no")
        return f"receipt {order}"

    pay = as_tool(gate, pay, key="pay:{order}", effect="idempotent", guard=CallPolicy())
    assert pay("7") == pay("7") == "receipt 7"
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert (counted(gate, "pay", "ok"), counted(gate, "pay", "replay")) == (1, 1)
    assert 'retry_total{reason="connection"} 2' in gate.metrics_text()


def test_a_tool_that_may_have_acted_is_not_repeated(as_tool):
    gate, calls = made(), []

    def pay(order):
        calls.append(order)
        raise ConnectionError("no")

    pay = as_tool(gate, pay, key="pay:{order}", guard=CallPolicy())
    with pytest.raises(ConnectionError):
        pay("7")
    with pytest.raises(OutcomeUnknownError):
        pay("7")
    assert calls == ["7"]


def test_a_tool_that_surely_did_nothing_is_repeated(as_tool):
    gate, calls = made(), []

    def pay(order):
        calls.append(order)
        if len(calls) < 3:
            raise ConnectionRefusedError("no")
        return "paid"

    pay = as_tool(gate, pay, key="pay:{order}", no_effect=(ConnectionRefusedError,), guard=CallPolicy())
    assert pay("7") == "paid"
    assert calls == ["7", "7", "7"]


def test_what_surely_did_nothing_leaves_the_key_free(as_tool):
    gate, calls = made(), []

    def pay(order):
        calls.append(order)
        raise NoEffectError("closed on Sundays")

    pay = as_tool(gate, pay, key="pay:{order}", guard=CallPolicy())
    for expected in (1, 2):
        with pytest.raises(NoEffectError):
            pay("7")
        assert len(calls) == expected


def test_a_tool_whose_breaker_is_open_does_nothing_and_its_key_stays_free(as_tool):
    gate, calls = made(breaker=BreakerPolicy()), []

    def pay(order):
        calls.append(order)
        return "paid"

    pay = as_tool(gate, pay, key="pay:{order}", guard=CallPolicy())
    gate.force_breaker("pay")
    with pytest.raises(CircuitOpenError):
        pay("7")
    assert calls == []
    assert counted(gate, "pay", "refused") == 1
    gate.reset_breaker("pay")
    assert pay("7") == "paid"


@pytest.mark.parametrize("effect", ["read", "idempotent", "at_most_once"])
async def test_the_failures_of_a_tool_open_its_breaker(effect):
    touchy = BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0, open_for=60)
    gate = made(breaker=touchy)

    @gate.tool(key="pay:{order}", effect=effect, guard=CallPolicy())
    def pay(order):
        raise ConnectionError(order)

    async with asyncio.timeout(10):
        for order in itertools.count():
            with pytest.raises((ConnectionError, CircuitOpenError)) as raised:
                pay(order)
            if isinstance(raised.value, CircuitOpenError):
                break
            await asyncio.sleep(0.01)
    assert gate.breakers()[0].state == "open"


@pytest.mark.parametrize(
    ("settings", "given"),
    [({"critical": False}, Skipped("look_up", "breaker_open")), ({"fallback": "?"}, "?")],
)
def test_a_tool_that_may_be_left_out_is_while_its_breaker_is_open(as_tool, settings, given):
    gate = made(breaker=BreakerPolicy())
    look_up = as_tool(gate, lambda city: city, name="look_up", key="{city}", guard=CallPolicy(), **settings)
    assert look_up("Oslo") == "Oslo"
    gate.force_breaker("look_up")
    assert look_up("Bergen") == given


def test_a_tool_that_may_be_left_out_is_when_its_repetitions_are_used_up(as_tool):
    gate = made(retry_budget=RetryBudget(capacity=1))

    def look_up(city):
        raise ConnectionError(city)

    settings = {"key": "{city}", "critical": False, "guard": CallPolicy()}
    reading = as_tool(gate, look_up, effect="read", **settings)
    assert reading("Oslo") == Skipped("look_up", "retry_budget")
    acting = as_tool(gate, look_up, effect="at_most_once", name="act", **{**settings, "key": "act:{city}"})
    with pytest.raises(ConnectionError):
        acting("Oslo")


async def test_calls_of_a_tool_queue_for_its_limits():
    gate, running, most = made(limits={"charge": Limits(concurrency=2)}), [0], [0]

    @gate.tool(key="{order}", guard=CallPolicy())
    async def charge(order):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001)
        running[0] -= 1
        return order

    orders = list(range(20))
    assert await asyncio.gather(*(charge(order) for order in orders)) == orders
    assert most[0] == 2


async def test_a_call_that_leaves_the_queue_of_its_tool_has_done_nothing():
    gate, calls, go = made(limits={"charge": Limits(concurrency=1)}), [], asyncio.Event()

    @gate.tool(key="{order}", guard=CallPolicy())
    async def charge(order):
        calls.append(order)
        await go.wait()
        return order

    first = asyncio.create_task(charge("1"))
    second = asyncio.create_task(charge("2"))
    async with asyncio.timeout(10):
        while not any(scope["queued"] for scope in gate.snapshot()["scopes"]):  # noqa: ASYNC110 another thread's
            await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    assert await first == "1"
    assert await charge("2") == "2"
    assert calls == ["1", "2"]


async def test_a_duplicate_joins_a_tool_that_is_being_repeated():
    gate, calls = made(), []

    @gate.tool(key="{order}", effect="idempotent", guard=CallPolicy())
    async def charge(order):
        calls.append(order)
        await asyncio.sleep(0.01)
        if len(calls) < 3:
            raise ConnectionError("no")
        return "paid"

    assert await asyncio.gather(*(charge("7") for _ in range(8))) == ["paid"] * 8
    assert len(calls) == 3


async def test_a_tool_is_bounded_by_its_gates():
    gate = made()

    @gate.tool(key="{order}", effect="read", guard=CallPolicy(total_timeout=0.05))
    async def look_up(order):
        await asyncio.Event().wait()
        return order

    with pytest.raises(DeadlineExceededError):
        await look_up("7")


def test_once_takes_gates_too():
    gate, calls = made(), []

    def fetch():
        calls.append(1)
        if len(calls) < 2:
            raise ConnectionError("no")
        return "rates"

    policy = ToolPolicy(effect="read", guard=CallPolicy(name="rates"))
    assert gate.once("rates:today", fetch, policy=policy) == "rates"
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"guard": "yes"}, r"tool\.guard.*must be a CallPolicy"),
        ({"guard": CallPolicy(), "timeout": 1}, r"tool\.timeout.*CallPolicy\(timeout="),
        ({"guard": CallPolicy(), "effect": "transactional"}, r"tool\.guard.*Gate\.call"),
    ],
)
def test_what_cannot_be_guarded_is_said(tmp_path, settings, match):
    gate = Gate(store=f"sqlite:///{tmp_path}/idem.db")
    with pytest.raises(ConfigError, match=match):
        gate.tool(lambda: None, key="k", **settings)
