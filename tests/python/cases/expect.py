"""Expectations by name. One that has no rule here fails the test: nothing goes unchecked."""

from __future__ import annotations

import re

import pytest

from cases import adapter

# What is said for people, beside figures that say the same.
REMARKS = frozenset({"note", "level"})

# A machine with other work on it is late; it is never early.
_EARLY = 0.005

_RULES = []


def rule(pattern):
    """Register the rule for the expectations whose name `pattern` matches as a whole."""

    def register(check):
        _RULES.append((re.compile(pattern), check))
        return check

    return register


def hold(played, expect, skip=()):
    """Hold `played` to everything that is expected of it."""
    for name, wanted in expect.items():
        if name in REMARKS or name in skip:
            continue
        found = ((check, pattern.fullmatch(name)) for pattern, check in _RULES)
        matched = next(((check, match) for check, match in found if match), None)
        if matched is None:
            pytest.fail(f"unknown expectation {name}: {wanted!r}")
        check, match = matched
        check(played, wanted, *match.groups())


def within(value, wanted, what):
    """Hold a number to a number, or to a pair of least and most."""
    if isinstance(wanted, list):
        least, most = wanted
        assert least - _EARLY <= value <= most, f"{what} is {value}, not in {wanted}"
    else:
        assert value == wanted, f"{what} is {value}, not {wanted}"


def unknown(what, wanted):
    pytest.fail(f"unknown expectation {what}: {wanted!r}")


@rule("requests")
def _(played, wanted):
    within(len(played.requests), wanted, "the number of requests")


@rule("requests_max")
def _(played, wanted):
    assert len(played.requests) <= wanted


@rule(r"requests_in_first_([\d.]+)s_max")
def _(played, wanted, seconds):
    early = [request for request in played.requests if request["arrived_s"] < float(seconds)]
    assert len(early) <= wanted


@rule("connect_attempts")
def _(played, wanted):
    # Refused connections leave no trace at a server.
    within(sum(call.error.attempts for call in played.calls), wanted, "the number of attempts")


@rule("connections_total")
def _(played, wanted):
    within(played.ledger["connections"]["opened"], wanted, "the number of connections")


@rule("elapsed_s")
def _(played, wanted):
    for call in played.calls:
        within(call.elapsed, wanted, "the length of the call")


@rule("gaps_s")
def _(played, wanted):
    pairs = zip(played.requests, played.requests[1:], strict=False)
    gaps = [later["arrived_s"] - earlier["ended_s"] for earlier, later in pairs]
    assert len(gaps) == len(wanted), gaps
    for number, (gap, bounds) in enumerate(zip(gaps, wanted, strict=True), 1):
        within(gap, bounds, f"wait {number}")


@rule("arrivals_s")
def _(played, wanted):
    arrivals = [request["arrived_s"] for request in played.requests]
    assert len(arrivals) == len(wanted), arrivals
    for number, (arrival, bounds) in enumerate(zip(arrivals, wanted, strict=True), 1):
        within(arrival, bounds, f"arrival {number}")


@rule(r"(\w+?)(?:_(first|second|third))?_arrives_s")
def _(played, wanted, name, which):
    nth = {None: 0, "first": 0, "second": 1, "third": 2}[which]
    within(played.requests_of(name)[nth]["arrived_s"], wanted, f"arrival of {name}")


@rule(r"(\w+)_done_before_(\w+)")
def _(played, wanted, first, second):
    assert (played.call(first).ended < played.call(second).ended) is wanted


@rule("max_in_flight")
def _(played, wanted):
    assert played.ledger["requests"]["max_in_flight"] <= wanted


@rule("outcome")
def _(played, wanted):
    for call in played.calls:
        outcome(call, wanted, played.script)


@rule(r"call_(\d+)")
def _(played, wanted, number):
    outcome(played.calls[int(number) - 1], wanted, played.script)


def outcome(call, wanted, script):
    """Hold a call to alternatives in prose: `ok or clear error naming Location`."""
    alternatives, _, never = wanted.partition(";")
    said = str(call.error or "")
    if never:
        banned = re.fullmatch(r" never '(.*)'", never) or unknown("outcome", wanted)
        assert banned[1] not in said
    reasons = []
    for alternative in re.split(r",? or (?=ok|error|clear)", alternatives):
        reason = _misses(call, alternative.strip(), script) or ""
        if not reason:
            return
        reasons.append(reason)
    pytest.fail(f"not {wanted!r}: {'; '.join(reasons)}")


_ERROR = re.compile(
    r"(?:clear )?error(?: naming (?P<named>\w+))?(?: with code (?P<code>\w+))?(?: kind (?P<kind>\w+))?"
    r"(?:, retryable (?P<retryable>true|false))?"
)


def _misses(call, wanted, script):
    """Return why a call is not what is wanted; `None` if it is."""
    if re.fullmatch("ok(?: after retry)?", wanted):
        if call.error is not None:
            return f"failed: {call.error}"
        return None if "retry" not in wanted or call.response.info.attempts > 1 else "there was no retry"
    said = _ERROR.fullmatch(wanted) or unknown("outcome", wanted)
    return "succeeded" if call.error is None else _misses_error(call.error, said, script)


def _misses_error(error, said, script):
    named, message = said["named"], str(error)
    values = [] if named is None else [named, *_header_values(script, named)]
    if not message or (named and not any(value in message for value in values)):
        return f"the error does not tell: {message}"
    retryable = said["retryable"] and said["retryable"] == "true"
    found = {"code": error.code, "kind": adapter.kind(error), "retryable": error.retryable}
    wanted = {"code": said["code"], "kind": said["kind"], "retryable": retryable}
    wrong = [name for name, value in wanted.items() if value is not None and found[name] != value]
    return f"not as wanted: {wrong}" if wrong else None


def _header_values(script, name):
    headers = (response.get("headers", {}) for response in script.get("responses", ()))
    return [value for pairs in headers for key, value in pairs.items() if key.lower() == name.lower()]


@rule("error")
def _(played, wanted):
    failed = [call.error for call in played.calls if call.error is not None]
    assert failed, "no call failed"
    for error in failed:
        hold_error(error, wanted)


def hold_error(error, wanted):
    """Hold an error to what its attributes should be."""
    assert str(error)
    for name, value in wanted.items():
        if name == "kind":
            assert adapter.kind(error) in value.split(" or "), f"the kind is {adapter.kind(error)}"
        elif name == "code":
            assert error.code == str(value)
        elif name in {"status", "retryable"}:
            assert getattr(error, name) == value, f"{name} is {getattr(error, name)}"
        elif name in {"retry_after_s", "retry_after"}:
            assert error.retry_after == pytest.approx(value, abs=0.01)
        elif name == "message_contains":
            assert value in str(error)
        elif name == "message_contains_any":
            assert any(part.lower() in str(error).lower() for part in value), str(error)
        elif name not in REMARKS:
            unknown(f"error.{name}", value)


@rule("not")
def _(played, wanted):
    for call in played.calls:
        told = (
            f"{type(call.error).__name__}: {call.error} {call.error.__cause__!r} {call.error.__context__!r}"
        )
        assert not any(name in told for name in wanted)


@rule("text")
def _(played, wanted):
    for call in played.calls:
        message = call.response.json()["choices"][0]["message"]
        assert message["content"] == wanted


@rule("usage")
def _(played, wanted):
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    figures = dict(zip(names, wanted, strict=True)) if isinstance(wanted, list) else wanted
    for call in played.calls:
        assert {name: getattr(call.response.usage, name) for name in figures} == figures
        assert call.response.usage.source == "reported"


@rule("delivered_text")
def _(played, wanted):
    for call in played.calls:
        assert call.came.text == wanted
        assert call.error.partial_text == wanted


@rule("delivered_args")
def _(played, wanted):
    for call in played.calls:
        assert call.came.arguments == wanted


@rule("tool_executed")
def _(played, wanted):
    # Whoever runs tools runs them once the stream has ended well.
    assert all((call.error is None) is wanted for call in played.calls)


@rule("event_times_s")
def _(played, wanted):
    for call in played.calls:
        for seen, bounds in zip(call.came.times, wanted, strict=True):
            within(seen - call.came.began, bounds, "the time of an event")


@rule("usage_known")
def _(played, wanted):
    for call in played.calls:
        usage = call.response.usage
        assert (usage is not None and usage.source == "reported") is wanted
        if not wanted:
            assert call.response.cost_usd is None
    counted = counters(played.gate, "tidegate_answers_without_usage_total")
    assert counted == (0 if wanted else len(played.calls))


@rule("metrics")
def _(played, wanted):
    names = {"retries": "retry_total"}
    for name, value in wanted.items():
        if name not in names:
            unknown(f"metrics.{name}", value)
        assert counters(played.gate, names[name]) == value


def counters(gate, name):
    """Return the sum of a metric over its labels."""
    lines = gate.metrics_text().splitlines()
    samples = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
    return sum(float(line.rpartition(" ")[2]) for line in samples)


@rule("if_followed")
def _(played, wanted):
    first, *followed = played.requests
    for request in followed:
        for name, value in wanted.items():
            if name == "method":
                assert request["method"] == value
            elif name == "body" and value == "identical":
                assert request["body"] == first["body"]
                assert request["body_hash"] == first["body_hash"]
            else:
                unknown(f"if_followed.{name}", value)


@rule(r"server2_must_not_see")
def _(played, wanted):
    for request in played.elsewhere["entries"]:
        assert not {name.lower() for name in wanted} & request["headers"].keys()


@rule("never")
def _(played, wanted):
    said = re.fullmatch(r"(\w+) with (\d+) (\w+) taken as completion", wanted)
    if said is None:
        unknown("never", wanted)
    method, _, _ = said.groups()
    assert all(call.response is None for call in played.calls)
    assert not any(request["method"] == method for request in played.requests)


@rule("limiter_state")
def _(played, wanted):
    if wanted != "not changed to a rate <= 0":
        unknown("limiter_state", wanted)
    for scope in played.gate.snapshot()["scopes"]:
        for name in ("requests", "tokens"):
            assert scope[name] is None or scope[name]["rate_per_minute"] > 0, name
