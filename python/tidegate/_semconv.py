"""Every name of OpenTelemetry's semantic conventions that is used, in one place.

The conventions for generative AI are still in development: when they change, this table and its version do.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

VERSION: Final = "1.41.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"

PROVIDER: Final = "gen_ai.provider.name"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 counts of words
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
METHOD: Final = "http.request.method"
RESEND_COUNT: Final = "http.request.resend_count"
STATUS_CODE: Final = "http.response.status_code"
URL: Final = "url.full"

DURATION_METRIC: Final = "gen_ai.client.operation.duration"
TOKEN_METRIC: Final = "gen_ai.client.token.usage"  # noqa: S105 counts of words
FIRST_CHUNK_METRIC: Final = "gen_ai.client.operation.time_to_first_chunk"

DURATION_BOUNDS: Final = [0.01 * 2**power for power in range(14)]
TOKEN_BOUNDS: Final = [
    1,
    4,
    16,
    64,
    256,
    1024,
    4096,
    16384,
    65536,
    262144,
    1048576,
    4194304,
    16777216,
    67108864,
]

# What is not in the conventions has names of its own: by Prometheus' name, the instrument's and its unit.
OWN_METRICS: Final = {
    "tool_call_total": ("tidegate.tool.calls", "{call}"),
    "retry_total": ("tidegate.retries", "{retry}"),
    "idempotency_suppressed_total": ("tidegate.idempotency.suppressed", "{execution}"),
    "breaker_open_total": ("tidegate.breaker.opened", "{opening}"),
    "llm_latency_ms_p95": ("tidegate.latency.p95", "ms"),
    "cost_usd_total": ("tidegate.cost", "USD"),
    "tidegate_calls_total": ("tidegate.calls", "{call}"),
    "tidegate_attempts_total": ("tidegate.attempts", "{attempt}"),
    "tidegate_tokens_total": ("tidegate.tokens", "{token}"),
    "tidegate_cost_usd_total": ("tidegate.cost.by_model", "USD"),
    "tidegate_calls_unpriced_total": ("tidegate.calls.unpriced", "{call}"),
    "tidegate_answers_without_usage_total": ("tidegate.answers.without_usage", "{answer}"),
    "tidegate_admission_refused_total": ("tidegate.admission.refused", "{call}"),
    "tidegate_in_flight": ("tidegate.in_flight", "{attempt}"),
    "tidegate_admission_queued": ("tidegate.admission.queued", "{attempt}"),
    "tidegate_breaker_state": ("tidegate.breaker.state", "1"),
    "tidegate_breaker_rejections_total": ("tidegate.breaker.rejections", "{call}"),
    "tidegate_breaker_late_total": ("tidegate.breaker.late", "{result}"),
    "tidegate_stacked_retries_total": ("tidegate.stacked_retries", "{call}"),
    "tidegate_retry_budget_balance": ("tidegate.retry_budget.balance", "{retry}"),
    "tidegate_spend_usd": ("tidegate.spend", "USD"),
    "tidegate_spend_limit_usd": ("tidegate.spend.limit", "USD"),
    "tidegate_degraded_total": ("tidegate.degraded", "{call}"),
    "tidegate_idempotency_total": ("tidegate.idempotency", "{execution}"),
}

# Histograms can only be recorded as they happen: these are, call by call.
RECORDED_METRICS: Final = {
    "tidegate_request_duration_seconds": DURATION_METRIC,
    "tidegate_time_to_first_chunk_seconds": FIRST_CHUNK_METRIC,
    "tidegate_admission_wait_seconds": "tidegate.admission.wait",
}

_OPERATIONS = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}

_PROVIDERS = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "api.anthropic.com": "anthropic",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.x.ai": "x_ai",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.cohere.com": "cohere",
    "amazonaws.com": "aws.bedrock",
}


def operation(path: str) -> str | None:
    """Return the operation by the end of a URL's path; `None` for what is no inference."""
    return next((name for end, name in _OPERATIONS.items() if path.endswith(end)), None)


def server(url: str) -> dict[str, Any]:
    """Return the attributes of where a URL leads."""
    parts = urlsplit(url)
    found: dict[str, Any] = {SERVER_ADDRESS: parts.hostname or ""}
    if parts.port is not None:
        found[SERVER_PORT] = parts.port
    return found


def provider(host: str) -> str:
    """Return the provider by its host. A host that is not known speaks OpenAI's API, and is called so."""
    known = (name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}"))
    return next(known, "openai")
