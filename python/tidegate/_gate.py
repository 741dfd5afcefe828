"""The engine and its state, shared by any number of clients, event loops and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidegate import _core
from tidegate._errors import ConfigError
from tidegate._fields import known_keywords
from tidegate._policies import (
    BreakerPolicy,
    Degrade,
    Fallback,
    Limits,
    RetryBudget,
    RetryPolicy,
    SpendCap,
    Timeouts,
)
from tidegate._prices import Prices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tidegate._prices import PriceTable
    from tidegate._usage import UsageReport

LimitsLike: TypeAlias = Limits | Literal["auto"] | None
"""Limits of a scope; ``"auto"`` is ``Limits()``, `None` is no limit of any kind."""

_NO_LIMITS = Limits(concurrency=None, learn=False)
_NO_RETRIES = RetryPolicy(max_attempts=1)


class Gate:
    """Policies, and everything that is remembered between calls: queues, breakers, budgets, metrics.

    Clients that share a gate share its limits. A process usually needs one, the default; see `configure`.

    >>> gate = Gate(limits={"gpt-5*": Limits(rpm=500, tpm=200_000)}, prices=Prices.load("prices.toml"))
    >>> client = AsyncClient(gate=gate)
    """

    __slots__ = ("__weakref__", "_engine", "_settings", "_timeouts")

    @known_keywords("")
    def __init__(
        self,
        *,
        retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 frozen
        timeouts: Timeouts = Timeouts(),  # noqa: B008 frozen
        limits: LimitsLike | Mapping[str, LimitsLike] = "auto",
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 frozen
        retry_budget: RetryBudget | None = RetryBudget(),  # noqa: B008 frozen
        spend: SpendCap | Sequence[SpendCap] = (),
        fallbacks: Sequence[Fallback] | Mapping[str, Sequence[Fallback]] = (),
        degrade: Degrade | None = None,
        prices: Prices | Mapping[str, PriceTable | Sequence[PriceTable]] | None = None,
        log_file: str | os.PathLike[str] | None = None,
        log_max_bytes: int | None = None,
        log_backups: int = 5,
        seed: int | None = None,
    ) -> None:
        """Make a gate. `None` turns a mechanism off.

        Args:
            retry: When failed attempts are repeated. `None`: never.
            timeouts: Bounds on attempts and calls, where the client names none.
            limits: For every model, or by pattern of the model's name (``*`` and ``?`` are wildcards). Of
                several patterns that match the longest holds; models that none matches have ``"auto"``.
            breaker: When to stop sending to an upstream that fails.
            retry_budget: Bound on the retries of all calls together.
            spend: Caps on what calls may cost; a call needs room under each that applies to it.
            fallbacks: What stands in, in order, when an upstream cannot take a call: for every model, or by
                pattern of the model's name.
            degrade: Whether the last good answer to the same request is given when there is no other.
            prices: US dollars per million tokens. `None`: costs are unknown.
            log_file: File to which each event is appended as a line of JSON. Several processes can share it.
            log_max_bytes: A line that would make the file longer goes to a new one, and the full file is
                renamed to ``….1``, that one to ``….2`` and so on. At least 4,096; `None`: it grows. Where
                several processes share the file, each may add a quarter of it, and at most 64 KiB, before it
                notices.
            log_backups: Full files that are kept, 1 to 1,000. Default 5.
            seed: Makes the random waits reproducible, for tests.

        Raises:
            ConfigError: A setting is not known, or its value breaks a rule.
        """
        self._settings = {
            "retry": _instance("retry", retry, RetryPolicy, optional=True),
            "timeouts": _instance("timeouts", timeouts, Timeouts, optional=False),
            "limits": limits,
            "breaker": _instance("breaker", breaker, BreakerPolicy, optional=True),
            "retry_budget": _instance("retry_budget", retry_budget, RetryBudget, optional=True),
            "spend": _caps(spend),
            "fallbacks": fallbacks,
            "degrade": _instance("degrade", degrade, Degrade, optional=True),
            "prices": Prices(prices) if isinstance(prices, Mapping) else prices,
            "log_file": _path("log_file", log_file),
            "log_max_bytes": _whole("log_max_bytes", log_max_bytes, optional=True),
            "log_backups": _whole("log_backups", log_backups, optional=False),
            "seed": _seed(seed),
        }
        table = _instance("prices", self._settings["prices"], Prices, optional=True)
        self._timeouts = timeouts
        self._engine = _core.Engine(
            retry=retry or _NO_RETRIES,
            timeouts=timeouts,
            limits=_by_pattern(limits),
            breaker=breaker,
            retry_budget=retry_budget,
            spend=self._settings["spend"],
            fallbacks=_fallbacks(fallbacks),
            degrade=degrade,
            prices=table and table.to_json(),
            log_file=self._settings["log_file"],
            log_rotation=None if log_max_bytes is None else (log_max_bytes, log_backups),
            seed=seed,
        )

    @property
    def timeouts(self) -> Timeouts:
        """The bounds that hold where a client names none."""
        return self._timeouts

    def snapshot(self) -> dict[str, Any]:
        """Return what was counted so far, and the state of every queue, breaker and budget."""
        return self._engine.snapshot()

    def metrics_text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._engine.metrics_text()

    def usage(
        self,
        by: str | Sequence[str] = "model",
        *,
        window: Literal["hour", "day"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> UsageReport:
        """Return what calls used and cost, grouped.

        >>> gate.usage(by=("model", "route"), window="day").to_csv()

        Kept are the last 20,000 combinations of hour, model and tags; of an hour at most 1,000, beyond which
        tags are ``"other"``.

        Args:
            by: ``"model"``, names of tags such as ``"route"`` or ``"tool"``, or several of these. ``()`` sums
                up everything.
            window: Give each UTC hour or day rows of its own. Default: sums over all that is kept.
            since: Leave out the hours that ended by then.
            until: Leave out the hours that began at or after it.

        Raises:
            ConfigError: An argument breaks these rules.
        """
        from tidegate._usage import report

        return report(self._engine.usage(), by, window, since, until)

    def __repr__(self) -> str:
        import inspect

        arguments = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}" for name, value in self._settings.items() if value != arguments[name].default
        ]
        return f"Gate({', '.join(changed)})"


def _instance(field: str, value: object, cls: type, *, optional: bool) -> Any:
    if isinstance(value, cls) or (optional and value is None):
        return value
    off = "; None turns it off" if optional else ""
    raise ConfigError(field, repr(value), f"must be a {cls.__name__}{off}")


def _caps(spend: object) -> tuple[SpendCap, ...]:
    caps = (spend,) if isinstance(spend, SpendCap) else spend
    if isinstance(caps, list | tuple) and all(isinstance(cap, SpendCap) for cap in caps):
        return tuple(caps)
    raise ConfigError("spend", repr(spend), "must be a SpendCap, or a list of them")


def _fallbacks(fallbacks: object) -> list[tuple[str, Fallback]]:
    table = fallbacks if isinstance(fallbacks, Mapping) else {"*": fallbacks}
    pairs = []
    for pattern, those in table.items():
        if not isinstance(those, list | tuple) or not all(isinstance(each, Fallback) for each in those):
            raise ConfigError(
                "fallbacks", repr(those), "must be a list of Fallback, or patterns of models with such lists"
            )
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(
                "fallbacks", repr(pattern), "must be named by a model, or a pattern such as gpt-5*"
            )
        pairs += [(pattern, each) for each in those]
    return pairs


def _path(field: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(field, repr(value), "must be the path of a file")
    return os.fsdecode(value)


def _whole(field: str, value: object, *, optional: bool) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        off = ", or None" if optional else ""
        raise ConfigError(field, repr(value), f"must be a whole number greater than 0{off}")
    return value


def _seed(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64):
        return value
    raise ConfigError("seed", repr(value), "must be a whole number, 0 or more and less than 2**64")


def _by_pattern(limits: object) -> list[tuple[str, Limits]]:
    """Return pairs of pattern and limits, such that the first pattern that matches is the one that holds."""
    table: dict[str, object] = dict(limits) if isinstance(limits, Mapping) else {"*": limits}
    table.setdefault("*", "auto")
    pairs = []
    for pattern in sorted(table, key=_specificity, reverse=True):
        value = table[pattern]
        found = Limits() if value == "auto" else _NO_LIMITS if value is None else value
        if not isinstance(found, Limits):
            field = f"limits.{pattern}" if isinstance(limits, Mapping) else "limits"
            raise ConfigError(
                field, repr(value), 'must be a Limits, "auto" or None; or patterns with one of these'
            )
        pairs.append((pattern, found))
    return pairs


def _specificity(pattern: object) -> tuple[int, str]:
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("limits", repr(pattern), "must be the name of a model, or a pattern such as gpt-5*")
    return len(pattern), pattern


_lock = threading.Lock()
_default: Gate | None = None


def default_gate() -> Gate:
    """Return the gate of clients that are given none. It is made on first use."""
    global _default
    with _lock:
        if _default is None:
            _default = Gate()
        return _default


def configure(gate: Gate | None = None, /, **settings: Any) -> Gate:
    """Set the default gate. Call it once, before the first client is made: clients keep the gate they have.

    Args:
        gate: The gate to use; or
        settings: those of `Gate`, to make one.

    Returns:
        The gate that is the default now.

    Raises:
        ConfigError: Both are given, or a setting is wrong.
    """
    global _default
    if gate is not None and settings:
        raise ConfigError("configure", ", ".join(settings), "must be given a gate or settings, not both")
    made = Gate(**settings) if gate is None else _instance("gate", gate, Gate, optional=False)
    with _lock:
        _default = made
    return made


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
