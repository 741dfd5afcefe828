"""tidegate's errors as errors of the SDK or of httpx too, so that existing ``except`` clauses hold."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from tidegate import _errors

if TYPE_CHECKING:
    from tidegate._errors import CallError
    from tidegate._exchange import Ended
    from tidegate._library import Library

# Of each class of ours, the SDK's. The first that matches holds.
_OFFICIAL: tuple[tuple[type[CallError], str], ...] = (
    (_errors.APITimeoutError, "APITimeoutError"),
    (_errors.APIConnectionError, "APIConnectionError"),
    (_errors.QuotaExhaustedError, "RateLimitError"),
    (_errors.MalformedResponseError, "APIResponseValidationError"),
    (_errors.EmptyResponseError, "APIResponseValidationError"),
    (_errors.SpendCapExceededError, "OpenAIError"),
    (_errors.CallError, "APIError"),
)
# The SDK's own words for its own errors; the details are in ``__cause__`` and in the attributes.
_WORDS: dict[type[CallError], str] = {
    _errors.APITimeoutError: "Request timed out.",
    _errors.APIConnectionError: "Connection error.",
}
# They cannot be pickled; what happened can.
_LEFT_BEHIND = frozenset({"request", "_request", "response"})


def _reduce(self: CallError) -> tuple[Any, ...]:
    ours = next(
        cls for cls in type(self).__mro__ if cls.__dict__.get("_of") is None and cls is not type(self)
    )
    state = {name: value for name, value in vars(self).items() if name not in _LEFT_BEHIND}
    return _restored, (ours, self.args, state)


def _restored(ours: type[CallError], args: tuple[object, ...], state: dict[str, Any]) -> CallError:
    try:
        cls = both(ours, _official(ours, state["kind"]))
    except ImportError:
        cls = ours
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(state)
    return error


def both(ours: type[CallError], theirs: type[Exception]) -> type[CallError]:
    """Return the class of errors that are both."""
    return _both(ours, theirs)  # type: ignore[arg-type]


@functools.cache
def _both(ours: Any, theirs: Any) -> type[CallError]:
    words: str | None = _WORDS.get(ours) if theirs.__module__.startswith("openai") else None
    names: dict[str, Any] = {
        "__doc__": ours.__doc__,
        "__module__": "tidegate",
        "__reduce__": _reduce,
        "_of": theirs,
    }
    if words is not None:
        names["__str__"] = lambda _: words
    elif ours is _errors.StreamInterruptedError and theirs.__module__.startswith("openai"):
        names["__str__"] = lambda error: (
            error.message if error.kind == "stream_error" else ours.__str__(error)
        )
    elif theirs.__name__ == "RateLimitError":
        # Made by the SDK of an answer, whose words it repeats.
        names["__str__"] = Exception.__str__
    made: type[CallError] = type(ours.__name__, (ours, theirs), names)
    return made


def _official(ours: type[CallError], kind: str) -> type[Exception]:
    import openai

    name = next(name for cls, name in _OFFICIAL if issubclass(ours, cls))
    if kind == "timeout" and name == "APIConnectionError":
        name = "APITimeoutError"
    found: type[Exception] = getattr(openai, name)
    return found


def of_transport(error: CallError, theirs: type[Exception], request: Any) -> CallError:
    """Return the error as one of another class as well."""
    cls = both(type(error), theirs)
    made = cls.__new__(cls)
    vars(made).update(vars(error))
    made.args = error.args
    made.request = request  # type: ignore[attr-defined]
    return made


def of_sdk(error: CallError, request: Any, response: Any = None) -> CallError:
    """Return the error as one of the openai package as well."""
    made: Any = of_transport(error, _official(type(error), error.kind), request)
    # What the SDK's errors without an answer have.
    made.body = made.param = made.type = None
    made.message = _WORDS.get(type(error), made.message)
    if response is not None:
        made.response, made.status_code, made.body = response, response.status_code, response.text
    if error.kind == "stream_error":
        _repeat(made, error.body)
    final: CallError = made
    return final


def _repeat(made: Any, event: bytes) -> None:
    """Have an error say what the event of a stream says, as the SDK's own does."""
    try:
        said = json.loads(event)["error"]
    except (ValueError, LookupError, TypeError):
        return
    import openai

    message = said.get("message") if isinstance(said, dict) else None
    if not message or not isinstance(message, str):
        message = "An error occurred during streaming"
    theirs = openai.APIError(message, made.request, body=said)
    made.args = theirs.args
    for name in ("message", "body", "code", "param", "type"):
        setattr(made, name, getattr(theirs, name))


def raised(attempt: Ended, request: Any, library: Library, *, by_sdk: bool) -> Exception:
    """Return what a transport raises for an attempt that has no answer to return.

    Args:
        attempt: What became of it.
        request: Which request it was.
        library: Whose request it was.
        by_sdk: Whether the openai package gets the error, which passes on its own kind as it is.
    """
    kind, message = attempt.failure or ("decode", "the answer cannot be read")
    plain = library.exception(kind, message, request)
    error = attempt.error
    if error is None:
        return plain
    if by_sdk:
        response = (
            None if attempt.status is None else _read(library.response(attempt, request, by_sdk=by_sdk))
        )
        made = of_sdk(error, request, response)
        made.__cause__ = plain if attempt.failure or attempt.status is not None else None
        return made
    if attempt.failure is None and attempt.status is None:
        timed_out = isinstance(error, _errors.APITimeoutError)
        theirs = library.module.ReadTimeout if timed_out else library.module.TransportError
        return of_transport(error, theirs, request)
    return of_transport(error, type(plain), request)


def _read(response: Any) -> Any:
    response.read()
    return response
