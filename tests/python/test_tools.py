import asyncio
import gc
import inspect
import json
import types
import weakref

import pytest

from tidegate import (
    ConfigError,
    Done,
    Gate,
    IdempotencyMismatchError,
    OutcomeUnknownError,
    Skipped,
    StoreUnavailableError,
    ToolPolicy,
    _drive_once,
    current_execution,
)

UNREACHABLE = "redis://127.0.0.1:1/0"


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def effects():
    return []


def counted(gate, name):
    lines = [line for line in gate.metrics_text().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_tool_runs_once_per_key_however_it_is_called(gate, effects):
    @gate.tool(key="refund:{order}", name="refund")
    def refund(order, amount, *, currency="EUR"):
        """Give money back."""
        effects.append((order, amount, currency))
        return len(effects)

    assert refund("7", 10) == refund(order="7", amount=10) == refund("7", 10, currency="EUR") == 1
    assert refund("8", 10) == 2
    with pytest.raises(IdempotencyMismatchError):
        refund("7", 11)
    assert effects == [("7", 10, "EUR"), ("8", 10, "EUR")]
    assert refund.__doc__ == "Give money back."
    assert list(inspect.signature(refund).parameters) == ["order", "amount", "currency"]
    assert counted(gate, 'tool_call_total{tool="refund",status="replay"}') == 2
    assert counted(gate, 'tool_call_total{tool="refund",status="mismatch"}') == 1


async def test_an_async_tool_stays_async(gate, effects):
    @gate.tool(key=lambda order: f"ship:{order}", effect="idempotent")
    async def ship(order):
        await asyncio.sleep(0)
        effects.append(current_execution().downstream_key)
        return order

    assert inspect.iscoroutinefunction(ship)
    assert await asyncio.gather(ship("7"), ship("7")) == ["7", "7"]
    assert len(effects) == 1


def test_methods_are_tools_and_the_object_is_no_argument(gate, effects):
    class Shop:
        def __init__(self, name):
            self.name = name

        @gate.tool(key="{self.name}:{order}")
        def sell(self, order):
            effects.append((self.name, order))
            return len(effects)

    assert Shop("a").sell("1") == Shop("a").sell("1") == 1
    assert Shop("b").sell("1") == 2


def test_what_fills_a_template_cannot_pass_for_its_borders(gate, effects):
    @gate.tool(key="{tenant}:{order}")
    def pay(tenant, order):
        effects.append((tenant, order))

    pay("a:b", "c")
    pay("a", "b:c")
    assert len(effects) == 2


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (
            "{nobody}",
            r"cannot be filled from the arguments of pay \(order, amount\): 'nobody' is no argument",
        ),
        ("{nobody.id}:{order}", "'nobody' is no argument"),
        ("{nobody[0]}", "'nobody' is no argument"),
        ("{tool.name}", "'tool' is no argument"),
        ("{}", "'' is no argument"),
        ("{0}", "'0' is no argument"),
        ("{order.}", "'order.' is no field"),
        ("{order[]}", r"'order\[\]' is no field"),
        ("{order[0]x}", r"'order\[0\]x' is no field"),
        ("{", "Single '{' encountered in format string"),
        ("{order!x}", "!x is no conversion"),
        ("{order:>9}", "its fields must be plain, without a format"),
    ],
)
def test_a_template_that_no_call_can_fill_says_what_can(gate, key, problem):
    def pay(order, amount=1):
        return order, amount

    with pytest.raises(ConfigError, match=rf"^tool\.key = .*{problem}$"):
        gate.tool(key=key)(pay)


def test_a_template_that_this_call_cannot_fill_says_what_can(gate, effects):
    @gate.tool(key="{order.nothing}:{tool}")
    def pay(order):
        effects.append(order)

    @gate.tool(key="{more}")
    def open_to_all(**arguments):
        effects.append(arguments)

    for call in (lambda: pay("7"), lambda: pay(None), lambda: open_to_all(less=1)):
        with pytest.raises(ConfigError, match=r"^tool\.key = {.*cannot be filled from"):
            call()
    assert effects == []
    open_to_all(more="a")
    assert effects == [{"more": "a"}]


def test_defaults_fill_a_template_too(gate, effects):
    @gate.tool(key="{order}:{currency}:{lines[0]}")
    def pay(order, lines, currency="usd"):
        effects.append((order, lines, currency))

    pay("7", [1])
    pay("7", [1], "usd")
    pay("7", [1], currency="eur")
    assert effects == [("7", [1], "usd"), ("7", [1], "eur")]
    assert gate._tools.store.get("7:usd:1") is not None


def kept_for(gate, key):
    record = gate._tools.store.get(key)
    return record["expires"] - record["updated"]


def test_in_a_journal_results_are_kept_as_long_as_answers(gate, effects):
    """A run that is started again after an hour must not charge again."""

    @gate.tool
    def charge(order):
        effects.append(order)

    @gate.tool(key="ship:{order}", retention=100_000)
    def ship(order):
        effects.append(order)

    with gate.journal("run-7", retention=3600) as journal:
        charge("7")
        ship("7")
        gate.once("note", effects.append, "7")
        key = journal._key("0.0.charge")
    assert [round(kept_for(gate, one)) for one in (key, "ship:7", "note")] == [3600, 100_000, 3600]
    gate.once("outside", effects.append, "7")
    assert round(kept_for(gate, "outside")) == 900


def test_wrong_arguments_are_refused_before_anything_is_written(gate):
    @gate.tool(key="k")
    def pay(order):
        return order

    for wrong in ((), ("7", "8")):
        with pytest.raises(TypeError, match=r"pay\(\): .*argument"):
            pay(*wrong)
    assert gate._tools.store.get("k") is None


def test_chosen_arguments_tell_calls_apart(gate, effects):
    @gate.tool(key="a:{order}", fields=["order", "amount"])
    def pay(order, amount, comment):  # noqa: ARG001 what the model asks for
        effects.append(comment)

    @gate.tool(key="b:{order}", ignore=["session"])
    def book(order, session):  # noqa: ARG001 what the model asks for
        effects.append(order)

    pay("7", 1, "thanks")
    pay("7", 1, "many thanks")
    book("7", object())
    book("7", object())
    assert effects == ["thanks", "7"]


def test_a_new_version_is_another_call(gate):
    for version in ("1", "2"):

        @gate.tool(key="k", version=version)
        def pay():
            return 1

        if version == "1":
            pay()
        else:
            with pytest.raises(IdempotencyMismatchError):
                pay()


@pytest.mark.parametrize(
    "wrong", [{"kee": "k"}, {"key": 7}, {"name": 7}, {"effect": "x"}, {"effect": "transactional"}]
)
def test_a_tool_that_cannot_be_is_refused_where_it_is_declared(gate, wrong):
    with pytest.raises(ConfigError, match="tool"):
        gate.tool(**wrong)(lambda: None)


def test_a_generator_is_no_tool(gate):
    with pytest.raises(ConfigError, match="generator"):

        @gate.tool(key="k")
        def tool():
            yield 1


def test_a_tool_without_a_key_needs_a_journal(gate):
    @gate.tool
    def pay():
        return 1

    with pytest.raises(ConfigError, match=r"gate\.journal"):
        pay()
    with gate.journal("run-7"):
        assert pay() == 1


class Model:
    """Answers an agent's questions; words its arguments differently each time it is asked."""

    def __init__(self):
        self.asked = 0

    def ask(self, messages):
        self.asked += 1
        if messages[-1]["role"] == "tool":
            return {"text": f"Charged: {messages[-1]['content']}"}
        memo = ["for the blue chair", "blue chair, thank you", "chair (blue)"][self.asked % 3]
        arguments = {"customer": "zoe", "amount": 20, "memo": memo}
        return {"tool": "charge", "id": f"call_{self.asked}", "arguments": arguments}


def agent(journal, model, charge, *, fail_after_tool=False):
    messages = [{"role": "user", "content": "Sell me the blue chair."}]
    while True:
        answer = journal.ask(model.ask, messages)
        if "text" in answer:
            return answer["text"]
        messages.append({"role": "tool", "content": charge(**answer["arguments"])})
        if fail_after_tool:
            raise ConnectionError("the last question failed")


def test_a_run_that_is_repeated_charges_once(store_url, effects):
    gate, model = Gate(store=store_url), Model()

    @gate.tool(effect="at_most_once")
    def charge(customer, amount, memo):  # noqa: ARG001 what the model asks for
        effects.append(memo)
        return f"receipt {len(effects)}"

    with pytest.raises(ConnectionError), gate.journal("order-7") as journal:
        agent(journal, model, charge, fail_after_tool=True)
    for _ in range(2):
        with gate.journal("order-7") as journal:
            assert agent(journal, model, charge) == "Charged: receipt 1"
    assert len(effects) == 1
    assert model.asked == 2, "each turn was asked once"


def test_the_control_with_a_key_of_arguments_charges_twice(effects):
    gate, model = Gate(), Model()

    def digest(**arguments):
        return "charge:" + json.dumps(arguments, sort_keys=True)

    @gate.tool(key=digest)
    def charge(customer, amount, memo):  # noqa: ARG001 what the model asks for
        effects.append(memo)
        return f"receipt {len(effects)}"

    class NoJournal:
        def ask(self, function, messages):
            return function(messages)

    with pytest.raises(ConnectionError):
        agent(NoJournal(), model, charge, fail_after_tool=True)
    agent(NoJournal(), model, charge)
    assert len(effects) == 2


def test_two_equal_calls_in_one_turn_are_two(gate, effects):
    @gate.tool
    def charge(amount):
        effects.append(amount)
        return len(effects)

    for _ in range(2):
        with gate.journal("order-7") as journal:
            journal.ask(lambda: "charge twice")
            assert [charge(1), charge(1)] == [1, 2]
    with gate.journal("order-8") as journal:
        journal.ask(lambda: "charge twice")
        charge(1)
    assert effects == [1, 1, 1]


def test_another_run_tenant_or_workflow_is_another_act(gate, effects):
    @gate.tool
    def charge():
        effects.append(1)

    for names in ({}, {"tenant": "b"}, {"workflow": "b"}, {}):
        with gate.journal("order-7", **names):
            charge()
    assert len(effects) == 3


async def test_async_questions_and_tools_are_journaled(store_url, effects):
    gate, asked = Gate(store=store_url), []

    @gate.tool
    async def charge(amount):
        effects.append(amount)
        return len(effects)

    async def ask(amounts):
        asked.append(amounts)
        return amounts

    for wording in ([5, 6], [5, 6, 7]):
        async with gate.journal("order-7") as journal:
            amounts = await journal.ask(ask, wording)
            assert await asyncio.gather(*map(charge, amounts)) == [1, 2]
    assert effects == [5, 6]
    assert asked == [[5, 6]]


async def test_a_question_that_failed_is_asked_again(gate):
    asked = []

    async def ask():
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError
        return "yes"

    with pytest.raises(ConnectionError):
        async with gate.journal("run-7") as journal:
            await journal.ask(ask)
    async with gate.journal("run-7") as journal:
        assert await journal.ask(ask) == "yes"


def test_a_stream_cannot_be_kept(gate):
    with gate.journal("run-7") as journal, pytest.raises(ConfigError, match="stream"):
        journal.ask(print, stream=True)


def test_a_tool_that_may_be_left_out_is_when_time_is_short(gate, effects):
    @gate.tool(key="k", critical=False, timeout=5)
    def look_up():
        effects.append(1)
        return "found"

    with gate.journal("run-7", deadline=2):
        skipped = look_up()
    assert isinstance(skipped, Skipped)
    assert not skipped
    assert (skipped.tool, skipped.reason) == ("look_up", "deadline")
    assert "may be incomplete" in str(skipped)
    assert effects == []
    with gate.journal("run-7", deadline=60):
        assert look_up() == "found"
    assert counted(gate, 'tool_call_total{tool="look_up",status="skipped"}') == 1


async def test_without_its_store_a_tool_is_left_out_or_replaced(effects):
    gate = Gate(store=UNREACHABLE)

    @gate.tool(key="a", critical=False)
    def notify():
        effects.append("notify")

    @gate.tool(key="b", fallback=lambda city: f"no weather for {city}")
    async def weather(city):
        effects.append(city)

    @gate.tool(key="c", fallback=0.0)
    def score():
        effects.append("score")

    @gate.tool(key="d")
    def pay():
        effects.append("pay")

    assert notify() == Skipped("notify", "store_unavailable")
    assert await weather("Oslo") == "no weather for Oslo"
    assert score() == 0.0
    with pytest.raises(StoreUnavailableError):
        pay()
    assert effects == []
    assert counted(gate, "tool_call_total") == 7


def test_a_tool_in_doubt_is_never_left_out_silently(gate):
    @gate.tool(key="k", critical=False, fallback="nothing")
    def pay():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        pay()
    with pytest.raises(OutcomeUnknownError):
        pay()


def test_a_tool_can_be_reconciled(gate):
    @gate.tool(key="k", reconcile=lambda key: Done(f"found {key}"))
    def pay():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        pay()
    assert pay() == "found k"


async def test_a_call_leaves_nothing_behind(gate):
    @gate.tool(key="k:{n}", effect="read")
    async def look(n):
        return n

    for n in range(50):
        await look(n)
    gc.collect()
    assert gate._tools.flights._by_key == {}
    assert ToolPolicy() == ToolPolicy()


def test_a_key_function_sees_arguments_in_the_functions_order(gate, effects):
    @gate.tool(key=lambda **arguments: "refund:" + json.dumps(arguments))
    def refund(order, line, *, amount=1):  # noqa: ARG001 part of the key
        effects.append((order, line))
        return len(effects)

    assert {refund(order=1, line=2), refund(line=2, order=1), refund(1, line=2), refund(1, 2)} == {1}
    assert refund(1, amount=3, line=2) == 2


async def test_a_loss_told_as_the_body_ends_cancels_nobody(gate, monkeypatch):
    loss = asyncio.get_running_loop().create_future()

    class Hold:
        lost = False
        ticket = types.SimpleNamespace(future=loss)

        def stop(self):
            pass

    monkeypatch.setattr(_drive_once, "_hold", lambda *_, **__: Hold())

    async def body():
        loss.set_result(None)
        return "done"

    assert await gate.once("key", body) == "done"
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def test_a_tool_whose_loop_was_closed_is_let_go(gate):
    began = asyncio.Event()

    async def body():
        began.set()
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(gate.once("key", body))
    loop.run_until_complete(began.wait())
    loop.close()
    left = weakref.ref(task)
    del task, loop
    gc.collect()
    assert left() is None
