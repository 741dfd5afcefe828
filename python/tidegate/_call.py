"""`Gate.call`: any function behind the gates."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate import _context, _core, _layers
from tidegate._errors import CallError, ConfigError
from tidegate._fields import known_fields
from tidegate._log import NOTHING, level_for_calls

if TYPE_CHECKING:
    from tidegate._core import Attempt, Guard

RetryOn: TypeAlias = tuple[type[Exception], ...] | Callable[[Exception], bool]


@known_fields("call")
@dataclass(frozen=True, kw_only=True)
class CallPolicy:
    """How a function is guarded; see `Gate.call`.

    Attributes:
        name: Whose breaker, queue, limits and budget hold: those of all functions of this name.
            ``Gate(limits=)`` knows it as it knows models. Default: the function's own name.
        tokens: What one attempt counts under a limit of tokens per minute. Default 0.
        timeout: Bound on one attempt, in seconds. Default `None`. A plain function cannot be stopped: it is
            left behind.
        total_timeout: Bound on the whole call with its queue, attempts and waits. Default: the gate's.
        max_attempts: Attempts at most, the first included. Default: the gate's.
        retry_on: Classes of exceptions, or a function that is given one, after which another attempt may
            help. Default: errors of tidegate and of SDKs by their status or kind, ``ConnectionError`` and
            ``TimeoutError``.

    Raises:
        ConfigError: A value is out of its range.
    """

    name: str | None = None
    tokens: int = 0
    timeout: float | None = None
    total_timeout: float | None = None
    max_attempts: int | None = None
    retry_on: RetryOn | None = None

    def __post_init__(self) -> None:
        name_fits = self.name is None or (isinstance(self.name, str) and self.name.strip())
        _check("name", self.name, name_fits, "must be text that is not empty")
        _check("tokens", self.tokens, _whole(self.tokens, 0), "must be a whole number, 0 or more")
        for field in ("timeout", "total_timeout"):
            value = getattr(self, field)
            _check(
                field, value, value is None or _seconds(value), "must be a number of seconds greater than 0"
            )
        attempts = self.max_attempts
        _check(
            "max_attempts",
            attempts,
            attempts is None or _whole(attempts, 1),
            "must be a whole number, 1 or more",
        )
        on = self.retry_on
        classes = isinstance(on, tuple) and all(isinstance(c, type) and issubclass(c, Exception) for c in on)
        rule = "must be a tuple of classes of exceptions, or a function of an exception"
        _check("retry_on", on, on is None or classes or (callable(on) and not isinstance(on, type)), rule)


def _check(field: str, value: object, right: object, rule: str) -> None:
    if not right:
        raise ConfigError(f"call.{field}", repr(value), rule)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**32


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


# Of errors that tell their kind, those that another attempt may mend, and the core's word for it.
_BY_KIND = {
    "connection": "connection",
    "empty_response": "empty",
    "malformed_response": "malformed",
    "overloaded": "overloaded",
    "rate_limit": "rate_limit",
    "server": "server_error",
    "stream_error": "server_error",
    "stream_interrupted": "connection",
    "timeout": "timeout",
}
# What a gate has refused, it would refuse again.
_REFUSED = frozenset(
    {"breaker_open", "admission_deadline", "deadline", "hint_exceeds_budget", "spend_cap", "cancelled"}
)
_BY_STATUS = {408: "timeout", 429: "rate_limit", 503: "overloaded", 504: "timeout", 529: "overloaded"}
_SERVER_ERROR = 500


def _class_of(error: Exception) -> str | None:
    """Return what kind of failure it is, in the core's words; `None` if another attempt would not help."""
    if getattr(error, "reason", None) in _REFUSED:
        return None
    if isinstance(error, CallError):
        return _BY_KIND.get(error.kind) if error.retryable else None
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        if getattr(error, "code", None) == "insufficient_quota":
            return None
        return _BY_STATUS.get(status, "server_error" if status >= _SERVER_ERROR else None)
    if isinstance(error, TimeoutError):
        return "timeout"
    return "connection" if isinstance(error, ConnectionError) else None


class _LateError(TimeoutError):
    """A plain function was left behind."""


class GuardedCall:
    """One call of a function, behind the gates.

    Attributes:
        entered: Whether the function has been called.
        ended: How the core ended the call; `None` while it goes on, or if the function returned.
    """

    __slots__ = (
        "_function",
        "_harmless",
        "_last",
        "_level",
        "_policy",
        "_started",
        "ended",
        "entered",
        "guard",
    )

    def __init__(
        self,
        engine: _core.Engine,
        function: Callable[[], Any],
        name: str,
        policy: CallPolicy,
        *,
        harmless: Callable[[Exception], bool] | None = None,
        counted_elsewhere: bool = False,
    ) -> None:
        """Make a call of which nothing is done yet.

        Args:
            engine: The gate's.
            function: What is called; async for `run_async`.
            name: Whose gates they are, unless the policy names others.
            policy: How it is guarded.
            harmless: Whether the function may be called again after this error. Default: always.
            counted_elsewhere: Somebody else counts the call in ``tool_call_total``.
        """
        around = _layers.outer.get()
        self.entered = False
        self.ended: CallError | None = None
        self._harmless = harmless
        self._function = function
        self._policy = policy
        self._level = level_for_calls()
        self._last: Exception | None = None
        self.guard: Guard = _core.Guard(
            engine,
            policy.name or name,
            tokens=policy.tokens,
            timeout=policy.timeout,
            total_timeout=policy.total_timeout,
            max_attempts=policy.max_attempts,
            tags=_context.ambient() or None,
            outer=None if around is None else around.told(),
            counted_elsewhere=counted_elsewhere,
            log_level=self._level,
        )

    def run(self) -> Any:
        """Make the call on this thread."""
        while True:
            limit = self._admitted(self.guard.call())
            token = self._enter(limit)
            try:
                result = self._plain(self._bounded(limit))
            except Exception as error:  # noqa: BLE001 the core decides
                wait = self._failed(error, late=isinstance(error, _LateError) and self._is_total(limit))
            except BaseException:
                self.guard.leave()
                raise
            else:
                self.guard.returned()
                return result
            finally:
                _layers.outer.reset(token)
            try:
                time.sleep(wait)
            except BaseException:
                self.guard.leave()
                raise

    async def run_async(self) -> Any:
        """Make the call on the running loop."""
        import asyncio

        while True:
            limit = self._admitted(await self._place())
            bounds = [bound for bound in (self._policy.timeout, limit) if bound is not None]
            token = self._enter(limit)
            bound = asyncio.timeout(min(bounds, default=None))
            try:
                async with bound:
                    result = await self._function()
            except Exception as error:  # noqa: BLE001 the core decides
                wait = self._failed(error, late=bound.expired() and self._is_total(limit))
            except BaseException:
                self.guard.leave()
                raise
            else:
                self.guard.returned()
                return result
            finally:
                _layers.outer.reset(token)
            try:
                await asyncio.sleep(wait)
            except BaseException:
                self.guard.leave()
                raise

    async def _place(self) -> Attempt:
        context = None if self._level == NOTHING else contextvars.copy_context()
        ticket = self.guard.submit(context=context)
        try:
            return await ticket.future
        except BaseException:
            ticket.cancel()
            del ticket
            raise

    def _admitted(self, attempt: Attempt) -> float | None:
        """Return the seconds within which the function has to end."""
        self._started = time.monotonic()
        if attempt.error is None:
            self.entered = True
            return attempt.limit
        self.ended = attempt.error
        if self._last is not None:
            raise _told(self._last, attempt)
        raise attempt.error

    def _enter(self, limit: float | None) -> contextvars.Token[_layers.Outer | None]:
        deadline = None if limit is None else self._started + limit
        if self._policy.timeout is not None:
            own = self._started + self._policy.timeout
            deadline = own if deadline is None else min(own, deadline)
        return _layers.outer.set(_layers.Outer(self.guard.trace_id, self.guard.span_id, deadline))

    def _is_total(self, limit: float | None) -> bool:
        """Tell whether an attempt that is late is so by the whole call's bound."""
        own = self._policy.timeout
        return limit is not None and (own is None or limit <= own)

    def _plain(self, result: Any) -> Any:
        """Refuse a coroutine that nobody will await."""
        if not inspect.iscoroutine(result):
            return result
        result.close()
        raise ConfigError(
            "call.function",
            result.__qualname__,
            "was not awaited: pass the async function itself, or a partial",
        )

    def _failed(self, error: Exception, *, late: bool) -> float:
        """Return the wait before the next attempt; raise what ends the call, if this ends it."""
        if late:
            cut = self.ended = self.guard.cut().error
            assert cut is not None  # noqa: S101 a deadline ends a call
            raise cut from error
        retry_on, found = self._policy.retry_on, _class_of(error)
        if retry_on is not None:
            named = isinstance(error, retry_on) if isinstance(retry_on, tuple) else retry_on(error)
            found = (found or "server_error") if named else None
        hint = getattr(error, "retry_after", None)
        hint = float(hint) if isinstance(hint, int | float) else None
        unknown = found == "timeout"
        message = str(error) or type(error).__name__
        harmless = self._harmless is None or self._harmless(error)
        attempt = self.guard.raised(found or "", found is not None, harmless, hint, unknown, message)
        if attempt.retry_in is None:
            self.ended = attempt.error
            raise _told(error, attempt)
        self._last = error
        return attempt.retry_in

    def _bounded(self, limit: float | None) -> Any:
        bounds = [bound for bound in (self._policy.timeout, limit) if bound is not None]
        if not bounds:
            return self._function()
        ended: list[tuple[Any, BaseException | None]] = []
        context = contextvars.copy_context()

        def work() -> None:
            try:
                ended.append((context.run(self._function), None))
            except BaseException as error:  # noqa: BLE001 raised where the function was called
                ended.append((None, error))

        worker = threading.Thread(target=work, name="tidegate-call", daemon=True)
        worker.start()
        worker.join(min(bounds))
        if not ended:
            raise _LateError(f"the function did not return within {min(bounds):.3g} s")
        result, error = ended[0]
        if error is not None:
            raise error
        return result


def _told(error: Exception, attempt: Attempt) -> Exception:
    """Return the function's own error, with how the call went."""
    from tidegate._explain import gave_up

    if isinstance(attempt.error, CallError) and attempt.error.attempts:
        error.add_note(f"tidegate {gave_up(attempt.error)}")
    with contextlib.suppress(AttributeError):
        error._tidegate_info = attempt.info  # type: ignore[attr-defined]
    return error


def is_async(function: object) -> bool:
    """Tell whether calling it returns an awaitable."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(vars(type(function)).get("__call__"))


def call(
    engine: _core.Engine, function: Callable[..., Any], args: Any, keywords: Any, policy: CallPolicy
) -> Any:
    """Call a function behind the gates; an awaitable if the function is async."""
    if not callable(function):
        rule = "must be a function, which can be called again; a coroutine cannot be awaited again"
        raise ConfigError("call.function", repr(function), rule)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            "call.function", repr(function), "cannot be a generator: its body runs after the call"
        )
    name = str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]
    made = GuardedCall(engine, lambda: function(*args, **keywords), name, policy)
    return made.run_async() if is_async(function) else made.run()
