"""The Anthropic SDK over the transport."""

import base64
import json

import pytest

import tidegate
from faults import BAD_START, assert_booked, assert_cut, assert_survived
from tidegate.httpx import AsyncTransport, Transport

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
import httpx2  # noqa: E402

TEXT = "High water at noon."
ASK = {"model": "claude-opus-5", "max_tokens": 50, "messages": [{"role": "user", "content": "When?"}]}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}
BEGUN = {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 12, "output_tokens": 1}}
EVENTS = (
    {"type": "message_start", "message": BEGUN},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("High water", " at noon.")
    ),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
)
WHOLE = {"body_json": MESSAGE}


def streamed(events):
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    chunks = [{"b64": base64.b64encode(line.encode()).decode()} for line in lines]
    return {"headers": {"content-type": "text/event-stream"}, "chunks": chunks}


@pytest.fixture(params=[0, 2], ids=["retries of the SDK off", "left on"])
def clients(request, server, gate):
    settings = {
        "base_url": server.url.removesuffix("/v1"),
        "api_key": "test",
        "max_retries": request.param,
    }
    return (
        anthropic.Anthropic(http_client=httpx2.Client(transport=Transport(gate)), **settings),
        anthropic.AsyncAnthropic(http_client=httpx2.AsyncClient(transport=AsyncTransport(gate)), **settings),
    )


def test_answers(server, gate, clients):
    server.script([*BAD_START, WHOLE])
    answer = clients[0].messages.create(**ASK)
    assert (answer.content[0].text, answer.usage.output_tokens) == (TEXT, 5)
    assert_survived(server, gate)


async def test_answers_to_asyncio(server, gate, clients):
    server.script([*BAD_START, WHOLE])
    assert (await clients[1].messages.create(**ASK)).content[0].text == TEXT
    assert_survived(server, gate)


def test_streams(server, gate, clients):
    server.script([*BAD_START, streamed(EVENTS)])
    with clients[0].messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 5
    assert_survived(server, gate)


async def test_streams_to_asyncio(server, gate, clients):
    server.script([*BAD_START, streamed(EVENTS)])
    async with clients[1].messages.stream(**ASK) as stream:
        assert "".join([text async for text in stream.text_stream]) == TEXT
    assert_survived(server, gate)


async def test_a_stream_that_is_cut_is_an_error(server, gate, clients):
    server.script([streamed(EVENTS[:4])])
    async with clients[1].messages.stream(**ASK) as stream:
        with pytest.raises(tidegate.StreamInterruptedError) as caught:
            [text async for text in stream.text_stream]
    assert isinstance(caught.value, httpx2.TransportError)
    assert_cut(server, gate)


def test_one_layer_of_retries(down, gate, clients):
    with pytest.raises(anthropic.InternalServerError) as caught:
        clients[0].messages.create(**ASK)
    assert caught.value.status_code == 503
    assert tidegate.info(caught.value).attempts == 4
    assert_booked(down, gate, requests=4, answered=0, failed=1)


def test_where_there_is_no_answer_each_retry_of_the_sdk_is_one_request(server, clients):
    """No header can stop its loop then, but it tells how often it has tried."""
    server.script([{"fault": "reset"}], repeat_last=True)
    with pytest.raises(anthropic.APIConnectionError) as caught:
        clients[0].messages.create(**ASK)
    assert isinstance(caught.value.__cause__, tidegate.APIConnectionError)
    assert server.ledger["requests"]["total"] == 4 + clients[0].max_retries
