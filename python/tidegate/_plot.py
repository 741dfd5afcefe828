"""Percentiles, and bars of them that a person can read in any terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("p50", "p95", "p99")
_SHARES = (0.50, 0.95, 0.99)
_FEWEST = 20


def quantiles(samples: Sequence[float]) -> list[float | None]:
    """Return p50, p95 and p99 by nearest rank; of fewer than 20 samples, nothing."""
    if len(samples) < _FEWEST:
        return [None] * len(_SHARES)
    ordered = sorted(samples)
    return [ordered[math.ceil(share * len(ordered)) - 1] for share in _SHARES]


def seconds(value: float | None, unit: str = " s") -> str:
    """Write a time for a table."""
    return "n/a" if value is None else f"{value:.3f}{unit}"


def bars(rows: Sequence[tuple[str, Sequence[float]]], *, width: int, block: str) -> str:
    """Draw one bar per percentile and row, all to one scale.

    Args:
        rows: Names and samples.
        width: Columns there are; 30 or more look well.
        block: What bars are made of.
    """
    table = [(name, quantiles(samples)) for name, samples in rows]
    longest = max((value for _, values in table for value in values if value is not None), default=0.0)
    label = max((len(name) for name, _ in table), default=0)
    room = max(width - label - 3 - len("p50 ") - len(" 00.000 s"), 1)
    lines = []
    for index, percentile in enumerate(NAMES):
        for number, (name, values) in enumerate(table):
            value = values[index]
            length = 0 if not value or not longest else max(round(room * value / longest), 1)
            head = percentile if number == 0 else ""
            lines.append(f"{head:<4}{name:<{label}}  {block * length} {seconds(value)}")
    return "\n".join(lines)
