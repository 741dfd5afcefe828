"""instructor around tidegate's clients, or around the SDK's over the transport."""

import json

import pytest

import tidegate
from faults import BAD_START, CUT, assert_booked, assert_cut, assert_survived, stacked
from tidegate.httpx import AsyncTransport, Transport

instructor = pytest.importorskip("instructor", reason="instructor is not installed")
import openai  # noqa: E402
import tenacity  # noqa: E402
from instructor.core import InstructorRetryException  # noqa: E402
from pydantic import BaseModel  # noqa: E402

HAS_DROP_IN = tuple(map(int, openai.VERSION.split(".")[:2])) >= (3, 50)


class Place(BaseModel):
    city: str


ASK = {
    "model": "gpt-5.4-mini",
    "response_model": Place,
    "messages": [{"role": "user", "content": "Where?"}],
}


def called(city):
    """Answer with a call of the function that instructor asks for."""
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "Place", "arguments": json.dumps({"city": city})},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "body_json": {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-5.4-mini",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
        }
    }


def drop_in(server, gate):
    settings = {"base_url": server.url, "api_key": "test", "gate": gate}
    return tidegate.OpenAI(**settings), tidegate.AsyncOpenAI(**settings)


def over_transport(server, gate):
    # The SDK's own library, whose name depends on its version.
    http = __import__(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
    settings = {"base_url": server.url, "api_key": "test", "max_retries": 0}
    return (
        openai.OpenAI(http_client=http.Client(transport=Transport(gate)), **settings),
        openai.AsyncOpenAI(http_client=http.AsyncClient(transport=AsyncTransport(gate)), **settings),
    )


needs_drop_in = pytest.mark.skipif(not HAS_DROP_IN, reason="openai is older than the drop-ins need: 3.50")
WAYS = pytest.mark.parametrize("make", [pytest.param(drop_in, marks=needs_drop_in), over_transport])


@WAYS
def test_answers(server, gate, make):
    server.script([*BAD_START, called("Oslo")])
    client = instructor.from_openai(make(server, gate)[0])
    assert client.chat.completions.create(**ASK).city == "Oslo"
    assert_survived(server, gate)


@WAYS
async def test_answers_to_asyncio(server, gate, make):
    server.script([*BAD_START, called("Oslo")])
    client = instructor.from_openai(make(server, gate)[1])
    assert (await client.chat.completions.create(**ASK)).city == "Oslo"
    assert_survived(server, gate)


@WAYS
def test_an_answer_that_is_wrong_is_asked_for_again(server, gate, make):
    """It is another request, with the complaint in it: no retry, and billed."""
    server.script([*BAD_START, called(3), called("Oslo")])
    client = instructor.from_openai(make(server, gate)[0])
    assert client.chat.completions.create(max_retries=1, **ASK).city == "Oslo"
    assert_booked(server, gate, requests=4, answered=2)


@WAYS
def test_parts_of_an_answer(server, gate, make):
    server.script([*BAD_START, {"content": '{"city": "Oslo"}'}])
    client = instructor.from_openai(make(server, gate)[0], mode=instructor.Mode.JSON)
    assert list(client.chat.completions.create_partial(**ASK))[-1].city == "Oslo"
    assert_survived(server, gate)


@WAYS
async def test_parts_of_an_answer_to_asyncio(server, gate, make):
    server.script([*BAD_START, {"content": '{"city": "Oslo"}'}])
    client = instructor.from_openai(make(server, gate)[1], mode=instructor.Mode.JSON)
    assert [part async for part in client.chat.completions.create_partial(**ASK)][-1].city == "Oslo"
    assert_survived(server, gate)


@WAYS
async def test_a_stream_that_is_cut_is_an_error(server, gate, make):
    server.script([{**CUT, "content": '{"city": "Oslo and its fjord"}'}])
    client = instructor.from_openai(make(server, gate)[1], mode=instructor.Mode.JSON)
    with pytest.raises(tidegate.StreamInterruptedError):
        [part async for part in client.chat.completions.create_partial(**ASK)]
    assert_cut(server, gate, at_most=12)


@pytest.mark.parametrize(
    ("make", "attempts"), [pytest.param(drop_in, 3, marks=needs_drop_in), (over_transport, 4)]
)
@pytest.mark.parametrize("max_retries", [0, 3])
def test_one_layer_of_retries(down, gate, make, attempts, max_retries):
    """Its own are for answers that are wrong, not for errors of the server."""
    client = instructor.from_openai(make(down, gate)[0])
    with pytest.raises(InstructorRetryException) as caught:
        client.chat.completions.create(max_retries=max_retries, **ASK)
    assert tidegate.info(caught.value).attempts == attempts
    assert_booked(down, gate, requests=attempts, answered=0, failed=1)


@WAYS
def test_retries_by_tenacity_are_found_out(down, gate, make):
    client = instructor.from_openai(make(down, gate)[0])
    twice = tenacity.Retrying(stop=tenacity.stop_after_attempt(2))
    with pytest.raises(InstructorRetryException):
        client.chat.completions.create(max_retries=twice, **ASK)
    assert stacked(gate) == 1
