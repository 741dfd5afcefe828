"""What a tool declares about running twice."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tidegate._call import CallPolicy
from tidegate._errors import ConfigError
from tidegate._fields import known_fields
from tidegate._tool_errors import NoEffectError

Effect: TypeAlias = Literal["read", "idempotent", "at_most_once", "transactional"]


@dataclass(frozen=True)
class Done:
    """What a reconciler found: the effect happened, with this result.

    Attributes:
        result: What the tool would have returned.
    """

    result: Any = None


@dataclass(frozen=True)
class NotDone:
    """What a reconciler found: the effect did not happen, and will not. The call is executed again."""


@dataclass(frozen=True)
class Unknown:
    """What a reconciler found: nothing that decides. The record stays in doubt."""


Verdict: TypeAlias = Done | NotDone | Unknown
Reconciler: TypeAlias = Callable[[str], Verdict | Awaitable[Verdict]]


@known_fields("tool")
@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """How a tool is kept from running twice.

    Attributes:
        effect: What may happen to a call that was started and has no known outcome, as after a crash.
            ``"read"``: changes nothing, is repeated. ``"idempotent"``: whoever acts downstream acts once per
            key, which the tool passes on (`Execution.downstream_key`); is repeated. ``"at_most_once"``, the
            default: is never repeated by itself; the record is in doubt. ``"transactional"``: the tool
            writes through `Execution.connection`, and effect and result are committed together; needs a
            SQLite store and a plain function.
        lease: Seconds for which a call holds its key without a sign of life; renewed while it runs. Default
            30, at most ten years.
        retention: Seconds for which a result is given again. Must be longer than any caller goes on trying,
            the redelivery of queues included. Default 900, at most ten years. In a journal that keeps for
            longer, as long.
        timeout: Bound on one execution, in seconds. Default `None`.
        guard: Gates around the execution, as around a request: a breaker, a queue, limits and retries of all
            tools of this name. `CallPolicy` says how, and bounds the time instead of `timeout`. An
            ``"at_most_once"`` tool is repeated only after `no_effect` errors. Default `None`: no gates.
        on_conflict: What a duplicate of a call in progress does: ``"wait"`` for its result, or raise an
            ``"error"`` at once. Default ``"wait"``.
        wait: For how many seconds at most. Default 60.
        on_store_error: What happens if the store cannot be reached: ``"refuse"`` raises, ``"run"`` runs the
            tool unguarded. Default `None`: ``"run"`` for ``"read"``, else ``"refuse"``.
        permanent: Exceptions that every repetition would meet again: stored and given again.
        no_effect: Exceptions that are raised before anything was done: the key is free again.
        reconcile: Function of the key, async if the tool is, that looks downstream whether a call in doubt
            took effect, and returns `Done`, `NotDone` or `Unknown`.
        version: Changed when the same arguments come to mean something else. Default ``"1"``.
        fields: Names of the arguments that tell two calls under one key apart. Default `None`: all of them.
        ignore: Names of arguments that do not, such as a session.

    Raises:
        ConfigError: A value is out of its range.
    """

    effect: Effect = "at_most_once"
    lease: float = 30.0
    retention: float = 900.0
    timeout: float | None = None
    on_conflict: Literal["wait", "error"] = "wait"
    wait: float = 60.0
    on_store_error: Literal["refuse", "run"] | None = None
    permanent: tuple[type[Exception], ...] = ()
    no_effect: tuple[type[Exception], ...] = ()
    reconcile: Reconciler | None = None
    guard: CallPolicy | None = None
    version: str = "1"
    fields: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("effect", self.effect, get_args(Effect))
        _one_of("on_conflict", self.on_conflict, ("wait", "error"))
        _one_of("on_store_error", self.on_store_error, ("refuse", "run", None))
        _seconds("lease", self.lease, least=0.05, most=_TEN_YEARS)
        _seconds("retention", self.retention, least=0.001, most=_TEN_YEARS)
        _seconds("wait", self.wait, least=0.0)
        if self.timeout is not None:
            _seconds("timeout", self.timeout, least=0.001)
        if not isinstance(self.version, str):
            raise ConfigError("tool.version", self.version, "must be a string")
        for name in ("permanent", "no_effect"):
            given = getattr(self, name)
            kinds = (given,) if isinstance(given, type) else tuple(given)
            if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
                raise ConfigError(f"tool.{name}", given, "must be classes of exceptions")
            object.__setattr__(self, name, kinds)
        for name in ("fields", "ignore"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"tool.{name}", given, "must be a list of names")
            object.__setattr__(self, name, given if given is None else tuple(given))
        if self.reconcile is not None and not callable(self.reconcile):
            raise ConfigError("tool.reconcile", self.reconcile, "must be a function of the key")

        _check_guard(self.guard, self.timeout)

    def may_repeat(self, error: Exception) -> bool:
        """Tell whether a tool that failed so may be executed again at once."""
        if self.effect in ("read", "idempotent"):
            return not isinstance(error, self.permanent)
        return isinstance(error, (NoEffectError, *self.no_effect))

    @property
    def runs_without_store(self) -> bool:
        """Whether the tool runs although nothing can be remembered of it."""
        return self.on_store_error == "run" or (self.on_store_error is None and self.effect == "read")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        names = ", ".join(repr(word) for word in allowed)
        raise ConfigError(f"tool.{name}", repr(value), f"must be one of {names}")


# As long as a record that nothing ends is kept; Redis refuses what goes far beyond.
_TEN_YEARS = 315_360_000.0


def _seconds(name: str, value: object, *, least: float, most: float = math.inf) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:  # type: ignore[operator,arg-type]
        bounds = f"{least} or more" if most == math.inf else f"from {least} to {most:.0f}"
        raise ConfigError(f"tool.{name}", repr(value), f"must be a number of seconds, {bounds}")


def _check_guard(guard: object, timeout: float | None) -> None:
    if guard is None:
        return
    if not isinstance(guard, CallPolicy):
        raise ConfigError("tool.guard", repr(guard), "must be a CallPolicy")
    if timeout is not None:
        rule = "must not be given beside guard: CallPolicy(timeout=, total_timeout=) bounds the time"
        raise ConfigError("tool.timeout", timeout, rule)
