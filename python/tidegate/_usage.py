"""Who used what: calls, tokens and cost by model, tag and hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias, overload

from tidegate._context import is_tag_name
from tidegate._errors import ConfigError

Window: TypeAlias = Literal["hour", "day"] | None

_SECONDS = {"hour": 3600, "day": 86_400}


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageRow:
    """Sums over the calls of one group.

    Attributes:
        group: What the calls have in common, by the names that were asked for. A tag that a call has not is
            ``""``; where there were too many different ones to keep apart it is ``"other"``.
        start: When the window begins, in UTC; `None` where none was asked for.
        calls: Logical calls that ended.
        failed: Of these, those without an answer.
        attempts: Requests put on the wire.
        prompt_tokens: Cached ones included.
        cached_tokens: Part of the prompt tokens.
        completion_tokens: Reasoning included.
        reasoning_tokens: Part of the completion tokens.
        cost_usd: Exact.
        estimated_usd: Part of the cost that rests on an estimate.
        unpriced: Calls that cost something unknown: their model has no price.
    """

    group: Mapping[str, str]
    start: datetime | None = None
    calls: int = 0
    failed: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: Decimal = field(default=Decimal(0))
    estimated_usd: Decimal = field(default=Decimal(0))
    unpriced: int = 0


_SUMS = tuple(column.name for column in fields(UsageRow))[2:]


class UsageReport(Sequence[UsageRow]):
    """Rows in the order of their windows, then of their groups."""

    def __init__(self, by: Sequence[str], window: Window, rows: Iterable[UsageRow]) -> None:
        self._by = tuple(by)
        self._window = window
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> UsageRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[UsageRow, ...]: ...
    def __getitem__(self, index: int | slice) -> UsageRow | tuple[UsageRow, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<UsageReport by {', '.join(self._by) or 'nothing'}: {len(self)} rows>"

    def to_csv(self) -> str:
        """Return a table with a line of names, one line per row, and exact costs."""
        import csv
        import io

        text = io.StringIO()
        columns = [*(["start"] if self._window else []), *self._by, *_SUMS]
        table = csv.DictWriter(text, columns, lineterminator="\n")
        table.writeheader()
        for row in self._dicts():
            table.writerow({**row.pop("group"), **row})
        return text.getvalue()

    def to_json(self) -> str:
        """Return a JSON array of objects with the fields of `UsageRow`; costs are decimal text."""
        import json

        return json.dumps(list(self._dicts()))

    def _dicts(self) -> Iterable[dict[str, Any]]:
        for row in self._rows:
            line = {
                name: f"{value:f}" if isinstance(value, Decimal) else value
                for name, value in asdict(row).items()
            }
            del line["start"]
            yield line if row.start is None else {"start": row.start.isoformat(), **line}


def report(
    rows: Iterable[Mapping[str, Any]],
    by: object,
    window: object,
    since: datetime | None,
    until: datetime | None,
) -> UsageReport:
    """Group the core's rows; see `tidegate.Gate.usage`."""
    names = _names(by)
    if window is not None and window not in _SECONDS:
        raise ConfigError("window", repr(window), 'must be "hour", "day" or None')
    length = _SECONDS.get(str(window))
    first, last = _unix("since", since), _unix("until", until)
    zero = {name: Decimal(0) if name.endswith("_usd") else 0 for name in _SUMS}
    sums: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    for row in rows:
        hour = row["hour"]
        if (first is not None and hour + 3600 <= first) or (last is not None and hour >= last):
            continue
        start = hour - hour % length if length else 0
        group = tuple(row["model"] if name == "model" else _tag(row["tags"], name) for name in names)
        total = sums.setdefault((start, group), dict(zero))
        for name in _SUMS:
            total[name] += Decimal(row[name]) if name.endswith("_usd") else row[name]
    found = [
        UsageRow(
            group=dict(zip(names, group, strict=True)),
            start=datetime.fromtimestamp(start, UTC) if length else None,
            **total,
        )
        for (start, group), total in sorted(sums.items())
    ]
    return UsageReport(names, window, found)  # type: ignore[arg-type]  # looked at above


def _tag(tags: Mapping[str, str] | None, name: str) -> str:
    return "other" if tags is None else tags.get(name, "")


def _names(by: object) -> tuple[str, ...]:
    given = (by,) if isinstance(by, str) else by
    if not isinstance(given, Sequence) or not all(
        isinstance(name, str) and is_tag_name(name) for name in given
    ):
        raise ConfigError("by", repr(by), 'must be "model", the name of a tag, or a list of these')
    if clash := {"start", *_SUMS} & set(given):
        raise ConfigError("by", repr(min(clash)), "must not be the name of a column of the report")
    if len(set(given)) < len(given):
        raise ConfigError("by", repr(by), "must not name anything twice")
    return tuple(given)


def _unix(name: str, moment: object) -> float | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigError(name, repr(moment), "must be a datetime with a time zone")
    return moment.timestamp()
