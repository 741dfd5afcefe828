"""Functions behind the gates, and the calls that are made in them."""

import asyncio
import json
import time

import httpx2
import openai
import pytest

import tidegate
import tidegate.httpx
from tidegate import (
    AsyncClient,
    AsyncOpenAI,
    BreakerPolicy,
    CallPolicy,
    CircuitOpenError,
    Client,
    ConfigError,
    DeadlineExceededError,
    Gate,
    InternalServerError,
    Limits,
    OpenAI,
    RetryBudget,
    RetryPolicy,
    Timeouts,
    _call,
)
from tidegate.testing import FaultServer

QUICK = RetryPolicy(max_attempts=3, base=0.001, cap=0.002)
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def gate(**settings):
    return Gate(**{"retry": QUICK, "retry_budget": RetryBudget(capacity=100), **settings})


@pytest.fixture
def down():
    with FaultServer([{"status": 503}], repeat_last=True) as server:
        yield server


class Flaky:
    """Fails as often as told, then returns its arguments."""

    def __init__(self, failures, error=ConnectionError):
        self.failures, self.error, self.called = failures, error, 0

    def __call__(self, *args, **keywords):
        self.called += 1
        if self.called <= self.failures:
            raise self.error("no")
        return args, keywords


async def until(condition, made):
    async with asyncio.timeout(10):
        while not condition(made.snapshot()["scopes"][0]):  # noqa: ASYNC110 another thread changes it
            await asyncio.sleep(0.001)


def metric(made, name):
    lines = [line for line in made.metrics_text().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_a_function_is_called_again_until_it_returns():
    made, flaky = gate(), Flaky(2)
    assert made.call(flaky, 1, a=2, policy=CallPolicy(name="flaky")) == ((1,), {"a": 2})
    again = Flaky(2)

    async def work(*args):
        return again(*args)

    assert await made.call(work, 3, policy=CallPolicy(name="flaky")) == ((3,), {})
    assert (flaky.called, again.called) == (3, 3)
    assert metric(made, "retry_total") == 4
    assert metric(made, 'tool_call_total{tool="flaky",status="ok"}') == 2
    assert made.snapshot()["calls"] == 0, "calls of models are counted apart"


def test_its_last_error_is_raised_with_how_it_went():
    made, flaky = gate(), Flaky(9)
    with pytest.raises(ConnectionError, match="no") as raised:
        made.call(flaky)
    assert flaky.called == 3
    assert raised.value.__notes__[0].startswith("tidegate gave up after 3 attempts")
    assert tidegate.info(raised.value).attempts == 3


@pytest.mark.parametrize(
    ("error", "policy", "called"),
    [
        (ValueError, CallPolicy(), 1),
        (ValueError, CallPolicy(retry_on=(ValueError,)), 3),
        (ConnectionError, CallPolicy(retry_on=(ValueError,)), 1),
        (ValueError, CallPolicy(retry_on=lambda error: str(error) == "no"), 3),
        (TimeoutError, CallPolicy(max_attempts=2), 2),
    ],
)
def test_what_is_tried_again(error, policy, called):
    flaky = Flaky(9, error)
    with pytest.raises(error):
        gate().call(flaky, policy=policy)
    assert flaky.called == called


async def test_calls_of_one_name_share_a_breaker_and_a_budget():
    touchy = BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0, open_for=60)
    made = gate(breaker=touchy)
    policy = CallPolicy(name="fails")
    async with asyncio.timeout(10):
        while made.breakers() == [] or made.breakers()[0].state == "closed":
            with pytest.raises((ConnectionError, CircuitOpenError)):
                made.call(Flaky(9), policy=policy)
            await asyncio.sleep(0.01)
    with pytest.raises(CircuitOpenError, match="function fails"):
        made.call(Flaky(0), policy=policy)
    assert made.snapshot()["scopes"][0]["retry_budget"]["balance"] < 100


async def test_calls_of_one_name_share_concurrency():
    made = gate(limits={"two": Limits(concurrency=2)})
    running, most = 0, 0

    async def work():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    await asyncio.gather(*(made.call(work, policy=CallPolicy(name="two")) for _ in range(10)))
    assert most == 2
    assert made.snapshot()["scopes"][0]["in_flight"] == 0


async def test_time_is_bounded():
    made = gate()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await made.call(asyncio.sleep, 60, policy=CallPolicy(timeout=0.05))
    with pytest.raises(DeadlineExceededError):
        await made.call(asyncio.sleep, 60, policy=CallPolicy(total_timeout=0.05))
    with pytest.raises(DeadlineExceededError):
        await asyncio.to_thread(made.call, time.sleep, 5, policy=CallPolicy(total_timeout=0.05))
    assert time.monotonic() - started < 5


async def test_cancelling_gives_everything_back():
    made = gate(limits=Limits(concurrency=1))
    began = asyncio.Event()

    async def work():
        began.set()
        await asyncio.sleep(60)

    policy = CallPolicy(name="work")
    holds = asyncio.create_task(made.call(work, policy=policy))
    await began.wait()
    waits = asyncio.create_task(made.call(work, policy=policy))
    await until(lambda scope: scope["queued"], made)
    for task in (waits, holds):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # Who waited may get the place before it is known that they have left.
    await until(lambda scope: not scope["queued"] and not scope["in_flight"], made)


async def native(url, made):
    async with AsyncClient(url, "k", gate=made) as client:
        await client.post("/chat/completions", json=BODY, max_attempts=9)


async def drop_in(url, made):
    async with AsyncOpenAI(base_url=url, api_key="k", gate=made, max_retries=8) as client:
        await client.chat.completions.create(**BODY)


async def drop_in_raw(url, made):
    async with AsyncOpenAI(base_url=url, api_key="k", gate=made, max_retries=8) as client:
        await client.chat.completions.with_raw_response.create(**BODY)


async def by_httpx(url, made):
    async with httpx2.AsyncClient(transport=tidegate.httpx.AsyncTransport(made)) as client:
        (await client.post(f"{url}/chat/completions", json=BODY)).raise_for_status()


async def streams(url, made):
    client = AsyncClient(url, "k", gate=made)
    async with client.stream("/chat/completions", json=BODY) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("inner", [native, drop_in, drop_in_raw, streams])
async def test_what_is_called_inside_is_sent_once_per_attempt(down, inner):
    made = gate()
    with pytest.raises(Exception, match=r"503|overloaded") as raised:
        await made.call(inner, down.url, made, policy=CallPolicy(name="outer"))
    assert raised.value.__notes__[0].startswith("tidegate gave up after 3 attempts")
    assert down.ledger["requests"]["total"] == 3
    scopes = {scope["model"]: scope for scope in made.snapshot()["scopes"]}
    assert scopes["m"]["retry_budget"]["balance"] == 100, "the outer call's budget has paid"
    assert scopes["outer"]["retry_budget"]["balance"] < 99
    assert metric(made, "tidegate_stacked_retries_total") == 0


async def test_a_transport_inside_sends_once_per_attempt(down):
    made, policy = gate(), CallPolicy(retry_on=(httpx2.HTTPStatusError,))
    with pytest.raises(httpx2.HTTPStatusError):
        await made.call(by_httpx, down.url, made, policy=policy)
    assert down.ledger["requests"]["total"] == 3


def test_plain_functions_too(down):
    made = gate()

    def work():
        Client(down.url, "k", gate=made).post("/chat/completions", json=BODY)

    with pytest.raises(InternalServerError):
        made.call(work)
    assert down.ledger["requests"]["total"] == 3

    def official():
        OpenAI(base_url=down.url, api_key="k", gate=made).chat.completions.create(**BODY)

    with pytest.raises(openai.InternalServerError):
        made.call(official)
    assert down.ledger["requests"]["total"] == 6


@pytest.mark.parametrize("bound", ["timeout", "total_timeout"])
@pytest.mark.parametrize("inner", [native, drop_in, drop_in_raw, by_httpx, streams])
async def test_what_is_called_inside_has_the_time_that_is_left(inner, bound):
    made = gate(timeouts=Timeouts(total=30))
    with FaultServer([{"fault": "hang"}], repeat_last=True) as server:

        async def work():
            # A task of its own, which the outer call's end does not cancel.
            return asyncio.create_task(inner(server.url, made))

        task = await made.call(work, policy=CallPolicy(**{bound: 0.2}))
        with pytest.raises(DeadlineExceededError):
            await task
        assert server.ledger["requests"]["total"] == 1


async def test_what_is_called_when_no_time_is_left_is_not_sent(server):
    made = gate()

    async def work():
        async def later():
            # The time of the call that began before is over by then.
            await asyncio.sleep(0.06)
            await native(server.url, made)

        return asyncio.create_task(later())

    task = await made.call(work, policy=CallPolicy(total_timeout=0.05))
    with pytest.raises(DeadlineExceededError, match="no time is left of the guarded call"):
        await task
    assert server.ledger["requests"]["total"] == 0


async def test_the_log_shows_which_call_was_made_in_which(server, tmp_path):
    log = tmp_path / "log"
    made = gate(log_file=log)

    async def inner():
        await native(server.url, made)

    async def middle():
        await made.call(inner, policy=CallPolicy(name="inner"))

    await made.call(middle, policy=CallPolicy(name="outer"))
    calls = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "call":
            calls[event["model"]] = event
    assert set(calls) == {"m", "inner", "outer"}
    assert {event["trace_id"] for event in calls.values()} == {calls["outer"]["trace_id"]}
    assert "parent_span_id" not in calls["outer"]
    assert calls["inner"]["parent_span_id"] == calls["outer"]["span_id"]
    assert calls["m"]["parent_span_id"] == calls["inner"]["span_id"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", ""),
        ("tokens", -1),
        ("timeout", 0),
        ("total_timeout", "1"),
        ("max_attempts", 0),
        ("retry_on", ValueError),
        ("retry_on", (1,)),
    ],
)
def test_a_wrong_policy_is_refused(setting, value):
    with pytest.raises(ConfigError) as raised:
        CallPolicy(**{setting: value})
    assert raised.value.field == f"call.{setting}"


def test_a_wrong_function_is_refused():
    def generator():
        yield

    for wrong in (generator, 5, lambda: asyncio.sleep(0)):
        with pytest.raises(ConfigError):
            gate().call(wrong)
    with pytest.raises(ConfigError):
        gate().call(print, policy=1)


def test_an_interrupt_in_the_wait_before_a_retry_ends_the_call(monkeypatch):
    made = gate(retry=RetryPolicy(max_attempts=3, base=5.0, cap=5.0, min_delay=5.0))

    def interrupt(seconds):
        # The wait is counted from the end of the attempt, so a little of it has gone by.
        assert 4.0 < seconds <= 5.0
        raise KeyboardInterrupt

    monkeypatch.setattr(_call.time, "sleep", interrupt)
    before = made.snapshot()["scopes"]
    with pytest.raises(KeyboardInterrupt) as raised:
        made.call(Flaky(9), policy=CallPolicy(name="fails"))
    # The traceback still holds the call, which has given back what it paid for the retry.
    assert before == []
    assert raised.value.__traceback__ is not None
    assert made.snapshot()["scopes"][0]["retry_budget"]["balance"] == 100
