"""Requests of the fast path are the official client's: same JSON, same headers, same refusals."""

import asyncio
import collections
import datetime as dt
import enum
import json
import types

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import NOT_GIVEN, omit
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall

import tidegate
from tidegate import Gate, _fast
from tidegate.testing import FaultServer

MAY_DIFFER = {"accept-encoding", "connection", "content-length", "host"}


class Role(enum.StrEnum):
    USER = "user"


class Level(enum.IntEnum):
    HIGH = 3


class Plain(enum.Enum):
    A = "a"


class Custom(openai.BaseModel):
    text: str
    at: dt.datetime | None = None


class Renamed(dict):
    def items(self):
        return [(name.upper(), value) for name, value in super().items()]


def once(make):
    """A value that can be read only once is made anew for each of the two clients."""
    return st.just(make)


def of(value):
    return st.just(lambda: value)


ODD = st.one_of(
    of(omit),
    of(NOT_GIVEN),
    of(Role.USER),
    of(Level.HIGH),
    of(Plain.A),
    of(dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)),
    of(dt.date(2026, 11, 30)),
    of(float("nan")),
    of(float("-inf")),
    of("\ud800"),
    of(b"bytes"),
    of(1j),
    of(2**70),
    of({1: "one", "1": "two", None: 0, 1.5: 2}),
    of(types.MappingProxyType({"role": "user"})),
    of(collections.OrderedDict(role="user", content="x")),
    of(collections.UserDict(role="user")),
    of(Renamed(role="user")),
    of((1, ("a",))),
    of({"a"}),
    of(range(3)),
    once(lambda: ({"role": "user", "content": text} for text in "ab")),
    of(Custom(text="x", at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))),
    of(Custom.construct(text=None, more=omit)),
    of(ChatCompletionMessage(role="assistant", content=None)),
    of(ResponseFunctionToolCall(type="function_call", name="f", arguments="{}", call_id="c", async_=True)),
    of(Custom),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
).map(lambda value: lambda: value)


def containers(inner):
    lists = st.lists(inner, max_size=3).map(lambda makes: lambda: [make() for make in makes])
    names = st.sampled_from(["role", "content", "tool_calls", "type", "function", "text", "é"])
    dicts = st.dictionaries(names, inner, max_size=3).map(
        lambda makes: lambda: {name: make() for name, make in makes.items()}
    )
    return lists | dicts


PLAIN = st.recursive(SCALARS, containers, max_leaves=8)
VALUES = st.recursive(SCALARS | ODD, containers, max_leaves=8)
CALLS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["assistant", "user"]).map(lambda role: lambda: role),
        "tool_calls": containers(ODD),
    }
).map(lambda makes: lambda: {name: make() for name, make in makes.items()})
ITEMS = st.lists(PLAIN | ODD | VALUES | CALLS, max_size=3).map(
    lambda makes: lambda: [make() for make in makes]
)
NAMES = {
    "chat": [
        "temperature",
        "n",
        "tools",
        "stop",
        "metadata",
        "response_format",
        "stream",
        "user",
        "tool_choice",
    ],
    "responses": [
        "temperature",
        "tools",
        "metadata",
        "text",
        "stream",
        "instructions",
        "include",
        "reasoning",
    ],
    "embeddings": ["dimensions", "encoding_format", "user"],
}
EXTRAS = {
    "extra_body": st.sampled_from(
        [
            None,
            {},
            {"top_k": 3},
            {"model": "other"},
            {"messages": []},
            {"a": omit},
            {"a": NOT_GIVEN},
            {"t": Level.HIGH},
        ]
    ),
    "extra_headers": st.sampled_from(
        [
            None,
            {},
            {"X-A": "1"},
            {"x-stainless-retry-count": "7"},
            {"Authorization": "Bearer other"},
            {"Authorization": omit},
            {"user-agent": "mine"},
            {"x-stainless-read-timeout": omit},
        ]
    ),
    "extra_query": st.sampled_from([None, {}, {"a": "b"}, {"a": [1, 2], "c": None}]),
    "timeout": st.sampled_from([NOT_GIVEN, None, 5, 7.5, openai.Timeout(9.0, connect=3.0)]),
}


@st.composite
def arguments(draw, method):
    """Draw what makes the arguments of a call."""
    required = "messages" if method == "chat" else "input"
    names = st.sampled_from(NAMES[method])
    makes = draw(st.dictionaries(names, PLAIN | VALUES | ITEMS, max_size=3))
    makes[required] = draw(ITEMS | VALUES | PLAIN)
    makes["model"] = draw(of("m") | of("") | of(Role.USER))
    if "stream" in makes:
        makes["stream"] = draw(of(None) | of(False) | of(omit) | of(True))
    for name, values in EXTRAS.items():
        if draw(st.integers(0, 3)) == 0:
            makes[name] = draw(values.map(lambda value: lambda: value))
    return lambda: {name: make() for name, make in makes.items()}


@pytest.fixture(scope="module")
def recorder():
    with FaultServer(ledger={"record_bodies": True, "record_headers": ["*"]}, workers=1) as server:
        yield server


@pytest.fixture(scope="module", params=["openai", "azure"])
def pairs(request, recorder):
    """The official clients and ours, with the same settings."""
    given = {
        "api_key": "key",
        "max_retries": 0,
        "default_headers": {"X-Default": "d"},
        "default_query": {"q": "1"},
    }
    if request.param == "openai":
        given |= {"base_url": recorder.url, "organization": "org", "project": "proj"}
        classes = (openai.OpenAI, tidegate.OpenAI), (openai.AsyncOpenAI, tidegate.AsyncOpenAI)
    else:
        given |= {"base_url": recorder.url + "/openai", "api_version": "2026-11-01"}
        classes = (
            (openai.AzureOpenAI, tidegate.AzureOpenAI),
            (openai.AsyncAzureOpenAI, tidegate.AsyncAzureOpenAI),
        )
    # The same failing request over and over is what the retry budget is there to stop.
    gate = Gate(limits=None, breaker=None, retry_budget=None)
    made = [(official(**given), ours(gate=gate, **given)) for official, ours in classes]
    with asyncio.Runner() as runner:
        yield [(*pair, runner) for pair in made]
        for sync, one in zip(*made, strict=True):
            sync.close()
            runner.run(one.close())


def create(client, method, made, runner):
    method = {
        "chat": client.chat.completions,
        "responses": client.responses,
        "embeddings": client.embeddings,
    }[method].create

    async def awaited():
        answer = await method(**made)
        if isinstance(answer, openai.AsyncStream):
            await answer.close()

    if isinstance(client, openai.AsyncOpenAI):
        runner.run(awaited())
    else:
        answer = method(**made)
        if isinstance(answer, openai.Stream):
            answer.close()


def outcome(recorder, client, method, made, runner):
    """What reached the server; where nothing did, what was raised."""
    recorder.reset_ledger()
    error = None
    try:
        create(client, method, made, runner)
    except Exception as caught:  # noqa: BLE001 compared with the other's
        error = caught
    entries = recorder.ledger["entries"]
    if not entries:
        return type(error)
    (entry,) = entries
    headers = {name: value for name, value in entry["headers"].items() if name not in MAY_DIFFER}
    body = json.loads(entry["body"] or "null")
    if body.get("stream") is True and body.get("stream_options") == {"include_usage": True}:
        # Asked for by tidegate where nobody else did.
        del body["stream_options"]
    return entry["method"], entry["path"], entry["credential"], headers, body


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_requests(recorder, pairs, method, is_async, data):
    make = data.draw(arguments(method))
    official, ours, runner = pairs[is_async]
    theirs = outcome(recorder, official, method, make(), runner)
    assert outcome(recorder, ours, method, make(), runner) == theirs


@pytest.fixture
def taken(monkeypatch):
    """How often the fast path was taken."""
    calls = []
    finish = _fast.Method.finish
    monkeypatch.setattr(_fast.Method, "finish", lambda *given: (calls.append(given[0]), finish(*given))[1])
    return calls


MESSAGE = {"role": "user", "content": "hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = ChatCompletionMessage.construct(role="assistant", content=None, tool_calls=[CALL])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("method", "made", "expected"),
    [
        ("chat", {"messages": [MESSAGE]}, True),
        ("chat", {"messages": [MESSAGE], "stream": False, "temperature": omit, "user": NOT_GIVEN}, True),
        ("chat", {"messages": [MESSAGE, ANSWER], "extra_body": {"top_k": 3}, "timeout": 5}, True),
        ("chat", {"messages": [{**MESSAGE, "tool_calls": ANSWER.tool_calls}]}, True),
        ("chat", {"messages": [MESSAGE], "extra_headers": {"X-A": "1"}}, True),
        ("chat", {"messages": iter([MESSAGE])}, False),
        ("chat", {"messages": [MESSAGE], "extra_query": {"a": "b"}}, False),
        ("chat", {"messages": [MESSAGE], "metadata": {"a": {1}}}, False),
        ("responses", {"input": "hi", "reasoning": {"effort": "low"}}, True),
        ("embeddings", {"input": ["a", "b"]}, True),
        ("embeddings", {"input": ["a", "b"], "encoding_format": "float"}, True),
    ],
)
def test_where_the_fast_path_is_taken(pairs, taken, method, is_async, made, expected):  # noqa: PLR0917
    made = {"model": "m", **made}
    try:
        create(pairs[is_async][1], method, made, pairs[is_async][2])
    except (TypeError, openai.OpenAIError):
        assert not expected
    assert bool(taken) is expected
