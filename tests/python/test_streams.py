"""Streams of the native clients: before the first content, between, and at every kind of end."""

import asyncio
import base64
import gc
import json
import threading
import time

import pytest

import tidegate
from tidegate import (
    AsyncClient,
    BadRequestError,
    CallError,
    Client,
    ConfigError,
    Gate,
    RetryPolicy,
    StreamDeadlineExceededError,
    StreamEvent,
    StreamInterruptedError,
    Timeouts,
)
from tidegate.testing import FaultServer

ASK = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is there to be said about the tides? " * 4}],
}
PRICES = {"m": {"input": "1.00", "output": "4.00"}}
QUICK = RetryPolicy(base=0.01, cap=0.02)
PATH = "/chat/completions"


def gate(**settings):
    return Gate(retry=QUICK, prices=PRICES, seed=1, **settings)


def in_use(made):
    return sum(scope["in_flight"] for scope in made.snapshot()["scopes"])


def text(events):
    return "".join(event.json()["choices"][0]["delta"].get("content") or "" for event in events)


@pytest.fixture(params=["sync", "async"])
def read(request):
    """Read a stream to its end with either client; return its events and its handle."""

    def read_sync(url, made, ask, options):
        with Client(url, "k", gate=made).stream(PATH, json=ask, **options) as events:
            return list(events), events

    def read_async(url, made, ask, options):
        async def main():
            async with AsyncClient(url, "k", gate=made).stream(PATH, json=ask, **options) as events:
                return [event async for event in events], events

        return asyncio.run(main())

    chosen = read_sync if request.param == "sync" else read_async
    return lambda url, made, ask=ASK, **options: chosen(url, made, ask, options)


def test_a_stream_is_read_and_billed(server, read):
    made = gate()
    events, stream = read(server.url, made)
    assert text(events) == "All systems work as expected"
    assert stream.status == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.request_id
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens, stream.usage.source) == (
        12,
        5,
        "reported",
    )
    assert str(stream.cost_usd) == "0.000032"
    assert in_use(made) == 0
    assert tidegate.info(stream) == stream.info


def test_usage_is_asked_for_and_its_chunk_hidden(read):
    with FaultServer(ledger={"record_bodies": True}) as server:
        events, stream = read(server.url, gate())
        sent = json.loads(server.ledger["entries"][0]["body"])
    assert sent == {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    assert all(event.json()["choices"] for event in events)
    assert stream.usage.source == "reported"


def test_who_asks_for_the_usage_gets_its_chunk(server, read):
    events, _ = read(server.url, gate(), {**ASK, "stream_options": {"include_usage": True}})
    assert events[-1].json()["choices"] == []
    assert events[-1].json()["usage"]["completion_tokens"] == 5


def test_who_wants_no_usage_gets_an_estimate(read):
    with FaultServer(ledger={"record_bodies": True}) as server:
        _, stream = read(server.url, gate(), {**ASK, "stream_options": {"include_usage": False}})
        assert json.loads(server.ledger["entries"][0]["body"])["stream_options"] == {"include_usage": False}
    assert (stream.usage.completion_tokens, stream.usage.source) == (5, "estimated")


def test_a_server_that_refuses_to_be_asked_is_asked_once(read):
    refusal = {"status": 400, "body_json": {"error": {"message": "Unknown parameter: 'stream_options'."}}}
    with FaultServer([refusal], ledger={"record_bodies": True}) as server:
        made = gate()
        for _ in range(2):
            _, stream = read(server.url, made)
            assert (stream.info.attempts, len(stream.info.retries)) == (1, 0)
            assert stream.usage.source == "estimated"
        bodies = [json.loads(entry["body"]) for entry in server.ledger["entries"]]
    assert ["stream_options" in body for body in bodies] == [True, False, False]


def test_other_refusals_are_the_callers(server, read):
    server.script([{"status": 400}])
    with pytest.raises(BadRequestError):
        read(server.url, gate())


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503},
        {"fault": "reset"},
        {"fault": "empty"},
        {"fault": "cut_after_head", "cut_after_bytes": 0},
        {"body_b64": "ZGF0YTogeyJlcnJvciI6eyJ0eXBlIjoic2VydmVyX2Vycm9yIn19Cgo=", "type": "text/event-stream"},
        {"body_b64": "OiBrZWVwLWFsaXZlCgo=", "type": "text/event-stream"},
    ],
    ids=lambda fault: next(iter(fault.values())) if isinstance(fault, dict) else str(fault),
)
def test_what_fails_before_the_first_content_is_tried_again(server, read, fault):
    answer = dict(fault)
    if "type" in answer:
        answer["headers"] = {"content-type": answer.pop("type")}
    if answer.get("fault") == "cut_after_head":
        answer = {"headers": {"content-type": "text/event-stream"}, "chunks": [], "close": "fin"}
    server.script([answer])
    events, stream = read(server.url, gate())
    assert text(events) == "All systems work as expected"
    assert stream.info.attempts == 2


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("cut", "stream_interrupted"),
        ("cut_reset", "stream_interrupted"),
        ("stall", "timeout"),
        ("stream_error", "stream_error"),
        ("no_done", "stream_interrupted"),
    ],
)
def test_what_fails_after_it_is_told_and_not_tried_again(server, read, fault, kind):
    server.script([{"fault": fault}], repeat_last=True)
    made = gate(timeouts=Timeouts(idle=0.2))
    with pytest.raises(StreamInterruptedError) as caught:
        read(server.url, made, stream_end="required")
    error = caught.value
    assert (error.kind, error.reason, error.attempts) == (kind, "stream_interrupted", 1)
    assert error.partial_text
    assert "All systems work".startswith(error.partial_text)
    assert (error.usage.source, error.usage.completion_tokens) == (
        "estimated",
        len(error.partial_text.split()),
    )
    assert error.cost_usd > 0
    assert error.trace_id in str(error) or error.request_id in str(error)
    assert server.ledger["requests"]["total"] == 1
    assert in_use(made) == 0


def test_the_error_comes_again_to_who_asks_again(server):
    server.script([{"fault": "cut"}])
    with Client(server.url, "k", gate=gate()).stream(PATH, json=ASK) as events:
        got = []
        for _ in range(2):
            with pytest.raises(StreamInterruptedError):
                got.extend(events)
    assert got


def test_the_total_timeout_cuts_a_stream(server, read):
    server.script([{"fault": "stall"}], repeat_last=True)
    with pytest.raises(StreamDeadlineExceededError) as caught:
        read(server.url, gate(), total_timeout=0.3)
    assert isinstance(caught.value, tidegate.DeadlineExceededError)
    assert caught.value.partial_text
    assert caught.value.reason == "deadline"


def test_signs_of_life_are_no_events(server, read):
    comments = [{"b64": "OiBrZWVwLWFsaXZlCgo=", "delay_s": 0.05}] * 100
    alive = {"headers": {"content-type": "text/event-stream"}, "chunks": comments}
    server.script([alive])
    start = time.monotonic()
    _, stream = read(server.url, gate(timeouts=Timeouts(idle=0.3)))
    assert stream.info.attempts == 2
    assert time.monotonic() - start < 3


def test_a_slow_reader_is_no_late_server(server):
    with Client(server.url, "k", gate=gate(timeouts=Timeouts(idle=0.2))).stream(PATH, json=ASK) as events:
        first = next(events)
        # Longer than any gap that the server may make.
        threading.Event().wait(0.5)
        rest = list(events)
    assert text([first, *rest]) == "All systems work as expected"


def test_a_server_that_never_ends_its_streams_is_believed_in_the_end(server, read):
    server.script([{"fault": "no_done"}], repeat_last=True)
    made = gate()
    for _ in range(3):
        with pytest.raises(StreamInterruptedError):
            read(server.url, made)
    events, stream = read(server.url, made)
    assert text(events)
    assert stream.usage.source == "estimated"
    with pytest.raises(StreamInterruptedError):
        read(server.url, made, stream_end="required")


def test_an_end_can_be_declared_optional(server, read):
    server.script([{"fault": "no_done"}])
    assert text(read(server.url, gate(), stream_end="optional")[0])
    with pytest.raises(ConfigError, match="stream_end"):
        read(server.url, gate(), stream_end="never")


def test_other_bodies_come_in_pieces(server):
    chunks = [{"b64": "UklG", "delay_s": 0.05}] * 3
    server.script([{"headers": {"content-type": "audio/mpeg"}, "chunks": chunks}])
    made = gate()
    with Client(server.url, "k", gate=made).stream(
        "/audio/speech", json={"model": "m"}, form="bytes"
    ) as pieces:
        assert list(pieces) == [b"RIF"] * 3
    assert in_use(made) == 0


# Leaving early.


def left(server):
    return server.ledger["requests"]["by_finish"].get("client_closed", 0)


def slow(server):
    server.script([{"chunk_delay_s": 0.05, "usage": {"completion_tokens": 200}}], repeat_last=True)


def test_leaving_a_block_stops_the_stream(server, wait_until):
    slow(server)
    made = gate()
    with Client(server.url, "k", gate=made).stream(PATH, json=ASK) as events:
        next(events), next(events)
    assert in_use(made) == 0
    assert events.usage.source == "estimated"
    assert events.cost_usd > 0
    assert list(events) == []
    wait_until(lambda: left(server) == 1)
    assert 'tidegate_calls_total{model="m",outcome="cancelled"} 1' in made.metrics_text()


async def test_leaving_an_async_block_stops_the_stream(server, wait_until):
    slow(server)
    made = gate()
    async with AsyncClient(server.url, "k", gate=made).stream(PATH, json=ASK) as events:
        async for _ in events:
            break
    assert in_use(made) == 0
    assert events.usage.source == "estimated"
    assert [event async for event in events] == []
    await events.aclose()
    wait_until(lambda: left(server) == 1)


async def test_an_exception_in_the_loop_stops_the_stream(server, wait_until):
    slow(server)
    made = gate()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 the loop is what is tested
        async with AsyncClient(server.url, "k", gate=made).stream(PATH, json=ASK) as events:
            async for _ in events:
                raise ZeroDivisionError
    assert in_use(made) == 0
    wait_until(lambda: left(server) == 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stream_that_nobody_holds_is_settled(server, wait_until, mode):
    slow(server)
    made = gate()

    async def main():
        events = await AsyncClient(server.url, "k", gate=made).stream(PATH, json=ASK)
        await anext(events)

    if mode == "async":
        asyncio.run(main())
    else:
        next(Client(server.url, "k", gate=made).stream(PATH, json=ASK))
    gc.collect()
    wait_until(lambda: in_use(made) == 0)
    wait_until(lambda: left(server) == 1)
    assert 'estimated="true"' in made.metrics_text()


async def test_a_cancelled_reader_loses_nothing(server):
    slow(server)
    async with AsyncClient(server.url, "k", gate=gate()).stream(PATH, json=ASK) as events:
        seen = []
        for _ in range(20):
            try:
                async with asyncio.timeout(0.02):
                    seen.append(await anext(events))
            except TimeoutError:
                continue
        seen.extend([await anext(events) for _ in range(3)])
    server.script([{"usage": {"completion_tokens": 200}}])
    async with AsyncClient(server.url, "k", gate=gate()).stream(PATH, json=ASK) as events:
        whole = text([event async for event in events])
    assert whole.startswith(text(seen))
    assert len(seen) > 3


async def test_cancelling_the_start_stops_the_call(server, wait_until):
    server.script([{"delay_s": 30}], repeat_last=True)
    made = gate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await AsyncClient(server.url, "k", gate=made).stream(PATH, json=ASK)
    wait_until(lambda: in_use(made) == 0)
    wait_until(lambda: left(server) == 1)


async def test_one_reader_at_a_time(server):
    slow(server)
    async with AsyncClient(server.url, "k", gate=gate()).stream(PATH, json=ASK) as events:
        stream = events._opened
        while stream.ready():
            pass
        first, second = stream.read(), stream.read()
        assert await second.future
        with pytest.raises(RuntimeError, match="somebody else"):
            await first.future


def test_a_stream_must_be_started(server):
    events = AsyncClient(server.url, "k", gate=gate()).stream(PATH, json=ASK)
    with pytest.raises(RuntimeError, match="await it"):
        _ = events.info


# Keeping pace.


def test_a_slow_reader_bounds_what_is_held(server, wait_until):
    """Of 64 MiB that the server has ready, no more leaves it than the pipe and the sockets hold."""
    line = 'data: {"choices":[{"index":0,"delta":{"content":"' + "x" * 65536 + '"}}]}\n\n'
    chunk = {"b64": base64.b64encode(line.encode()).decode()}
    end = {"b64": base64.b64encode(b"data: [DONE]\n\n").decode()}
    server.script([{"headers": {"content-type": "text/event-stream"}, "chunks": [*[chunk] * 1000, end]}])
    made = gate()
    with Client(server.url, "k", gate=made).stream(PATH, json=ASK) as events:
        first = next(events)
        # The server is still sending, however long nobody reads.
        threading.Event().wait(0.5)
        assert server.ledger["requests"]["in_flight"] == 1
        count = 1 + sum(1 for _ in events)
    assert count == 1000
    assert len(first.data) > 65536
    wait_until(lambda: server.ledger["requests"]["in_flight"] == 0)


async def test_connections_are_used_again(server):
    client = AsyncClient(server.url, "k", gate=gate())
    for _ in range(20):
        async with client.stream(PATH, json=ASK) as events:
            assert [event async for event in events]
    assert server.ledger["connections"]["opened"] == 1


def test_events_are_values():
    event = StreamEvent("a", b'{"x": 1}')
    assert event == StreamEvent("a", b'{"x": 1}') != StreamEvent(None, b'{"x": 1}')
    assert (event.json(), event.text, hash(event)) == ({"x": 1}, '{"x": 1}', hash(event))
    assert "'a'" in repr(event)


async def test_two_bodies_are_refused(server):
    for client in (Client(server.url, "k", gate=gate()), AsyncClient(server.url, "k", gate=gate())):
        with pytest.raises(ConfigError, match="content"):
            client.stream(PATH, json=ASK, content=b"x")


# What whole calls that were left used.


async def test_a_cancelled_call_has_an_estimate(server, wait_until):
    server.script([{"delay_s": 30}], repeat_last=True)
    made = gate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await AsyncClient(server.url, "k", gate=made).post(PATH, json=ASK)
    wait_until(lambda: 'estimated="true"' in made.metrics_text())


def test_a_cut_call_has_an_estimate(server):
    server.script([{"delay_s": 30}], repeat_last=True)
    with pytest.raises(tidegate.DeadlineExceededError) as caught:
        Client(server.url, "k", gate=gate()).post(PATH, json=ASK, total_timeout=0.2)
    usage = caught.value.info.usage
    assert (usage.source, usage.completion_tokens) == ("estimated", 0)
    assert usage.prompt_tokens > 10


def test_a_call_that_was_not_sent_used_nothing():
    with FaultServer() as server:
        url = server.url
    with pytest.raises(CallError) as caught:
        Client(url, "k", gate=gate()).post(PATH, json=ASK)
    assert caught.value.info.usage is None
