"""Breakers as operators see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tidegate._errors import ConfigError

if TYPE_CHECKING:
    from tidegate import _core

_STATES = ("open", "disabled")


@dataclass(frozen=True, kw_only=True)
class BreakerState:
    """One breaker; see `Gate.breakers`.

    Attributes:
        origin: Whose it is: the API's scheme and host, or ``"function"`` of functions (`Gate.call`).
        model: The model, or the function's name; ``""`` of requests that name none.
        state: ``"closed"``, ``"open"``, ``"half_open"``; by an operator ``"forced_open"``, ``"disabled"``.
        reason: Why it last opened: ``"failure_rate"``, ``"probe_failed"``, ``"probe_timed_out"``,
            ``"probe_throttled"`` or ``"operator"``; `None` if it never did.
        next_probe_s: Seconds until a call may try again; `None` where none is waited for.
        calls: Outcomes in its window. It cannot open by itself below ``BreakerPolicy.minimum_calls``.
        failures: How many of them failed.
        opened: How often it has opened.
    """

    origin: str
    model: str
    state: Literal["closed", "open", "half_open", "forced_open", "disabled"]
    reason: str | None
    next_probe_s: float | None
    calls: int
    failures: int
    opened: int


def states(engine: _core.Engine) -> list[BreakerState]:
    """Return those of all scopes."""
    return [_state(scope) for scope in engine.snapshot()["scopes"] if scope["breaker"] is not None]


def _state(scope: dict[str, Any]) -> BreakerState:
    breaker = scope["breaker"]
    return BreakerState(
        origin=scope["origin"],
        model=scope["model"],
        state=breaker["state"],
        reason=breaker["reason"],
        next_probe_s=breaker["next_probe_s"],
        calls=breaker["calls_in_window"],
        failures=breaker["failures_in_window"],
        opened=breaker["opened"],
    )


def force(engine: _core.Engine, model: object, state: object, origin: object) -> None:
    """Have the breakers do as the operator says."""
    if state not in _STATES:
        raise ConfigError("state", repr(state), 'must be "open" or "disabled"; reset_breaker() undoes either')
    engine.decide(str(state), _pattern("origin", origin), _pattern("model", model))


def reset(engine: _core.Engine, model: object, origin: object) -> None:
    """Have the breakers decide for themselves again."""
    engine.decide("reset", _pattern("origin", origin), _pattern("model", model))


def _pattern(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(field, repr(value), "must be text; * and ? are wildcards")
    return value
