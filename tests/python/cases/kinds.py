"""Which runner serves which kind of case."""

from __future__ import annotations

from cases import http_script, pending, raw_http
from cases.case import Check

_RUNNERS = {
    "http_script": http_script.checks,
    "raw_http": raw_http.checks,
}


def checks(case):
    """Return what is to be checked of a case."""
    if case.kind in pending.KINDS:
        return [Check("all", skipped=pending.KINDS[case.kind])]
    if case.kind in _RUNNERS:
        return list(_RUNNERS[case.kind](case))

    def refuse():
        raise AssertionError(f"no runner for cases of kind {case.kind}")

    return [Check("kind", refuse)]
