"""Layers of retries around each other: three of three attempts each make 27 requests of one.

A call that is made in a guarded function (`Gate.call`) leaves the retries to it, and has what is left of its
time. A loop around a client that makes a failed request again is found out: by its context, which makes the
same request again within seconds of its failure.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from tidegate._errors import CallError

# Longer than the waits of retrying layers, shorter than the period of a poller.
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Failed:
    request: int
    attempts: int
    at: float
    told: bool = False


_failed: ContextVar[_Failed | None] = ContextVar("tidegate_failed", default=None)


@dataclass(frozen=True, slots=True)
class Outer:
    """A guarded call, as the calls that are made in it see it."""

    trace_id: str
    span_id: str
    deadline: float | None

    def told(self) -> tuple[str, str, float | None]:
        """Return its ids and the seconds that are left of it."""
        left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
        return self.trace_id, self.span_id, left


outer: ContextVar[Outer | None] = ContextVar("tidegate_outer", default=None)


def add(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a call's options, with the call that it is made in, or else the failure that it may repeat."""
    around = outer.get()
    if around is not None:
        return {**(options or {}), "outer": around.told()}
    failed = _failed.get()
    if failed is None or failed.told or time.monotonic() - failed.at >= _SECONDS:
        return options
    _failed.set(replace(failed, told=True))
    return {**(options or {}), "failed_before": (failed.request, failed.attempts)}


def failed(error: BaseException) -> None:
    """Remember a call's failure; to be called in the context that would make the request again."""
    if not isinstance(error, CallError):
        return
    sent = error.attempts if error.info is None else error.info.attempts
    now, before = time.monotonic(), _failed.get()
    again = before is not None and before.request == error._request and now - before.at < _SECONDS
    if before is not None and again and not sent:
        # Refused unsent: making the request again would still be a retry of the one before.
        _failed.set(replace(before, told=False))
    elif error._request is not None and sent:
        total = sent + before.attempts if before is not None and again else sent
        _failed.set(_Failed(error._request, total, now))
