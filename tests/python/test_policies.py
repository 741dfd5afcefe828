import copy
import dataclasses
import pickle
import re
from pathlib import Path

import pytest

from tidegate import BreakerPolicy, ConfigError, Gate, Limits, RetryBudget, RetryPolicy, Timeouts

CONFIG_RS = Path(__file__).parents[2] / "src" / "config.rs"
POLICIES = {
    "RetryPolicy": RetryPolicy,
    "Timeouts": Timeouts,
    "Limits": Limits,
    "BreakerPolicy": BreakerPolicy,
    "RetryBudgetPolicy": RetryBudget,
}


def value_of(rust):
    """Read a default as Rust writes it."""
    rust = re.sub(r"^Some\((.*)\)$", r"\1", rust.strip())
    if rust == "Duration::ZERO":
        return 0.0
    if found := re.fullmatch(r"Duration::from_(secs|millis)\((\d+)\)", rust):
        return int(found[2]) / {"secs": 1, "millis": 1000}[found[1]]
    words = {"None": None, "true": True, "false": False, "OnOpen::Fail": "fail"}
    words |= {"Oversize::Debt": "debt", "Start::Full": "full"}
    if rust in words:
        return words[rust]
    numerator, _, denominator = rust.replace("_", "").partition("/")
    return float(numerator) / float(denominator or 1)


@pytest.mark.parametrize("rust_name", POLICIES)
def test_fields_and_defaults_are_those_of_the_core(rust_name):
    source = CONFIG_RS.read_text()
    body = re.search(rf"impl Default for {rust_name} {{.*?Self {{(.*?)}}\n    }}", source, re.DOTALL)[1]
    core = {name: value_of(rust) for name, rust in re.findall(r"(\w+): ([^,\n]+?)\s*(?:,|$)", body)}
    ours = {
        field.name: field.default
        for field in dataclasses.fields(POLICIES[rust_name])
        if field.name != "preset"
    }
    assert ours == core


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (lambda: RetryPolicy(max_attempts=0), "retry.max_attempts", "0"),
        (lambda: RetryPolicy(base=6.0), "retry.base", "6"),
        (lambda: RetryPolicy(base=float("nan")), "retry.base", "nan"),
        (lambda: Timeouts(connect=0), "timeouts.connect", "0"),
        (lambda: Timeouts(attempt=-1.0), "timeouts.attempt", "-1"),
        (lambda: Limits(concurrency=0), "limits.concurrency", "0"),
        (lambda: Limits(headroom=1.0), "limits.headroom", "1"),
        (lambda: BreakerPolicy(window=0.0), "breaker.window", "0"),
        (lambda: Limits(oversize="drop"), "limits.oversize", "'drop'"),
        (lambda: BreakerPolicy(on_open="close"), "breaker.on_open", "'close'"),
        (lambda: RetryBudget(capacity=0), "retry_budget.capacity", "0"),
    ],
)
def test_a_wrong_value_is_named(make, field, value):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field
    assert str(caught.value.value).lower().startswith(value)
    assert str(caught.value).lower().startswith(f"{field} = {value}")


@pytest.mark.parametrize(
    ("cls", "keywords", "field", "guess"),
    [
        (RetryPolicy, {"max_attemps": 3}, "retry.max_attemps", "max_attempts"),
        (Timeouts, {"totl": 3}, "timeouts.totl", "total"),
        (Limits, {"rpn": 3}, "limits.rpn", "rpm"),
        (BreakerPolicy, {"windows": 3}, "breaker.windows", "window"),
        (RetryBudget, {"capacty": 3}, "retry_budget.capacty", "capacity"),
        (Gate, {"retries": 3}, "retries", "retry"),
    ],
)
def test_a_misspelt_field_is_named_with_the_right_one(cls, keywords, field, guess):
    with pytest.raises(ConfigError, match=f"did you mean {guess}\\?") as caught:
        cls(**keywords)
    assert caught.value.field == field


def test_a_field_like_no_other_lists_what_there_is():
    with pytest.raises(ConfigError, match="is not a setting here; The settings are attempt, connect"):
        Timeouts(xyz=1)


def test_auto_is_the_defaults():
    assert Limits("auto") == Limits()
    with pytest.raises(ConfigError, match='must be "auto"'):
        Limits("automatic")


@pytest.mark.parametrize(
    "policy", [cls() for cls in POLICIES.values()], ids=lambda policy: type(policy).__name__
)
def test_policies_are_frozen_values(policy):
    name = dataclasses.fields(policy)[-1].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, name, 1)
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert hash(dataclasses.replace(policy)) == hash(policy)
    assert eval(repr(policy)) == policy  # noqa: S307 our own repr
