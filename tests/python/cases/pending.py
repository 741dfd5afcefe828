"""What the package does not do yet. A line is removed from here when it does."""

from __future__ import annotations

KINDS: dict[str, str] = {}

SCENARIOS: dict[str, str] = {}

# Words in the name of a scenario's variant that call for what is missing.
_VARIANTS: dict[str, str] = {}


def variant(name):
    """Return why a variant of a scenario is skipped, if it is."""
    return next((reason for word, reason in _VARIANTS.items() if word in str(name).lower()), None)
