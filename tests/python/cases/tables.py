"""Kinds that are tables of pure functions: waits that servers ask for, durations, backoff."""

from __future__ import annotations

import datetime as dt
import functools
import re

import pytest

from cases import http_script
from cases.case import Check
from cases.expect import unknown
from tidegate._core import _probe

_NOW = 1_772_366_400.0
_SAMPLE_SEED = 1


def retry_after_table(case):
    now = _seconds(case.content["now"]) if "now" in case.content else _NOW
    for number, row in enumerate(case.content["rows"]):
        yield Check(f"row{number}", functools.partial(_server_wait, row, now, _tolerance(case)))
    script = case.content.get("script")
    if script is not None:
        script = script | {"name": "script"}
        expect = case.expect["script"]
        for entry in ("sync", "async"):
            yield Check(f"script-{entry}", functools.partial(http_script.hold_script, script, expect, entry))
    yield from strangers(case, {"rows", "now", "script"}, {"table", "script"})


def _server_wait(row, now, tolerance):
    assert not row.keys() - {"headers", "delay_s", "delay_range_s", "status", "level", "note"}
    wait = _probe.server_wait(row.get("status", 429), list(row["headers"].items()), b"", now)
    if "delay_range_s" in row:
        least, most = row["delay_range_s"]
        most = 5.0 if most == "backoff_cap" else most
        # No instruction leaves it to the backoff, which keeps the bounds by itself.
        assert wait is None or least <= wait <= most
    else:
        wanted = row["delay_s"]
        assert wait == (None if wanted is None else pytest.approx(wanted, abs=tolerance))


def duration_table(case):
    header = case.content["header"]
    for number, (text, wanted) in enumerate(case.content["rows"]):
        yield Check(f"row{number}", functools.partial(_duration, header, text, wanted, _tolerance(case)))
    yield from strangers(case, {"rows", "header"}, {"rows"})


def _duration(header, text, wanted, tolerance):
    near = None if wanted is None else pytest.approx(wanted, abs=tolerance)
    assert _probe.parse_duration(text) == near
    # As it comes on the wire, of a limit that has run out. Zero is no wait to ask for.
    spent = [(header.replace("-reset-", "-remaining-"), "0"), (header, text)]
    wait = _probe.server_wait(429, spent, b"", _NOW)
    assert (wait or None) == (near if wanted else None)


def backoff_table(case):
    rows = case.content["rows"]
    for number, row in enumerate(rows):
        said = case.expect.get(f"row{number}", "")
        yield Check(f"row{number}", functools.partial(_backoff, row, said))
    yield from strangers(case, {"rows"}, {f"row{number}" for number in range(len(rows))})


def _backoff(row, said):
    assert not row.keys() - {"base_s", "cap_s", "attempts", "samples"}
    base, cap = row["base_s"], row["cap_s"]
    mean = re.search(r"for n>=(\d+) sample mean in \[([\d.]+),([\d.]+)\]", said)
    for attempt in row["attempts"]:
        seeds = range(_SAMPLE_SEED, _SAMPLE_SEED + row["samples"])
        samples = [_probe.backoff(attempt - 1, base, cap, seed) for seed in seeds]
        ceiling = min(cap, base * 2 ** min(attempt - 1, 1000))
        assert all(0 <= sample <= ceiling for sample in samples)
        if "every sample == 0" in said:
            assert set(samples) == {0.0}
        if mean and attempt >= int(mean[1]):
            assert float(mean[2]) <= sum(samples) / len(samples) <= float(mean[3])


def _tolerance(case):
    found = re.search(r"1e-\d+", str(case.expect))
    return float(found[0]) if found else 1e-9


def _seconds(text):
    return dt.datetime.fromisoformat(text).timestamp()


def strangers(case, fields, expectations):
    """Fail for what a case says and this module does not know."""
    strange = case.content.keys() - fields - {"id", "kind", "note", "level", "expect"}
    strange |= case.expect.keys() - expectations
    if strange:
        yield Check("understood", functools.partial(unknown, case.stem, sorted(strange)))
