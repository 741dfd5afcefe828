"""A call whose lease was lost, where the store cannot be asked what became of it: it has run, and says so."""

import time

import pytest

from tidegate import Done, Gate, OutcomeUnknownError, StoreUnavailableError, ToolPolicy
from tidegate._callee import callee_of
from tidegate._once import Ask, Body, LeaseLostError

AWAY = StoreUnavailableError("it is away", store="redis")


def charge():
    """Is never called: the test tells what came of it."""


def running(policy):
    """Return a life whose body is to be run."""
    tools = Gate()._tools
    once = tools.once(
        "charge", "order-7", policy, callee_of(charge).fingerprint("charge", policy, {}), charge
    )
    life = once.life()
    assert isinstance(next(life), Ask)
    assert isinstance(life.send(("acquired", 1, 1)), Body)
    return life


@pytest.mark.parametrize("effect", ["at_most_once", "idempotent"])
def test_one_that_was_cut_off_is_not_told_as_not_run(effect):
    life = running(ToolPolicy(effect=effect))
    assert isinstance(life.throw(LeaseLostError()), Ask)
    with pytest.raises(OutcomeUnknownError, match="lost its lease before it ended") as raised:
        life.throw(AWAY)
    error = raised.value
    assert (error.tool, error.key, error.reason, error.attempts) == ("charge", "order-7", "lease_lost", 1)
    assert ("call it again" in str(error)) == (effect == "idempotent")
    assert ("idem resolve" in str(error)) == (effect == "at_most_once")


def test_one_that_may_run_unguarded_does():
    life = running(ToolPolicy(effect="read"))
    assert isinstance(life.throw(LeaseLostError()), Ask)
    unguarded = life.throw(AWAY)
    assert isinstance(unguarded, Body)
    assert not unguarded.execution.is_guarded


def test_one_that_has_ended_gives_its_result_with_the_error():
    life = running(ToolPolicy())
    assert isinstance(life.send("receipt"), Ask)
    assert isinstance(life.send(("stale",)), Ask)
    with pytest.raises(OutcomeUnknownError, match="what it returned is in the error's result") as raised:
        life.throw(AWAY)
    assert raised.value.result == "receipt"


def test_one_whose_record_is_gone_gives_its_result():
    life = running(ToolPolicy())
    assert isinstance(life.send("receipt"), Ask)
    assert isinstance(life.send(("stale",)), Ask)
    assert isinstance(life.send(("acquired", 2, 1)), Ask)
    with pytest.raises(StopIteration) as ended:
        life.throw(AWAY)
    assert ended.value.value == "receipt"


def test_a_decision_that_cannot_be_written_leaves_the_doubt():
    tools = Gate()._tools
    policy = ToolPolicy(reconcile=lambda _: None)
    once = tools.once(
        "charge", "order-7", policy, callee_of(charge).fingerprint("charge", policy, {}), charge
    )
    life = once.life()
    next(life)
    life.send(("in_doubt", 1, time.time()))
    assert isinstance(life.send(Done("receipt")), Ask)
    with pytest.raises(OutcomeUnknownError, match="nobody knows whether it took effect"):
        life.throw(AWAY)
