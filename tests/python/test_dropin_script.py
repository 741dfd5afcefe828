"""The same user script, run with `openai` and with `tidegate`, prints the same."""

import inspect
import io
import json

import openai
import pytest
from openai import BaseModel

import tidegate
from tidegate import Gate
from tidegate.testing import FaultServer

CHAT = {"model": "gpt-5.4-mini", "messages": [{"role": "user", "content": "hi"}]}
SOON = {"retry-after-ms": "5"}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5.4-mini",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"n": 4}'}}
    ],
}


REFUSAL = {
    "index": 0,
    "finish_reason": "stop",
    "message": {"role": "assistant", "content": None, "refusal": "I cannot"},
}
TOO_LONG = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": '{"n"'}}
NO_NUMBER = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"n": "x"}'}}


class Number(BaseModel):
    n: int


def chat(client, **options):
    return client.chat.completions.create(**CHAT, **options)


def retried(client):
    return chat(client.with_options(max_retries=2))


def raw(client):
    return client.chat.completions.with_raw_response.create(**CHAT)


def listed(client):
    return client.models.list()


def parsed(client):
    return client.chat.completions.parse(**CHAT, response_format=Number)


def uploaded(client):
    return client.files.create(file=("a.jsonl", io.BytesIO(b"{}\n")), purpose="batch")


def downloaded(client):
    return client.files.content("file-1")


def spoken(client):
    return client.audio.speech.create(model="tts-1", voice="alloy", input="hi")


def transcribed(client):
    return client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF"))


def deleted(client):
    return client.files.delete("file-1")


def embedded(client):
    return client.embeddings.create(model="text-embedding-3-small", input=["a", "b"], encoding_format="float")


def responded(client):
    return client.responses.create(model="gpt-5.4-mini", input="hi")


def posted(client):
    return client.post("/echo", cast_to=object, body={"a": [1, "ü", None]})


def extra(client):
    return chat(client, extra_headers={"x-a": "1"}, extra_query={"q": ["1", "2"]}, extra_body={"top_k": 3})


def late(client):
    return chat(client, timeout=0.1)


async def listing(stream):
    return [item async for item in stream] if hasattr(stream, "__aiter__") else list(stream)


async def inside(context, do):
    if hasattr(context, "__aenter__"):
        async with context as value:
            return await settled(do(value))
    with context as value:
        return await settled(do(value))


async def streamed(client, **options):
    return await listing(await settled(chat(client, stream=True, **options)))


def streamed_with_usage(client):
    return streamed(client, stream_options={"include_usage": True})


async def events(client):
    stream = await settled(client.responses.create(model="gpt-5.4-mini", input="hi", stream=True))
    return await listing(stream)


async def helped(client):
    async def read(stream):
        seen = [event.type for event in await listing(stream)]
        return [*seen, await settled(stream.get_final_completion())]

    return await inside(client.chat.completions.stream(**CHAT), read)


async def left(client):
    stream = await settled(chat(client, stream=True))
    first = await anext(stream) if hasattr(stream, "__anext__") else next(stream)
    await settled(stream.close())
    return [first]


async def raw_stream(client):
    answer = await settled(client.chat.completions.with_raw_response.create(**CHAT, stream=True))
    return [answer.status_code, *await listing(answer.parse())]


async def lines(client):
    call = client.chat.completions.with_streaming_response.create
    return await inside(call(**CHAT), lambda answer: listing(answer.iter_lines()))


async def pieces(client):
    call = client.audio.speech.with_streaming_response.create

    async def read(answer):
        return [b"".join(await listing(answer.iter_bytes())), answer.headers["content-type"]]

    return await inside(call(model="tts-1", voice="alloy", input="hi"), read)


async def paged(client):
    found = client.files.list(limit=1)
    if hasattr(found, "__aiter__"):
        return [file.id async for file in found]
    return [file.id for file in found]


def twice(client):
    async def both():
        return [await settled(chat(client)), await settled(chat(client))]

    return both()


def asked_wrongly(client):
    return client.chat.completions.create(model="gpt-5.4-mini")


def of_no_type(client):
    return chat(client, messages_={"a": object()})


def with_tools(client):
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    return chat(client, tools=[{"type": "function", "function": function}], tool_choice="auto", n=2, seed=7)


def embedded_by_default(client):
    return client.embeddings.create(model="text-embedding-3-small", input=["a", "b"])


def json_body(value, **more):
    return {"body_json": value, **more}


def error(status, **fields):
    return json_body(
        {"error": {"message": "no", "type": "t", "param": "p", "code": "c", **fields}}, status=status
    )


def sse(*values, end="data: [DONE]\n\n"):
    text = "".join(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n" for value in values)
    return {"headers": {"content-type": "text/event-stream"}, "body_text": text + end}


def chunk(delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
TOOL_CHUNKS = (
    chunk({"role": "assistant", "tool_calls": [CALL]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
    chunk({}, "tool_calls"),
)
WORDS = (chunk({"role": "assistant", "content": "high"}), chunk({"content": " tide"}), chunk({}, "stop"))
PAGE = {"object": "list", "data": [{"id": "file-1"}], "has_more": True}
LAST_PAGE = {"object": "list", "data": [{"id": "file-2"}], "has_more": False}


# What is called, and what the server answers to the first requests.
SCENARIOS = {
    "chat": (chat, []),
    "raw": (raw, []),
    "models": (listed, []),
    "embeddings": (embedded, []),
    "responses": (responded, []),
    "parsed": (parsed, [json_body(COMPLETION)]),
    "upload": (uploaded, [json_body({"id": "file-1", "object": "file", "bytes": 3, "purpose": "batch"})]),
    "download": (downloaded, [{"body_b64": "AAECAw=="}]),
    "speech": (spoken, [{"body_b64": "AAECAw==", "headers": {"content-type": "audio/mpeg"}}]),
    "transcription": (transcribed, [json_body({"text": "hello"})]),
    "transcription as text": (transcribed, [{"body_text": "hello"}]),
    "deletion": (deleted, [json_body({"id": "file-1", "object": "file", "deleted": True})]),
    "deletion without a body": (deleted, [{"status": 204}]),
    "unknown path": (posted, [json_body({"anything": [1, 2]})]),
    "extra headers, query and body": (extra, []),
    "unknown fields": (chat, [json_body({**COMPLETION, "new": {"a": 1}})]),
    "missing fields": (chat, [json_body({"id": "x", "choices": COMPLETION["choices"]})]),
    "unknown enum": (chat, [json_body({**COMPLETION, "service_tier": "turbo"})]),
    "nulls": (chat, [json_body({**COMPLETION, "usage": None, "system_fingerprint": None})]),
    "no choices": (chat, [json_body({**COMPLETION, "choices": []})]),
    "request id": (chat, [json_body(COMPLETION, headers={"x-request-id": "req_1"})]),
    "repeated headers": (raw, [json_body(COMPLETION, headers={"x-many": "a, b"})]),
    "blank lines before the body": (chat, [{"body_text": "\n\n" + '{"id": "x", "choices": [{}]}'}]),
    "500 and a retry": (retried, [error(500) | {"headers": SOON}]),
    "503 and a retry": (retried, [error(503) | {"headers": SOON}]),
    "429 and a retry": (retried, [error(429) | {"headers": SOON}]),
    "408 and a retry": (retried, [error(408) | {"headers": SOON}]),
    "409 and a retry": (retried, [error(409) | {"headers": SOON}]),
    "two failures and a retry": (retried, [error(500) | {"headers": SOON}] * 2),
    "x-should-retry": (retried, [error(400) | {"headers": {**SOON, "x-should-retry": "true"}}]),
    "x-should-retry: false": (retried, [error(500) | {"headers": {"x-should-retry": "false"}}]),
    "all attempts": (retried, [error(500) | {"headers": SOON}] * 3),
    "all attempts throttled": (retried, [error(429) | {"headers": SOON}] * 3),
    "reset": (chat, [{"fault": "reset"}]),
    "close": (chat, [{"fault": "close"}]),
    "cut": (chat, [{"fault": "cut"}]),
    "hang": (late, [{"delay_s": 5}]),
    "html 502": (chat, [{"fault": "html_502"}]),
    "text error": (chat, [{"status": 500, "body_text": "it broke"}]),
    "empty error": (chat, [{"status": 503, "body_text": ""}]),
    "list error": (chat, [json_body([{"error": {"code": 429, "message": "gemini"}}], status=429)]),
    "flat error": (chat, [json_body({"object": "error", "message": "flat", "code": 400}, status=400)]),
    "detail error": (chat, [json_body({"detail": [{"msg": "bad"}]}, status=422)]),
    "raw error": (raw, [error(404)]),
    "error of an upload": (uploaded, [error(413)]),
    "error of a list": (listed, [error(401)]),
    **{
        f"error {status}": (chat, [error(status)])
        for status in (
            400,
            401,
            402,
            403,
            404,
            405,
            409,
            413,
            418,
            422,
            429,
            451,
            500,
            501,
            502,
            503,
            504,
            529,
        )
    },
    "stream": (streamed, []),
    "stream with its usage": (streamed_with_usage, []),
    "stream of tool calls": (streamed, [sse(*TOOL_CHUNKS)]),
    "stream with an unknown finish_reason": (streamed, [sse(chunk({"content": "x"}, "tired"))]),
    "stream with comments and unnamed fields": (
        streamed,
        [sse(*WORDS, end=": bye\n\ndata: [DONE]\n\n")],
    ),
    "stream with unknown fields": (
        streamed,
        [sse(chunk({"content": "x", "new": [1]}, "stop", provider="p"))],
    ),
    "stream after a 503": (
        lambda client: streamed(client.with_options(max_retries=2)),
        [error(503) | {"headers": SOON}],
    ),
    "stream that is refused": (streamed, [error(400)]),
    "stream that is refused for lack of a key": (streamed, [error(401)]),
    "stream that is left": (left, []),
    "stream over an assistant's helper": (helped, [sse(*WORDS)]),
    "stream of tool calls over a helper": (helped, [sse(*TOOL_CHUNKS)]),
    "stream by a raw response": (raw_stream, []),
    "stream of responses": (events, []),
    "stream of responses that is refused": (events, [error(404)]),
    "answer line by line": (lines, [json_body(COMPLETION)]),
    "sound piece by piece": (pieces, [{"body_b64": "AAECAw==", "headers": {"content-type": "audio/mpeg"}}]),
    "pages": (paged, [json_body(PAGE), json_body(LAST_PAGE)]),
    "a page that fails": (paged, [json_body(PAGE), error(404)]),
    "two calls": (twice, []),
    "arguments are missing": (asked_wrongly, []),
    "an argument that is none": (of_no_type, []),
    "tools": (with_tools, []),
    "embeddings by default": (embedded_by_default, []),
    "refusal": (parsed, [json_body({**COMPLETION, "choices": [REFUSAL]})]),
    "cut by its length": (parsed, [json_body({**COMPLETION, "choices": [TOO_LONG]})]),
    "not what was to be parsed": (parsed, [json_body({**COMPLETION, "choices": [NO_NUMBER]})]),
    "redirect": (listed, [{"status": 307, "headers": {"location": "/v1/models?moved=1"}}]),
    "redirect of a post": (chat, [{"status": 308, "headers": {"location": "/v1/chat/completions"}}]),
    "redirect that is not followed": (chat, [{"status": 304}]),
}


async def settled(value):
    return await value if inspect.isawaitable(value) else value


def timeless(value):
    """Return what a value prints, without the times at which the server made it."""
    if isinstance(value, openai.BaseModel):
        value = value.model_dump(warnings=False)
    if isinstance(value, dict):
        items = value.items()
        return {name: timeless(item) for name, item in items if name not in {"created", "created_at"}}
    return [timeless(item) for item in value] if isinstance(value, list | tuple) else value


async def prints(make, calls):
    """What a script prints of a call: its result, or its error in every respect that a program can see."""
    client = make()
    try:
        answer = await settled(calls(client))
        lines = [type(answer).__name__.removeprefix("Async")]
        if isinstance(answer, openai.BaseModel):
            lines += [timeless(answer), answer.model_fields_set, answer._request_id]
        elif hasattr(answer, "retries_taken"):
            lines += [answer.retries_taken, answer.status_code, timeless(answer.parse())]
        elif hasattr(answer, "content"):
            lines += [answer.content, answer.response.status_code]
        else:
            lines.append(timeless(answer))
    except (TypeError, ValueError, openai.LengthFinishReasonError) as error:
        lines = [type(error).__name__, str(error)]
    except openai.APIError as error:
        official = next(cls for cls in type(error).__mro__ if cls.__module__.startswith("openai"))
        lines = [
            official.__name__,
            str(error),
            error.message,
            error.code,
            error.param,
            error.type,
            error.body,
        ]
        lines += [getattr(error, "status_code", None), getattr(error, "request_id", None)]
        lines += [error.request.method, error.request.url.path]
    finally:
        await settled(client.close())
    return [repr(line) for line in lines]


async def told(classes, name, calls, script):
    with FaultServer(script, ledger={"record_bodies": True}) as server:
        settings = {"base_url": server.url, "api_key": "k", "max_retries": 0}
        lines = await prints(lambda: getattr(classes, name)(**settings), calls)
        entries = server.ledger["entries"]
    if calls in {uploaded, transcribed}:
        return lines, [(entry["method"], entry["path"]) for entry in entries]
    return lines, [(entry["method"], entry["path"], asked(entry), entry["headers"]) for entry in entries]


def asked(entry):
    """Return what a request asks for. tidegate asks for a stream's usage where the script does not."""
    body = json.loads(entry["body"] or "null")
    if isinstance(body, dict) and body.get("stream_options") == {"include_usage": True}:
        del body["stream_options"]
    return body


@pytest.fixture
def gate():
    """A gate of the test's own, so that no test sees what another one taught."""
    return tidegate.configure(Gate())


@pytest.mark.parametrize("name", ["OpenAI", "AsyncOpenAI"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.usefixtures("gate")
async def test_prints_the_same(name, scenario):
    calls, script = SCENARIOS[scenario]
    assert await told(tidegate, name, calls, script) == await told(openai, name, calls, script)


def test_there_are_sixty_of_them():
    assert len(SCENARIOS) >= 60
