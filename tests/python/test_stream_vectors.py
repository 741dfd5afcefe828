"""What providers send, cut at every byte, through the native clients."""

import asyncio
import base64
from pathlib import Path

import pytest

from tidegate import AsyncClient, CallError, Client, Gate, StreamInterruptedError
from tidegate.testing import FaultServer

FOLDER = Path(__file__).parents[1] / "vectors" / "wire" / "sse"

# name: (text, prompt and completion tokens or None, kind of error, its code)
WANTED = {
    "anthropic_mid_error": ("", None, "overloaded", None),
    "azure_prompt_filter_first": ("Hi", None, None, None),
    "chat_cut_before_usage": ("Hi th", None, "stream_interrupted", None),
    "chat_include_usage": ("Hi", (9, 1), None, None),
    "chat_no_usage": ("Hi", None, None, None),
    "chat_obfuscation": ("Hi", None, None, None),
    "crlf_split_utf8": ("hé😀", None, None, None),
    "deepseek_keepalive": ("a", (3, 1), None, None),
    "first_event_error": ("", None, "overloaded", "server_is_overloaded"),
    "flat_error_forks": ("par", None, "stream_error", "400"),
    "gemini_cumulative_usage": ("abc", (10, 3), None, None),
    "groq_x_groq": ("a", (3, 1), None, None),
    "groq_x_groq_error": ("a", None, "stream_error", None),
    "no_space_multi_data": ("", None, "empty_response", None),
    "openai_mid_error": ("par", None, "stream_error", None),
    "openrouter_mid_error": ("par", None, "stream_error", "server_error"),
    "openrouter_processing": ("a", (3, 1), None, None),
    "responses_completed": ("Hi", (37, 11), None, None),
    "responses_error_flat": ("Hi", None, "stream_error", "server_error"),
    "responses_error_nested": ("Hi", None, "stream_error", "server_is_overloaded"),
    "responses_failed": ("Hi", None, "stream_error", "rate_limit_exceeded"),
    "responses_incomplete": ("Hi", (37, 11), None, None),
    "vllm_continuous_usage": ("ab", (5, 2), None, None),
    "vllm_mid_error": ("par", None, "stream_error", "500"),
}
ASK = {"model": "m", "messages": [{"role": "user", "content": "ping"}]}
# Of a server that just stops, three such streams make a habit; none of these must become one.
OPTIONS = {"max_attempts": 1, "stream_end": "required"}


def names():
    return sorted(path.stem for path in FOLDER.glob("*.sse"))


def test_every_vector_is_expected_to_be_something():
    assert names() == sorted(WANTED)


def text_of(event):
    chunk = event.json()
    if event.event == "response.output_text.delta":
        return chunk["delta"]
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))


def variants(body):
    """Return the bodies' pieces: whole, byte by byte, and cut in two at each place."""
    yield [body]
    yield [body[at : at + 1] for at in range(len(body))]
    for at in range(1, len(body)):
        yield [body[:at], body[at:]]


def answer(pieces):
    chunks = [{"b64": base64.b64encode(piece).decode()} for piece in pieces]
    return {"headers": {"content-type": "text/event-stream"}, "chunks": chunks}


def hold(name, text, info, error):
    wanted, usage, kind, code = WANTED[name]
    assert (error and error.kind, error and error.code) == (kind, code), f"{name}: {error!r}"
    if isinstance(error, StreamInterruptedError):
        assert error.partial_text == wanted
        info = error.info
    assert text == wanted
    if usage is not None:
        assert (info.usage.prompt_tokens, info.usage.completion_tokens) == usage
        assert info.usage.source == "reported"
    elif info is not None:
        assert info.usage.source == "estimated"


async def read(client, name, number):
    path = "/responses" if name.startswith("responses") else "/chat/completions"
    text, info, failed = "", None, None
    try:
        async with client.stream(
            path, json=ASK, headers={"x-variant": f"{name}-{number}"}, **OPTIONS
        ) as events:
            async for event in events:
                text += text_of(event)
            info = events.info
    except CallError as error:
        failed = error
    hold(name, text, info, failed)


@pytest.mark.parametrize("name", names())
def test_at_every_split_point_async(name):
    pieces = list(variants((FOLDER / f"{name}.sse").read_bytes()))
    rules = [
        {"match": {"header": {"x-variant": f"{name}-{number}"}}, "respond": answer(cut)}
        for number, cut in enumerate(pieces)
    ]

    async def main(url):
        client = AsyncClient(url, "k", gate=Gate(breaker=None, limits=None))
        for start in range(0, len(pieces), 50):
            some = range(start, min(start + 50, len(pieces)))
            await asyncio.gather(*(read(client, name, number) for number in some))

    with FaultServer(rules=rules) as server:
        asyncio.run(main(server.url))


@pytest.mark.parametrize("name", names())
def test_sync_whole_and_byte_by_byte(name):
    body = (FOLDER / f"{name}.sse").read_bytes()
    path = "/responses" if name.startswith("responses") else "/chat/completions"
    for pieces in list(variants(body))[:2]:
        with FaultServer([answer(pieces)]) as server:
            client = Client(server.url, "k", gate=Gate())
            text, info, failed = "", None, None
            try:
                with client.stream(path, json=ASK, **OPTIONS) as events:
                    for event in events:
                        text += text_of(event)
                info = events.info
            except CallError as error:
                failed = error
            hold(name, text, info, failed)
            assert server.ledger["requests"]["total"] == 1


@pytest.mark.parametrize("form", ["events", "bytes"])
def test_bytes_are_what_the_server_sent(form):
    body = (FOLDER / "chat_include_usage.sse").read_bytes()
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    with FaultServer([answer([body])]) as server:
        client = Client(server.url, "k", gate=Gate())
        with client.stream("/chat/completions", json=asked, form=form) as pieces:
            got = list(pieces)
    if form == "bytes":
        assert b"".join(got) == body
    else:
        assert len(got) == body.count(b"data: ") - 1


def test_json_in_place_of_a_stream_is_one_piece():
    with FaultServer(
        [{"body_json": {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}}]
    ) as server:
        client = Client(server.url, "k", gate=Gate())
        with client.stream("/chat/completions", json=ASK) as events:
            (event,) = events
        assert event.json()["choices"][0]["message"]["content"] == "x"
        assert events.response is not None


def test_an_error_in_json_on_a_stream_is_an_error():
    body = {"error": {"code": 502, "message": "Provider returned error"}}
    with FaultServer([{"body_json": body}, {}]) as server:
        client = Client(server.url, "k", gate=Gate())
        with client.stream("/chat/completions", json=ASK) as events:
            assert "".join(text_of(event) for event in events)
        assert events.info.attempts == 2
