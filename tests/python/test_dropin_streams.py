"""Streams of the drop-ins on the wire: events come as they are sent, and what breaks off says so."""

import asyncio
import contextlib
import gc
import inspect
import json
import threading

import httpx2
import openai
import pytest

import tidegate
import tidegate.testing
from raw_server import RawServer
from tidegate import Gate, RetryPolicy

MESSAGES = [{"role": "user", "content": "hi"}]
NAMES = ["OpenAI", "AsyncOpenAI"]


def event(value, name=None):
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(content, finish=None):
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CHAT = [event(delta(f"word{number} ")) for number in range(6)]
CHAT_END = event(delta("", "stop")) + event(b"[DONE]")
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "output": [],
    "status": "completed",
}
RESPONSES = [
    event(
        {
            "type": "response.output_text.delta",
            "delta": f"word{number} ",
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
            "sequence_number": number,
            "logprobs": [],
        },
        "response.output_text.delta",
    )
    for number in range(6)
]
RESPONSES_END = event(
    {"type": "response.completed", "response": RESPONSE, "sequence_number": 9}, "response.completed"
)


async def items(stream):
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


@contextlib.asynccontextmanager
async def opened(context):
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


def in_use(client):
    return sum(scope["in_flight"] for scope in client.gate.snapshot()["scopes"])


async def settled(value):
    return await value if inspect.isawaitable(value) else value


async def chat(client):
    async for chunk in items(
        await settled(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    ):
        if chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def helper(client):
    async with opened(client.chat.completions.stream(model="m", messages=MESSAGES)) as stream:
        async for found in items(stream):
            if found.type == "content.delta":
                yield found.delta


async def raw(client):
    call = client.chat.completions.with_raw_response.create
    answer = await settled(call(model="m", messages=MESSAGES, stream=True))
    async for chunk in items(answer.parse()):
        if chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def lines(client):
    call = client.chat.completions.with_streaming_response.create
    async with opened(call(model="m", messages=MESSAGES, stream=True)) as answer:
        async for line in items(answer.iter_lines()):
            if line.startswith("data: {") and (
                content := json.loads(line[6:])["choices"][0]["delta"]["content"]
            ):
                yield content


async def responses(client):
    stream = await settled(client.responses.create(model="m", input="hi", stream=True))
    async for found in items(stream):
        if found.type == "response.output_text.delta":
            yield found.delta


async def sound(client):
    call = client.audio.speech.with_streaming_response.create
    async with opened(call(model="tts-1", voice="alloy", input="hi")) as answer:
        async for piece in items(answer.iter_bytes()):
            yield piece.decode()


# How a stream is read, and what the server sends: pieces, an end, and a type.
WAYS = {
    "chat": (chat, CHAT, CHAT_END, "text/event-stream"),
    "helper": (helper, CHAT, CHAT_END, "text/event-stream"),
    "raw": (raw, CHAT, CHAT_END, "text/event-stream"),
    "lines": (lines, CHAT, CHAT_END, "text/event-stream"),
    "responses": (responses, RESPONSES, RESPONSES_END, "text/event-stream"),
    "sound": (sound, [f"word{number} ".encode() for number in range(6)], b"word6 ", "audio/mpeg"),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture(params=[*NAMES, "OpenAI over httpx2", "AsyncOpenAI over httpx2"])
def make(request):
    """Make a client of each kind, also over a client of the user's own."""
    name, _, own = request.param.partition(" over ")

    def made(url, **settings):
        if own:
            settings["http_client"] = (httpx2.Client if name == "OpenAI" else httpx2.AsyncClient)()
        gate = Gate(retry=RetryPolicy(base=0.001, cap=0.001))
        return getattr(tidegate, name)(base_url=url, api_key="k", gate=gate, **settings)

    return made


async def test_pieces_come_as_they_are_sent(make, way):
    """The server sends each piece only when the reader has the one before."""
    read, pieces, end, kind = way
    arrived = threading.Semaphore(1)

    def serve(connection):
        connection.request()
        connection.stream(kind)
        for piece in pieces:
            assert arrived.acquire(timeout=20), "the reader waits for more than one piece"
            connection.chunk(piece)
        assert arrived.acquire(timeout=20)
        connection.chunk(end)
        connection.chunk(b"")

    with RawServer(serve) as server:
        client = make(server.url)
        found = []
        async for piece in read(client):
            found.append(piece)
            arrived.release()
        await settled(client.close())
    assert "".join(found).split()[:6] == [f"word{number}" for number in range(6)]


def fin(connection):
    connection.close()


def rst(connection):
    connection.reset()


def half_an_event(connection):
    connection.chunk(CHAT[0][: len(CHAT[0]) // 2])
    connection.close()


def half_a_letter(connection):
    connection.chunk('data: {"choices": [{"index": 0, "delta": {"content": "ü'.encode()[:-1])
    connection.close()


def half_a_chunk(connection):
    connection.send(b"ffff\r\ndata: {")
    connection.close()


def no_end(connection):
    connection.chunk(b"")


def no_chunk(connection):
    connection.send(b"no chunk at all\r\n")


@pytest.mark.parametrize(
    "tear",
    [fin, rst, half_an_event, half_a_letter, half_a_chunk, no_end, no_chunk],
    ids=lambda tear: tear.__name__,
)
@pytest.mark.parametrize("name", ["chat", "helper", "raw", "lines", "responses"])
async def test_what_breaks_off_says_so(make, name, tear):
    read, pieces, _, kind = WAYS[name]
    arrived = threading.Semaphore(0)
    requests = []

    def serve(connection):
        requests.append(connection.request())
        connection.stream(kind)
        for piece in pieces[:3]:
            connection.chunk(piece)
        # A reset overtakes what is not read yet.
        assert arrived.acquire(timeout=20)
        tear(connection)

    with RawServer(serve) as server:
        client = make(server.url)
        found = []
        with pytest.raises(openai.APIConnectionError) as caught:  # noqa: PT012 the loop is what is tested
            async for piece in read(client):
                found.append(piece)
                if len(found) == 3:
                    arrived.release()
        await settled(client.close())
    assert found == ["word0 ", "word1 ", "word2 "]
    error = caught.value
    assert isinstance(error, tidegate.StreamInterruptedError)
    assert error.partial_text == "word0 word1 word2 "
    assert error.usage.source == "estimated"
    assert len(requests) == 1
    assert in_use(client) == 0


@pytest.mark.parametrize("tear", [fin, rst, half_a_chunk, no_end], ids=lambda tear: tear.__name__)
async def test_what_breaks_off_after_all_has_come_is_complete(make, tear):
    arrived = threading.Semaphore(0)

    def serve(connection):
        connection.request()
        connection.stream()
        connection.chunk(b"".join(CHAT) + event(delta("", "stop")))
        assert arrived.acquire(timeout=20)
        tear(connection)

    with RawServer(serve) as server:
        client = make(server.url)
        found = []
        async for piece in chat(client):
            found.append(piece)
            if len(found) == len(CHAT):
                arrived.release()
        await settled(client.close())
    assert len(found) == len(CHAT)


@pytest.mark.parametrize("tear", [fin, rst, half_a_chunk], ids=lambda tear: tear.__name__)
async def test_bytes_that_break_off_say_so(make, tear):
    arrived = threading.Semaphore(0)

    def serve(connection):
        connection.request()
        connection.stream("audio/mpeg")
        connection.chunk(b"word0 ")
        assert arrived.acquire(timeout=20)
        tear(connection)

    with RawServer(serve) as server:
        client = make(server.url)
        found = []
        with pytest.raises(openai.APIConnectionError):  # noqa: PT012 the loop is what is tested
            async for piece in sound(client):
                found.append(piece)
                arrived.release()
        await settled(client.close())
    assert "".join(found).startswith("word0 ")


@pytest.mark.parametrize("name", ["chat", "raw", "lines", "responses"])
async def test_leaving_a_stream_closes_its_connection(make, name):
    read, pieces, _, kind = WAYS[name]
    closed = threading.Event()

    def serve(connection):
        connection.request()
        connection.stream(kind)
        connection.chunk(pieces[0])
        if not connection.sock.recv(1):
            closed.set()

    with RawServer(serve) as server:
        client = make(server.url)
        stream = read(client)
        assert await anext(stream) == "word0 "
        await stream.aclose()
        async with asyncio.timeout(20):
            # A stream and its iterator hold each other, and what asynchronous generators leave is the loop's.
            while not closed.is_set() or any(
                scope["in_flight"] for scope in client.gate.snapshot()["scopes"]
            ):
                gc.collect()
                await asyncio.sleep(0.005)
        await settled(client.close())


@pytest.mark.parametrize("own_client", [False, True])
def test_the_helpers_of_streams_tell_how_the_call_went(own_client):
    """They are the SDK's objects around a stream, and hold nothing but its response."""
    with tidegate.testing.FaultServer([{"status": 503}]) as server, openai.DefaultHttpxClient() as own:
        options = {"http_client": own} if own_client else {}
        client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=Gate(), **options)
        with client.chat.completions.stream(model="m", messages=MESSAGES) as chat:
            chat.until_done()
        with client.responses.stream(model="m", input="hi") as response:
            response.until_done()
    assert (tidegate.info(chat).attempts, tidegate.info(response).attempts) == (2, 1)
    assert tidegate.info(chat).usage.completion_tokens > 0
