"""Tools that may be left out when there is trouble."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from contextvars import Token

    from tidegate._call import GuardedCall
    from tidegate._tool_policy import ToolPolicy

Reason = Literal["breaker_open", "busy", "deadline", "retry_budget", "store_unavailable"]

# A tool that names no timeout is not worth starting with less than this left, in seconds.
_LEAST = 1.0

_deadline: ContextVar[float | None] = ContextVar("tidegate_deadline", default=None)

_WHY = {
    "breaker_open": "what it calls has failed too often of late",
    "busy": "too many calls of it were waiting",
    "deadline": "there was too little time left",
    "retry_budget": "it failed, and there have been too many repetitions of late",
    "store_unavailable": "the record of what was done before could not be read",
}


class Skipped:
    """Stands for the result of a tool that was not run. It is false, and its text can be given to the model.

    Attributes:
        tool: Name of the tool.
        reason: ``"breaker_open"``, ``"busy"``, ``"deadline"``, ``"retry_budget"`` or ``"store_unavailable"``.
        notice: A sentence for the user and the model: what is missing and why.
    """

    __slots__ = ("notice", "reason", "tool")

    def __init__(self, tool: str, reason: Reason) -> None:
        self.tool = tool
        self.reason = reason
        self.notice = f"The tool {tool} was not run, because {_WHY[reason]}; the answer may be incomplete."

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.notice

    def __repr__(self) -> str:
        return f"Skipped(tool={self.tool!r}, reason={self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skipped) and (self.tool, self.reason) == (other.tool, other.reason)

    def __hash__(self) -> int:
        return hash((self.tool, self.reason))


def set_deadline(seconds: float | None) -> Token[Any]:
    """Bound what is done from here on; an outer bound that is nearer holds."""
    outer = _deadline.get()
    own = None if seconds is None else time.monotonic() + seconds
    nearest = [bound for bound in (outer, own) if bound is not None]
    return _deadline.set(min(nearest, default=None))


def reset_deadline(token: Token[Any]) -> None:
    """Return to the bound that held before."""
    _deadline.reset(token)


def reason_to_skip(timeout: float | None) -> Reason | None:
    """Return why a tool that may be left out should be."""
    deadline = _deadline.get()
    if deadline is None:
        return None
    return "deadline" if deadline - time.monotonic() < (timeout or _LEAST) else None


# What the gates say, and what that is to the tool.
_OF_GATES: dict[str, Reason] = {
    "admission_deadline": "busy",
    "breaker_open": "breaker_open",
    "deadline": "deadline",
}


def reason_of_gates(call: GuardedCall, policy: ToolPolicy) -> Reason | None:
    """Return why the gates did not let a tool run, or run again; `None` if it was something else."""
    if call.ended is None:
        return None
    if not call.entered:
        return _OF_GATES.get(call.ended.reason)
    # One that may have acted is not left out: it is in doubt.
    harmless = policy.effect in ("read", "idempotent")
    return "retry_budget" if harmless and call.ended.reason == "budget" else None
