"""Bills of mixed calls beside the server's own ledger."""

import asyncio
import json
import random
import re
from decimal import Decimal

import openai
import pytest

import tidegate
from tidegate import CallError, Client, Fallback, Gate, Prices, RetryPolicy, StreamInterruptedError, Timeouts
from tidegate.testing import FaultServer

CALLS = 2000
LEARNT = 30
PRICES = {"m-*": {"input": "2.50", "cached_input": "1.25", "output": "10.00"}}
PATH = "/chat/completions"
# By a header's word for it. Lists are answered in turn: each call of such a kind takes them all.
ANSWERS = {
    "plain": {},
    "cached": {"usage": {"prompt_tokens": 50, "cached_tokens": 5, "completion_tokens": 30}},
    "reasoning": {"usage": {"prompt_tokens": 61, "reasoning_tokens": 12, "completion_tokens": 40}},
    "both": {"usage": {"cached_tokens": 7, "reasoning_tokens": 3, "completion_tokens": 11}},
    "tried again": [{"status": 503}, {"status": 429, "retry_after_s": 0.001}, {}],
    "reset": [{"fault": "reset"}, {}],
    "cut": {"fault": "cut"},
    "cut by a reset": {"fault": "cut_reset"},
    "unasked": {},
    "refused": {"status": 400},
    "unpaid": {"error": "insufficient_quota"},
}
# Their figures are not those of the text: what is learned from them serves no estimate.
STATED = {"cached", "reasoning", "both"}
OF_STREAMS = {"cut", "cut by a reset", "unasked"}
RULES = [{"match": {"header": {"x-kind": kind}}, "respond": answer} for kind, answer in ANSWERS.items()]


def request(number, kind):
    words = " ".join(f"word{number % 7}" for _ in range(40 + number % 40))
    model = "m-stated" if kind in STATED else "m-counted"
    body = {"model": model, "messages": [{"role": "user", "content": words}]}
    if kind == "unasked":
        body["stream_options"] = {"include_usage": False}
    return body


class Native:
    def __init__(self, url, gate):
        self.client = Client(url, "k", gate=gate)

    def whole(self, body, headers):
        return self.client.post(PATH, json=body, headers=headers)

    def stream(self, body, headers):
        with self.client.stream(PATH, json=body, headers=headers) as events:
            for _ in events:
                pass
        return events


class DropIn:
    """The official client's three ways to the same: its methods, and raw responses."""

    def __init__(self, url, gate):
        self.client = tidegate.OpenAI(base_url=url, api_key="k", gate=gate, max_retries=3)

    def whole(self, body, headers):
        completions = self.client.chat.completions
        if headers["x-number"].endswith("7"):
            completions = completions.with_raw_response
        return completions.create(**body, extra_headers=headers)

    def stream(self, body, headers):
        stream = self.client.chat.completions.create(**body, stream=True, extra_headers=headers)
        for _ in stream:
            pass
        return stream


def billed(clients, generator):
    """Make the calls; return how each went by its number, those apart that were refused."""
    kinds = list(ANSWERS)
    infos, refused = {}, []
    for number in range(CALLS):
        # Estimates rest on what the model's prompts took before.
        kind = "plain" if number < LEARNT else generator.choice(kinds)
        client = generator.choice(clients)
        streams = kind in OF_STREAMS or generator.random() < 0.5
        call = client.stream if streams else client.whole
        try:
            told = call(request(number, kind), {"x-kind": kind, "x-number": f"{number}"})
        except StreamInterruptedError as error:
            assert kind.startswith("cut")
            told = error
        except (CallError, openai.APIStatusError) as error:
            assert kind in {"refused", "unpaid"}
            refused.append(error)
            continue
        infos[f"{number}"] = (kind, tidegate.info(told))
    return infos, refused


def price(usage):
    uncached = usage["prompt_tokens"] - usage["cached_tokens"]
    dollars = Decimal("2.5") * uncached + Decimal("1.25") * usage["cached_tokens"]
    return (dollars + 10 * usage["completion_tokens"]) / 1_000_000


def total(text, estimated):
    """Return the sum of a gate's costs in its metrics."""
    found = re.findall(r"^tidegate_cost_usd_total\{([^}]*)\} (\S+)$", text, re.MULTILINE)
    return sum(Decimal(value) for labels, value in found if ('estimated="true"' in labels) == estimated)


@pytest.mark.parametrize("seed", [9])
def test_bills_agree_with_the_servers_ledger(seed):
    """What was reported is equal to the last pico-dollar; what was not is marked, and near."""
    generator = random.Random(seed)  # noqa: S311 reproducible
    with FaultServer(
        rules=RULES,
        prices=PRICES,
        usage={"estimate": True, "completion_tokens": 120},
        ledger={"record_headers": ["x-number"]},
    ) as server:
        retry = RetryPolicy(base=0.0005, cap=0.001, throttle_base=0.0005, throttle_cap=0.001)
        gate = Gate(prices=Prices(PRICES), breaker=None, retry_budget=None, retry=retry)
        infos, refused = billed([Native(server.url, gate), DropIn(server.url, gate)], generator)
        entries = server.ledger["entries"]
    answered = {entry["headers"]["x-number"]: entry for entry in entries if entry["status"] == 200}
    sums = {"reported": Decimal(0), "estimated": Decimal(0)}
    for number, (kind, info) in infos.items():
        theirs, ours = answered[number]["usage"], info.usage
        sums[ours.source] += info.cost_usd
        assert ours.source == ("estimated" if kind in OF_STREAMS else "reported"), kind
        if ours.source == "reported":
            assert {name: getattr(ours, name) for name in theirs} == theirs
            assert info.cost_usd == price(theirs)
        else:
            counted = theirs["prompt_tokens"] + theirs["completion_tokens"]
            assert abs(ours.prompt_tokens + ours.completion_tokens - counted) <= 0.03 * counted, (
                kind,
                number,
            )
    assert len(infos) + len(refused) == CALLS
    assert {tidegate.info(error).usage for error in refused} == {None}
    # Nothing is billed twice, and nothing by somebody else.
    rows = gate.usage(())
    assert sum(row.cost_usd for row in rows) == sums["reported"] + sums["estimated"]
    assert sum(row.calls for row in rows) == CALLS
    whole = sum(
        price(answered[number]["usage"])
        for number, (_, info) in infos.items()
        if info.usage.source == "reported"
    )
    assert sums["reported"] == whole
    text = gate.metrics_text()
    assert total(text, estimated=True) == sums["estimated"]
    assert total(text, estimated=False) == sums["reported"]


# What an attempt used that failed is on the bill of its call.

USED = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
NO_CHOICES = {"status": 200, "body_json": {"object": "chat.completion", "choices": [], "usage": USED}}
CHUNK = {"object": "chat.completion.chunk", "choices": [], "usage": USED}
NO_CONTENT = {
    "headers": {"content-type": "text/event-stream"},
    "body_text": f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n",
    "usage": {"prompt_tokens": 100, "completion_tokens": 3},
}
AN_ERROR_INSTEAD = {
    "status": 200,
    "body_json": {"error": {"message": "upstream is down", "code": 502}, "usage": USED},
}
REQUEST = {"model": "m-1", "messages": [{"role": "user", "content": "one two three four five six seven"}]}
COST = (Decimal("2.5") * 100 + 10 * 3) / 1_000_000
OF_THE_ANSWER = {"prompt_tokens": 10, "completion_tokens": 1}
COST_OF_THE_ANSWER = (Decimal("2.5") * 10 + 10 * 1) / 1_000_000


def quick(**options):
    retry = RetryPolicy(base=0.001, cap=0.002, throttle_base=0.001, throttle_cap=0.002)
    return Gate(prices=Prices(PRICES), retry=retry, breaker=None, retry_budget=None, **options)


def ask(way, server, gate):
    """Make a call; return its `CallInfo`, also of one that fails."""
    try:
        if way == "native":
            return tidegate.info(Client(server.url, "k", gate=gate).post(PATH, json=REQUEST))
        if way == "native stream":
            return tidegate.info(Native(server.url, gate).stream(REQUEST, {}))
        client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=gate, max_retries=3, timeout=0.2)
        streamed = {"stream": True} if way == "drop-in stream" else {}
        completions = client.chat.completions
        if way == "drop-in raw":
            return tidegate.info(completions.with_raw_response.create(**REQUEST))
        got = completions.create(**REQUEST, **streamed)
        if streamed:
            list(got)
        return tidegate.info(got)
    except (CallError, openai.OpenAIError) as error:
        return tidegate.info(error)


WHOLE = ("native", "drop-in", "drop-in raw")
STREAMS = ("native stream", "drop-in stream")


@pytest.mark.parametrize(
    ("way", "failure"),
    [
        *[(way, AN_ERROR_INSTEAD) for way in ("native", "native stream", "drop-in", "drop-in raw")],
        *[(way, NO_CHOICES) for way in ("native", "native stream")],
        ("native stream", NO_CONTENT),
    ],
)
def test_an_attempt_that_fails_and_states_its_usage_is_on_the_bill(way, failure):
    gate = quick()
    with FaultServer([failure], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask(way, server, gate)
        ledger = server.ledger
    assert info.attempts == 2
    assert (info.usage.prompt_tokens, info.usage.completion_tokens) == (110, 4)
    assert info.usage.source == "reported"
    assert info.cost_usd == COST + COST_OF_THE_ANSWER
    [row] = gate.usage()
    assert (row.prompt_tokens, row.completion_tokens) == (110, 4)
    assert (row.cost_usd, row.estimated_usd) == (info.cost_usd, 0)
    assert (ledger["usage"]["prompt_tokens"], ledger["usage"]["completion_tokens"]) == (110, 4)
    assert total(gate.metrics_text(), estimated=False) == info.cost_usd


@pytest.mark.parametrize("way", ["native", "native stream"])
def test_so_is_each_attempt_of_a_call_that_fails(way):
    gate = quick()
    with FaultServer([NO_CHOICES], repeat_last=True, prices=PRICES) as server:
        info = ask(way, server, gate)
        ledger = server.ledger
    assert info.attempts == 2
    assert (info.usage.prompt_tokens, info.cost_usd, info.usage.source) == (200, 2 * COST, "reported")
    [row] = gate.usage()
    assert (row.failed, row.prompt_tokens, row.cost_usd) == (1, 200, 2 * COST)
    assert ledger["usage"]["prompt_tokens"] == 200


@pytest.mark.parametrize("way", [*WHOLE, *STREAMS])
@pytest.mark.parametrize("fails", ["then answers", "for ever"])
def test_an_attempt_that_was_left_at_work_is_estimated(way, fails):
    """A server that is not waited for may finish, and bill."""
    gate = quick(timeouts=Timeouts(attempt=0.2))
    answers = [{"fault": "hang"}] if fails == "then answers" else [{"fault": "hang"}] * 4
    with FaultServer([*answers, {}], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask(way, server, gate)
    left = len(answers)
    assert info.attempts == (2 if fails == "then answers" else left)
    told = (10, 1, COST_OF_THE_ANSWER) if fails == "then answers" else (0, 0, 0)
    assert info.usage.source == "estimated"
    prompt = (info.usage.prompt_tokens - told[0]) / left
    assert 5 <= prompt <= 30
    assert info.usage.completion_tokens == told[1]
    estimated = Decimal("2.5") * (info.usage.prompt_tokens - told[0]) / 1_000_000
    assert info.cost_usd == told[2] + estimated
    # Of the money, only what was guessed is called so.
    [row] = gate.usage()
    assert (row.cost_usd, row.estimated_usd) == (info.cost_usd, estimated)
    text = gate.metrics_text()
    assert (total(text, estimated=False), total(text, estimated=True)) == (told[2], estimated)
    missing = re.findall(r"^tidegate_answers_without_usage_total\S* (\S+)$", text, re.MULTILINE)
    assert sum(map(float, missing)) == 0


@pytest.mark.parametrize("way", WHOLE)
def test_an_answer_that_was_cut_is_estimated(way):
    gate = quick()
    with FaultServer([{"fault": "cut"}], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask(way, server, gate)
    assert (info.attempts, info.usage.source) == (2, "estimated")
    assert info.usage.prompt_tokens > OF_THE_ANSWER["prompt_tokens"]
    assert info.cost_usd > COST_OF_THE_ANSWER


@pytest.mark.parametrize("failure", [{"status": 500}, {"status": 429}, {"fault": "reset"}])
@pytest.mark.parametrize("way", [*WHOLE, *STREAMS])
def test_what_was_refused_or_reset_costs_nothing(way, failure):
    gate = quick()
    with FaultServer([failure], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask(way, server, gate)
    assert info.attempts == 2
    assert (info.usage.prompt_tokens, info.usage.source) == (10, "reported")
    assert info.cost_usd == COST_OF_THE_ANSWER


def test_a_stand_in_answers_with_what_was_used_before_it():
    gate = quick(fallbacks={"m-1": [Fallback("m-2")]})
    full = {"error": "context_length"}
    with FaultServer([NO_CHOICES, full, {}], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask("native", server, gate)
        ledger = server.ledger
    assert (info.attempts, info.usage.source) == (3, "reported")
    assert (info.usage.prompt_tokens, info.cost_usd) == (110, COST + COST_OF_THE_ANSWER)
    assert ledger["usage"]["prompt_tokens"] == 110
    [row] = gate.usage(())
    assert (row.calls, row.prompt_tokens, row.cost_usd) == (2, 110, info.cost_usd)


def test_what_is_known_of_a_cost_is_kept_beside_what_is_not():
    """One attempt has a stated cost, the other no price."""
    gate = Gate(prices=Prices({}), retry=RetryPolicy(base=0.001, cap=0.002), timeouts=Timeouts(attempt=0.2))
    stated = {**USED, "cost": 0.01}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}], "usage": stated}
    with FaultServer([{"fault": "hang"}, {"body_json": answer}]) as server:
        info = ask("native", server, gate)
    assert info.cost_usd == Decimal("0.01")
    [row] = gate.usage()
    assert (row.cost_usd, row.estimated_usd, row.unpriced) == (Decimal("0.01"), 0, 1)
    text = gate.metrics_text()
    assert total(text, estimated=False) == Decimal("0.01")
    assert re.search(r'^tidegate_calls_unpriced_total\{model="m-1"\} 1$', text, re.MULTILINE)


def test_who_failed_with_a_bill_is_told(tmp_path):
    """The model that answered without a choice, in the line of the call that ended so."""
    log = tmp_path / "log.jsonl"
    answer = {**NO_CHOICES["body_json"], "model": "m-2"}
    with FaultServer([{"body_json": answer}], repeat_last=True) as server:
        ask("native", server, quick(log_file=log))
    told = [json.loads(line) for line in log.read_text().splitlines()]
    [call] = [line for line in told if line["event"] == "call"]
    assert (call["response_model"], call["prompt_tokens"]) == ("m-2", 200)


def test_an_empty_answer_to_a_deletion_is_no_stream():
    bare = {"headers": {"content-type": "text/event-stream"}, "body_text": ""}
    with FaultServer([bare], repeat_last=True) as server:
        answer = Client(server.url, "k", gate=quick()).request("DELETE", "/files/f")
    assert (answer.status, answer.info.attempts) == (200, 1)


def test_a_request_that_asks_no_model_has_no_bill():
    gate = quick(timeouts=Timeouts(attempt=0.2))
    with FaultServer([{"fault": "hang"}, {"body_json": {"id": "batch_1"}}]) as server:
        info = tidegate.info(Client(server.url, "k", gate=gate).post("/batches", json={"input_file_id": "f"}))
    assert (info.attempts, info.usage, info.cost_usd) == (2, None, None)
    [row] = gate.usage()
    assert (row.unpriced, row.cost_usd) == (0, 0)


def events(*chunks):
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return {"headers": {"content-type": "text/event-stream"}, "body_text": text}


def piece(text):
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}


@pytest.mark.parametrize(
    "broken",
    [
        events(*[piece("word ")] * 50),
        events(*[piece("word ")] * 50, {"error": {"message": "overloaded", "code": 529}}),
    ],
)
def test_a_stream_taken_whole_that_breaks_is_billed_for_what_came(broken):
    gate = quick()
    with FaultServer([broken], prices=PRICES) as server:
        client = Client(server.url, "k", gate=gate)
        with pytest.raises(CallError) as raised:
            client.post(PATH, json={**REQUEST, "stream": True}, max_attempts=1)
    info = tidegate.info(raised.value)
    assert info.usage.source == "estimated"
    assert 40 <= info.usage.completion_tokens <= 120
    [row] = gate.usage()
    assert row.cost_usd == row.estimated_usd == info.cost_usd > 0


SAID = " ".join(["word"] * 40)
UNCOUNTED = {
    "chat": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}}],
    },
    "response": {"object": "response", "output": [{"content": [{"type": "output_text", "text": SAID}]}]},
    "embeddings": {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]},
}


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("kind", UNCOUNTED)
def test_an_answer_that_states_nothing_is_estimated(kind, way):
    """As a stream is: the provider bills it all the same."""
    gate = quick()
    with FaultServer([{"status": 200, "body_json": UNCOUNTED[kind]}], prices=PRICES) as server:
        info = ask(way, server, gate)
    assert (info.attempts, info.usage.source) == (1, "estimated")
    assert 5 <= info.usage.prompt_tokens <= 30
    assert info.usage.completion_tokens == (0 if kind == "embeddings" else 40)
    [row] = gate.usage()
    assert (row.prompt_tokens, row.completion_tokens) == (
        info.usage.prompt_tokens,
        info.usage.completion_tokens,
    )
    assert row.cost_usd == row.estimated_usd == info.cost_usd > 0
    assert re.search(
        r'^tidegate_answers_without_usage_total{model="m-1"} 1$', gate.metrics_text(), re.MULTILINE
    )


def test_an_answer_that_is_no_models_is_unknown():
    gate = quick()
    images = {"created": 1, "data": [{"url": "https://example.com/a.png"}]}
    with FaultServer([{"body_json": images}]) as server:
        answer = Client(server.url, "k", gate=gate).post(
            "/images/generations", json={"model": "m-1", "prompt": "a"}
        )
    assert (answer.usage, answer.cost_usd) == (None, None)


def test_an_answer_that_is_not_ready_is_unknown_and_keeps_what_is_set_aside():
    """Made in the background, it may yet use all that it may."""
    gate = quick(spend=tidegate.SpendCap("1.00"))
    queued = {
        "object": "response",
        "id": "r",
        "status": "queued",
        "background": True,
        "output": [],
        "usage": None,
    }
    body = {"model": "m-1", "input": "hi", "background": True, "max_output_tokens": 50_000}
    with FaultServer([{"body_json": queued}], repeat_last=True) as server:
        client = Client(server.url, "k", gate=gate)
        answer = client.post("/responses", json=body)
        with pytest.raises(tidegate.SpendCapExceededError):
            client.post("/responses", json={**body, "max_output_tokens": 60_000})
    assert (answer.usage, answer.info.cost_usd) == (None, None)


def test_a_stream_taken_whole_that_states_nothing_is_estimated():
    gate = quick()
    last = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    }
    with FaultServer([events(*[piece("word ")] * 50, last)], prices=PRICES) as server:
        answer = Client(server.url, "k", gate=gate).post(PATH, json={**REQUEST, "stream": True})
    assert answer.usage.source == "estimated"
    assert 40 <= answer.usage.completion_tokens <= 120


def test_a_stream_taken_whole_that_breaks_off_is_a_lost_connection():
    with FaultServer([events(piece("word "))]) as server:
        client = Client(server.url, "k", gate=quick())
        with pytest.raises(
            tidegate.APIConnectionError, match="without saying that it was complete"
        ) as raised:
            client.post(PATH, json={**REQUEST, "stream": True}, max_attempts=1)
    assert raised.value.kind == "connection"


@pytest.mark.parametrize("status", [504, 524])
def test_behind_a_gateway_that_gave_up_the_prompt_may_be_billed(status):
    gate = quick()
    with FaultServer([{"status": status}], prices=PRICES, usage=OF_THE_ANSWER) as server:
        info = ask("native", server, gate)
    assert (info.attempts, info.usage.source) == (2, "estimated")
    assert info.usage.prompt_tokens > 10
    assert info.cost_usd > COST_OF_THE_ANSWER


async def reserved(client):
    """Return the money that a call would set aside, as the cap tells that refuses it."""
    with tidegate.tags(probe="1"), pytest.raises(tidegate.SpendCapExceededError) as refused:
        await client.post(PATH, json=REQUEST)
    return re.search(r"this call may cost \$([0-9.]+)", str(refused.value)).group(1)


@pytest.mark.parametrize("kind", ["broken", "empty"])
def test_what_fails_teaches_nothing_of_how_long_answers_are(kind):
    """An error that states one token is no answer of one token, nor is a long answer without content."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in (start, error))
    overloaded = {"headers": {"content-type": "text/event-stream"}, "body_text": text}
    long = {"usage": {"prompt_tokens": 10, "completion_tokens": 9000}}

    async def fails(client):
        async with client.stream(PATH, json=REQUEST, max_attempts=1) as stream:
            async for _ in stream:
                pass

    async def main(server):
        gate = quick(spend=tidegate.SpendCap("0.000001", tag="probe=1"))
        async with tidegate.AsyncClient(server.url, "k", gate=gate) as client:
            for _ in range(30):
                await client.post(PATH, json=REQUEST, max_attempts=1)
            before = await reserved(client)
            # Twice the longest answers of late, at ten dollars a million.
            assert Decimal(before) > Decimal("0.18")
            for _ in range(70):
                with pytest.raises(CallError):
                    await fails(client)
            assert await reserved(client) == before

    usage = {"prompt_tokens": 9, "completion_tokens": 90_000, "total_tokens": 90_009}
    empty = {**overloaded, "body_text": f"data: {json.dumps({**CHUNK, 'usage': usage})}\n\ndata: [DONE]\n\n"}
    fails_so = {"broken": overloaded, "empty": empty}[kind]
    with FaultServer([*[long] * 30, fails_so], repeat_last=True) as server:
        asyncio.run(main(server))


OVER_QUOTA = {"error": {"message": "slow down", "code": 429, "type": "rate_limit_error"}}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [({"status": 429}, 1), ({"body_json": OVER_QUOTA}, 1), (events(OVER_QUOTA), 1), ({"status": 500}, 0)],
    ids=["429", "429 in a 200", "429 in a stream", "500"],
)
def test_tokens_of_what_was_over_quota_stay_booked(answer, kept):
    """The provider counts them, wherever it says so."""
    gate = Gate(limits=tidegate.Limits(tpm=100_000), breaker=None)
    body = {**REQUEST, "max_tokens": 9_000}
    with FaultServer([answer]) as server, pytest.raises(CallError):
        Client(server.url, "k", gate=gate).post(PATH, json=body, max_attempts=1)
    [scope] = gate.snapshot()["scopes"]
    booked = scope["tokens"]["capacity"] - scope["tokens"]["level"]
    # 1,500 flow back in a second.
    assert (booked > 500) == kept
