"""The same user script, run with `openai` and with `tidegate`, prints the same."""

import inspect
import io

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


def json_body(value, **more):
    return {"body_json": value, **more}


def error(status, **fields):
    return json_body(
        {"error": {"message": "no", "type": "t", "param": "p", "code": "c", **fields}}, status=status
    )


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
    "redirect": (listed, [{"status": 307, "headers": {"location": "/v1/models?moved=1"}}]),
    "redirect of a post": (chat, [{"status": 308, "headers": {"location": "/v1/chat/completions"}}]),
    "redirect that is not followed": (chat, [{"status": 304}]),
}


async def settled(value):
    return await value if inspect.isawaitable(value) else value


def timeless(answer):
    return {
        name: value
        for name, value in answer.model_dump(warnings=False).items()
        if name not in {"created", "created_at"}
    }


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
            lines.append(answer)
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
    sent = [(entry["method"], entry["path"], entry["body_hash"], entry["headers"]) for entry in entries]
    return lines, sent if calls not in {uploaded, transcribed} else [entry[:2] for entry in sent]


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
