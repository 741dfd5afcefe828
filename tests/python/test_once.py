import asyncio
import datetime as dt
import decimal
import threading
import time
import uuid

import pytest

from tidegate import (
    ConfigError,
    Done,
    EncodeError,
    Gate,
    IdempotencyConflictError,
    IdempotencyMismatchError,
    NoEffectError,
    NotDone,
    OutcomeUnknownError,
    ResultNotStoredError,
    StoreUnavailableError,
    ToolFailedError,
    ToolPolicy,
    Unknown,
    current_execution,
)

IDEMPOTENT = ToolPolicy(effect="idempotent")
UNREACHABLE = "redis://user:hush@127.0.0.1:1/0"


class Ledger:
    """An effect that can be counted."""

    def __init__(self):
        self.effects = []

    def pay(self, amount, currency="EUR"):
        self.effects.append(amount)
        return {"receipt": len(self.effects), "amount": amount, "currency": currency}

    async def pay_async(self, amount, currency="EUR"):
        await asyncio.sleep(0)
        return self.pay(amount, currency)


@pytest.fixture
def ledger():
    return Ledger()


def counted(gate, name):
    lines = [line for line in gate.metrics_text().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_repetition_gets_the_first_result(store_url, ledger):
    gate = Gate(store=store_url)
    first = gate.once("k", ledger.pay, 10)
    assert gate.once("k", ledger.pay, 10) == first == {"receipt": 1, "amount": 10, "currency": "EUR"}
    assert ledger.effects == [10]
    assert counted(gate, "idempotency_suppressed_total") == 1
    assert counted(gate, 'tool_call_total{tool="Ledger.pay",status="ok"}') == 1
    assert counted(gate, 'tool_call_total{tool="Ledger.pay",status="replay"}') == 1


async def test_a_repetition_gets_the_first_result_async(store_url, ledger):
    gate = Gate(store=store_url)
    first = await gate.once("k", ledger.pay_async, 10)
    assert await gate.once("k", ledger.pay_async, amount=10, currency="EUR") == first
    assert ledger.effects == [10]


def test_another_key_is_another_act(store_url, ledger):
    gate = Gate(store=store_url)
    gate.once("a", ledger.pay, 10)
    gate.once("b", ledger.pay, 10)
    assert ledger.effects == [10, 10]


def test_the_same_key_with_other_arguments_is_refused(store_url, ledger):
    gate = Gate(store=store_url)
    gate.once("k", ledger.pay, 10)
    for other in (lambda: gate.once("k", ledger.pay, 11), lambda: gate.once("k", ledger.pay, 10, "USD")):
        with pytest.raises(IdempotencyMismatchError) as raised:
            other()
        assert raised.value.key == "k"
    assert ledger.effects == [10]
    assert gate.once("k", ledger.pay, 10)["receipt"] == 1


def test_a_new_argument_with_a_default_changes_nothing(ledger):
    gate = Gate()

    def pay(amount):
        return ledger.pay(amount)

    def later_pay(amount, urgent=False):  # noqa: FBT002 as users write them
        return ledger.pay(amount) | {"urgent": urgent}

    later_pay.__qualname__ = pay.__qualname__
    first = gate.once("k", pay, 1)
    assert gate.once("k", later_pay, 1) == first


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 10**30, 1.5, float("inf"), "", "Zoë 🌍 \ud800", [1, [2]], {"a": {"b": [None]}},
        (1, (2,)),
        b"\x00\xff", {1, 2}, frozenset("ab"), dt.date(2026, 3, 1), decimal.Decimal("1.10"),
        uuid.UUID(int=1),
        dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC), {1: "a", (2, 3): "b"}, {"$tidegate": "x"},
    ],
)  # fmt: skip
def test_a_result_comes_back_as_it_was(value):
    gate = Gate()
    runs = []

    def tool():
        runs.append(1)
        return value

    assert gate.once("k", tool) == value
    again = gate.once("k", tool)
    assert (again, type(again)) == (value, type(value))
    assert len(runs) == 1


@pytest.mark.parametrize("value", [object(), (i for i in [1]), "x" * (2 << 20), [lambda: 1]])
def test_a_result_that_cannot_be_kept_is_given_once(value):
    gate = Gate()
    runs = []

    def tool():
        runs.append(1)
        return value

    assert gate.once("k", tool) is value
    with pytest.raises(ResultNotStoredError, match="cannot be given again"):
        gate.once("k", tool)
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "arguments.amount"),
        ({"a": [1, {2}]}, "arguments.amount.a[1]"),
        (float("nan"), "arguments.amount"),
    ],
)
def test_arguments_that_are_no_json_are_refused_with_their_path(ledger, value, path):
    gate = Gate()
    with pytest.raises(EncodeError) as raised:
        gate.once("k", ledger.pay, value)
    assert raised.value.path == path
    assert "name the argument in ignore=" in str(raised.value)
    assert ledger.effects == []
    gate.once("k", ledger.pay, 1)


def test_an_unknown_failure_of_what_may_happen_once_is_in_doubt(store_url, ledger):
    gate = Gate(store=store_url)

    def tool():
        ledger.pay(1)
        raise ConnectionError("the answer was lost")

    with pytest.raises(ConnectionError, match="the answer was lost"):
        gate.once("k", tool)
    with pytest.raises(OutcomeUnknownError) as raised:
        gate.once("k", tool)
    assert raised.value.reason == "in_doubt"
    assert abs(raised.value.started_at - time.time()) < 60
    assert ledger.effects == [1]
    assert counted(gate, "idempotency_suppressed_total") == 1


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_an_unknown_failure_of_what_may_repeat_frees_the_key(store_url, effect):
    gate = Gate(store=store_url)
    keys = []

    def tool():
        execution = current_execution()
        keys.append(execution.downstream_key)
        if execution.attempt < 3:
            raise ConnectionError
        return "done"

    policy = ToolPolicy(effect=effect)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            gate.once("k", tool, policy=policy)
    assert gate.once("k", tool, policy=policy) == "done"
    assert len(keys) == 3
    assert len(set(keys)) == 1


class DeclinedError(Exception):
    """A permanent error of a user's own."""


def test_a_permanent_error_is_given_again_as_itself(store_url, ledger):
    gate = Gate(store=store_url)
    policy = ToolPolicy(permanent=(DeclinedError,))

    def tool():
        ledger.pay(1)
        raise DeclinedError("no cover", 402)

    for _ in range(2):
        with pytest.raises(DeclinedError) as raised:
            gate.once("k", tool, policy=policy)
        assert raised.value.args == ("no cover", 402)
    with pytest.raises(ToolFailedError, match="no cover") as raised:
        gate.once("k", tool)
    assert raised.value.error_type.endswith(":DeclinedError")
    assert ledger.effects == [1]


def test_a_tool_can_say_that_it_failed_for_good_or_did_nothing(store_url):
    gate = Gate(store=store_url)
    raised = [NoEffectError("busy"), ValueError("busy"), ToolFailedError("closed")]

    def tool():
        raise raised.pop(0)

    with pytest.raises(NoEffectError):
        gate.once("k", tool)
    with pytest.raises(ValueError, match="busy"):
        gate.once("k", tool, policy=ToolPolicy(no_effect=ValueError))
    for _ in range(2):
        with pytest.raises(ToolFailedError, match="closed"):
            gate.once("k", tool)
    assert raised == []


def test_a_reconciler_decides_what_is_in_doubt(store_url):
    gate = Gate(store=store_url)
    runs, verdicts = [], [Unknown(), NotDone(), Done("found")]

    def tool():
        runs.append(1)
        raise ConnectionError

    policy = ToolPolicy(reconcile=lambda key: (key == "k") and verdicts.pop(0))
    with pytest.raises(ConnectionError):
        gate.once("k", tool, policy=policy)
    with pytest.raises(OutcomeUnknownError):
        gate.once("k", tool, policy=policy)
    with pytest.raises(ConnectionError):
        gate.once("k", tool, policy=policy)
    assert gate.once("k", tool, policy=policy) == "found"
    assert gate.once("k", tool) == "found"
    assert len(runs) == 2


def doubtful():
    raise ConnectionError


@pytest.mark.parametrize("verdict", [None, True, Done, "done"])
def test_a_reconciler_that_decides_nothing_clear_is_told_of(verdict):
    gate = Gate()
    with pytest.raises(ConnectionError):
        gate.once("k", doubtful)
    with pytest.raises(ConfigError, match=r"tool\.reconcile = .*: must return Done\(result\)"):
        gate.once("k", doubtful, policy=ToolPolicy(reconcile=lambda _: verdict))


def test_a_reconciler_is_of_the_kind_of_its_tool():
    async def reconcile(key):
        return Done(key)

    with pytest.raises(ConfigError, match=r"tool\.reconcile = .*: must be a plain function"):
        Gate().once("k", doubtful, policy=ToolPolicy(reconcile=reconcile))


async def test_an_async_reconciler_is_awaited(store_url):
    gate = Gate(store=store_url)

    async def tool():
        raise ConnectionError

    async def reconcile(key):
        await asyncio.sleep(0)
        return Done(key)

    with pytest.raises(ConnectionError):
        await gate.once("k", tool)
    assert await gate.once("k", tool, policy=ToolPolicy(reconcile=reconcile)) == "k"


async def test_a_duplicate_joins_the_call_in_progress(store_url, ledger):
    gate = Gate(store=store_url)
    started, go = asyncio.Event(), asyncio.Event()

    async def tool(amount):
        started.set()
        await go.wait()
        return ledger.pay(amount)

    first = asyncio.ensure_future(gate.once("k", tool, 1))
    await started.wait()
    duplicates = [asyncio.ensure_future(gate.once("k", tool, 1)) for _ in range(5)]
    with pytest.raises(IdempotencyConflictError) as raised:
        await gate.once("k", tool, 1, policy=ToolPolicy(on_conflict="error"))
    assert 0 < raised.value.retry_after <= 30
    with pytest.raises(IdempotencyMismatchError):
        await gate.once("k", tool, 2)
    go.set()
    results = await asyncio.gather(first, *duplicates)
    assert results == [results[0]] * 6
    assert ledger.effects == [1]
    assert counted(gate, 'tidegate_idempotency_total{outcome="joined"}') == 5
    assert counted(gate, "idempotency_suppressed_total") == 6


def test_threads_join_the_call_in_progress(store_url, ledger):
    gate = Gate(store=store_url)
    results, ready = [], threading.Barrier(64)

    def work():
        ready.wait()
        results.append(gate.once("k", ledger.pay, 1))

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [results[0]] * 64
    assert ledger.effects == [1]


def test_a_wait_has_an_end(store_url):
    gate = Gate(store=store_url)
    started, go = threading.Event(), threading.Event()

    def tool():
        started.set()
        go.wait()

    thread = threading.Thread(target=gate.once, args=("k", tool))
    thread.start()
    started.wait()
    with pytest.raises(IdempotencyConflictError):
        gate.once("k", tool, policy=ToolPolicy(wait=0.2))
    go.set()
    thread.join()


def test_a_tool_that_calls_itself_under_its_own_key_does_not_wait_for_itself(store_url):
    gate = Gate(store=store_url)

    def tool():
        return gate.once("k", tool)

    with pytest.raises(IdempotencyConflictError):
        gate.once("k", tool)


def test_a_lease_shorter_than_the_work_is_renewed(store_url, ledger):
    gate, other = Gate(store=store_url), Gate(store=store_url)
    if store_url == "memory:":
        other = gate
    policy = ToolPolicy(lease=0.3)
    started = threading.Event()

    def tool():
        started.set()
        time.sleep(1.5)  # the work
        assert not current_execution().lease_lost
        return ledger.pay(1)

    thread = threading.Thread(target=gate.once, args=("k", tool), kwargs={"policy": policy})
    thread.start()
    started.wait()
    assert other.once("k", tool, policy=policy)["receipt"] == 1
    thread.join()
    assert ledger.effects == [1]


async def test_a_timeout_of_what_may_happen_once_is_in_doubt(store_url, ledger):
    gate = Gate(store=store_url)

    async def tool():
        ledger.pay(1)
        await asyncio.sleep(60)

    policy = ToolPolicy(timeout=0.1)
    with pytest.raises(OutcomeUnknownError) as raised:
        await gate.once("k", tool, policy=policy)
    assert raised.value.reason == "timeout"
    with pytest.raises(OutcomeUnknownError) as raised:
        await gate.once("k", tool, policy=policy)
    assert raised.value.reason == "in_doubt"
    with pytest.raises(TimeoutError):
        await gate.once("other", tool, policy=ToolPolicy(timeout=0.1, effect="idempotent"))
    assert ledger.effects == [1, 1]


def test_a_timeout_leaves_a_plain_function_behind(store_url, ledger):
    gate = Gate(store=store_url)
    go, late = threading.Event(), threading.Event()

    def tool():
        ledger.pay(1)
        go.wait()
        late.set()

    policy = ToolPolicy(timeout=0.1)
    with pytest.raises(OutcomeUnknownError):
        gate.once("k", tool, policy=policy)
    go.set()
    assert late.wait(10)
    with pytest.raises(OutcomeUnknownError):
        gate.once("k", tool, policy=policy)
    assert ledger.effects == [1]


async def test_a_cancelled_call_is_in_doubt_and_others_need_not_wait(store_url):
    gate = Gate(store=store_url)
    started = asyncio.Event()

    async def tool():
        started.set()
        await asyncio.sleep(60)

    task = asyncio.ensure_future(gate.once("k", tool))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OutcomeUnknownError):
        await gate.once("k", tool, policy=ToolPolicy(wait=10))


@pytest.fixture
def file_url(tmp_path):
    return f"sqlite:///{tmp_path / 'store.db'}"


def take_over(gate, key):
    """Give the record to somebody else, as happens to an owner that was away for longer than its lease."""
    transaction = gate._tools.store.transaction()
    transaction.execute("UPDATE tidegate_idempotency SET owner = ? WHERE key = ?", ("0" * 32, key))
    transaction.execute("COMMIT")
    transaction._close()


async def test_a_lost_lease_cancels_the_tool(file_url):
    gate = Gate(store=file_url)
    started, cancelled = asyncio.Event(), []

    async def tool():
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(current_execution().lease_lost)
            raise

    task = asyncio.ensure_future(gate.once("k", tool, policy=ToolPolicy(lease=0.6)))
    await started.wait()
    take_over(gate, "k")
    with pytest.raises(OutcomeUnknownError) as raised:
        await asyncio.wait_for(task, 20)
    assert raised.value.reason == "lease_lost"
    assert cancelled == [True]
    assert counted(gate, 'tidegate_idempotency_total{outcome="lease_lost"}') == 1


def test_a_lost_lease_is_told_to_a_plain_function(file_url, wait_until):
    gate = Gate(store=file_url)

    def tool():
        take_over(gate, "k")
        wait_until(lambda: current_execution().lease_lost)
        return "late"

    with pytest.raises(OutcomeUnknownError) as raised:
        gate.once("k", tool, policy=ToolPolicy(lease=0.6))
    assert (raised.value.reason, raised.value.result) == ("lease_lost", "late")


def test_a_store_that_is_away_refuses_side_effects_and_lets_reads_through(ledger):
    gate = Gate(store=UNREACHABLE)
    with pytest.raises(StoreUnavailableError) as raised:
        gate.once("k", ledger.pay, 1)
    assert (raised.value.store, raised.value.reason) == ("redis", "store_unavailable")
    assert "hush" not in str(raised.value) + repr(gate)
    assert ledger.effects == []
    assert gate.once("k", ledger.pay, 2, policy=ToolPolicy(effect="read"))["amount"] == 2
    assert gate.once("k", ledger.pay, 3, policy=ToolPolicy(on_store_error="run"))["amount"] == 3
    assert counted(gate, 'tidegate_idempotency_total{outcome="store_unavailable"}') == 3
    assert counted(gate, 'tidegate_idempotency_total{outcome="bypassed"}') == 2


async def test_a_store_that_is_away_refuses_async_side_effects(ledger):
    gate = Gate(store=UNREACHABLE)
    with pytest.raises(StoreUnavailableError):
        await gate.once("k", ledger.pay_async, 1)
    assert ledger.effects == []


async def test_a_function_that_returns_a_coroutine_is_refused_before_it_runs(store_url, ledger):
    gate = Gate(store=store_url)
    with pytest.raises(NoEffectError, match="async def"):
        gate.once("k", lambda: ledger.pay_async(1))
    assert ledger.effects == []


def test_the_log_holds_decisions_without_keys_or_arguments(tmp_path, ledger):
    import json

    log = tmp_path / "log.jsonl"
    gate = Gate(log_file=log)
    for _ in range(2):
        gate.once("order-of-zoe@example.test", ledger.pay, 123456)
    text = log.read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    assert "zoe" not in text
    assert "123456" not in text
    assert (first["event"], first["tool"], first["outcome"]) == ("tool", "Ledger.pay", "ok")
    assert second["outcome"] == "replay"
    assert first["idempotency_key"] == second["idempotency_key"]
    assert first["effect"] == "at_most_once"


def test_what_begins_when_its_record_ends_is_refused():
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in (numbers, later):
        with pytest.raises(ConfigError, match="cannot be a generator"):
            Gate().once("k", function)


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_that_says_nothing_is_kept_all_the_same():
    gate, runs = Gate(), []

    def tool():
        runs.append(1)
        raise SpeechlessError

    for _ in range(2):
        with pytest.raises(SpeechlessError):
            gate.once("k", tool, policy=ToolPolicy(permanent=SpeechlessError))
    assert len(runs) == 1
