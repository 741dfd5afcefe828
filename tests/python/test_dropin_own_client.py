"""The drop-ins over the user's own HTTP client: it sends and receives, and the gates know of all of it."""

import asyncio
import base64
import contextlib
import gc
import gzip
import inspect
import json
import time

import httpx
import httpx2
import openai
import pytest

import tidegate
from tidegate import Gate, Limits, Timeouts

CHAT = {"model": "m", "messages": [{"role": "user", "content": "What is there to be said about the tides?"}]}
PRICES = {"m": {"input": "1", "output": "4"}}
KINDS = [
    ("OpenAI", httpx2.Client),
    ("AsyncOpenAI", httpx2.AsyncClient),
    ("OpenAI", httpx.Client),
    ("AsyncOpenAI", httpx.AsyncClient),
]


async def settled(value):
    return await value if inspect.isawaitable(value) else value


async def items(stream):
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


def in_use(gate):
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])


@pytest.fixture
def gate():
    return Gate(prices=PRICES, limits=Limits(concurrency=4))


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1].__module__}")
async def client(request, server, gate):
    """Make a client of each kind, over an HTTP client of the test's own."""
    name, own = request.param
    http_client = own()
    yield getattr(tidegate, name)(
        base_url=server.url, api_key="k", gate=gate, max_retries=1, http_client=http_client
    )
    await settled((http_client.aclose if "Async" in name else http_client.close)())


async def chat(client, **options):
    return await settled(client.chat.completions.create(**CHAT, **options))


async def test_a_stream_holds_its_place_until_its_end(client, gate, server):
    server.script([{"chunk_delay_s": 0.005}])
    stream = await chat(client, stream=True)
    assert not client.takes_fast_path
    assert in_use(gate) == 1
    chunks = [chunk async for chunk in items(stream)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "All systems work as expected"
    assert in_use(gate) == 0
    info = tidegate.info(stream)
    assert (info.usage.source, info.usage.completion_tokens, info.attempts) == ("estimated", 5, 1)
    assert 'tidegate_calls_total{model="m",outcome="ok"} 1' in gate.metrics_text()


async def test_usage_is_reported_where_it_was_asked_for(client):
    stream = await chat(client, stream=True, stream_options={"include_usage": True})
    last = [chunk async for chunk in items(stream)][-1]
    assert last.choices == []
    info = tidegate.info(stream)
    assert (info.usage.source, info.usage.prompt_tokens, info.usage.completion_tokens) == ("reported", 12, 5)
    assert str(info.cost_usd) == "0.000032"


async def test_what_is_compressed_is_read_all_the_same(client, server):
    events = [{"choices": [{"index": 0, "delta": {"content": "high"}, "finish_reason": "stop"}]}]
    events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    server.script([{"headers": headers, "body_b64": gzip_b64(text)}])
    stream = await chat(client, stream=True, stream_options={"include_usage": True})
    assert [chunk.usage.prompt_tokens async for chunk in items(stream) if chunk.usage] == [7]
    assert "content-encoding" not in stream.response.headers
    assert tidegate.info(stream).usage.prompt_tokens == 7


def gzip_b64(text):
    return base64.b64encode(gzip.compress(text.encode())).decode()


@pytest.mark.parametrize("fault", ["cut", "cut_reset", "stall"])
async def test_a_stream_that_breaks_off_says_so(client, gate, server, fault):
    server.script([{"fault": fault}])
    received = []
    stream = await chat(client.with_options(timeout=0.5), stream=True)
    with pytest.raises(tidegate.StreamInterruptedError) as caught:
        received.extend([chunk async for chunk in items(stream)])
    error = caught.value
    assert isinstance(error, openai.APIConnectionError)
    assert isinstance(error.__cause__, httpx2.HTTPError | httpx.HTTPError | None)
    assert "All systems work as expected".startswith(error.partial_text)
    assert error.partial_text
    assert error.usage.source == "estimated"
    assert error.request.url.path.endswith("/chat/completions")
    assert in_use(gate) == 0
    assert server.ledger["requests"]["total"] == 1


async def test_a_stream_without_an_end_is_no_success(client, server):
    server.script([{"fault": "no_done"}])
    stream = await chat(client, stream=True)
    with pytest.raises(tidegate.StreamInterruptedError, match="without saying that it was complete"):
        [chunk async for chunk in items(stream)]


async def test_an_error_inside_a_stream_is_the_sdks(client, gate, server):
    server.script([{"fault": "stream_error"}])
    stream = await chat(client, stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in items(stream)]
    assert in_use(gate) == 0
    assert 'outcome="ok"' not in gate.metrics_text()


async def test_leaving_a_stream_gives_its_place_back(client, gate, server, wait_until):
    server.script([{"chunk_delay_s": 0.05, "usage": {"completion_tokens": 200}}])
    stream = await chat(client, stream=True)
    async for _ in items(stream):
        break
    await settled(stream.close())
    assert in_use(gate) == 0
    assert 'tidegate_calls_total{model="m",outcome="cancelled"} 1' in gate.metrics_text()
    assert 'estimated="true"' in gate.metrics_text()
    wait_until(lambda: server.ledger["requests"]["in_flight"] == 0)


async def test_a_stream_that_nobody_holds_gives_its_place_back(client, gate, server):
    server.script([{"chunk_delay_s": 0.05, "usage": {"completion_tokens": 200}}])
    await chat(client, stream=True)
    async with asyncio.timeout(10):
        # What asynchronous generators leave is cleared by the loop.
        while in_use(gate):
            gc.collect()
            await asyncio.sleep(0.005)


async def test_whole_answers_that_are_streamed_are_judged(client, gate, server):
    async def streamed():
        context = client.chat.completions.with_streaming_response.create(**CHAT)
        if hasattr(context, "__aenter__"):
            async with context as answer:
                return (await answer.parse()), answer
        with context as answer:
            return answer.parse(), answer

    server.script([{"status": 503, "headers": {"retry-after-ms": "1"}}])
    parsed, answer = await streamed()
    assert parsed.choices[0].message.content == "All systems work as expected"
    assert (tidegate.info(answer).usage.completion_tokens, tidegate.info(answer).attempts) == (5, 2)
    assert in_use(gate) == 0


async def test_sound_holds_its_place_until_its_end(client, gate, server):
    chunks = [{"b64": "UklG", "delay_s": 0.05}] * 4
    server.script([{"headers": {"content-type": "audio/mpeg"}, "chunks": chunks}])
    speech = {"model": "tts-1", "voice": "alloy", "input": "hi"}
    context = client.audio.speech.with_streaming_response.create(**speech)
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(context, "__aenter__"):
            answer = await stack.enter_async_context(context)
        else:
            answer = stack.enter_context(context)
        assert in_use(gate) == 1
        assert b"".join([piece async for piece in items(answer.iter_bytes())]) == b"RIF" * 4
        assert in_use(gate) == 0


class TestTotal:
    """The total timeout holds whoever sends."""

    @pytest.fixture
    def gate(self):
        return Gate(prices=PRICES, timeouts=Timeouts(total=0.4))

    async def test_of_an_answer(self, client, gate, server):
        server.script([{"delay_s": 30}], repeat_last=True)
        start = time.monotonic()
        with pytest.raises(openai.APITimeoutError) as caught:
            await chat(client)
        assert time.monotonic() - start < 4
        assert isinstance(caught.value, tidegate.DeadlineExceededError)
        assert caught.value.reason == "deadline"
        assert in_use(gate) == 0
        assert server.ledger["requests"]["total"] == 1

    async def test_of_a_stream(self, client, gate, server):
        server.script([{"fault": "stall"}], repeat_last=True)
        start = time.monotonic()
        stream = await chat(client, stream=True)
        with pytest.raises(openai.APITimeoutError) as caught:
            [chunk async for chunk in items(stream)]
        assert time.monotonic() - start < 4
        assert isinstance(caught.value, tidegate.StreamDeadlineExceededError)
        assert caught.value.partial_text
        assert in_use(gate) == 0

    async def test_of_a_stream_that_never_falls_silent(self, client, server):
        server.script([{"chunk_delay_s": 0.02, "usage": {"completion_tokens": 2000}}])
        stream = await chat(client, stream=True)
        with pytest.raises(tidegate.StreamDeadlineExceededError):
            [chunk async for chunk in items(stream)]

    async def test_is_not_felt_by_calls_in_time(self, client):
        assert (await chat(client)).choices
        stream = await chat(client, stream=True)
        assert [chunk async for chunk in items(stream)]


async def test_what_a_hook_has_read_is_counted(server, gate):
    def read(response):
        response.read()

    with httpx2.Client(event_hooks={"response": [read]}) as own:
        client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=gate, http_client=own)
        stream = client.chat.completions.create(**CHAT, stream=True)
        assert list(stream)
    assert tidegate.info(stream).usage.completion_tokens == 5
    assert in_use(gate) == 0


@pytest.mark.parametrize("status", [302, 304, 307])
async def test_a_redirect_that_is_not_followed_is_the_sdks_error(client, gate, server, status):
    server.script([{"status": status, "headers": {"location": "/elsewhere"}}])
    client._client.follow_redirects = False
    with pytest.raises(openai.APIStatusError) as caught:
        await settled(client.with_options(max_retries=0).get("/models", cast_to=object, options={}))
    assert caught.value.status_code == status
    assert in_use(gate) == 0
