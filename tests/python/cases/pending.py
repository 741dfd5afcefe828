"""What the package does not do yet. A line is removed from here when it does."""

from __future__ import annotations

_STREAMS = "streams: not built yet"
_IDEMPOTENCY = "idempotency: not built yet"

KINDS = {
    "sse": _STREAMS,
    "sse_generated": _STREAMS,
    "idem_sim": _IDEMPOTENCY,
    "args_key": _IDEMPOTENCY,
}

SCENARIOS = {
    "stream_return": _STREAMS,
    "sqlite_contention": "sqlite store: not built yet",
}

# Words in the name of a scenario's variant that call for what is missing.
_VARIANTS = {
    "stream": _STREAMS,
    "idempotency": _IDEMPOTENCY,
    "sqlite": "sqlite store: not built yet",
    "guarded tool": _IDEMPOTENCY,
}


def streams(script, entry):
    """Return why a script is skipped, if it streams."""
    streamed = script.get("client", {}).get("stream") or entry.endswith("_stream")
    return _STREAMS if streamed else None


def variant(name):
    """Return why a variant of a scenario is skipped, if it is."""
    return next((reason for word, reason in _VARIANTS.items() if word in str(name).lower()), None)
