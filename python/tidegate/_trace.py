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


# A call whose event loop is gone tells nothing more: beyond so many the oldest are given up.
_MOST = 100_000

_calls: dict[str, Observed] = {}


def watch(span_id: str, call: Observed) -> None:
    """Pass on the events of the call with this id, until the last."""
    while len(_calls) >= _MOST:
        _calls.pop(next(iter(_calls))).lose()
    _calls[span_id] = call


def watching() -> bool:
    """Tell whether any call is watched."""
    return bool(_calls)


def hear(record: Mapping[str, Any]) -> None:
    """Pass an event on to whoever watches its call."""
    span_id = record.get("span_id", "")
    call = _calls.get(span_id)
    if call is None:
        return
    if record.get("event") == "call":
        _calls.pop(span_id, None)
    call.hear(record)


def current_trace_id() -> str | None:
    """Return the 32 hex digits of the OpenTelemetry trace that this code runs in."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
