"""`Gate.once` and `Gate.tool`: functions that run once per key."""

from __future__ import annotations

import functools
import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tidegate import _core, _drive_once, _journal
from tidegate._call import GuardedCall
from tidegate._callee import callee_of
from tidegate._errors import ConfigError
from tidegate._fields import unknown_field
from tidegate._flights import Flights
from tidegate._keys import check_template, checked_key, key_from
from tidegate._once import Once
from tidegate._skipped import Reason, Skipped, reason_of_gates, reason_to_skip
from tidegate._telling import Telling
from tidegate._tool_errors import StoreUnavailableError
from tidegate._tool_policy import ToolPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING: Any = object()
_OWN_SETTINGS = ("name", "key", "critical", "fallback")
_USUAL = ToolPolicy()
_POLICY_FIELDS = frozenset(field.name for field in fields(ToolPolicy))


class Tools:
    """What the tools of one gate share."""

    __slots__ = ("_engine", "flights", "store", "telling")

    def __init__(self, engine: _core.Engine, store: _core.Store) -> None:
        self._engine = engine
        self.store = store
        self.flights = Flights()
        self.telling = Telling(self.store)

    def once(self, tool: str, key: str, policy: ToolPolicy, print_: bytes, call: Callable[[], Any]) -> Once:
        """Return a call that is ready to be lived."""
        policy = _journal.kept(policy)
        guarding = None
        if policy.guard is not None:
            guarding = functools.partial(
                GuardedCall, self._engine, call, tool, policy.guard,
                harmless=policy.may_repeat, counted_elsewhere=True,
            )  # fmt: skip
        return Once(
            self.store,
            self.flights,
            self.telling,
            tool=tool,
            key=key,
            policy=policy,
            fingerprint=print_,
            call=call,
            guarding=guarding,
        )

    def check(self, policy: ToolPolicy, *, is_async: bool) -> None:
        """Refuse what this store cannot promise."""
        if policy.reconcile is not None and not is_async and inspect.iscoroutinefunction(policy.reconcile):
            rule = "must be a plain function, as the tool is"
            raise ConfigError("tool.reconcile", repr(policy.reconcile), rule)
        if policy.effect != "transactional":
            return
        if self.store.kind != "sqlite":
            rule = "transactional needs Gate(store='sqlite:///file'): effect and record share its transaction"
            raise ConfigError("tool.effect", "transactional", rule)
        if is_async:
            raise ConfigError("tool.effect", "transactional", "must be a plain function, not an async one")
        if policy.guard is not None:
            rule = "cannot stand around a transaction: guard the call that the tool makes, with Gate.call"
            raise ConfigError("tool.guard", policy.guard, rule)
        if policy.timeout is not None:
            raise ConfigError("tool.timeout", policy.timeout, "cannot bound a transaction: leave it out")


def run_once(  # noqa: PLR0917 in the order of `Gate.once`
    tools: Tools, key: str, function: Callable[..., Any], args: Any, keywords: Any, policy: ToolPolicy | None
) -> Any:
    """Run a function once under a key; an awaitable if the function is async."""
    if policy is None:
        policy = _USUAL
    elif not isinstance(policy, ToolPolicy):
        raise ConfigError("once.policy", repr(policy), "must be a ToolPolicy")
    _refuse_generator("once.function", function)
    callee = callee_of(function)
    tools.check(policy, is_async=callee.is_async)
    key = checked_key(key)
    print_ = callee.fingerprint(callee.name, policy, callee.bound(args, keywords))
    once = tools.once(callee.name, key, policy, print_, functools.partial(function, *args, **keywords))
    return _drive_once.run_async(once) if callee.is_async else _drive_once.run(once)


def make_tool(tools: Tools, function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Return the function as a tool; see `Gate.tool`."""
    for unknown in settings.keys() - _POLICY_FIELDS - set(_OWN_SETTINGS):
        raise unknown_field("tool", unknown, settings[unknown], _POLICY_FIELDS | set(_OWN_SETTINGS))
    if not callable(function):
        raise ConfigError("tool", repr(function), "must be a function")
    _refuse_generator("tool", function)
    tool = Tool(tools, function, settings)
    if tool.is_async:

        @functools.wraps(function)
        async def call_async(*args: Any, **keywords: Any) -> Any:
            return await tool.run_async(args, keywords)

        made: Any = call_async
    else:

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            return tool.run(args, keywords)

        made = call
    made.tidegate_tool = tool
    return made


def _refuse_generator(field: str, function: Callable[..., Any]) -> None:
    """Its body would begin when its record says that it has ended."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(field, getattr(function, "__qualname__", function), "cannot be a generator")


def _name(function: Callable[..., Any], given: Any) -> str:
    name = getattr(function, "__name__", None) if given is None else given
    if not isinstance(name, str) or not name:
        raise ConfigError("tool.name", repr(name), "must be text that is not empty")
    return name


class Tool:
    """A function with its declarations."""

    __slots__ = ("_callee", "_fallback", "_function", "_key", "_tools", "critical", "name", "policy")

    def __init__(self, tools: Tools, function: Callable[..., Any], settings: dict[str, Any]) -> None:
        self._tools = tools
        self._function = function
        self._callee = callee_of(function)
        if not self._callee.has_signature:
            rule = "must be a function whose arguments are known: wrap it in one of your own"
            raise ConfigError("tool", repr(function), rule)
        self._key = settings.pop("key", None)
        self._fallback = settings.pop("fallback", _NOTHING)
        self.critical = settings.pop("critical", True)
        self.name = _name(function, settings.pop("name", None))
        self.policy = ToolPolicy(**settings)
        self._callee.check(self.policy)
        if not isinstance(self.critical, bool):
            raise ConfigError("tool.critical", repr(self.critical), "must be True or False")
        if isinstance(self._key, str) and self._key:
            check_template(self._key, self.name, self._callee)
        elif self._key is not None and not callable(self._key):
            rule = "must be a template such as 'refund:{order_id}', or a function of the arguments"
            raise ConfigError("tool.key", repr(self._key), rule)
        tools.check(self.policy, is_async=self.is_async)

    @property
    def is_async(self) -> bool:
        """Whether a call returns an awaitable."""
        return self._callee.is_async

    def run(self, args: Any, keywords: Any) -> Any:
        """Call the tool on this thread."""
        skipped = self._skip()
        if skipped is None:
            once = self._once(args, keywords)
            try:
                return _drive_once.run(once)
            except Exception as error:  # noqa: BLE001 raised again where the tool is not to be left out
                skipped = self._skip_for(error, once)
        return self._instead(skipped, args, keywords)

    async def run_async(self, args: Any, keywords: Any) -> Any:
        """Call the tool on the running loop."""
        skipped = self._skip()
        if skipped is None:
            once = self._once(args, keywords)
            try:
                return await _drive_once.run_async(once)
            except Exception as error:  # noqa: BLE001 raised again where the tool is not to be left out
                skipped = self._skip_for(error, once)
        instead = self._instead(skipped, args, keywords)
        return await instead if inspect.isawaitable(instead) else instead

    def _once(self, args: Any, keywords: Any) -> Once:
        arguments = self._callee.bound(args, keywords)
        first = self._callee.first
        # What a method belongs to tells no calls apart, but may be part of its key.
        owner = {first: arguments.pop(first, None)} if first in ("self", "cls") else {}
        print_ = self._callee.fingerprint(self.name, self.policy, arguments)
        if self._key is None:
            key = _journal.tool_key(self.name)
        elif isinstance(self._key, str):
            key = key_from(self._key, self.name, {**self._callee.defaults, **owner, **arguments})
        else:
            key = key_from(self._key, self.name, arguments)
        call = functools.partial(self._function, *args, **keywords)
        return self._tools.once(self.name, key, self.policy, print_, call)

    def _skip(self) -> Skipped | None:
        guard = self.policy.guard
        bounds = (self.policy.timeout, *((guard.timeout, guard.total_timeout) if guard else ()))
        least = min((bound for bound in bounds if bound is not None), default=None)
        reason = None if self.critical else reason_to_skip(least)
        return None if reason is None else Skipped(self.name, reason)

    def _skip_for(self, error: Exception, once: Once) -> Skipped:
        """Return why the tool was left out; raise the error of one that was not, or must not be."""
        reason: Reason | None = None
        if isinstance(error, StoreUnavailableError):
            reason = "store_unavailable"
        elif once.guard is not None and once.guard.ended is not None:
            reason = reason_of_gates(once.guard, self.policy)
        if reason is None or (self.critical and self._fallback is _NOTHING):
            raise error
        return Skipped(self.name, reason)

    def _instead(self, skipped: Skipped, args: Any, keywords: Any) -> Any:
        has_fallback = self._fallback is not _NOTHING
        self._tools.store.tell(
            tool=self.name, key=None, effect=self.policy.effect, fingerprint=None,
            status="fallback" if has_fallback else "skipped", decision=None,
            outcome="fallback" if has_fallback else "skipped", reason=skipped.reason, attempts=None,
            log_level=self._tools.telling.level(),
        )  # fmt: skip
        if not has_fallback:
            return skipped
        return self._fallback(*args, **keywords) if callable(self._fallback) else self._fallback
