"""Layers of retries around each other: who retries, and who must not.

Three layers of three attempts each make 27 requests of one. A call inside a guarded one therefore makes one
attempt within the outer call's time, and a loop around a client that makes a failed request again is found
out: it is the same context that makes the same request within seconds of its failure.
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
_deadline: ContextVar[float | None] = ContextVar("tidegate_deadline", default=None)


def add(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the options of a call with what the layers around it mean for it."""
    failed, deadline = _failed.get(), _deadline.get()
    if failed is None and deadline is None:
        return options
    added: dict[str, Any] = {}
    if failed is not None and not failed.told and time.monotonic() - failed.at < _SECONDS:
        _failed.set(replace(failed, told=True))
        added["failed_before"] = failed.request, failed.attempts
    if deadline is not None:
        # A call whose time is up is refused by the core, which counts and tells of it.
        left = max(deadline - time.monotonic(), 1e-6)
        own = (options or {}).get("total_timeout") or left
        added |= {"max_attempts": 1, "total_timeout": min(left, own)}
    return {**(options or {}), **added} if added else options


def failed(error: BaseException) -> None:
    """Remember a call's failure; to be called in the context that would make the request again."""
    if not isinstance(error, CallError):
        return
    sent = error.attempts if error.info is None else error.info.attempts
    now, before = time.monotonic(), _failed.get()
    again = before is not None and before.request == error._request and now - before.at < _SECONDS
    if before is not None and again and not sent:
        # Refused as a retry of this request, which it stays.
        _failed.set(replace(before, told=False))
    elif error._request is not None and sent:
        total = sent + before.attempts if before is not None and again else sent
        _failed.set(_Failed(error._request, total, now))
