"""The life of one call under an idempotency key, free of I/O.

`Once.life` is a generator: it yields what is to be done next (`Ask`, `Pause`, `Body`, `Reconcile`) and is
sent what came of it. `_drive_once.py` does it, on a loop or on a thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from tidegate import _codec, _core
from tidegate._errors import ConfigError
from tidegate._execution import Execution, current, shown
from tidegate._tool_errors import (
    IdempotencyConflictError,
    IdempotencyMismatchError,
    NoEffectError,
    OutcomeUnknownError,
    ResultNotStoredError,
    StoreUnavailableError,
    ToolFailedError,
)
from tidegate._tool_policy import Done, NotDone, ToolPolicy, Unknown

if TYPE_CHECKING:
    from tidegate._call import GuardedCall
    from tidegate._flights import Flight, Flights
    from tidegate._telling import Telling

# Waits between looks at a call of another process, in seconds.
_FIRST_LOOK, _GROWTH, _LONGEST_LOOK = 0.05, 1.5, 1.0
_MOMENT = 0.002
# How long the store may take to answer, before the effect and after it.
_BEFORE, _AFTER = 2.0, 10.0


@dataclass(slots=True)
class Ask:
    """Ask the store."""

    operation: _core.Operation
    patience: float


@dataclass(slots=True)
class Pause:
    """Wait so many seconds, or until the flight lands."""

    seconds: float
    flight: Flight | None


@dataclass(slots=True)
class Body:
    """Run the tool."""

    execution: Execution


@dataclass(slots=True)
class Reconcile:
    """Look downstream."""


@dataclass(slots=True)
class Committed:
    """What a transactional body ends with: its result is in the record."""

    value: Any


class StaleError(Exception):
    """The record became another's while the body ran.

    Attributes:
        cut: The execution that was cut off and may have acted; `None` if what it did was rolled back.
    """

    def __init__(self, cut: Execution | None = None) -> None:
        super().__init__()
        self.cut = cut


class LeaseLostError(Exception):
    """The lease was lost while an async body ran, and the body was cancelled."""


class TimedOutError(Exception):
    """The body took longer than its timeout."""


Step: TypeAlias = Ask | Pause | Body | Reconcile
Life: TypeAlias = Generator[Step, Any, Any]


class Once:
    """One call under one key."""

    __slots__ = (
        "call",
        "fingerprint",
        "flights",
        "guard",
        "guarding",
        "key",
        "policy",
        "store",
        "telling",
        "tool",
    )

    def __init__(
        self,
        store: _core.Store,
        flights: Flights,
        telling: Telling,
        *,
        tool: str,
        key: str,
        policy: ToolPolicy,
        fingerprint: bytes,
        call: Callable[[], Any],
        guarding: Callable[[], GuardedCall] | None = None,
    ) -> None:
        self.store = store
        self.flights = flights
        self.telling = telling
        self.tool = tool
        self.key = key
        self.policy = policy
        self.fingerprint = fingerprint
        self.call = call
        # One for each execution: a call behind the gates is made once.
        self.guarding = guarding
        self.guard: GuardedCall | None = None

    def life(self) -> Life:
        """Run the tool once, or give what an earlier run left."""
        owner = os.urandom(16)
        begin = self.begin(owner)
        waited, look = False, _FIRST_LOOK
        cut: Execution | None = None
        give_up = time.monotonic() + self.policy.wait
        while True:
            try:
                answer = yield Ask(begin, _BEFORE)
            except StoreUnavailableError as error:
                return (yield from self._without_store(error, cut))
            match answer:
                case ("acquired", fence, attempts):
                    try:
                        return (yield from self._execute(owner, fence, attempts))
                    except StaleError as stale:
                        cut = stale.cut or cut
                        owner = os.urandom(16)
                        begin = self.begin(owner)
                case ("replay", ok, codec, data):
                    return self._replay("joined" if waited else "replay", codec, data, ok=ok)
                case ("mismatch",):
                    self._mismatch()
                case ("in_doubt", fence, started):
                    verdict = (yield Reconcile()) if self.policy.reconcile is not None else Unknown()
                    if not (yield from self._resolve(fence, verdict)):
                        self._in_doubt(started)
                case ("in_progress", lease_left):
                    waited = True
                    yield self._pause(look, give_up - time.monotonic(), lease_left)
                    look = min(look * _GROWTH, _LONGEST_LOOK)

    def _pause(self, look: float, left: float, lease_left: float) -> Pause:
        """Return the wait until the next look at a call in progress, unless this one does not wait."""
        within = current.get()
        if self.policy.on_conflict == "error" or left <= 0 or (within and within.holds(self.key)):
            self._conflict(lease_left)
        flight = self.flights.get(self.key)
        seconds = _LONGEST_LOOK if flight else look * random.uniform(0.75, 1.0)  # noqa: S311 no secret
        # Not beyond the lease: its end is when somebody may take over.
        return Pause(min(seconds, left, lease_left + _MOMENT), flight)

    def begin(self, owner: bytes) -> _core.Operation:
        """Return the claim of a new owner."""
        policy = self.policy
        return _core.Operation.begin(
            owner, self.fingerprint, policy.effect, self.tool, policy.lease, policy.retention, True
        )

    def _execute(self, owner: bytes, fence: int, attempts: int) -> Life:
        execution = Execution(
            self.store,
            tool=self.tool,
            key=self.key,
            owner=owner,
            fence=fence,
            attempt=attempts,
            lease=self.policy.lease,
        )
        flight = self.flights.take_off(self.key)
        try:
            try:
                value = yield Body(execution)
            except StaleError:
                raise
            except LeaseLostError as error:
                yield from self._lost(execution, error)
            except Exception as error:
                if isinstance(error, OutcomeUnknownError) and error.key == self.key:
                    raise
                if self._was_kept_out():
                    yield from self._turned_away(execution, error)
                yield from self._failed(execution, error)
            except BaseException:
                self._abandoned(execution)
                raise
            if isinstance(value, Committed):
                self.telling.tell(self, "ok", decision="executed", outcome="ok", attempts=attempts)
                return value.value
            return (yield from self._complete(execution, value))
        finally:
            self.flights.land(self.key, flight)

    def _was_kept_out(self) -> bool:
        """Tell whether the gates have not let the tool begin."""
        return self.guarding is not None and (self.guard is None or not self.guard.entered)

    def _abandoned(self, execution: Execution) -> None:
        """Let go of a call that was cancelled or interrupted. There is no time to wait for the store."""
        effect = self.policy.effect
        may_have_acted = effect != "transactional" and not self._was_kept_out()
        fail = _core.Operation.fail(execution._owner, execution.fence, may_have_acted)
        if self.store.answer(self.key, fail) is None:
            self.store.post(self.key, fail, _AFTER)
        outcome = "in_doubt" if may_have_acted and effect == "at_most_once" else "failed"
        self.telling.tell(
            self, "cancelled", decision="executed", outcome=outcome, reason="cancelled",
            attempts=execution.attempt,
        )  # fmt: skip

    def _lost(self, execution: Execution, error: Exception) -> Life:
        """End a call whose lease was lost while it ran."""
        self.telling.tell(self, decision="lease_lost", outcome="failed", reason="lease_lost")
        if self.policy.effect != "at_most_once":
            # Somebody else executes it by now, under the same key: theirs is the result.
            raise StaleError(execution) from error
        with contextlib.suppress(StoreUnavailableError):
            yield Ask(_core.Operation.fail(execution._owner, execution.fence, True), _BEFORE)
        raise self._lease_lost(execution, None) from error

    def _lease_lost(self, execution: Execution, result: object) -> OutcomeUnknownError:
        kept = " what it returned is in the error's result, and is not kept;" if result is not None else ""
        may_repeat = self.policy.effect in ("read", "idempotent")
        return OutcomeUnknownError(
            f"{self.tool} ran under the key {shown(self.key)} and lost its lease before it ended;{kept} "
            f"{_CALL_AGAIN if may_repeat else _DECIDE}",
            tool=self.tool, key=self.key, reason="lease_lost", attempts=execution.attempt, result=result,
        )  # fmt: skip

    def _complete(self, execution: Execution, value: Any) -> Life:
        codec, data = _codec.encode(value)
        complete = _core.Operation.complete(execution._owner, execution.fence, True, codec, data)
        attempts = execution.attempt
        try:
            answer = yield Ask(complete, _AFTER)
        except StoreUnavailableError:
            # The caller gets the result; a repetition finds the record as a crash would have left it.
            self.telling.tell(
                self, "ok", decision="store_unavailable", outcome="ok", reason="not_stored", attempts=attempts
            )
            return value
        if answer == ("held",):
            reason = "not_stored" if codec == _codec.OMITTED else None
            self.telling.tell(self, "ok", decision="executed", outcome="ok", reason=reason, attempts=attempts)
            return value
        return (yield from self._stale(execution, value, codec, data))

    def _stale(self, execution: Execution, value: Any, codec: str, data: bytes) -> Life:
        """Give what the record says by now: it counts, and this result comes too late."""
        self.telling.tell(self, decision="stale_owner", outcome="failed", reason="stale_owner")
        owner = os.urandom(16)
        try:
            answer = yield Ask(self.begin(owner), _BEFORE)
        except StoreUnavailableError as error:
            raise self._lease_lost(execution, value) from error
        match answer:
            case ("replay", ok, kept, bytes_kept):
                return self._replay("replay", kept, bytes_kept, ok=ok)
            case ("acquired", fence, _):
                # The record is gone, or nobody works on it: this is its result.
                with contextlib.suppress(StoreUnavailableError):
                    yield Ask(_core.Operation.complete(owner, fence, True, codec, data), _AFTER)
                return value
        raise self._lease_lost(execution, value)

    def _failed(self, execution: Execution, error: Exception) -> Life:
        policy = self.policy
        owner, fence = execution._owner, execution.fence
        transactional = policy.effect == "transactional"
        if isinstance(error, (ToolFailedError, *policy.permanent)):
            codec, data = _codec.encode(_error_fields(error))
            operation, reason = _core.Operation.complete(owner, fence, False, codec, data), "permanent"
        elif transactional or isinstance(error, (NoEffectError, *policy.no_effect)):
            operation, reason = _core.Operation.fail(owner, fence, False), "no_effect"
        else:
            operation, reason = _core.Operation.fail(owner, fence, True), None
        in_doubt = reason is None and policy.effect == "at_most_once"
        timed_out = isinstance(error, TimedOutError)
        try:
            yield Ask(operation, _AFTER)
        except StoreUnavailableError:
            reason = "not_stored"
        self.telling.tell(
            self, "timeout" if timed_out else "failed", decision="executed",
            outcome="in_doubt" if in_doubt else "failed", reason="timeout" if timed_out else reason,
            attempts=execution.attempt,
        )  # fmt: skip
        if not timed_out:
            raise error
        message = f"{self.tool} took longer than its timeout of {policy.timeout} s"
        if not in_doubt:
            raise TimeoutError(message) from error
        raise OutcomeUnknownError(
            f"{message} and may have taken effect; {_DECIDE}",
            tool=self.tool, key=self.key, reason="timeout", attempts=execution.attempt,
        ) from error  # fmt: skip

    def _turned_away(self, execution: Execution, error: Exception) -> Life:
        """End a call that its gates did not let in: nothing was done, and the key is free again."""
        with contextlib.suppress(StoreUnavailableError):
            yield Ask(_core.Operation.fail(execution._owner, execution.fence, False), _AFTER)
        self.telling.tell(self, "refused", outcome="failed", reason="no_effect", attempts=execution.attempt)
        raise error

    def _resolve(self, fence: int, verdict: object) -> Life:
        """Write down what a reconciler found; false if that is nothing."""
        if isinstance(verdict, Done):
            codec, data = _codec.encode(verdict.result)
            decision = _core.Operation.resolve(fence, True, codec, data)
        elif isinstance(verdict, NotDone):
            decision = _core.Operation.resolve(fence, False, None, b"")
        elif isinstance(verdict, Unknown):
            return False
        else:
            rule = "must return Done(result), NotDone() or Unknown()"
            raise ConfigError("tool.reconcile", repr(verdict), rule)
        try:
            yield Ask(decision, _BEFORE)
        except StoreUnavailableError:
            return False
        self.telling.tell(self, outcome="resolved")
        return True

    def _without_store(self, error: StoreUnavailableError, cut: Execution | None) -> Life:
        self.telling.tell(self, decision="store_unavailable")
        if not self.policy.runs_without_store:
            if cut is not None:
                raise self._lease_lost(cut, None) from error
            self.telling.tell(self, "store_unavailable", outcome="store_unavailable")
            raise StoreUnavailableError(
                f"{self.tool} was not run: {error.message}",
                store=error.store, tool=self.tool, key=self.key,
            ) from error  # fmt: skip
        unguarded = Execution(
            self.store,
            tool=self.tool,
            key=self.key,
            owner=b"",
            fence=0,
            attempt=1,
            lease=0.0,
            is_guarded=False,
        )
        try:
            value = yield Body(unguarded)
        except Exception:
            self.telling.tell(self, "failed", decision="bypassed", outcome="failed", reason="bypassed")
            raise
        self.telling.tell(self, "ok", decision="bypassed", outcome="ok", reason="bypassed")
        return value

    def _replay(self, outcome: str, codec: str, data: bytes, *, ok: bool) -> Any:
        self.telling.tell(self, outcome, decision=outcome, outcome=outcome)
        if codec == _codec.OMITTED:
            why = _codec.why_omitted(data)
        else:
            try:
                value = _codec.decode(data)
            except _codec.NotStorableError as error:
                why = str(error)
            else:
                if ok:
                    return value
                raise _error_again(value, self)
        raise ResultNotStoredError(
            f"{self.tool} ran once under the key {shown(self.key)}; its result cannot be given again: {why}",
            tool=self.tool, key=self.key, reason="not_stored",
        )  # fmt: skip

    def _mismatch(self) -> NoReturn:
        self.telling.tell(self, "mismatch", decision="mismatch", outcome="mismatch")
        raise IdempotencyMismatchError(
            f"the key {shown(self.key)} was used for another call than this one of {self.tool}: same key, "
            "other tool, version or arguments; nothing was done",
            tool=self.tool, key=self.key, reason="mismatch",
        )  # fmt: skip

    def _conflict(self, lease_left: float) -> NoReturn:
        self.telling.tell(self, "conflict", decision="conflict", outcome="conflict")
        raise IdempotencyConflictError(
            f"an equal call of {self.tool} is in progress under the key {shown(self.key)}",
            tool=self.tool, key=self.key, reason="conflict", retry_after=lease_left,
        )  # fmt: skip

    def _in_doubt(self, started: float) -> NoReturn:
        self.telling.tell(self, "in_doubt", decision="in_doubt", outcome="in_doubt")
        raise OutcomeUnknownError(
            f"{self.tool} was started under the key {shown(self.key)} and nobody knows whether it took "
            f"effect; {_DECIDE}",
            tool=self.tool, key=self.key, reason="in_doubt", started_at=started,
        )  # fmt: skip


_CALL_AGAIN = "call it again: it is declared as one that may be repeated"
_DECIDE = "look downstream, then decide with `tidegate idem resolve`, or give the tool a reconcile function"


def _error_fields(error: Exception) -> dict[str, Any]:
    kind, message = type(error), _codec.text_of(error)
    arguments = error.args if _codec.encode(error.args)[0] == _codec.NAME else (message,)
    if isinstance(error, ToolFailedError):
        return {"type": error.error_type, "args": [error.message], "message": error.message}
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "args": list(arguments), "message": message}


def _error_again(fields: dict[str, Any], once: Once) -> Exception:
    """Make the error that was stored, where its class is one that the tool declares."""
    for kind in once.policy.permanent:
        if f"{kind.__module__}:{kind.__qualname__}" == fields["type"]:
            try:
                return kind(*fields["args"])
            except Exception:  # noqa: BLE001 the class takes other arguments than it keeps
                break
    return ToolFailedError(
        str(fields["message"]),
        error_type=fields["type"], tool=once.tool, key=once.key, reason="permanent",
    )  # fmt: skip
