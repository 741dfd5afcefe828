"""What may be declared of a tool, and what is refused before anything runs."""

import functools
import math
import time
import uuid

import pytest

import tidegate
from tidegate import ConfigError, Gate, ToolPolicy, idem_key


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 600, 7, None])
def test_a_key_that_cannot_be_is_refused(key):
    paid = []
    with pytest.raises(ConfigError):
        Gate().once(key, paid.append, 1)
    assert paid == []


def test_keys_are_built_of_business_fields():
    assert idem_key(tenant="acme", workflow="refund", biz_id=7, step="pay") == "idem:acme:refund:7:pay"
    assert idem_key(tenant="a:b", workflow="c", biz_id="d", step="e") != idem_key(
        tenant="a", workflow="b:c", biz_id="d", step="e"
    )
    with pytest.raises(ConfigError, match=r"idem_key\.step"):
        idem_key(tenant="a", workflow="b", biz_id="c", step="")
    with pytest.raises(ConfigError, match=r"idem_key\.biz_id"):
        idem_key(tenant="a", workflow="b", biz_id=None, step="d")
    for random in (str(uuid.uuid4()), time.time_ns()):
        with pytest.warns(tidegate.IdempotencyKeyWarning, match="biz_id"):
            idem_key(tenant="a", workflow="b", biz_id=random, step="d")


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "once"}, {"lease": 0}, {"lease": 1e9}, {"retention": -1}, {"retention": 1e14},
        {"timeout": 0}, {"wait": True},
        {"on_conflict": "x"},
        {"permanent": (1,)}, {"fields": "amount"}, {"reconcile": 1}, {"version": 1}, {"leese": 3},
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"^tool\."):
        ToolPolicy(**wrong)


def test_one_policy_serves_tools_of_other_arguments():
    policy = ToolPolicy(ignore=("session",))
    gate = Gate()
    assert gate.once("a", lambda order: order, "7", policy=policy) == "7"
    assert gate.once("b", lambda order, session: (order, session is None), "7", object(), policy=policy) == (
        "7",
        False,
    )


def test_fields_that_are_no_arguments_are_refused():
    """Without the amount that was misspelt, every payment of the order would be the same."""
    gate, paid = Gate(), []

    def pay(order, amount):
        paid.append((order, amount))

    policy = ToolPolicy(fields=("order", "amuont"))
    with pytest.raises(ConfigError, match=r"tool\.fields.*'amuont'.*order, amount"):
        gate.once("k", pay, "o", 1, policy=policy)
    with pytest.raises(ConfigError, match=r"tool\.fields"):
        gate.tool(key="pay:{order}", fields=("order", "amuont"))(pay)
    assert paid == []

    def open_to_all(order, **more):
        paid.append((order, more["amount"]))

    policy = ToolPolicy(fields=("order", "amount"))
    gate.once("open", open_to_all, "o", amount=1, policy=policy)
    assert paid == [("o", 1)]


@pytest.mark.parametrize(
    "wrong", [{"critical": "no"}, {"critical": 0}, {"name": ""}, {"name": 7}, {"key": ""}, {"key": 7}]
)
def test_a_tool_that_cannot_be_is_refused(wrong):
    ((field, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"^tool\.{field} = {value!r}"):
        Gate().tool(**wrong)(len)


def test_a_function_without_a_name_needs_one_to_be_a_tool():
    double = functools.partial(pow, 2)
    with pytest.raises(ConfigError, match=r"^tool\.name = None"):
        Gate().tool(key="double")(double)
    assert Gate().tool(key="double", name="double")(double)(3) == 8


@pytest.mark.parametrize(
    ("wrong", "problem"), [(7, "must be a function$"), (max, "must be a function whose arguments are known")]
)
def test_what_takes_nobody_knows_what_is_no_tool(wrong, problem):
    """A call of it that is wrong would be found out only when it has begun."""
    with pytest.raises(ConfigError, match=rf"^tool = .*: {problem}"):
        Gate().tool(key="k", name="wrong")(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_id": ""},
        {"run_id": None},
        {"tenant": ""},
        {"workflow": None},
        {"deadline": "1"},
        {"deadline": math.nan},
    ],
)
def test_a_journal_that_cannot_be_is_refused(wrong):
    (field,) = wrong
    with pytest.raises(ConfigError, match=rf"^journal\.{field}"):
        Gate().journal(**{"run_id": "run-7", **wrong})


@pytest.mark.parametrize("deadline", [-1, 0, math.inf])
def test_a_run_may_be_named_by_a_number_and_be_late(deadline):
    with Gate().journal(7, deadline=deadline) as journal:
        assert journal.run_id == "7"


@pytest.mark.parametrize("url", ["", "memory", "mysql://h/d", "sqlite:x", 7, None])
def test_a_store_that_cannot_be_is_refused(url):
    if url == "memory":
        assert Gate(store=url)
        return
    with pytest.raises(ConfigError, match="store"):
        Gate(store=url)
