"""The native clients against a real server: what is sent, what comes back, and what it cost."""

import asyncio
import inspect
import re
from decimal import Decimal

import pytest

import tidegate
from tidegate import (
    APIConnectionError,
    APITimeoutError,
    AsyncClient,
    BadRequestError,
    Client,
    DeadlineExceededError,
    EmptyResponseError,
    Gate,
    InternalServerError,
    MalformedResponseError,
    QuotaExhaustedError,
    RateLimitError,
    RetryPolicy,
)
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "héllo"}]}
PRICES = {"m": {"input": "2.00", "cached_input": "0.50", "output": "8.00"}}
FAST = RetryPolicy(base=0.01, cap=0.02, throttle_base=0.01, throttle_cap=0.02)
RECORD = {"record_bodies": True, "record_headers": ["*"]}


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def make(request):
    """Make a client, and a function that calls one of its methods whichever kind it is."""

    def made(server, gate=None, **settings):
        gate = gate or Gate(retry=FAST, prices=PRICES, retry_budget=None, seed=1)
        client = request.param(server.url, "key", gate=gate, **settings)

        async def call(method="post", path="/chat/completions", **options):
            if method == "post":
                options.setdefault("json", BODY)
            answer = getattr(client, method)(path, **options)
            return await answer if inspect.isawaitable(answer) else answer

        call.client = client
        return call

    return made


@pytest.fixture
def recorder():
    with FaultServer(ledger=RECORD, usage={"prompt_tokens": 1000, "cached_tokens": 400}) as server:
        yield server


async def test_what_is_sent(make, recorder):
    call = make(recorder, headers={"x-mine": "1", "X-Other": "client"})
    await call(params={"a": [1, "b c"], "t": True, "none": None}, headers={"x-other": "call"})
    (entry,) = recorder.ledger["entries"]
    assert (entry["method"], entry["path"]) == ("POST", "/v1/chat/completions?a=1&a=b+c&t=true")
    assert entry["body"] == '{"model":"m","messages":[{"role":"user","content":"héllo"}]}'
    headers = entry["headers"]
    assert headers["x-mine"] == "1"
    assert headers["x-other"] == "call"
    assert headers["content-type"] == headers["accept"] == "application/json"
    assert headers["x-stainless-retry-count"] == "0"
    assert headers["user-agent"] == f"tidegate/{tidegate.__version__}"
    assert entry["credential"] == "present"


async def test_what_comes_back(make, recorder):
    answer = await make(recorder)()
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"
    assert answer.content.decode() == answer.text
    assert answer.request_id == answer.headers["x-request-id"]
    assert tidegate.info(answer) is answer.info


async def test_get_and_other_methods(make, server):
    call = make(server)
    models = await call("get", "/models")
    assert models.json()["object"] == "list"
    answer = call.client.request("GET", "/models")
    assert (await answer if inspect.isawaitable(answer) else answer).json() == models.json()
    assert [entry["method"] for entry in server.ledger["entries"]] == ["GET", "GET"]


async def test_a_body_of_bytes_is_sent_as_it_is(make, recorder):
    content = b'{ "model": "m",  "messages": [] }'
    await make(recorder)(json=None, content=content)
    assert recorder.ledger["entries"][0]["body"] == content.decode()


async def test_usage_cost_and_info(make, recorder):
    call = make(recorder)
    answer = await call(trace_id="0123456789abcdef" * 2)
    assert answer.usage.prompt_tokens == 1000
    assert answer.usage.cached_tokens == 400
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == 1005
    assert answer.usage.source == "reported"
    # 600 x 2.00 + 400 x 0.50 + 5 x 8.00, per million
    assert answer.cost_usd == Decimal("0.00144")
    assert isinstance(answer.cost_usd, Decimal)
    info = answer.info
    assert (info.trace_id, info.model, info.attempts, info.retries) == ("0123456789abcdef" * 2, "m", 1, ())
    assert 0.0 <= info.first_byte_s <= info.latency_s
    assert info.queue_s == pytest.approx(0.0, abs=info.latency_s)
    assert Decimal(call.client.gate.snapshot()["cost_usd"]) == Decimal("0.00144")


async def test_info_of_a_call_that_was_repeated(make, recorder):
    recorder.script([{"status": 500}, {"status": 429, "headers": {"retry-after-ms": "20"}}])
    info = tidegate.info(await make(recorder)())
    assert info.attempts == 3
    assert [retry.reason for retry in info.retries] == ["server_error", "rate_limit"]
    assert info.retries[1].delay_s >= 0.02
    assert info.latency_s >= sum(retry.delay_s for retry in info.retries)
    assert info.cost_usd == Decimal("0.00144")


async def test_attempts_differ_in_their_count_alone(make, recorder):
    recorder.script([{"status": 500}, {"fault": "hang"}, {"status": 503}])
    await make(recorder, timeout=0.2)()
    entries = recorder.ledger["entries"]
    assert [entry["headers"].pop("x-stainless-retry-count") for entry in entries] == ["0", "1", "2", "3"]
    assert len({entry["body_hash"] for entry in entries}) == 1
    assert {entry["body"] for entry in entries} == {entries[0]["body"]}
    assert all(entry["headers"] == entries[0]["headers"] for entry in entries)


async def test_a_stale_connection_costs_no_attempt(make, recorder):
    call = make(recorder)
    await call()
    recorder.script([{"fault": "reset"}])
    info = (await call()).info
    entries = recorder.ledger["entries"][1:]
    assert [entry["headers"]["x-stainless-retry-count"] for entry in entries] == ["0", "0"]
    assert (info.attempts, info.retries) == (1, ())


@pytest.mark.parametrize(
    ("option", "expected"), [({}, 4), ({"max_attempts": 1}, 1), ({"max_attempts": 2}, 2)]
)
async def test_max_attempts(make, server, option, expected):
    server.script([{"status": 500}], repeat_last=True)
    with pytest.raises(InternalServerError) as caught:
        await make(server)(**option)
    assert caught.value.attempts == caught.value.info.attempts == expected
    assert caught.value.reason == "attempts"
    assert server.ledger["requests"]["total"] == expected


async def test_max_retries_of_the_client(make, server):
    server.script([{"status": 500}], repeat_last=True)
    call = make(server, max_retries=1)
    with pytest.raises(InternalServerError):
        await call()
    assert server.ledger["requests"]["total"] == 2


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        ({"status": 400}, BadRequestError, "non_retryable"),
        ({"error": "insufficient_quota"}, QuotaExhaustedError, "non_retryable"),
        ({"status": 429, "headers": {"retry-after": "3600"}}, RateLimitError, "hint_exceeds_budget"),
        # Once more, and no more: a server that answers so twice means it.
        ({"fault": "malformed"}, MalformedResponseError, "non_retryable"),
        ({"fault": "empty"}, EmptyResponseError, "attempts"),
        ({"fault": "reset"}, APIConnectionError, "attempts"),
    ],
)
async def test_failures_know_how_it_went(make, server, answer, error, reason):
    server.script([answer], repeat_last=True)
    call = make(server)
    with pytest.raises(error) as caught:
        await call(trace_id="ab" * 16)
    failure = caught.value
    assert failure.reason == reason
    assert failure.trace_id == "ab" * 16 == tidegate.info(failure).trace_id
    assert failure.attempts == server.ledger["requests"]["total"] == tidegate.info(failure).attempts
    assert 0 < failure.elapsed < 10
    assert failure.status == answer.get("status", failure.status)
    assert call.client.gate.snapshot()["scopes"][0]["in_flight"] == 0


async def test_the_total_timeout_cuts_the_attempt(make, server, wait_until):
    server.script([{"delay_s": 60}], repeat_last=True)
    call = make(server)
    with pytest.raises(DeadlineExceededError) as caught:
        await call(total_timeout=0.2)
    assert 0.2 <= caught.value.elapsed < 2.0
    assert (caught.value.reason, caught.value.attempts) == ("deadline", 1)
    wait_until(lambda: server.ledger["requests"]["by_finish"] == {"client_closed": 1})
    wait_until(lambda: server.ledger["connections"]["closed_by_client"] == 1)


async def test_the_total_timeout_cuts_a_body(make, server, wait_until):
    server.script([{"fault": "stall"}], repeat_last=True)
    with pytest.raises(DeadlineExceededError):
        await make(server)(total_timeout=0.2)
    wait_until(lambda: server.ledger["connections"]["closed_by_client"] == 1)


async def test_the_timeout_of_an_attempt_is_repeated(make, server):
    server.script([{"delay_s": 60}])
    answer = await make(server)(timeout=0.2)
    assert answer.info.attempts == 2
    assert 0.2 <= answer.info.latency_s < 2.0
    server.script([{"delay_s": 60}], repeat_last=True)
    with pytest.raises(APITimeoutError) as caught:
        await make(server, timeout=0.1)(max_attempts=2)
    assert caught.value.attempts == 2
    assert not isinstance(caught.value, DeadlineExceededError)


async def test_a_server_that_is_not_there(make):
    with FaultServer() as server:
        pass
    with pytest.raises(APIConnectionError) as caught:
        await make(server)(max_attempts=2)
    assert caught.value.attempts == 2


async def test_many_at_once(server):
    client = AsyncClient(server.url, "key", gate=Gate(limits=None))
    answers = await asyncio.gather(*[client.post("/chat/completions", json=BODY) for _ in range(300)])
    assert {answer.status for answer in answers} == {200}
    assert len({answer.info.trace_id for answer in answers}) == 300
    assert client.gate.snapshot()["calls"] == 300


_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\\n]|\\[\\n\"])*\""
_SAMPLE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{{_LABEL}(?:,{_LABEL})*\}})? "
    r"(?:[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?Inf|NaN)"
)
_COMMENT = re.compile(r"# (?:HELP|TYPE) (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*) .+")


async def test_the_metrics_text_is_prometheus_format(make, server):
    server.script([{"status": 500}])
    call = make(server)
    await call(json={**BODY, "model": 'quote " backslash \\ line\nend'}, tags={"route": "r"})
    text = call.client.gate.metrics_text()
    assert text.endswith("\n")
    typed, sampled = set(), []
    for line in text.splitlines():
        comment, sample = _COMMENT.fullmatch(line), _SAMPLE.fullmatch(line)
        assert comment or sample, line
        if comment:
            typed.add(comment["name"])
        else:
            sampled.append(sample["name"])
            assert {sample["name"], re.sub("_(bucket|sum|count)$", "", sample["name"])} & typed, line
    assert "tidegate_calls_total" in sampled
    assert 'outcome="ok"} 1' in text
