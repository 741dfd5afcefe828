"""The engine and its state, shared by any number of clients, event loops and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidegate import _core
from tidegate._errors import ConfigError
from tidegate._fields import known_keywords
from tidegate._journal import Journal
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
from tidegate._tool import Tools, make_tool, run_once
from tidegate._tool_policy import ToolPolicy

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

    __slots__ = ("__weakref__", "_engine", "_settings", "_timeouts", "_tools")

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
        store: str = "memory:",
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
            store: Where it is remembered what tools have done: ``"memory:"``, ``"sqlite:///file.db"`` (four
                slashes before an absolute path), ``"redis://host:6379/0"``, ``"redis+sentinel://host:26379/name"``
                or ``"redis+cluster://host:6379"``; ``rediss`` for TLS. It is connected on first use.
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
            "store": _shown_url(store),
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

        self._tools = Tools(self._engine, store)

    @property
    def timeouts(self) -> Timeouts:
        """The bounds that hold where a client names none."""
        return self._timeouts

    def once(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        policy: ToolPolicy = ToolPolicy(),  # noqa: B008 frozen
        **keywords: Any,
    ) -> Any:
        """Run a function once under a key: a repetition gets the result of the first run.

        >>> key = idem_key(tenant="acme", workflow="refund", biz_id=order, step="pay")
        >>> receipt = await gate.once(key, pay, order)

        Args:
            key: What identifies the act, the same on every retry; see `idem_key`.
            function: Async or not.
            args: Its arguments. The same key with others is refused; they must have a form in JSON.
            policy: How it is kept from running twice. Default: `ToolPolicy`'s.
            keywords: Its arguments too.

        Returns:
            What the function returns; awaitable if it is async.

        Raises:
            IdempotencyMismatchError: The key was used with other arguments.
            IdempotencyConflictError: An equal call is in progress and did not end within ``policy.wait``.
            OutcomeUnknownError: An earlier run may have taken effect, and nobody knows.
            StoreUnavailableError: The store cannot be reached; nothing was done.
            ResultNotStoredError: It ran once; its result could not be kept.
            ToolFailedError: An earlier run failed for good.
            EncodeError: An argument has no form in JSON.
            ConfigError: The key or the policy breaks a rule.
        """
        if not isinstance(policy, ToolPolicy):
            raise ConfigError("once.policy", repr(policy), "must be a ToolPolicy")
        return run_once(self._tools, key, function, args, keywords, policy)

    def tool(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        """Make a function a tool that runs once per key; used as a decorator, also of methods.

        >>> @gate.tool(key="refund:{order_id}", effect="idempotent")
        ... async def refund(order_id: str, amount: int) -> str: ...

        Args:
            function: Async or not; the tool is like it, and has the same signature.
            settings: ``name`` (default: the function's). ``key``: a template with arguments in braces, or a
                function of the arguments that returns the key; without one the tool is keyed by its place in
                the `journal` that it is called in. ``critical=False`` lets it be left out in trouble: it
                returns a `Skipped`. ``fallback``: a value, or a function of the arguments, that is returned
                instead. All others: see `ToolPolicy`.

        Raises:
            ConfigError: A setting breaks a rule. A call raises what `once` raises.
        """
        if function is None:
            return lambda decorated: make_tool(self._tools, decorated, dict(settings))
        return make_tool(self._tools, function, dict(settings))

    def journal(
        self,
        run_id: str,
        *,
        tenant: str = "default",
        workflow: str = "agent",
        deadline: float | None = None,
        retention: float = 86_400.0,
    ) -> Journal:
        """Open the journal of an agent's run, so that the run can be repeated; use it with ``with``.

        Args:
            run_id: Names the run; the same when it is repeated.
            tenant: Whose run it is. Part of every key.
            workflow: What kind of run. Part of every key.
            deadline: Seconds from the start of the block after which nobody waits for the run any more: tools
                that are not critical are left out when it is near.
            retention: Seconds for which the model's answers are kept. Default a day.

        Raises:
            ConfigError: A setting breaks a rule.
        """
        return Journal(
            self._tools, run_id, tenant=tenant, workflow=workflow, deadline=deadline, retention=retention
        )

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


def _shown_url(url: object) -> str:
    if not isinstance(url, str):
        raise ConfigError("store", repr(url), "must be a URL such as memory: or sqlite:///file.db")
    scheme, separator, rest = url.partition("//")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if "@" in rest else url


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
