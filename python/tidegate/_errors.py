"""Every error that tidegate raises.

::

    TidegateError
    ├── ConfigError (ValueError)             a setting that cannot be
    ├── EncodeError (ValueError)             a request that is no JSON
    └── CallError                            a call that failed; knows how and why
        ├── APIStatusError                   the server answered with an error
        │   ├── BadRequestError              400
        │   ├── AuthenticationError          401
        │   ├── PermissionDeniedError        403
        │   ├── NotFoundError                404
        │   ├── ConflictError                409
        │   ├── RequestTooLargeError         413, or larger than any limit will admit
        │   ├── UnprocessableEntityError     422
        │   ├── RateLimitError               429
        │   │   └── QuotaExhaustedError      429 or 402 that only money mends
        │   └── InternalServerError          5xx
        │       └── OverloadedError          503, 529 and their like
        ├── APIConnectionError               no answer
        │   ├── StreamInterruptedError       a stream that broke off; knows what had come
        │   ├── APITimeoutError              none in time
        │   │   └── DeadlineExceededError    the total timeout ran out
        │   ├── CircuitOpenError             not sent: the breaker is open
        │   └── AdmissionError               not sent: no place in the queue in time
        ├── MalformedResponseError           a success that cannot be read
        ├── EmptyResponseError               a success that holds nothing
        └── SpendCapExceededError            not sent: a spend cap would be exceeded

All of them survive ``pickle``, ``copy`` and ``deepcopy`` with every attribute, and none holds a credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from tidegate._core import CallInfo, Usage

_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "set-cookie2"})
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id")
_SHOWN = 200


class TidegateError(Exception):
    """Base of every error that tidegate raises."""


class ConfigError(TidegateError, ValueError):
    """A setting that cannot be.

    Attributes:
        field: Dotted name of the setting, as it is written: ``retry.max_attempts``.
        value: What it was; secrets are ``"***"``.
        rule: What would be right, as a sentence.
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(field, value, rule)
        self.field = field
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.field} = {_short(str(self.value))}: {self.rule}"


class EncodeError(TidegateError, ValueError):
    """A request, or the arguments of a tool, that cannot be written as JSON.

    Attributes:
        path: Where, as it is written in Python: ``json.messages[0].content``, ``arguments.order``.
        problem: What is wrong there.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class CallError(TidegateError):
    """A call that failed.

    Attributes:
        message: What the server, the network or the gate said.
        kind: What went wrong, in one word: ``rate_limit``, ``quota``, ``too_large``, ``bad_request``,
            ``auth``, ``conflict``, ``server``, ``overloaded``, ``timeout``, ``connection``, ``redirect``,
            ``malformed_response``, ``empty_response``, ``stream_error`` (the server said in a stream that it
            failed), ``stream_interrupted`` (it broke off), ``breaker_open``, ``admission``, ``spend_cap``,
            ``cancelled`` or ``closed``.
        reason: Why it was not tried again, in one word: ``non_retryable``, ``attempts``, ``elapsed``,
            ``hint_exceeds_budget``, ``budget``, ``breaker_open``, ``admission_deadline``,
            ``request_too_large``, ``deadline``, ``spend_cap``, ``stream_interrupted``, ``cancelled`` or
            ``closed``.
        attempts: Requests that were sent.
        elapsed: Seconds from the start of the call to this error.
        retry_after: Seconds after which it is worth trying again, where somebody said so.
        trace_id: The call's id in logs; 32 hex digits.
        status: HTTP status of the last answer; `None` without one.
        code: The server's own code of the error, such as ``context_length_exceeded``.
        request_id: The server's id of the request, for its support.
        headers: Headers of the last answer, names in lower case, without cookies.
        body: Body of the last answer.
        info: How the call went; see `tidegate.info`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "",
        reason: str = "",
        attempts: int = 0,
        elapsed: float = 0.0,
        retry_after: float | None = None,
        trace_id: str = "",
        status: int | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        info: CallInfo | None = None,
    ) -> None:
        super().__init__(message)
        # By which the gate knows the request again; see `_layers`.
        self._request: int | None = None
        self.message = message
        self.kind = kind
        self.reason = reason
        self.attempts = attempts
        self.elapsed = elapsed
        self.retry_after = retry_after
        self.trace_id = trace_id
        self.status = status
        self.code = code
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        self.headers = {name: value for name, value in lower.items() if name not in _SECRET_HEADERS}
        self.request_id = next((lower[name] for name in _REQUEST_ID_HEADERS if name in lower), None)
        self.body = body
        self.info = info

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed if it is made again later."""
        from tidegate._explain import RETRYABLE_KINDS

        return self.reason != "non_retryable" and self.kind in RETRYABLE_KINDS

    def __str__(self) -> str:
        from tidegate._explain import sentence

        return sentence(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__.copy()


def _restore(cls: type[CallError], args: tuple[object, ...]) -> CallError:
    error = cls.__new__(cls)
    error.args = args
    return error


class APIStatusError(CallError):
    """The server answered with an error."""


class BadRequestError(APIStatusError):
    """The request is wrong (400): too long for the model, refused by a filter, or malformed."""


class AuthenticationError(APIStatusError):
    """The API key is missing or wrong (401)."""


class PermissionDeniedError(APIStatusError):
    """The API key may not do this (403)."""


class NotFoundError(APIStatusError):
    """There is no such model or path (404)."""


class ConflictError(APIStatusError):
    """The request conflicts with another one (409)."""


class RequestTooLargeError(APIStatusError):
    """The request is larger than the server, or the limit on tokens per minute, will ever admit."""


class UnprocessableEntityError(APIStatusError):
    """The request is well formed but cannot be served (422)."""


class RateLimitError(APIStatusError):
    """Too many requests or tokens for now (429)."""


class QuotaExhaustedError(RateLimitError):
    """Credit or quota is used up; waiting does not help."""


class InternalServerError(APIStatusError):
    """The server failed (5xx)."""


class OverloadedError(InternalServerError):
    """The server has no capacity for now."""


class APIConnectionError(CallError):
    """There was no answer."""


class APITimeoutError(APIConnectionError):
    """There was no answer in time."""


class DeadlineExceededError(APITimeoutError):
    """The call's total timeout ran out."""


class StreamInterruptedError(APIConnectionError):
    """A stream broke off after a part of it had been handed on, so that it could not be repeated.

    Attributes:
        partial_text: Text of the first choice, as far as it came.
        usage: What was used, as far as anybody knows: estimated from what was sent and received.
        cost_usd: What that costs; `None` where the price is not known.
    """

    def __init__(self, message: str = "", *, partial_text: str = "", **told: Any) -> None:
        super().__init__(message, **told)
        self.partial_text = partial_text

    @property
    def usage(self) -> Usage | None:
        """What was used, as far as anybody knows."""
        return None if self.info is None else self.info.usage

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars; `None` where the price is not known."""
        return None if self.info is None else self.info.cost_usd


class StreamDeadlineExceededError(StreamInterruptedError, DeadlineExceededError):
    """A stream was cut by the call's total timeout after a part of it had been handed on."""


class CircuitOpenError(APIConnectionError):
    """Not sent: the breaker is open because too many recent calls failed."""


class AdmissionError(APIConnectionError):
    """Not sent: no place in the queue would come free in time."""


class MalformedResponseError(CallError):
    """The server reported a success but its answer cannot be read."""


class EmptyResponseError(CallError):
    """The server reported a success but its answer holds nothing."""


class SpendCapExceededError(CallError):
    """Not sent: a spend cap would be exceeded."""


# How an answer that is an error is raised: its class in the core's words → exception and kind.
_BY_ANSWER: dict[str, tuple[type[CallError], str]] = {
    "rate_limit": (RateLimitError, "rate_limit"),
    "quota": (QuotaExhaustedError, "quota"),
    "overloaded": (OverloadedError, "overloaded"),
    "server_error": (InternalServerError, "server"),
    "timeout": (APIStatusError, "timeout"),
    "connection": (APIConnectionError, "connection"),
    "conflict": (ConflictError, "conflict"),
    "auth": (AuthenticationError, "auth"),
    "permission": (PermissionDeniedError, "auth"),
    "not_found": (NotFoundError, "bad_request"),
    "context_length": (BadRequestError, "too_large"),
    "content_filter": (BadRequestError, "bad_request"),
    "request_too_large": (RequestTooLargeError, "too_large"),
    "model_output": (BadRequestError, "bad_request"),
    "malformed": (MalformedResponseError, "malformed_response"),
    "empty": (EmptyResponseError, "empty_response"),
    "redirect": (APIStatusError, "redirect"),
}
_BY_STATUS: dict[int, type[CallError]] = {
    400: BadRequestError,
    404: NotFoundError,
    409: ConflictError,
    413: RequestTooLargeError,
    422: UnprocessableEntityError,
}
_BY_TRANSPORT: dict[str, tuple[type[CallError], str]] = {
    "connect_timeout": (APITimeoutError, "timeout"),
    "first_byte_timeout": (APITimeoutError, "timeout"),
    "idle_timeout": (APITimeoutError, "timeout"),
    "attempt_timeout": (APITimeoutError, "timeout"),
    "decode": (MalformedResponseError, "malformed_response"),
    "redirect": (APIConnectionError, "redirect"),
    "request": (APIConnectionError, "bad_request"),
}
_BY_REASON: dict[str, tuple[type[CallError], str]] = {
    "breaker_open": (CircuitOpenError, "breaker_open"),
    "admission_deadline": (AdmissionError, "admission"),
    "request_too_large": (RequestTooLargeError, "too_large"),
    "deadline": (DeadlineExceededError, "timeout"),
    "spend_cap": (SpendCapExceededError, "spend_cap"),
    "cancelled": (APIConnectionError, "cancelled"),
    "closed": (APIConnectionError, "closed"),
}


def _interruption(cause: str, error_class: str, reason: str) -> tuple[type[CallError], str]:
    if reason == "deadline":
        return StreamDeadlineExceededError, "timeout"
    if cause == "answer":
        return StreamInterruptedError, "stream_error"
    return StreamInterruptedError, "timeout" if error_class == "idle_timeout" else "stream_interrupted"


def _classify(cause: str, error_class: str, reason: str, status: int | None) -> tuple[type[CallError], str]:
    if cause == "transport":
        return _BY_TRANSPORT.get(error_class, (APIConnectionError, "connection"))
    if cause == "local":
        return _BY_REASON.get(reason, (APIConnectionError, "connection"))
    by_status = _BY_STATUS.get(status or 0, APIStatusError)
    cls, kind = _BY_ANSWER.get(error_class, (by_status, "bad_request"))
    if (
        error_class in {"model_output", "content_filter", "context_length"}
        and by_status is not APIStatusError
    ):
        return by_status, kind
    if error_class == "timeout" and status is not None and status >= 500:  # noqa: PLR2004 a 504, as in HTTP
        return InternalServerError, kind
    return cls, kind


def build(fields: Mapping[str, Any]) -> CallError:
    """Make the error of a failed call from what the core tells of it."""
    if "partial_text" in fields:
        cls, kind = _interruption(fields["cause"], fields["error_class"], fields["reason"])
    else:
        cls, kind = _classify(fields["cause"], fields["error_class"], fields["reason"], fields["status"])
    told = {name: value for name, value in fields.items() if name not in {"cause", "error_class", "request"}}
    error = cls(**told, kind=kind)
    error._request = fields.get("request")
    return error


def config_error(field: str, value: object, rule: str) -> ConfigError:
    """Make the core's `ConfigError`."""
    return ConfigError(field, value, rule)


def encode_error(path: str, problem: str) -> EncodeError:
    """Make the core's `EncodeError`."""
    return EncodeError(path, problem)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# Shown in tracebacks and pickles: the place that users import them from.
for _class in [value for value in globals().values() if isinstance(value, type)]:
    if issubclass(_class, TidegateError):
        _class.__module__ = "tidegate"
del _class
