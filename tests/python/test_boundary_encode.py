"""Python's values reach the server as `json.dumps` would write them, or are refused where they stand."""

import enum
import json
from collections import OrderedDict, defaultdict, namedtuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate import AsyncClient, Client, EncodeError, Gate
from tidegate.testing import FaultServer

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


@pytest.fixture(scope="module")
def recorder():
    with FaultServer(ledger={"record_bodies": True}, workers=1) as server:
        yield server


@pytest.fixture(scope="module")
def client(recorder):
    return Client(recorder.url, "key", gate=Gate(limits=None, breaker=None))


def sent(client, recorder, value):
    recorder.reset_ledger()
    client.post("/chat/completions", json={"model": "m", "messages": [], "metadata": value})
    (entry,) = recorder.ledger["entries"]
    return json.loads(entry["body"])["metadata"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_json_as_the_standard_library_writes_it(client, recorder, value):
    expected = json.loads(json.dumps(value))
    got = sent(client, recorder, value)
    assert got == expected
    assert types(got) == types(expected)


def types(value):
    """Tell 1 from 1.0 and True, which compare equal."""
    if isinstance(value, dict):
        return {name: types(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [types(inner) for inner in value]
    return type(value), str(value)


class Level(enum.IntEnum):
    HIGH = 3
    HUGE = 2**70


class Name(enum.StrEnum):
    USER = "user"


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 the plain kind


@pytest.mark.parametrize(
    "value",
    [
        Level.HIGH,
        Level.HUGE,
        Name.USER,
        {Name.USER: 1},
        OrderedDict(a=1),
        defaultdict(list, a=[1]),
        Pair(1, "x"),
        -0.0,
        5e-324,
        1.7976931348623157e308,
        2**64,
        '\u0000\u001f\u007f\u2028\u2029\ud7ff\ue000\U0010ffff\\"/',
        "😀 é",
        [],
        {},
        "",
    ],
    ids=repr,
)
def test_values_of_the_standard_library(client, recorder, value):
    assert types(sent(client, recorder, value)) == types(json.loads(json.dumps(value)))


def cycle():
    messages = []
    messages.append(messages)
    return messages


def around(value):
    return {"model": "m", "messages": [{"role": "user", "content": value}]}


@pytest.mark.parametrize(
    ("body", "path", "problem"),
    [
        (around({1, 2}), "json.messages[0].content", "a value of type set has no form in JSON"),
        (around(b"x"), "json.messages[0].content", "a value of type bytes has no form in JSON"),
        (around(object()), "json.messages[0].content", "a value of type object has no form in JSON"),
        (around(1j), "json.messages[0].content", "a value of type complex has no form in JSON"),
        (around(float("nan")), "json.messages[0].content", "NaN is no JSON number"),
        (around(float("-inf")), "json.messages[0].content", "-inf is no JSON number"),
        (around("\ud800"), "json.messages[0].content", "lone surrogate"),
        (around({1: "x"}), "json.messages[0].content", "the key 1 is of type int, not a string"),
        (around({None: "x"}), "json.messages[0].content", "the key None is of type NoneType, not a string"),
        (around({"\udfff": 1}), "json.messages[0].content.", "lone surrogate"),
        ({"a": [0, (1, {"b c": {2}})]}, "json.a[1][1].b c", "of type set"),
        (cycle(), "json[0][0][0]", "nested deeper than 200 levels, or contains itself"),
        ({1}, "json", "of type set"),
    ],
)
@pytest.mark.parametrize("cls", [Client, AsyncClient])
async def test_what_json_cannot_hold_is_refused_where_it_stands(server, cls, body, path, problem):
    client = cls(server.url, "key", gate=Gate())
    with pytest.raises(EncodeError) as caught:  # noqa: PT012 the second line is for the client that awaits
        answer = client.post("/chat/completions", json=body)
        await answer
    assert caught.value.path.startswith(path)
    assert problem in caught.value.problem
    assert str(caught.value).startswith(caught.value.path)
    assert server.ledger["requests"]["total"] == server.ledger["connections"]["opened"] == 0
    assert client.gate.snapshot()["calls"] == 0


def test_two_hundred_levels_are_enough(client, recorder):
    value = "deep"
    for _ in range(150):
        value = [value]
    assert sent(client, recorder, value) == value
