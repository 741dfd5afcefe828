"""Kind `breaker_sim`: a circuit breaker in virtual time, driven by steps in prose."""

from __future__ import annotations

import functools
import re
import time

import pytest

from cases import adapter, serving
from cases.case import Check
from cases.expect import unknown
from tidegate import CallError, CircuitOpenError
from tidegate._core import _probe

_NAME = r"(?P<name>P\d+|probe|call \w+|call|one call)"
_FAILURE = "500"


class Sim:
    """One breaker with its clock. `at` of the steps counts from when it has judged what happened before."""

    def __init__(self, config):
        self.policy = adapter.breaker(config)
        self.breaker = _probe.BreakerSim(self.policy)
        self.now = 0.0
        self.origin = None
        # Names, times and the fates of calls: `None` for those that were sent, else when to ask again.
        self.calls = []

    def acquire(self, name, lease=None):
        number, retry_after = self.breaker.acquire(self.now, lease)
        self.calls.append(
            (name, self.now - (self.origin or 0.0), None if number is not None else retry_after)
        )
        return number

    def end(self, number, outcome, after=0.0):
        if number is not None:
            self.breaker.record(self.now + after, number, outcome)

    def judged(self):
        """Let the tenth of the window end after which it is judged."""
        if self.origin is None:
            self.now = self.origin = self.policy.window / 10
            self.breaker.state(self.now)

    def move(self, at):
        self.judged()
        self.now = self.origin + at


def _count(sim, match):
    """`5 x fail`, `50 x HTTP 400`, `4 x fail, 50 x cancelled`, …"""
    words = {"fail": _FAILURE, "read timeout caused by silent server": "read_timeout"}
    for number, what in re.findall(r"(\d+) x ([^,\d]+?(?: \d+)?)(?=,| interleaved|$)", match.string):
        found = re.fullmatch(r"HTTP (\d+)", what)
        outcome = "neutral" if what == "cancelled" else _probe.health(found[1] if found else words[what])
        for _ in range(int(number)):
            sim.end(sim.acquire("counted"), outcome)


def _cancelled_calls(sim, match):
    for _ in range(int(match[1])):
        sim.end(sim.acquire("counted"), "neutral")


def _never_ends(sim, match):
    # Its attempt was to last 0.1 s at most, and with that its lease; nothing else tells that it hangs.
    assert sim.acquire(match["name"], 0.1) is not None


def _abandoned(sim, match):
    """The call is dropped: the engine's receipts tell the breaker that it says nothing."""
    number = sim.acquire(match["name"])
    assert number is not None
    sim.end(number, "neutral", float(match["after"] or 0) if "after" in match.groupdict() else 0.0)


def _answered(sim, match):
    sim.end(sim.acquire(match["name"]), _probe.health(match["status"]))


def _succeeds(sim, match):
    sim.end(sim.acquire(match["name"]), "success")


def _fails(sim, match):
    sim.end(sim.acquire(match["name"]), _probe.health(_FAILURE))


def _flood(sim, match):
    numbers = [sim.acquire("flood") for _ in range(int(match[1]))]
    for number in numbers:
        sim.end(number, "success", float(match[2]))


def _tries(sim, match):
    sim.acquire(match["name"])


_STEPS = [
    (r"(\d+) x .*", _count),
    (r"(\d+) calls cancelled by the caller.*", _cancelled_calls),
    (rf"{_NAME} starts and never ends", _never_ends),
    (rf"{_NAME} starts; its task is garbage collected.*", _abandoned),
    (rf"{_NAME} opens a stream, consumer drops it", _abandoned),
    (rf"{_NAME} cancelled after (?P<after>[\d.]+) s", _abandoned),
    (rf"{_NAME} refused by limiter before sending", _abandoned),
    (rf"{_NAME} -> HTTP (?P<status>\d+)", _answered),
    (rf"{_NAME} succeeds", _succeeds),
    (rf"{_NAME} fails", _fails),
    (r"(\d+) concurrent calls, upstream takes ([\d.]+) s and succeeds", _flood),
    (rf"{_NAME}(?: tries)?", _tries),
]


def _step(sim, text):
    if found := re.fullmatch(r"t=([\d.]+)\.\.([\d.]+): calls", text):
        first, last = float(found[1]), float(found[2])
        for part in range(11):
            sim.move(first + (last - first) * part / 10)
            sim.end(sim.acquire("call"), "success")
        return
    if found := re.fullmatch(r"t=([\d.]+): (.*)", text):
        sim.move(float(found[1]))
        text = found[2]
    elif " x " not in text and not text[0].isdigit():
        sim.judged()
    for pattern, run in _STEPS:
        if match := re.fullmatch(pattern, text):
            run(sim, match)
            return
    unknown("step", text)


def checks(case):
    expect = dict(case.expect)
    config = case.content["config"]
    for variant in case.content["variants"]:
        wanted = expect.pop(variant["name"], None)
        yield Check(variant["name"], functools.partial(_run, config, variant["steps"], wanted))
    refused = expect.pop("refused_calls", None)
    if refused is not None:
        yield Check("refused_calls", functools.partial(_refused_calls, config, refused))
    if expect:
        yield Check("understood", functools.partial(unknown, case.stem, sorted(expect)))


def _run(config, steps, expect):
    assert expect, "a variant must expect something"
    sim = Sim(config)
    for step in steps:
        _step(sim, step)
    if isinstance(expect, str):
        _hold_prose(sim, expect)
        return
    later = [call for call in sim.calls if call[0] != "counted"]
    for name, wanted in expect.items():
        sent = [call for call in later if call[2] is None]
        if name == "upstream_requests":
            assert len(sent) == wanted
        elif name == "breaker_open_errors":
            assert len(later) - len(sent) == wanted
        elif name == "state_after":
            assert sim.breaker.state(sim.now + 1) == wanted
        elif found := re.fullmatch(r"upstream_requests_between_([\d.]+)_and_([\d.]+)", name):
            first, last = float(found[1]), float(found[2])
            assert sum(first <= at <= last for _, at, _ in sent) == wanted
        elif found := re.fullmatch(r"at_([\d.]+)", name):
            (refused,) = {again for _, at, again in later if at == pytest.approx(float(found[1]))}
            assert (refused is None) is (wanted == "admitted")
        else:
            unknown(name, wanted)


def _hold_prose(sim, said):
    """`P2 admitted`, `refused (why)`, `admitted, closed`, `X admitted, or …`."""
    found = re.fullmatch(r"(?:(\w+) )?(admitted|refused)(?:, (closed|open))?(?: \(.*\)|, or .*)?", said)
    if not found:
        unknown("of the last call", said)
    name, fate, state = found.groups()
    calls = [call for call in sim.calls if name is None or call[0].split()[-1] == name]
    assert (calls[-1][2] is None) is (fate == "admitted"), calls[-1]
    if state:
        assert sim.breaker.state(sim.now) == state


def _refused_calls(config, said):
    """A real gate's breaker opens; what it then does to calls."""
    found = re.fullmatch(r"raise breaker_open in < (\d+) ms with retry_after_s", said)
    if not found:
        unknown("refused_calls", said)
    # A tenth of the window is what has to pass until it is judged.
    policy = adapter.breaker(config | {"window_s": 1})
    with serving.server([{"status": 500}], repeat_last=True) as server:
        client = adapter.client(server.url, adapter.gate({"max_attempts": 1}, breaker=policy))
        deadline = time.monotonic() + 10
        while not isinstance(_failed(client)[0], CircuitOpenError):
            assert time.monotonic() < deadline, "the breaker did not open"
        sent = server.ledger["requests"]["total"]
        refusals = [_failed(client) for _ in range(5)]
        assert server.ledger["requests"]["total"] == sent
    assert all(adapter.kind(error) == "breaker_open" and error.retry_after > 0 for error, _ in refusals)
    assert min(taken for _, taken in refusals) * 1000 < int(found[1])


def _failed(client):
    start = time.perf_counter()
    with pytest.raises(CallError) as caught:
        client.post("/chat/completions", json=adapter.REQUEST)
    return caught.value, time.perf_counter() - start
