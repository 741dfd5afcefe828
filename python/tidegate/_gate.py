"""The engine and its state, shared by any number of clients, event loops and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidegate import _breakers, _call, _core
from tidegate import _gate_settings as _settings
from tidegate._call import CallPolicy
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

    from tidegate._breakers import BreakerState
    from tidegate._journal import Journal
    from tidegate._prices import PriceTable
    from tidegate._tool import Tools
    from tidegate._tool_policy import ToolPolicy
    from tidegate._usage import UsageReport

LimitsLike: TypeAlias = Limits | Literal["auto"] | None
"""Limits of a scope; ``"auto"`` is ``Limits()``, `None` is no limit of any kind."""

_NO_RETRIES = RetryPolicy(max_attempts=1)


class Gate:
    """Policies, and everything that is remembered between calls: queues, breakers, budgets, metrics.

    Clients that share a gate share its limits. A process usually needs one, the default; see `configure`.

    >>> gate = Gate(limits={"gpt-5*": Limits(rpm=500, tpm=200_000)}, prices=Prices.load("prices.toml"))
    >>> client = AsyncClient(gate=gate)
    """

    __slots__ = ("__weakref__", "_engine", "_kept_tools", "_settings", "_store", "_timeouts")

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
            "retry": _settings.instance("retry", retry, RetryPolicy, optional=True),
            "timeouts": _settings.instance("timeouts", timeouts, Timeouts, optional=False),
            "limits": limits,
            "breaker": _settings.instance("breaker", breaker, BreakerPolicy, optional=True),
            "retry_budget": _settings.instance("retry_budget", retry_budget, RetryBudget, optional=True),
            "spend": _settings.caps(spend),
            "fallbacks": fallbacks,
            "degrade": _settings.instance("degrade", degrade, Degrade, optional=True),
            "prices": Prices(prices) if isinstance(prices, Mapping) else prices,
            "store": _settings.shown_url(store),
            "log_file": _settings.path("log_file", log_file),
            "log_max_bytes": _settings.whole("log_max_bytes", log_max_bytes, optional=True),
            "log_backups": _settings.whole("log_backups", log_backups, optional=False),
            "seed": _settings.seed(seed),
        }
        table = _settings.instance("prices", self._settings["prices"], Prices, optional=True)
        self._timeouts = timeouts
        self._engine = _core.Engine(
            retry=retry or _NO_RETRIES,
            timeouts=timeouts,
            limits=_settings.by_pattern(limits),
            breaker=breaker,
            retry_budget=retry_budget,
            spend=self._settings["spend"],
            fallbacks=_settings.fallbacks(fallbacks),
            degrade=degrade,
            prices=table and table.to_json(),
            log_file=self._settings["log_file"],
            log_rotation=None if log_max_bytes is None else (log_max_bytes, log_backups),
            seed=seed,
        )
        self._store = _core.Store(self._engine, store)
        self._kept_tools: Tools | None = None

    @property
    def timeouts(self) -> Timeouts:
        """The bounds that hold where a client names none."""
        return self._timeouts

    @property
    def _tools(self) -> Tools:
        if self._kept_tools is None:
            # Most programs have no tools and need not import them.
            from tidegate._tool import Tools

            with _lock:
                self._kept_tools = self._kept_tools or Tools(self._engine, self._store)
        return self._kept_tools

    def once(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        policy: ToolPolicy | None = None,
        **keywords: Any,
    ) -> Any:
        """Run a function once under a key: a repetition gets the result of the first run.

        >>> key = idem_key(tenant="acme", workflow="refund", biz_id=order, step="pay")
        >>> receipt = await gate.once(key, pay, order)

        Args:
            key: What identifies the act, the same on every retry; see `idem_key`.
            function: Async or not.
            args: Its arguments. The same key with others is refused; they must have a form in JSON.
            policy: How it is kept from running twice. Default: ``ToolPolicy()``.
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
        from tidegate._tool import run_once

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
        from tidegate._tool import make_tool

        if function is None:
            return lambda decorated: make_tool(self._tools, decorated, dict(settings))
        return make_tool(self._tools, function, dict(settings))

    def journal(
        self,
        run_id: str | int,
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
        from tidegate._journal import Journal

        return Journal(
            self._tools, run_id, tenant=tenant, workflow=workflow, deadline=deadline, retention=retention
        )

    def call(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        policy: CallPolicy = CallPolicy(),  # noqa: B008 frozen
        **keywords: Any,
    ) -> Any:
        """Call any function behind the gates: breaker, queue, retries out of a budget, metrics, log.

        >>> rates = await gate.call(fetch_rates, "EUR", policy=CallPolicy(timeout=2, retry_on=(IOError,)))

        Calls of tidegate that the function makes make one attempt each, within what is left of this call's
        time: only this call retries. In the log they name it (``parent_span_id``).

        Args:
            function: Async or not. It may be called several times.
            args: Its arguments.
            policy: How it is guarded. Default: `CallPolicy`'s.
            keywords: Its arguments too.

        Returns:
            What the function returns; awaitable if it is async.

        Raises:
            Exception: The function's last one, with a note of why it was not called again.
            CircuitOpenError: Not called: the breaker of its name is open.
            AdmissionError: Not called: no place in the queue in time.
            DeadlineExceededError: The total timeout ran out.
            ConfigError: The policy breaks a rule.
        """
        if not isinstance(policy, CallPolicy):
            raise ConfigError("call.policy", repr(policy), "must be a CallPolicy")
        return _call.call(self._engine, function, args, keywords, policy)

    def breakers(self) -> list[BreakerState]:
        """Return every breaker: its state, why it opened, and when a call may try again."""
        return _breakers.states(self._engine)

    def force_breaker(
        self, model: str = "*", *, state: Literal["open", "disabled"] = "open", origin: str = "*"
    ) -> None:
        """Take breakers into your own hands, in this process, until `reset_breaker`.

        >>> gate.force_breaker("gpt-5*")  # calls fail with CircuitOpenError, or take their fallback

        Args:
            model: Pattern of the models (``*`` and ``?`` are wildcards), also of those not called yet.
            state: ``"open"`` refuses every call; ``"disabled"`` admits every call, whatever fails.
            origin: Pattern of the APIs' origins, such as ``"https://api.openai.com"``.

        Raises:
            ConfigError: An argument breaks these rules, or the gate was made with ``breaker=None``.
        """
        _breakers.force(self._engine, model, state, origin)

    def reset_breaker(self, model: str = "*", *, origin: str = "*") -> None:
        """Close breakers, with nothing counted yet, and leave them to themselves; see `force_breaker`."""
        _breakers.reset(self._engine, model, origin)

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
    made = Gate(**settings) if gate is None else _settings.instance("gate", gate, Gate, optional=False)
    with _lock:
        _default = made
    return made


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
