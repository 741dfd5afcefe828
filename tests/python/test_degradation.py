"""What a call is answered with when its own upstream cannot take it."""

import logging

import pytest

import tidegate
from tidegate import (
    AsyncClient,
    BadRequestError,
    BreakerPolicy,
    ConfigError,
    Degrade,
    Fallback,
    Gate,
    InternalServerError,
    Limits,
    QuotaExhaustedError,
    RequestTooLargeError,
    RetryPolicy,
)
from tidegate.testing import FaultServer

BODY = {"model": "big", "messages": [{"role": "user", "content": "hello"}]}
QUOTA = {"error": "insufficient_quota"}
TOUCHY = BreakerPolicy(window=0.1, minimum_calls=1, recency=0, consecutive_hits=1, open_for=60)
ONCE = RetryPolicy(max_attempts=1)
RECORD = {"record_bodies": True, "record_headers": ["*"]}


@pytest.fixture
def server():
    with FaultServer(ledger=RECORD) as server:
        yield server


@pytest.fixture
def other():
    with FaultServer(ledger=RECORD) as server:
        yield server


def client(server, **settings):
    return AsyncClient(server.url, "own-key", gate=Gate(**settings), headers={"x-mine": "secret"})


async def test_another_model_when_the_quota_is_exhausted(server, caplog):
    made = client(server, fallbacks=[Fallback("small")])
    server.script([QUOTA])
    with caplog.at_level(logging.WARNING, "tidegate"):
        answer = await made.post("/chat/completions", json=BODY)
    assert [entry["model"] for entry in server.ledger["entries"]] == ["big", "small"]
    info = tidegate.info(answer)
    assert info.degraded
    assert info.notice == "answered by small instead of big (quota): the result may be incomplete"
    assert (info.model, info.attempts) == ("small", 2)
    assert [record.event for record in caplog.records].count("degraded") == 1
    assert 'tidegate_degraded_total{kind="fallback"} 1' in made.gate.metrics_text()


async def test_another_endpoint_gets_its_own_credential_and_none_of_the_clients(server):
    # Whoever brings another key than its own is refused.
    with FaultServer(ledger=RECORD, api_key="other-key") as other:
        await _check_another_endpoint(server, other)


async def _check_another_endpoint(server, other):
    place = Fallback(base_url=other.url, api_key="other-key", headers={"x-other": "1"})
    made = client(server, fallbacks={"big": [place]})
    server.script([QUOTA])
    await made.post("/chat/completions", json=BODY, params={"a": "1"}, headers={"x-call": "1"})
    (entry,) = other.ledger["entries"]
    headers = entry["headers"]
    assert entry["status"] == 200
    assert headers["x-other"] == headers["x-call"] == "1"
    assert "x-mine" not in headers
    assert entry["path"] == "/v1/chat/completions?a=1"
    assert entry["model"] == "big"


async def test_no_credential_is_sent_where_none_was_given(server, other):
    made = client(server, fallbacks=[Fallback(base_url=other.url)])
    server.script([QUOTA])
    await made.post("/chat/completions", json=BODY)
    assert other.ledger["entries"][0]["credential"] == "none"


async def test_they_are_tried_in_order_until_one_serves(server):
    made = client(server, fallbacks=[Fallback("second"), Fallback("third"), Fallback("fourth")])
    server.script([QUOTA, QUOTA])
    answer = await made.post("/chat/completions", json=BODY)
    assert [entry["model"] for entry in server.ledger["entries"]] == ["big", "second", "third"]
    assert tidegate.info(answer).attempts == 3


async def test_when_the_breaker_is_open(server, other):
    gate = {"breaker": TOUCHY, "fallbacks": {"big": [Fallback(base_url=other.url)]}}
    made = client(server, retry=ONCE, retry_budget=None, **gate)
    server.script([{"status": 500}], repeat_last=True)
    for _ in range(200):
        if other.ledger["requests"]["total"]:
            break
        try:
            await made.post("/chat/completions", json=BODY)
        except InternalServerError:
            continue
    before = server.ledger["requests"]["total"]
    answer = await made.post("/chat/completions", json=BODY)
    assert "breaker_open" in tidegate.info(answer).notice
    assert server.ledger["requests"]["total"] == before


async def test_when_the_request_cannot_fit(server):
    made = client(server, limits={"big": Limits(tpm=10), "*": None}, fallbacks=[Fallback("wide")])
    answer = await made.post("/chat/completions", json=BODY | {"max_tokens": 1000})
    assert tidegate.info(answer).model == "wide"
    without = client(server, limits={"big": Limits(tpm=10)})
    with pytest.raises(RequestTooLargeError):
        await without.post("/chat/completions", json=BODY | {"max_tokens": 1000})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_mistake_of_the_caller_is_nobody_elses_to_make(server, status):
    made = client(server, fallbacks=[Fallback("small")], degrade=Degrade())
    await made.post("/chat/completions", json=BODY)
    server.script([{"status": status}])
    with pytest.raises(tidegate.APIStatusError):
        await made.post("/chat/completions", json=BODY)
    assert server.ledger["requests"]["total"] == 2


async def test_if_none_serves_the_last_error_is_raised(server):
    made = client(server, fallbacks=[Fallback("small")])
    server.script([QUOTA, QUOTA])
    with pytest.raises(QuotaExhaustedError) as caught:
        await made.post("/chat/completions", json=BODY)
    assert caught.value.attempts == 1
    assert caught.value.info.attempts == 2


async def test_the_total_timeout_holds_over_all_of_them(server):
    made = client(server, fallbacks=[Fallback("small")])
    server.script([QUOTA | {"delay_s": 0.05}, {"fault": "hang"}])
    with pytest.raises(tidegate.DeadlineExceededError) as caught:
        await made.post("/chat/completions", json=BODY, total_timeout=0.5)
    assert caught.value.info.latency_s < 5


async def test_the_last_good_answer_to_the_same_request(server):
    made = client(server, degrade=Degrade(), retry=ONCE)
    server.script([{"content": "good"}, {"status": 503}, {"status": 503}])
    good = await made.post("/chat/completions", json=BODY)
    again = await made.post("/chat/completions", json=BODY)
    assert again.content == good.content
    info = tidegate.info(again)
    assert info.degraded
    assert info.notice.startswith("the last good answer to the same request, 0 s old (overloaded)")
    assert (info.usage, info.cost_usd) == (None, None)
    assert not tidegate.info(good).degraded
    with pytest.raises(InternalServerError):
        await made.post("/chat/completions", json=BODY | {"temperature": 0})
    assert 'tidegate_degraded_total{kind="last_good"} 1' in made.gate.metrics_text()


async def test_an_answer_too_old_or_too_large_is_not_given(server):
    for policy in (Degrade(ttl=1e-9), Degrade(max_bytes=1)):
        made = client(server, degrade=policy, retry=ONCE)
        server.script([{}, {"status": 503}])
        await made.post("/chat/completions", json=BODY)
        with pytest.raises(InternalServerError):
            await made.post("/chat/completions", json=BODY)


async def test_another_credential_has_other_answers(server):
    gate = Gate(degrade=Degrade(), retry=ONCE)
    await AsyncClient(server.url, "one", gate=gate).post("/chat/completions", json=BODY)
    server.script([{"status": 503}])
    with pytest.raises(InternalServerError):
        await AsyncClient(server.url, "two", gate=gate).post("/chat/completions", json=BODY)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (Fallback, "fallback"),
        (lambda: Fallback(5), "fallback.model"),
        (lambda: Fallback("m", api_key="k"), "fallback.base_url"),
        (lambda: Gate(fallbacks=["small"]), "fallbacks"),
        (lambda: Gate(fallbacks=Fallback("small")), "fallbacks"),
        (lambda: Gate(fallbacks=[Fallback(base_url="nowhere")]), "base_url"),
        (lambda: Degrade(ttl=0), "degrade.ttl"),
        (lambda: Degrade(max_bytes=0), "degrade.max_bytes"),
        (lambda: Gate(degrade=5), "degrade"),
    ],
)
def test_wrong_settings_are_refused(make, field):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_the_credential_of_a_fallback_is_not_shown():
    shown = repr(Fallback(base_url="https://a.test", api_key="sk-secret", headers={"x": "sk-secret"}))
    assert "sk-secret" not in shown
    assert "sk-secret" not in repr(
        Gate(fallbacks=[Fallback("m", base_url="https://a.test", api_key="sk-secret")])
    )


async def test_a_refused_request_is_told_as_the_callers(server):
    made = client(server, fallbacks=[Fallback("small")])
    server.script([{"status": 400}])
    with pytest.raises(BadRequestError):
        await made.post("/chat/completions", json=BODY)


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_clients_methods_have_fallbacks_too(server, stream):
    gate = Gate(fallbacks=[Fallback("small")])
    client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=gate, max_retries=0)
    server.script([QUOTA])
    answer = client.chat.completions.create(**BODY, stream=stream)
    if stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    assert tidegate.info(answer).degraded
    assert [entry["model"] for entry in server.ledger["entries"]] == ["big", "small"]
