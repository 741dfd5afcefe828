"""The fast path behaves as the official client does: settings, failures, streams, and those who look on."""

import asyncio
import base64
import functools
import json
import logging

import httpx2
import openai
import pytest
import wrapt
from openai._base_client import SyncAPIClient
from openai.resources.chat.completions import AsyncCompletions, Completions

import tidegate
from tidegate import Gate, _method
from tidegate.testing import FaultServer

MESSAGES = [{"role": "user", "content": "hi"}]
ASK = {"model": "m", "messages": MESSAGES}


@pytest.fixture
def recorder():
    with FaultServer(ledger={"record_bodies": True, "record_headers": ["*"]}) as server:
        yield server


@pytest.fixture
def taken(monkeypatch):
    """How often the fast path was taken."""
    calls = []
    finish = _method.Method.finish

    def counted(*given):
        calls.append(given)
        return finish(*given)

    monkeypatch.setattr(_method.Method, "finish", counted)
    return calls


def clients(url, **more):
    """The official client and ours."""
    more = {"api_key": "key", "max_retries": 0, **more}
    return openai.OpenAI(base_url=url, **more), tidegate.OpenAI(base_url=url, gate=Gate(), **more)


def ours(url, **more):
    return tidegate.OpenAI(base_url=url, gate=Gate(), **{"api_key": "key", "max_retries": 0, **more})


def last(server):
    return server.ledger["entries"][-1]


@pytest.mark.parametrize(
    ("change", "header", "expected"),
    [
        (lambda client: setattr(client, "organization", "o"), "openai-organization", "o"),
        (lambda client: setattr(client, "project", "p"), "openai-project", "p"),
        (lambda client: setattr(client, "timeout", 7.0), "x-stainless-read-timeout", "7.0"),
        (lambda client: client._custom_headers.update({"X-Late": "1"}), "x-late", "1"),
    ],
)
def test_a_changed_setting_holds_at_once(recorder, taken, change, header, expected):
    client = ours(recorder.url, default_headers={"X-Early": "0"})
    client.chat.completions.create(**ASK)
    change(client)
    client.chat.completions.create(**ASK)
    assert last(recorder)["headers"][header] == expected
    assert len(taken) == 2


def test_a_changed_key_holds_at_once(taken):
    with FaultServer(api_key="new") as server:
        client = ours(server.url, api_key="old")
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**ASK)
        client.api_key = "new"
        client.chat.completions.create(**ASK)
    assert len(taken) == 2


def test_the_base_url_can_be_changed(recorder, taken):
    client = ours("http://127.0.0.1:9/v1")
    client.base_url = recorder.url
    client.chat.completions.create(**ASK)
    assert len(taken) == recorder.ledger["requests"]["total"] == 1


FAILURES = [
    {"status": 400, "body_json": {"error": {"message": "no", "code": "c", "param": "p", "type": "t"}}},
    {"status": 401, "body_json": {"error": {"message": "no", "code": "invalid_api_key"}}},
    {"status": 403},
    {"status": 404, "body_text": "<html>"},
    {"status": 409, "body_json": {"error": "text"}},
    {"status": 422, "body_json": []},
    {"status": 429, "headers": {"retry-after": "1"}},
    {"status": 500, "body_text": ""},
    {"status": 503, "body_json": {"detail": "busy"}},
]


@pytest.mark.parametrize("answer", FAILURES, ids=lambda answer: str(answer["status"]))
@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_the_official_ones(taken, answer, stream):
    with FaultServer([answer], repeat_last=True) as server:
        errors = []
        for client in clients(server.url):
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(**ASK, stream=stream)
            errors.append(caught.value)
    theirs, own = errors
    assert isinstance(own, type(theirs))
    for name in ("message", "status_code", "body", "code", "param", "type"):
        assert getattr(own, name) == getattr(theirs, name), name
    assert str(own) == str(theirs)
    assert own.response.text == theirs.response.text
    assert own.request_id == own.response.headers.get("x-request-id")
    assert json.loads(own.request.content) == json.loads(theirs.request.content)
    assert own.request.headers["authorization"] == "Bearer key"
    assert own.attempts == 1
    assert len(taken) == 1


def test_a_redirect_is_followed(recorder):
    answers = []
    for client in clients(recorder.url):
        recorder.script(
            [{"status": 307, "headers": {"location": f"{recorder.url}/chat/completions"}}], repeat_last=True
        )
        with pytest.raises(openai.APIConnectionError) as caught:
            client.chat.completions.create(**ASK)
        answers.append(type(caught.value.__cause__))
        recorder.script([])
    assert answers == [httpx2.TooManyRedirects] * 2


def test_no_connection_is_the_official_error():
    for client in clients("http://127.0.0.1:9/v1"):
        with pytest.raises(openai.APIConnectionError, match=r"^Connection error\.$") as caught:
            client.chat.completions.create(**ASK)
        assert caught.value.request.url == "http://127.0.0.1:9/v1/chat/completions"
        assert isinstance(caught.value.__cause__, httpx2.ConnectError)


def test_retries_are_numbered(recorder):
    recorder.script([{"status": 500}, {"status": 500}])
    client = ours(recorder.url, max_retries=2)
    answer = client.chat.completions.create(**ASK)
    numbers = [entry["headers"]["x-stainless-retry-count"] for entry in recorder.ledger["entries"]]
    assert numbers == ["0", "1", "2"]
    assert tidegate.info(answer).attempts == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"http_client": "own"},
        {"api_key": lambda: "fetched"},
        {"_strict_response_validation": True},
    ],
    ids=str,
)
def test_what_asks_for_more_is_left_to_the_official_method(server, taken, settings):
    if "http_client" in settings:
        settings = {"http_client": httpx2.Client()}
    with ours(server.url, **settings) as client:
        assert client.chat.completions.create(**ASK).choices[0].message.content
    assert not taken


def test_raw_responses_are_left_to_the_official_method(server, taken):
    client = ours(server.url)
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(**ASK) as streamed:
        assert streamed.parse().choices[0].message.content
    assert not taken


def test_the_hooks_of_a_subclass_are_called(server, taken):
    class Mine(tidegate.OpenAI):
        seen = 0

        def _prepare_options(self, options):
            self.seen += 1
            return super()._prepare_options(options)

    client = Mine(base_url=server.url, api_key="key", gate=Gate())
    client.chat.completions.create(**ASK)
    assert client.seen == 1
    assert not taken


@pytest.mark.parametrize("owner", [Completions, AsyncCompletions])
async def test_an_instrumentation_sees_the_calls_while_it_is_there(server, taken, monkeypatch, owner):
    seen = []
    inherited = owner.create

    @functools.wraps(inherited)
    def traced(self, **given):
        seen.append(given["model"])
        return inherited(self, **given)

    cls = tidegate.OpenAI if owner is Completions else tidegate.AsyncOpenAI
    client = cls(base_url=server.url, api_key="key", gate=Gate())

    async def ask():
        answer = client.chat.completions.create(**ASK)
        return await answer if asyncio.iscoroutine(answer) else answer

    await ask()
    with monkeypatch.context() as patched:
        patched.setattr(owner, "create", traced)
        await ask()
    assert (seen, len(taken)) == (["m"], 1)
    await ask()
    assert (seen, len(taken)) == (["m"], 2)


def by_wrapt(target, name, note):
    """Patch as OpenTelemetry's instrumentations do."""

    def wrapper(wrapped, _, args, keywords):
        note()
        return wrapped(*args, **keywords)

    wrapt.wrap_function_wrapper(target, name, wrapper)


def by_function(target, name, note):
    """Patch as Logfire does."""
    inherited = getattr(target, name)

    @functools.wraps(inherited)
    def wrapper(*args, **keywords):
        note()
        return inherited(*args, **keywords)

    setattr(target, name, wrapper)


@pytest.mark.parametrize("patch", [by_wrapt, by_function])
@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Completions, "create"),
        (SyncAPIClient, "request"),
        (openai.OpenAI, "request"),
        (tidegate.OpenAI, "request"),
    ],
    ids=["create", "request of all", "request of the official class", "request of ours"],
)
def test_whoever_patches_a_class_sees_the_calls_of_clients_old_and_new(  # noqa: PLR0917
    server, taken, monkeypatch, patch, target, name
):
    seen = []
    old = ours(server.url)
    old.chat.completions.create(**ASK)
    with monkeypatch.context() as patched:
        # Put back in the end, whatever `patch` does to it.
        patched.setattr(target, name, getattr(target, name))
        patch(target, name, lambda: seen.append(name))
        for client in (old, ours(server.url)):
            client.chat.completions.create(**ASK)
            list(client.chat.completions.create(**ASK, stream=True))
    assert (len(seen), len(taken)) == (4, 1)
    old.chat.completions.create(**ASK)
    assert (len(seen), len(taken)) == (4, 2)


def test_a_patched_request_of_one_client_is_called(server, taken):
    client = ours(server.url)
    seen = []
    inherited = client.request
    client.request = lambda *args, **more: (seen.append(args), inherited(*args, **more))[1]
    client.chat.completions.create(**ASK)
    assert len(seen) == 1
    assert not taken


def test_the_line_of_the_http_library_is_logged(server, caplog):
    with caplog.at_level(logging.INFO, logger="httpx2"):
        for client in clients(server.url):
            client.chat.completions.create(**ASK)
    theirs, own = (record.getMessage() for record in caplog.records if record.name == "httpx2")
    assert own == theirs == f'HTTP Request: POST {server.url}/chat/completions "HTTP/1.1 200 OK"'


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model": "m"},
        {"messages": MESSAGES},
        {**ASK, "unknown": 1},
        {**ASK, "response_format": openai.BaseModel},
    ],
    ids=["nothing", "no messages", "no model", "unknown", "a class"],
)
def test_wrong_arguments_are_refused_in_the_official_words(server, given):
    words = []
    for client in clients(server.url):
        with pytest.raises(TypeError) as caught:
            client.chat.completions.create(**given)
        words.append(str(caught.value))
    assert words[0] == words[1]
    assert server.ledger["requests"]["total"] == 0


def test_a_closed_client_refuses_as_the_official_one(server):
    for client in clients(server.url):
        client.chat.completions.create(**ASK)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.chat.completions.create(**ASK)


def test_embeddings_come_as_floats(server):
    theirs, own = (
        client.embeddings.create(model="m", input=["a", "b"]).model_dump() for client in clients(server.url)
    )
    assert own == theirs
    assert len(own["data"][1]["embedding"]) == 1536


def without_ids(chunk):
    return {name: value for name, value in chunk.model_dump().items() if name not in {"id", "created"}}


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
async def test_streams_of_chat_give_the_official_chunks(server, more):
    theirs, own = (
        list(client.chat.completions.create(**ASK, **more, stream=True)) for client in clients(server.url)
    )
    assert list(map(without_ids, own)) == list(map(without_ids, theirs))
    assert {type(chunk) for chunk in own} == {openai.types.chat.ChatCompletionChunk}
    client = tidegate.AsyncOpenAI(base_url=server.url, api_key="key", gate=Gate())
    stream = await client.chat.completions.create(**ASK, **more, stream=True)
    assert isinstance(stream, openai.AsyncStream)
    assert list(map(without_ids, [chunk async for chunk in stream])) == list(map(without_ids, theirs))
    assert tidegate.info(stream).usage.source == "reported"
    assert stream.response.headers["content-type"].startswith("text/event-stream")


def test_streams_of_responses_give_the_official_events(server):
    theirs, own = (
        list(client.responses.create(model="m", input="hi", stream=True)) for client in clients(server.url)
    )
    assert [type(event) for event in own] == [type(event) for event in theirs]
    assert [event.type for event in own] == [event.type for event in theirs]


async def test_a_stream_can_be_closed_early(server):
    client = tidegate.AsyncOpenAI(base_url=server.url, api_key="key", gate=Gate())
    async with await client.chat.completions.create(**ASK, stream=True) as stream:
        assert await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with ours(server.url).chat.completions.create(**ASK, stream=True) as stream:
        assert next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_torn_stream_raises_as_a_connection_that_broke():
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "half"}}]}
    event = base64.b64encode(f"data: {json.dumps(chunk)}\n\n".encode()).decode()
    with FaultServer([{"chunks": [{"b64": event}], "close": "rst"}], repeat_last=True) as server:
        stream = ours(server.url).chat.completions.create(**ASK, stream=True)
        seen = []
        with pytest.raises(tidegate.StreamInterruptedError) as caught:
            seen.extend(stream)
    assert isinstance(caught.value, openai.APIConnectionError)
    assert caught.value.partial_text == "half"
    assert caught.value.request.url.path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "said",
    [
        {"message": "died", "type": "server_error", "code": "x", "param": None},
        {"code": 502},
        {"message": ["no text"], "type": "t"},
        "died",
    ],
)
def test_an_error_in_a_stream_is_an_official_error_too(said):
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "half"}}]}
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in (chunk, {"error": said}))
    answer = {"headers": {"content-type": "text/event-stream"}, "body_text": text}
    errors = []
    with FaultServer([answer], repeat_last=True) as server:
        for client in clients(server.url):
            stream = client.chat.completions.create(**ASK, stream=True)
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            errors.append(caught.value)
    theirs, own = errors
    for name in ("message", "body", "code", "param", "type"):
        assert getattr(own, name) == getattr(theirs, name), name
    assert str(own) == str(theirs)
    assert (own.partial_text, own.kind) == ("half", "stream_error")


def test_what_is_left_of_a_stream_can_be_read_as_bytes(server):
    client = ours(server.url)
    whole = b"".join(client.chat.completions.create(**ASK, stream=True).response.iter_bytes())
    events = [line for line in whole.decode().split("\n\n") if line]
    assert all(json.loads(event.removeprefix("data: "))["object"] for event in events)
    assert len(events) > 3
