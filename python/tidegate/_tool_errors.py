"""Errors of tools that run once.

::

    TidegateError
    └── ToolError                            a call of a tool that gave no result; knows its tool and key
        ├── IdempotencyMismatchError         the key was used with other arguments
        ├── IdempotencyConflictError         an equal call is in progress
        ├── OutcomeUnknownError              it may have taken effect, and nobody knows
        ├── StoreUnavailableError            not run: the store of the records cannot be reached
        ├── ResultNotStoredError             it ran once; its result could not be kept
        ├── ToolFailedError                  it failed for good; repetitions get this error
        └── NoEffectError                    it failed before it did anything; may be tried again
"""

from __future__ import annotations

from typing import Any

from tidegate._errors import TidegateError


class ToolError(TidegateError):
    """A call of a tool that gave no result.

    Attributes:
        message: What happened and what to do, as a sentence.
        tool: Name of the tool.
        key: Idempotency key of the call; `None` without one.
        reason: Why, in one word.
        attempts: Executions that were begun under the key, where that is known; else 0.
        retry_after: Seconds after which it is worth trying again, where that is known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool: str = "",
        key: str | None = None,
        reason: str = "",
        attempts: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.tool = tool
        self.key = key
        self.reason = reason
        self.attempts = attempts
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__.copy()


def _restore(cls: type[ToolError], args: tuple[object, ...]) -> ToolError:
    error = cls.__new__(cls)
    error.args = args
    return error


class IdempotencyMismatchError(ToolError):
    """The key was used with another tool, version or arguments. Nothing was done."""


class IdempotencyConflictError(ToolError):
    """An equal call is in progress and did not end in time. Nothing was done by this one."""


class OutcomeUnknownError(ToolError):
    """The tool may have taken effect, and nobody knows whether it did. It is not run again by itself.

    Attributes:
        started_at: When the effect became possible, as Unix time.
        result: What this very call got from the tool, if it got that far; else `None`.
    """

    def __init__(
        self, message: str = "", *, started_at: float | None = None, result: object = None, **told: Any
    ) -> None:
        super().__init__(message, **told)
        self.started_at = started_at
        self.result = result


class StoreUnavailableError(ToolError):
    """The store of the records cannot be reached, so the tool was not run.

    Attributes:
        store: ``"sqlite"`` or ``"redis"``.
    """

    def __init__(self, message: str = "", *, store: str = "", **told: Any) -> None:
        super().__init__(message, **{"reason": "store_unavailable", **told})
        self.store = store


class ResultNotStoredError(ToolError):
    """The tool ran once and succeeded, but its result could not be kept, so it cannot be given again."""


class ToolFailedError(ToolError):
    """The tool failed for good. Raise it in a tool to have every repetition of the call get the same error.

    Attributes:
        error_type: Name of the exception that was stored, where it was another.
    """

    def __init__(self, message: str = "", *, error_type: str | None = None, **told: Any) -> None:
        super().__init__(message, **told)
        self.error_type = error_type


class NoEffectError(ToolError):
    """The tool did nothing. Raise it in a tool to say that the call may be made again under the same key."""


def store_error(store: str, problem: str) -> StoreUnavailableError:
    """Make the core's `StoreUnavailableError`."""
    return StoreUnavailableError(f"the {store} store {problem}", store=store)


# Shown in tracebacks and pickles: the place that users import them from.
for _class in [value for value in globals().values() if isinstance(value, type)]:
    if issubclass(_class, ToolError):
        _class.__module__ = "tidegate"
del _class
