"""tidegate: guarded calls to OpenAI-compatible APIs.

>>> from tidegate import AsyncClient
>>> client = AsyncClient()
>>> answer = await client.post("/chat/completions", json={"model": "gpt-5.4-mini", "messages": [...]})
>>> tidegate.info(answer).cost_usd

Retries cannot amplify, limits are obeyed, bills are true; `Gate` says how.
"""

from tidegate import _core
from tidegate._client import AsyncClient, Client, info
from tidegate._context import current_tags, tags
from tidegate._core import CallInfo, Response, Retry, Usage
from tidegate._errors import (
    AdmissionError,
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    CallError,
    CircuitOpenError,
    ConfigError,
    ConflictError,
    DeadlineExceededError,
    EmptyResponseError,
    EncodeError,
    InternalServerError,
    MalformedResponseError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    QuotaExhaustedError,
    RateLimitError,
    RequestTooLargeError,
    SpendCapExceededError,
    StreamDeadlineExceededError,
    StreamInterruptedError,
    TidegateError,
    UnprocessableEntityError,
)
from tidegate._gate import Gate, configure, default_gate
from tidegate._log import JSONFormatter
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
from tidegate._stream import AsyncStream, Stream, StreamEvent
from tidegate._usage import UsageReport, UsageRow

__version__ = _core.VERSION

__all__ = [
    "APIConnectionError",
    "APIStatusError",
    "APITimeoutError",
    "AdmissionError",
    "AsyncClient",
    "AsyncStream",
    "AuthenticationError",
    "BadRequestError",
    "BreakerPolicy",
    "CallError",
    "CallInfo",
    "CircuitOpenError",
    "Client",
    "ConfigError",
    "ConflictError",
    "DeadlineExceededError",
    "Degrade",
    "EmptyResponseError",
    "EncodeError",
    "Fallback",
    "Gate",
    "InternalServerError",
    "JSONFormatter",
    "Limits",
    "MalformedResponseError",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "Prices",
    "QuotaExhaustedError",
    "RateLimitError",
    "RequestTooLargeError",
    "Response",
    "Retry",
    "RetryBudget",
    "RetryPolicy",
    "SpendCap",
    "SpendCapExceededError",
    "Stream",
    "StreamDeadlineExceededError",
    "StreamEvent",
    "StreamInterruptedError",
    "TidegateError",
    "Timeouts",
    "UnprocessableEntityError",
    "Usage",
    "UsageReport",
    "UsageRow",
    "__version__",
    "configure",
    "current_tags",
    "default_gate",
    "info",
    "tags",
]
