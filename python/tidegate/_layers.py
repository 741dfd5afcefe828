"""Layers of retries around each other: a loop around a client that makes a failed request again is found out.

Three layers of three attempts each make 27 requests of one. A retrying layer is recognised by its context,
which makes the same request again within seconds of its failure.
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


def add(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the options of a call, with the failure that it may repeat."""
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
