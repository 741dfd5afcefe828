"""The drop-in clients as tidegate's: the gate stands below them, and tells of itself."""

import copy
import inspect
import pickle
import subprocess
import sys
import typing

import httpx2
import openai
import pytest

import tidegate
from tidegate import BreakerPolicy, Gate, Limits, RetryPolicy, SpendCap, Timeouts

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
NAMES = ["OpenAI", "AsyncOpenAI"]
AZURE = ["AzureOpenAI", "AsyncAzureOpenAI"]


async def settled(value):
    return await value if inspect.isawaitable(value) else value


@pytest.fixture(params=NAMES)
def make(request, server):
    """Make a client of either kind against the server."""
    cls = getattr(tidegate, request.param)
    return lambda **settings: cls(**{"base_url": server.url, "api_key": "k", "gate": Gate(), **settings})


async def chat(client, **options):
    return await settled(client.chat.completions.create(**CHAT, **options))


async def test_is_the_official_client(make):
    client = make()
    assert isinstance(client, openai.OpenAI | openai.AsyncOpenAI)
    assert isinstance(await chat(client), openai.types.chat.ChatCompletion)
    assert type(client).__name__ in NAMES
    assert client.user_agent.startswith(f"{type(client).__name__}/Python")


async def test_tells_how_a_call_went(make, server):
    client = make(gate=Gate(prices={"m": {"input": "1", "output": "2"}}), max_retries=1)
    server.script([{"status": 500, "headers": {"retry-after-ms": "1"}}])
    answer = await chat(client)
    info = tidegate.info(answer)
    assert (info.attempts, [retry.reason for retry in info.retries]) == (2, ["server_error"])
    assert (info.usage.prompt_tokens, str(info.cost_usd)) == (12, "0.000022")
    raw = await settled(client.chat.completions.with_raw_response.create(**CHAT))
    assert tidegate.info(raw) == tidegate.info(raw.parse())
    assert "tidegate" not in answer.model_dump_json()
    assert copy.deepcopy(answer) == answer


async def test_retries_are_counted_as_the_sdk_does(make, server):
    server.script([{"status": 503, "headers": {"retry-after-ms": "1"}}] * 2)
    raw = await settled(make().chat.completions.with_raw_response.create(**CHAT))
    assert raw.retries_taken == 2
    counts = [entry["headers"]["x-stainless-retry-count"] for entry in server.ledger["entries"]]
    assert counts == ["0", "1", "2"]


@pytest.mark.parametrize(("retries", "sent"), [(0, 1), (1, 2), (4, 5)])
async def test_max_retries(make, server, retries, sent):
    server.script([{"status": 500, "headers": {"retry-after-ms": "1"}}], repeat_last=True)
    gate = Gate(retry_budget=None, breaker=None)
    for client in (make(max_retries=retries, gate=gate), make(gate=gate).with_options(max_retries=retries)):
        server.reset_ledger()
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(client)
        assert (caught.value.attempts, caught.value.reason) == (sent, "attempts")
        assert server.ledger["requests"]["total"] == sent


async def test_a_gate_that_never_retries(make, server):
    server.script([{"status": 500}], repeat_last=True)
    with pytest.raises(openai.InternalServerError):
        await chat(make(gate=Gate(retry=None)))
    assert server.ledger["requests"]["total"] == 1


async def test_the_breaker_refuses_as_a_connection_error(make, server):
    server.script([{"status": 500}], repeat_last=True)
    policy = BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0)
    client = make(gate=Gate(breaker=policy, retry_budget=None), max_retries=0)

    async def refused():
        while True:
            try:
                await chat(client)
            except tidegate.CircuitOpenError as error:
                return error
            except openai.InternalServerError:
                pass

    error = await refused()
    assert isinstance(error, openai.APIConnectionError)
    assert (error.reason, error.attempts) == ("breaker_open", 0)
    assert error.retry_after > 0
    assert error.request.url.path == "/v1/chat/completions"
    assert tidegate.info(error).trace_id == error.trace_id
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, openai.APIConnectionError)
    assert (type(again).__name__, again.reason, str(again)) == (
        "CircuitOpenError",
        "breaker_open",
        str(error),
    )


async def test_the_total_timeout_is_a_timeout(make, server):
    server.script([{"delay_s": 30}])
    with pytest.raises(openai.APITimeoutError) as caught:
        await chat(make(gate=Gate(timeouts=Timeouts(total=0.1))))
    assert isinstance(caught.value, tidegate.DeadlineExceededError)
    assert caught.value.reason == "deadline"


async def test_a_full_queue_is_a_connection_error(make):
    client = make(gate=Gate(limits=Limits(rpm=1, burst_seconds=60), timeouts=Timeouts(total=1)))
    await chat(client)
    with pytest.raises(openai.APIConnectionError) as caught:
        await chat(client)
    assert isinstance(caught.value, tidegate.AdmissionError)


async def test_exhausted_credit_is_a_rate_limit_error(make, server):
    server.script([{"error": "insufficient_quota"}])
    with pytest.raises(openai.RateLimitError) as caught:
        await chat(make())
    assert isinstance(caught.value, tidegate.QuotaExhaustedError)
    assert (caught.value.attempts, caught.value.reason) == (1, "non_retryable")
    assert str(caught.value).startswith("Error code: 429 - ")


async def test_a_timeout_has_the_transports_as_its_cause(make, server):
    server.script([{"delay_s": 30}])
    with pytest.raises(openai.APITimeoutError) as caught:
        await chat(make(max_retries=0), timeout=0.1)
    assert isinstance(caught.value.__cause__, httpx2.ReadTimeout)
    assert caught.value.attempts == 1


async def test_an_error_inside_a_success_is_an_error(make, server):
    server.script([{"body_json": {"error": {"message": "died", "code": 502}}}])
    with pytest.raises(openai.InternalServerError, match="died"):
        await chat(make(max_retries=0))


async def test_a_success_that_is_none_is_refused(make, server):
    server.script([{"fault": "malformed"}], repeat_last=True)
    with pytest.raises(openai.APIResponseValidationError) as caught:
        await chat(make(max_retries=0))
    assert isinstance(caught.value, tidegate.MalformedResponseError)


async def test_callable_keys_are_asked_before_each_attempt(server):
    keys = iter(["first", "second"])
    server.script([{"status": 500, "headers": {"retry-after-ms": "1"}}])
    client = tidegate.OpenAI(base_url=server.url, api_key=lambda: next(keys), gate=Gate())
    client.chat.completions.create(**CHAT)
    assert next(keys, "none left") == "none left"


@pytest.mark.parametrize("name", AZURE)
async def test_azure(server, name):
    tokens = iter(["one", "two"])
    client = getattr(tidegate, name)(
        base_url=f"{server.url}/openai",
        api_version="2026-01-01",
        azure_ad_token_provider=lambda: next(tokens),
        gate=Gate(),
    )
    await chat(client)
    assert server.ledger["entries"][0]["path"].endswith(
        "/deployments/m/chat/completions?api-version=2026-01-01"
    ) or (server.ledger["entries"][0]["path"].endswith("/deployments/m/chat/completions"))
    assert type(client.with_options(timeout=3)) is type(client)


def test_gate_is_the_only_new_argument():
    for name in (*NAMES, *AZURE):
        ours, official = getattr(tidegate, name), getattr(openai, name)
        for method in ("__init__", "copy", "with_options"):
            parameters = dict(inspect.signature(getattr(ours, method)).parameters)
            assert parameters.pop("gate").default is None
            assert parameters == dict(inspect.signature(getattr(official, method)).parameters)
            hints = typing.get_type_hints(getattr(ours, method))
            assert hints.pop("gate") == Gate | None
            assert hints == typing.get_type_hints(getattr(official, method))


async def test_copies_keep_the_gate(make):
    gate, other = Gate(), Gate()
    client = make(gate=gate)
    assert client.with_options(timeout=1).gate is gate
    assert client.copy(gate=other).gate is other
    await chat(client.copy(gate=other))
    calls = [
        sum("outcome" in line and line[-2:] == " 1" for line in g.metrics_text().splitlines())
        for g in (gate, other)
    ]
    assert calls[0] == 0 < calls[1]


def test_a_gate_must_be_one():
    with pytest.raises(tidegate.ConfigError, match="must be a Gate"):
        tidegate.OpenAI(api_key="k", gate="auto")


@pytest.mark.parametrize("name", NAMES)
async def test_the_users_own_client_sends(server, name):
    seen = []

    def transport(request):
        seen.append(request.headers["x-stainless-retry-count"])
        if len(seen) == 1:
            return httpx2.Response(503, headers={"retry-after-ms": "1"}, json={"error": {"message": "busy"}})
        return httpx2.Response(200, json={"id": "1", "choices": [], "usage": {"prompt_tokens": 3}})

    cls = httpx2.Client if name == "OpenAI" else httpx2.AsyncClient
    gate = Gate()
    client = getattr(tidegate, name)(
        base_url=server.url,
        api_key="k",
        gate=gate,
        http_client=cls(transport=httpx2.MockTransport(transport)),
    )
    answer = await chat(client)
    assert (answer.id, tidegate.info(answer).attempts, seen) == ("1", 2, ["0", "1"])
    assert server.ledger["requests"]["total"] == 0
    assert not client.takes_fast_path


@pytest.mark.parametrize("name", NAMES)
async def test_failures_of_the_users_own_client(server, name):
    def transport(request):
        raise httpx2.ConnectError("no route", request=request)

    cls = httpx2.Client if name == "OpenAI" else httpx2.AsyncClient
    client = getattr(tidegate, name)(
        base_url=server.url,
        api_key="k",
        gate=Gate(),
        max_retries=1,
        http_client=cls(transport=httpx2.MockTransport(transport)),
    )
    with pytest.raises(openai.APIConnectionError, match=r"Connection error\.") as caught:
        await chat(client)
    assert caught.value.attempts == 2
    assert isinstance(caught.value.__cause__, httpx2.ConnectError)


async def test_spend_caps_refuse_as_an_error_of_the_sdk(make):
    gate = Gate(prices={"m": {"input": "1", "output": "1"}}, spend=SpendCap("0.000001"))
    with pytest.raises(openai.OpenAIError) as caught:
        await chat(make(gate=gate), max_tokens=5)
    assert isinstance(caught.value, tidegate.SpendCapExceededError)


async def test_streams_are_counted_and_told(make, server):
    client = make()
    stream = await chat(client, stream=True)
    chunks = [chunk async for chunk in stream] if hasattr(stream, "__aiter__") else list(stream)
    assert all(chunk.choices for chunk in chunks)
    info = tidegate.info(stream)
    assert (info.usage.completion_tokens, info.usage.source) == (5, "reported")
    server.script([{"fault": "cut"}])
    stream = await chat(client, stream=True)
    with pytest.raises(tidegate.StreamInterruptedError) as caught:
        [chunk async for chunk in stream] if hasattr(stream, "__aiter__") else list(stream)
    assert isinstance(caught.value, openai.APIConnectionError)
    assert caught.value.partial_text


async def test_a_stream_is_tried_again_before_its_first_content(make, server):
    server.script([{"fault": "stream_error"}], repeat_last=False)
    server.script([{"status": 503, "headers": {"retry-after-ms": "1"}}])
    stream = await chat(make(), stream=True)
    [chunk async for chunk in stream] if hasattr(stream, "__aiter__") else list(stream)
    assert tidegate.info(stream).attempts == 2


def test_importing_tidegate_does_not_import_openai():
    code = "import sys, tidegate; sys.exit('openai' in sys.modules or 'httpx2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def test_without_the_sdk_the_names_say_what_to_do():
    code = """
import sys
sys.modules["openai"] = None
import tidegate
try:
    tidegate.AsyncOpenAI
except ImportError as error:
    sys.exit('pip install "tidegate[openai]"' not in str(error))
sys.exit(2)
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


@pytest.mark.parametrize("version", ["2.54.0", "3.49.1"])
def test_with_an_old_sdk_the_names_say_what_to_do(monkeypatch, version):
    monkeypatch.setattr(openai, "VERSION", version)
    with pytest.raises(ImportError, match=rf"needs openai>=3.50,<4, and {version} is installed"):
        _ = tidegate.OpenAI


def test_retry_policy_bounds_the_waits(server):
    server.script([{"status": 503, "headers": {"retry-after": "60"}}])
    client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=Gate(retry=RetryPolicy(max_elapsed=1)))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**CHAT)
    assert (caught.value.reason, caught.value.retry_after) == ("hint_exceeds_budget", 60)
