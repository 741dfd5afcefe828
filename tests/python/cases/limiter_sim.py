"""Kind `limiter_sim`: the admission controller in virtual time."""

from __future__ import annotations

import functools
import re

from cases import adapter
from cases.case import Check
from cases.expect import unknown, within
from tidegate._core import _probe

_AT_ONCE = "refused at once"
# A whole request more or less where a rate is measured between requests.
_EDGE = 1


class Sim:
    """One controller with its clock. Requests end as soon as they are granted, and use what they reserved."""

    def __init__(self, limits):
        self.limiter = _probe.LimiterSim(adapter.limits(limits))
        self.now = 0.0
        self.waiting = {}
        self.granted = []
        self.refused = []
        self.lowest = 0.0

    def arrive(self, at, cost, budget=None):
        """Let a request arrive; return its fate at once."""
        self.run(at)
        limit = None if budget is None else at + budget
        number, fate, told = self.limiter.enqueue(at, cost, limit)
        if fate == "queued":
            self.waiting[number] = cost
        elif fate == "granted":
            self._grant(number, cost)
        else:
            self.refused.append((at, cost, fate, told))
        return fate, told

    def run(self, until):
        """Let time pass, and everything happen that it brings about."""
        while (wake := self.limiter.next_wake(self.now)) is not None and wake <= until:
            self.now = wake
            for number, fate, told in self.limiter.advance(wake):
                cost = self.waiting.pop(number)
                if fate == "granted":
                    self._grant(number, cost)
                else:
                    self.refused.append((wake, cost, fate, told))
        self.now = max(self.now, until)

    def _grant(self, number, cost):
        self.granted.append((self.now, cost))
        self.limiter.settle(self.now, number, cost)
        levels = self.limiter.levels(self.now)
        self.lowest = min([self.lowest, *(level for level in levels[2:] if level is not None)])


def checks(case):
    expect = dict(case.expect)
    of_all = expect.pop("all", None)
    for sim in case.content["sims"]:
        yield Check(sim["name"], functools.partial(_run, sim, expect.pop(sim["name"], None), of_all))
    if expect:
        yield Check("understood", functools.partial(unknown, case.stem, sorted(expect)))


def _run(told, expect, of_all):
    assert expect is not None, "a simulation must expect something"
    strange = told.keys() - {"name", "limits", "arrivals", "steps", "horizon_s", "idle_first_s", "note"}
    assert not strange, f"unknown fields: {sorted(strange)}"
    sim = Sim(told["limits"])
    before = None
    for step in _steps(told):
        op = step["op"]
        at = step.get("t", sim.now)
        if op == "acquire":
            before = sim.limiter.levels(at)
            last = sim.arrive(at, step["cost"], step.get("budget_s"))
        elif op == "set_rate":
            limits = {name: value for name, value in step.items() if name not in {"op", "t"}}
            sim.limiter.set_limits(at, adapter.limits(told["limits"] | limits))
        else:
            unknown("op", op)
    if isinstance(expect, str):
        _hold_last(sim, last, before, expect)
        return
    sim.run(told["horizon_s"])
    _hold(sim, told, expect)
    if of_all is not None:
        _hold_all(sim, told, of_all)


def _steps(told):
    yield from told.get("steps", ())
    for at, cost in told.get("arrivals", ()):
        yield {"op": "acquire", "t": at, "cost": cost}


def _hold_last(sim, last, before, said):
    """Hold the last request to prose: `refused at once, error has wait_s in [49,51], bucket unchanged`."""
    fate, told = last
    for part in re.split(r", (?=\D)", said):
        if part == _AT_ONCE:
            assert fate in {"too_large", "deadline"}
        elif found := re.fullmatch(r"error has wait_s in \[([\d.]+),([\d.]+)\]", part):
            assert fate == "deadline"
            within(told, [float(found[1]), float(found[2])], "the wait")
        elif part == "bucket unchanged":
            assert sim.limiter.levels(sim.now) == before
        else:
            unknown("of the last request", part)


def _hold(sim, told, expect):
    first = min(at for at, _ in told["arrivals"])
    for name, wanted in expect.items():
        if name == "max_in_any_window":
            most = int(re.search(r"default(?: settings)?: (\d+)", str(wanted["max"]))[1])
            assert _most_in_a_window(sim.granted, wanted["window_s"]) <= most
        elif name.startswith("granted_at_"):
            at = first + float(name.removeprefix("granted_at_"))
            assert [cost for when, cost in sim.granted if when == at] == wanted
        elif name == "refused_at_once":
            assert [cost for _, cost, _, _ in sim.refused] == wanted
        elif name == "granted_later":
            later = [(when, cost) for when, cost in sim.granted if when > first]
            assert [cost for _, cost in later] == [row["cost"] for row in wanted]
            for (when, _), row in zip(later, wanted, strict=True):
                within(when - first, row["at_s"], "the grant")
        elif name == "bucket_never_below":
            assert sim.lowest >= wanted
        elif name != "observed_bug":
            unknown(name, wanted)


def _most_in_a_window(granted, window):
    """Return the most grants in any window, its end excluded."""
    times = sorted(when for when, _ in granted)
    return max(sum(start <= when < start + window for when in times) for start in times)


def _hold_all(sim, told, said):
    assert "granted within the horizon or told its wait" in said, said
    assert len(sim.granted) + len(sim.refused) == len(told["arrivals"])
    assert not sim.waiting
    share = re.search(r"throughput is >= (\d+) % of the limit", said)
    rpm = told["limits"].get("rpm")
    if share and rpm:
        times = sorted(when for when, _ in sim.granted)
        needed = (times[-1] - times[0]) * rpm / 60 * int(share[1]) / 100
        assert len(times) + _EDGE >= needed
