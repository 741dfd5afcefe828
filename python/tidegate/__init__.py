"""tidegate: guarded calls to OpenAI-compatible APIs.

>>> from tidegate import AsyncClient
>>> client = AsyncClient()
>>> answer = await client.post("/chat/completions", json={"model": "gpt-5.4-mini", "messages": [...]})
>>> tidegate.info(answer).cost_usd

Retries cannot amplify, limits are obeyed, bills are true; `Gate` says how.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._breakers import BreakerState
from tidegate._call import CallPolicy
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

__version__ = _core.VERSION

_DROP_INS = frozenset({"AsyncAzureOpenAI", "AsyncOpenAI", "AzureOpenAI", "OpenAI"})
_OLDEST = (3, 50)

# Imported where they are first used: most programs have no tools, and an import should take no time.
_LATER = {
    name: module
    for module, names in {
        "_execution": ("Execution", "current_execution"),
        "_journal": ("Journal",),
        "_keys": ("IdempotencyKeyWarning", "idem_key"),
        "_skipped": ("Skipped",),
        "_tool_errors": (
            "IdempotencyConflictError",
            "IdempotencyMismatchError",
            "NoEffectError",
            "OutcomeUnknownError",
            "ResultNotStoredError",
            "StoreUnavailableError",
            "ToolError",
            "ToolFailedError",
        ),
        "_tool_policy": ("Done", "NotDone", "ToolPolicy", "Unknown"),
        "_usage": ("UsageReport", "UsageRow"),
    }.items()
    for name in names
}

if TYPE_CHECKING:
    from tidegate._execution import Execution, current_execution
    from tidegate._journal import Journal
    from tidegate._keys import IdempotencyKeyWarning, idem_key
    from tidegate._openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI
    from tidegate._skipped import Skipped
    from tidegate._tool_errors import (
        IdempotencyConflictError,
        IdempotencyMismatchError,
        NoEffectError,
        OutcomeUnknownError,
        ResultNotStoredError,
        StoreUnavailableError,
        ToolError,
        ToolFailedError,
    )
    from tidegate._tool_policy import (
        Done,
        NotDone,
        ToolPolicy,
        Unknown,
    )
    from tidegate._usage import UsageReport, UsageRow


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = globals()[name] = getattr(importlib.import_module(f"tidegate.{_LATER[name]}"), name)
        return value
    if name in _DROP_INS:
        return _drop_in(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _drop_in(name: str) -> Any:
    # Importing tidegate does not import the openai package, which takes long and may not be there.
    try:
        import openai
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise ImportError(
            f'tidegate.{name} needs the openai package: pip install "tidegate[openai]"', name="openai"
        ) from None
    if tuple(map(int, openai.VERSION.split(".")[:2])) < _OLDEST:
        raise ImportError(
            f"tidegate.{name} needs openai>=3.50,<4, and {openai.VERSION} is installed: "
            'pip install "tidegate[openai]", or use tidegate.httpx, which serves any version',
            name="openai",
        )
    from tidegate import _openai

    return getattr(_openai, name)


__all__ = [
    "APIConnectionError",
    "APIStatusError",
    "APITimeoutError",
    "AdmissionError",
    "AsyncAzureOpenAI",
    "AsyncClient",
    "AsyncOpenAI",
    "AsyncStream",
    "AuthenticationError",
    "AzureOpenAI",
    "BadRequestError",
    "BreakerPolicy",
    "BreakerState",
    "CallError",
    "CallInfo",
    "CallPolicy",
    "CircuitOpenError",
    "Client",
    "ConfigError",
    "ConflictError",
    "DeadlineExceededError",
    "Degrade",
    "Done",
    "EmptyResponseError",
    "EncodeError",
    "Execution",
    "Fallback",
    "Gate",
    "IdempotencyConflictError",
    "IdempotencyKeyWarning",
    "IdempotencyMismatchError",
    "InternalServerError",
    "JSONFormatter",
    "Journal",
    "Limits",
    "MalformedResponseError",
    "NoEffectError",
    "NotDone",
    "NotFoundError",
    "OpenAI",
    "OutcomeUnknownError",
    "OverloadedError",
    "PermissionDeniedError",
    "Prices",
    "QuotaExhaustedError",
    "RateLimitError",
    "RequestTooLargeError",
    "Response",
    "ResultNotStoredError",
    "Retry",
    "RetryBudget",
    "RetryPolicy",
    "Skipped",
    "SpendCap",
    "SpendCapExceededError",
    "StoreUnavailableError",
    "Stream",
    "StreamDeadlineExceededError",
    "StreamEvent",
    "StreamInterruptedError",
    "TidegateError",
    "Timeouts",
    "ToolError",
    "ToolFailedError",
    "ToolPolicy",
    "Unknown",
    "UnprocessableEntityError",
    "Usage",
    "UsageReport",
    "UsageRow",
    "__version__",
    "configure",
    "current_execution",
    "current_tags",
    "default_gate",
    "idem_key",
    "info",
    "tags",
]
