"""Results are those of the official client for the same bytes: values, types, and which fields were set."""

import json
import math
import subprocess
import sys
import textwrap
import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import BaseModel
from openai._models import construct_type
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from answers import Answers
from tidegate import _lenient, _results

EVENTS = _lenient.tagged_variants(_lenient.members(ResponseStreamEvent), "type")
WHOLE = [ChatCompletion, ChatCompletionChunk, Response, CreateEmbeddingResponse]
BUILD = {cls: _results.Result(cls) for cls in WHOLE}
BUILD_EVENT = _results.Event(ResponseStreamEvent, "type")


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, BaseModel):
        assert ours.model_fields_set == theirs.model_fields_set, type(ours)
        assert_same(ours.__dict__, theirs.__dict__)
        assert_same(ours.__pydantic_extra__, theirs.__pydantic_extra__)
        assert ours.__pydantic_private__ is theirs.__pydantic_private__ is None
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key, value in ours.items():
            assert_same(value, theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))


def assert_built_alike(build, cls, content):
    theirs = construct_type(type_=cls, value=json.loads(content))
    ours = build(content)
    assert_same(ours, theirs)
    if isinstance(theirs, BaseModel):
        assert ours.model_dump(warnings=False) == theirs.model_dump(warnings=False)


SOMETIMES_WRONG = st.sampled_from([0.0, 0.01, 0.04, 0.15])
MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("cls", WHOLE)
@MANY
@given(random=st.randoms(use_true_random=True), wrong=SOMETIMES_WRONG)
def test_whole_answers(cls, random, wrong):
    content = json.dumps(Answers(random, wrong).value(cls)).encode()
    assert_built_alike(BUILD[cls], cls, content)


@pytest.mark.parametrize("name", EVENTS)
@SOME
@given(
    random=st.randoms(use_true_random=True), wrong=SOMETIMES_WRONG, told=st.booleans(), compact=st.booleans()
)
def test_events(name, random, wrong, told, compact):
    body = {"type": name} | Answers(random, wrong).model(EVENTS[name], 1)
    content = json.dumps(body, separators=(",", ":") if compact else None).encode()
    assert_built_alike(
        lambda content: BUILD_EVENT(content, name if told else None), ResponseStreamEvent, content
    )


CHUNK = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]%s}'


@pytest.mark.parametrize(
    "text",
    [
        CHUNK % ',"usage":null,"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}',
        CHUNK
        % ',"id":"later","choices":[{"index":0,"delta":{"content":"a","content":"b"},"finish_reason":null}]',
        CHUNK % ',"provider":{"a":1,"a":2},"provider":[NaN,Infinity,-Infinity,-0,-0.0,1e400,1E5]',
        CHUNK % ',"x":"\\ud800","y":"\\ud83d\\ude00"',
        CHUNK % ',"x":1.0,"x":1',
        CHUNK % (',"deep":' + "[" * 300 + "]" * 300),
        CHUNK % ',"choices":{"index":0}',
        CHUNK % ',"choices":"none"',
        "  \n" + CHUNK % "" + "\r\n ",
        "null",
        "[]",
        '[{"id":"a"},3]',
        '"text"',
        "12",
        "{}",
    ],
)
def test_unusual_json(text):
    theirs = construct_type(type_=ChatCompletionChunk, value=json.loads(text))
    assert_same(BUILD[ChatCompletionChunk](text.encode()), theirs)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"<html>", b'{"a":1}{', b'{"a":01}', b'{"a":"\x00"}', b"\xff"]
)
@pytest.mark.parametrize("build", [BUILD[ChatCompletion], BUILD_EVENT])
def test_what_is_no_json_is_refused_as_by_the_standard_library(build, content):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011 compared below
        json.loads(content)
    with pytest.raises(ValueError) as ours:  # noqa: PT011 compared below
        build(content)
    assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"response.output_text.delta","type":"response.completed","response":{"id":"r"}}',
        '{"item":{"type":"message"},"type":"response.output_item.added","output_index":0}',
        '{"type":"response.output_text\\u002edelta","delta":"x"}',
        '{"type":"response.unheard_of","delta":"x"}',
        '{"type":7,"delta":"x"}',
        '{"type":null}',
        '{"delta":"x"}',
        '{"type":"',
        "null",
        "[1]",
    ],
)
@pytest.mark.parametrize("name", [None, "response.output_text.delta", "response.unheard_of", "message"])
def test_events_whose_name_misleads(text, name):
    try:
        theirs = construct_type(type_=ResponseStreamEvent, value=json.loads(text))
    except ValueError:
        with pytest.raises(json.JSONDecodeError):
            BUILD_EVENT(text.encode(), name)
    else:
        assert_same(BUILD_EVENT(text.encode(), name), theirs)


def test_every_event_has_a_validator_of_its_own():
    members = _lenient.members(ResponseStreamEvent)
    assert set(EVENTS.values()) == set(members)
    assert len(EVENTS) >= len(members)


@pytest.mark.parametrize("cls", WHOLE)
def test_complete_answers_are_left_to_the_validators_alone(cls, monkeypatch):
    """The official way is for doubts: a whole answer never needs it, whatever the server leaves out."""
    bodies = {
        ChatCompletion: {
            "id": "c",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "odd"}
            ],
            "usage": {"prompt_tokens": 1},
            "provider": "p",
        },
        ChatCompletionChunk: {"choices": [{"delta": {"content": "x"}, "finish_reason": "odd"}], "usage": {}},
        Response: {
            "id": "r",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}], "more": 1}],
            "tool_choice": "auto",
            "text": {"format": {"type": "text"}},
            "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}},
        },
        CreateEmbeddingResponse: {"data": [{"embedding": [0.5, 1, -1e-9]}, {"embedding": "AACAPw=="}]},
    }
    build = _results.Result(cls)
    theirs = construct_type(type_=cls, value=bodies[cls])

    def unexpected(**_):
        raise AssertionError("not needed")

    monkeypatch.setattr(_lenient, "construct_type", unexpected)
    monkeypatch.setattr(_results, "construct_type", unexpected)
    assert_same(build(json.dumps(bodies[cls]).encode()), theirs)


class Odd(BaseModel):
    """A model with a default of its own, of which nothing is known."""

    kind: str = "odd"


def test_what_is_not_understood_is_built_the_official_way():
    build = _results.Result(Odd)
    assert build(b'{"kind":null}').kind == "odd"
    assert build(b'{"more":1}').model_dump() == {"kind": "odd", "more": 1}


class Holder(BaseModel):
    """Models of a union that the discriminator does not tell apart."""

    either: Odd | None = None
    value: typing.Literal["a", "b"] | int | None = None


@pytest.mark.parametrize(
    "text", ['{"either":{"kind":null}}', '{"value":"7"}', '{"value":"a"}', '{"value":"c"}']
)
def test_parts_that_are_not_understood_are_built_the_official_way(text):
    assert_same(_results.Result(Holder)(text.encode()), construct_type(type_=Holder, value=json.loads(text)))


def test_nothing_is_compiled_before_its_first_use():
    script = """
        import sys
        import openai, openai.types.chat, openai.types.responses
        from tidegate import _results
        chat = _results.Result(openai.types.chat.ChatCompletion)
        events = _results.Event(openai.types.responses.ResponseStreamEvent, "type")
        assert "tidegate._lenient" not in sys.modules
        assert not openai.types.chat.ChatCompletion.__pydantic_complete__
        chat(b"{}")
        assert chat._validate is not None and events._variants is None
        events(b'{"type":"response.output_text.delta"}')
        assert list(events._validates) == ["response.output_text.delta"]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)  # noqa: S603 ours
