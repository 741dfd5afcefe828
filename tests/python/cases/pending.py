"""What the package does not do yet. A line is removed from here when it does."""

from __future__ import annotations

_IDEMPOTENCY = "idempotency: not built yet"

KINDS = {
    "idem_sim": _IDEMPOTENCY,
    "args_key": _IDEMPOTENCY,
}

SCENARIOS = {
    "sqlite_contention": "sqlite store: not built yet",
}

# Words in the name of a scenario's variant that call for what is missing.
_VARIANTS = {
    "idempotency": _IDEMPOTENCY,
    "sqlite": "sqlite store: not built yet",
    "guarded tool": _IDEMPOTENCY,
}


def variant(name):
    """Return why a variant of a scenario is skipped, if it is."""
    return next((reason for word, reason in _VARIANTS.items() if word in str(name).lower()), None)
