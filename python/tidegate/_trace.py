"""Calls as parts of somebody's trace: who is asked where a call belongs, and who hears what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Observed(Protocol):
    """A call under way that somebody watches."""

    def hear(self, record: Mapping[str, Any]) -> None:
        """Take one event of the call; `record` has the fields of the JSON lines."""

    def lose(self) -> None:
        """Take notice that no more events will come."""

    def substitute(self, record: Mapping[str, Any]) -> Observed:
        """Return the call that is made instead of this one, which failed, as `record` tells."""


# A call whose event loop is gone tells nothing more: beyond so many the oldest are given up.
_MOST = 100_000

_calls: dict[str, Observed] = {}

# What is made instead of a failed call is told of right after it.
_MOST_FAILED = 1_000

_failed: dict[str, Observed] = {}


def watch(span_id: str, call: Observed) -> None:
    """Pass on the events of the call with this id, until the last."""
    while len(_calls) >= _MOST:
        _calls.pop(next(iter(_calls))).lose()
    _calls[span_id] = call


def watching() -> bool:
    """Tell whether any call is watched, or one that may be made instead of a failed one."""
    return bool(_calls or _failed)


def hear(record: Mapping[str, Any]) -> None:
    """Pass an event on to whoever watches its call."""
    span_id = record.get("span_id", "")
    failed = _failed.pop(record.get("instead_of", ""), None)
    if failed is not None:
        watch(span_id, failed.substitute(record))
    call = _calls.get(span_id)
    if call is None:
        return
    if record.get("event") == "call":
        _calls.pop(span_id, None)
        if record.get("outcome") != "ok":
            while len(_failed) >= _MOST_FAILED:
                _failed.pop(next(iter(_failed)), None)
            _failed[span_id] = call
    call.hear(record)


def current_trace_id() -> str | None:
    """Return the 32 hex digits of the OpenTelemetry trace that this code runs in."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
