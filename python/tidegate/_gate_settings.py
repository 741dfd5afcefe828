"""Reads the settings of a gate: what is wrong is said with the field's name, the value and the rule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tidegate._errors import ConfigError
from tidegate._policies import Fallback, Limits, SpendCap

_NO_LIMITS = Limits(concurrency=None, learn=False)


def instance(field: str, value: object, cls: type, *, optional: bool) -> Any:
    """Return a policy that is one."""
    if isinstance(value, cls) or (optional and value is None):
        return value
    off = "; None turns it off" if optional else ""
    raise ConfigError(field, repr(value), f"must be a {cls.__name__}{off}")


def caps(spend: object) -> tuple[SpendCap, ...]:
    """Return the caps, of which one may stand alone."""
    caps = (spend,) if isinstance(spend, SpendCap) else spend
    if isinstance(caps, list | tuple) and all(isinstance(cap, SpendCap) for cap in caps):
        return tuple(caps)
    raise ConfigError("spend", repr(spend), "must be a SpendCap, or a list of them")


def fallbacks(fallbacks: object) -> list[tuple[str, Fallback]]:
    """Return pairs of a pattern of models and what stands in for them."""
    table = fallbacks if isinstance(fallbacks, Mapping) else {"*": fallbacks}
    pairs = []
    for pattern, those in table.items():
        if not isinstance(those, list | tuple) or not all(isinstance(each, Fallback) for each in those):
            raise ConfigError(
                "fallbacks", repr(those), "must be a list of Fallback, or patterns of models with such lists"
            )
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(
                "fallbacks", repr(pattern), "must be named by a model, or a pattern such as gpt-5*"
            )
        pairs += [(pattern, each) for each in those]
    return pairs


def shown_url(url: object) -> str:
    """Return a URL without the credentials in it."""
    if not isinstance(url, str):
        raise ConfigError("store", repr(url), "must be a URL such as memory: or sqlite:///file.db")
    scheme, separator, rest = url.partition("//")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if "@" in rest else url


def path(field: str, value: object) -> str | None:
    """Return the path of a file."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(field, repr(value), "must be the path of a file")
    return os.fsdecode(value)


def whole(field: str, value: object, *, optional: bool) -> int | None:
    """Return a whole number greater than 0."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        off = ", or None" if optional else ""
        raise ConfigError(field, repr(value), f"must be a whole number greater than 0{off}")
    return value


def seed(value: object) -> int | None:
    """Return what makes the random waits reproducible."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64):
        return value
    raise ConfigError("seed", repr(value), "must be a whole number, 0 or more and less than 2**64")


def by_pattern(limits: object) -> list[tuple[str, Limits]]:
    """Return pairs of pattern and limits, such that the first pattern that matches is the one that holds."""
    table: dict[str, object] = dict(limits) if isinstance(limits, Mapping) else {"*": limits}
    table.setdefault("*", "auto")
    pairs = []
    for pattern in sorted(table, key=_specificity, reverse=True):
        value = table[pattern]
        found = Limits() if value == "auto" else _NO_LIMITS if value is None else value
        if not isinstance(found, Limits):
            field = f"limits.{pattern}" if isinstance(limits, Mapping) else "limits"
            raise ConfigError(
                field, repr(value), 'must be a Limits, "auto" or None; or patterns with one of these'
            )
        pairs.append((pattern, found))
    return pairs


def _specificity(pattern: object) -> tuple[int, str]:
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("limits", repr(pattern), "must be the name of a model, or a pattern such as gpt-5*")
    return len(pattern), pattern
