"""Kinds `sse` and `sse_generated`: the exact bytes of a stream, cut in every way a network may cut them."""

from __future__ import annotations

import base64
import functools
import gc
import itertools
import json
import resource
import time
from decimal import Decimal

import pytest

import tidegate
from cases import adapter, expect, serving
from cases.case import Check
from cases.play import Planned, play

_MODES = ("sync", "async")
_ENDS = {"close": None, "reset": "rst", "hang": "hang"}
_KNOWN = frozenset(
    {
        "id",
        "kind",
        "body_file",
        "content_type",
        "splits",
        "end",
        "consumer",
        "prices",
        "chunk_delay_s",
        "expect",
    }
    | {"note"}
)
# Within it what was sent has arrived: a reset must not overtake it.
_BEFORE_RESET_S = 0.05
_WATCHFUL = tidegate.BreakerPolicy(
    window=3.0, minimum_calls=1, failure_rate_threshold=1e-6, consecutive_hits=1, recency=0
)

_RULES = {}


def checks(case):
    assert not case.content.keys() - _KNOWN, f"unknown fields: {sorted(case.content.keys() - _KNOWN)}"
    for number, split in enumerate(case.content["splits"]):
        name = split if isinstance(split, str) else f"split{number}"
        for mode in _MODES:
            yield Check(f"{name}-{mode}", functools.partial(_run, case, split, mode))


def _pieces(body, split):
    """Return the chunks in which the network brings the body."""
    if split == "every_byte":
        return [body[at : at + 1] for at in range(len(body))]
    ends = [0, *split, len(body)]
    return [body[start:end] for start, end in itertools.pairwise(ends) if end > start]


def _run(case, split, mode):
    content = case.content
    delay = content.get("chunk_delay_s", 0)
    body = case.bytes_of(content["body_file"])
    pieces = _pieces(body, split)
    if delay:
        pieces = [part + b"\n\n" for part in body.split(b"\n\n") if part]
    chunks = [{"b64": base64.b64encode(piece).decode(), "delay_s": delay} for piece in pieces]
    answer = {"headers": {"content-type": content["content_type"]}, "chunks": chunks}
    if end := _ENDS[content.get("end", "close")]:
        answer["close"] = end
        chunks.append({"b64": "", "delay_s": _BEFORE_RESET_S})
    wanted = dict(case.expect)
    more = {"prices": adapter.prices({"*": content["prices"]})} if "prices" in content else {}
    if "breaker" in wanted:
        more["breaker"] = _WATCHFUL
    with serving.server([answer]) as server:
        gate = adapter.gate(**more)
        client = adapter.client(server.url, gate, mode)
        leave_after = content.get("consumer", {}).get("break_after_content_chunks")
        played = play(server, client, [Planned(stream=True, leave_after=leave_after)], mode)
        hold(played, wanted)
        if "breaker" in wanted:
            _has_noted_a_failure(tidegate.Client(server.url, adapter.KEY, gate=gate))


def _has_noted_a_failure(client):
    """One failure opens the breaker, however many calls succeed after it, once its first interval is over."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            client.post("/chat/completions", json=adapter.REQUEST)
        except tidegate.CircuitOpenError:
            return
    pytest.fail("the breaker did not open")


def hold(played, wanted):
    (call,) = played.calls
    for name in [name for name in wanted if name in _RULES]:
        _RULES[name](call, wanted[name], wanted)
    expect.hold(played, wanted, skip=_RULES)


def rule(name):
    def register(check):
        _RULES[name] = check
        return check

    return register


@rule("outcome")
def _(call, wanted, _all):
    if wanted == "closed_by_caller":
        assert call.error is None
        assert call.came.contents == 2, "the caller has left"
    else:
        expect.outcome(call, wanted, {})


@rule("level")
def _(_call, wanted, _all):
    assert wanted == "parser"


@rule("events")
def _(call, wanted, _all):
    assert call.error is None
    assert [{"event": name or "message", "data": data} for name, data in call.came.events] == wanted


@rule("finish_reason")
def _(call, wanted, _all):
    assert call.came.finish_reason == wanted


@rule("no_u_fffd")
def _(call, wanted, _all):
    assert ("\ufffd" not in call.came.text) is wanted


@rule("usage")
def _(call, wanted, everything):
    usage = call.came.info.usage
    assert {name: getattr(usage, name) for name in wanted} == wanted
    assert usage.source == ("estimated" if everything.get("usage_partial") else "reported")


@rule("usage_partial")
def _(call, wanted, _all):
    assert (call.came.info.usage.source == "estimated") is wanted


@rule("usage_source")
def _(call, wanted, _all):
    assert call.came.info.usage.source in wanted.split(" (")[0].split(" or ")


@rule("prompt_tokens_min")
def _(call, wanted, _all):
    assert call.came.info.usage.prompt_tokens >= wanted


@rule("completion_tokens_range")
def _(call, wanted, _all):
    expect.within(call.came.info.usage.completion_tokens, wanted, "the number of completion tokens")


@rule("cost_usd_min_exclusive")
def _(call, wanted, _all):
    assert call.came.info.cost_usd > Decimal(wanted)


@rule("ttft")
def _(call, wanted, _all):
    assert wanted.startswith("measured at the chunk with content")
    assert call.came.info.first_chunk_s >= call.came.info.first_byte_s


@expect.rule("usage_records")
def _(played, wanted):
    booked = expect.counters(played.gate, "tidegate_calls_total")
    assert booked == wanted, "a call is booked once"
    (call,) = played.calls
    counted = expect.counters(played.gate, "tidegate_tokens_total")
    assert counted == call.came.info.usage.total_tokens


@rule("breaker")
def _(_call, wanted, _all):
    # Seen by the calls that come after it.
    assert wanted == "failure"


def generated(case):
    content = case.content
    known = {"id", "kind", "lines_bytes", "template", "network_chunk", "then", "expect"}
    assert not content.keys() - known, f"unknown fields: {sorted(content.keys() - known)}"
    assert content["template"].startswith("data: <chat chunk whose delta.content is the letter x repeated")
    assert content["then"] == "finish stop, usage 12/5/17, [DONE]"
    for length in content["lines_bytes"]:
        for mode in _MODES:
            yield Check(f"{length}-{mode}", functools.partial(_large, content, length, mode))
    for mode in _MODES:
        yield Check(f"over_limit-{mode}", functools.partial(_over_limit, mode))


def _chunk(delta, finish=None, **more):
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "c", "choices": choices} | more).encode()


def _generated(length):
    """Return a stream whose first line has so many bytes, and the length of the text in it."""
    text = "x" * (length - len(_chunk({"content": ""})))
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    figures = b"data: " + json.dumps({"choices": [], "usage": usage}).encode()
    lines = [_chunk({"content": text}), _chunk({}, "stop"), figures, b"data: [DONE]"]
    assert len(lines[0]) == length
    return b"\n\n".join([*lines, b""]), len(text)


def _answer(body, step):
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return {
        "headers": {"content-type": "text/event-stream"},
        "chunks": [{"b64": base64.b64encode(piece).decode()} for piece in pieces],
    }


def _large(content, length, mode):
    wanted = dict(content["expect"])
    assert wanted.pop("over_documented_limit") == "clear error"
    body, text_length = _generated(length)
    with serving.server([_answer(body, content["network_chunk"])]) as server:
        client = adapter.client(server.url, adapter.gate(), mode)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        played = play(server, client, [Planned(stream=True)], mode)
        taken = time.monotonic() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert wanted.pop("content_length") == "as generated"
    assert len(played.calls[0].came.text) == text_length
    limit = wanted.pop("time_8MiB_s_max")
    # Ten times as much, as for every bound on time: an unoptimised build on a busy machine passes too.
    assert taken <= limit * 10
    assert grown <= wanted.pop("rss_growth_mb_max"), f"{grown} MiB more"
    hold(played, wanted)


def _over_limit(mode):
    body, _ = _generated(65 * 1024 * 1024)
    with serving.server([_answer(body, 1 << 20)], repeat_last=True) as server:
        client = adapter.client(server.url, adapter.gate({"max_attempts": 1}), mode)
        (call,) = play(server, client, [Planned(stream=True)], mode).calls
        with pytest.raises(
            Exception, match="an event of the stream is larger than the limit of 67108864 bytes"
        ):
            raise call.error
