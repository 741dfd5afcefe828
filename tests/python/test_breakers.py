"""Breakers in an operator's hands."""

import logging

import pytest

from tidegate import (
    AsyncClient,
    BreakerPolicy,
    CallPolicy,
    CircuitOpenError,
    ConfigError,
    Fallback,
    Gate,
    InternalServerError,
    RetryPolicy,
)
from tidegate.testing import FaultServer

ONCE = RetryPolicy(max_attempts=1)
TOUCHY = BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0, open_for=60)


def body(model="m"):
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}


async def post(server, gate, model="m"):
    async with AsyncClient(server.url, "k", gate=gate) as client:
        return await client.post("/chat/completions", json=body(model))


async def opened(server, gate):
    while True:
        try:
            await post(server, gate)
        except CircuitOpenError:
            return
        except InternalServerError:
            pass


async def test_breakers_tell_their_state_why_and_when_a_call_may_try_again():
    gate = Gate(breaker=TOUCHY, retry=ONCE)
    assert gate.breakers() == []
    with FaultServer([{}, {"status": 500}], repeat_last=True) as server:
        await post(server, gate)
        (closed,) = gate.breakers()
        assert (closed.state, closed.reason, closed.next_probe_s, closed.opened) == ("closed", None, None, 0)
        assert (closed.origin, closed.model) == (server.url.removesuffix("/v1"), "m")
        await opened(server, gate)
    (after,) = gate.breakers()
    assert (after.state, after.reason, after.opened) == ("open", "failure_rate", 1)
    assert 0 < after.next_probe_s <= 60


async def test_a_breaker_that_is_forced_open_sends_nothing_and_says_who_did_it_and_how_to_undo_it(server):
    gate = Gate()
    await post(server, gate)
    gate.force_breaker("m")
    with pytest.raises(CircuitOpenError, match="operator has forced") as raised:
        await post(server, gate)
    assert 'gate.reset_breaker(model="m")' in str(raised.value)
    assert (raised.value.retry_after, raised.value.attempts) == (None, 0)
    assert server.ledger["requests"]["total"] == 1
    assert [(b.state, b.reason) for b in gate.breakers()] == [("forced_open", "operator")]
    await post(server, gate, "another")
    gate.reset_breaker("m")
    await post(server, gate)
    assert {b.state for b in gate.breakers()} == {"closed"}


async def test_a_decision_holds_for_models_that_nobody_has_called_yet(server):
    gate = Gate()
    gate.force_breaker("gpt-5*")
    gate.reset_breaker("gpt-5-mini")
    await post(server, gate, "gpt-5-mini")
    with pytest.raises(CircuitOpenError):
        await post(server, gate, "gpt-5-pro")
    gate.force_breaker(origin="https://elsewhere.test")
    await post(server, gate, "gpt-5-mini")


async def test_not_even_first_attempts_pass_an_operator(server):
    gate = Gate(breaker=BreakerPolicy(on_open="no_retries"))
    gate.force_breaker()
    with pytest.raises(CircuitOpenError, match="operator"):
        await post(server, gate)
    assert server.ledger["requests"]["total"] == 0


async def test_a_disabled_breaker_never_opens():
    gate = Gate(breaker=TOUCHY, retry=ONCE, retry_budget=None)
    gate.force_breaker(state="disabled")
    with FaultServer([{"status": 500}], repeat_last=True) as server:
        for _ in range(20):
            with pytest.raises(InternalServerError):
                await post(server, gate)
        assert gate.breakers()[0].state == "disabled"
        gate.reset_breaker()
        await opened(server, gate)


async def test_a_forced_breaker_has_its_fallback(server):
    gate = Gate(fallbacks=[Fallback("backup")])
    gate.force_breaker("m")
    answer = await post(server, gate)
    assert "breaker_open" in answer.info.notice
    assert [entry["model"] for entry in server.ledger["entries"]] == ["backup"]


async def test_what_operators_do_is_logged(server, caplog):
    gate = Gate()
    await post(server, gate)
    with caplog.at_level(logging.INFO, "tidegate"):
        gate.force_breaker()
        gate.reset_breaker()
    told = [(r.levelname, r.outcome, r.reason, r.model) for r in caplog.records if r.event == "breaker"]
    assert told == [("WARNING", "forced_open", "operator", "m"), ("INFO", "closed", "operator", "m")]


def test_a_function_has_a_breaker_too():
    gate = Gate()
    gate.force_breaker("work", origin="function")
    with pytest.raises(CircuitOpenError, match="function work"):
        gate.call(print, policy=CallPolicy(name="work"))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"model": 5}, "model"),
        ({"origin": None}, "origin"),
        ({"state": "shut"}, "state"),
        ({"model": "["}, "model"),
    ],
)
def test_a_wrong_decision_is_refused(arguments, field):
    with pytest.raises(ConfigError) as raised:
        Gate().force_breaker(**arguments)
    assert raised.value.field == field


def test_without_breakers_there_is_nothing_to_force():
    gate = Gate(breaker=None)
    assert gate.breakers() == []
    with pytest.raises(ConfigError, match="no breakers"):
        gate.force_breaker()
