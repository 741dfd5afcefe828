"""What ``tidegate doctor`` reads from the JSON lines of gates, and how it is shown."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tidegate import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

# Between two looks at Ctrl-C and the progress bar: a tenth of a second or so.
_STEP = 16 << 20

_VERDICTS = {
    "ok": ("[green]ok[/]", "ok"),
    "problem": ("[bold red]problem[/]", "problem"),
    "not_enough_data": ("[dim]not enough data[/]", "not enough data"),
}


class UnusableLogError(Exception):
    """The files cannot be read, or hold no record."""


def examine(paths: Sequence[Path], advance: Callable[[int, int], None]) -> dict[str, Any]:
    """Read a log and return what was found.

    Args:
        paths: The files of one log, in any order. Of a file that was rotated the older parts (``log.jsonl.1``
            and so on) are read too.
        advance: Is told the bytes that are read and those that there are.

    Raises:
        UnusableLogError: A file cannot be read, or none holds a record.
    """
    once = {path.resolve(): path for path in _with_rotated(paths)}
    try:
        diagnosis = _core.Diagnosis(list(once.values()))
        more = True
        while more:
            more = diagnosis.advance(_STEP)
            advance(diagnosis.bytes_read(), diagnosis.bytes_in_all())
    except OSError as error:
        raise UnusableLogError(str(error)) from error
    report: dict[str, Any] = json.loads(diagnosis.report())
    if not report["records"]:
        lines = sum(file["lines"] for file in report["files"])
        newer = sum(file["newer"] for file in report["files"])
        why = "a later version of tidegate wrote it" if newer else "expected what Gate(log_file=...) writes"
        names = ", ".join(str(path) for path in once.values())
        raise UnusableLogError(f"no record in {lines} line(s) of {names}: {why}")
    return report


def _with_rotated(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        yield path
        for number in itertools.count(1):
            older = path.with_name(f"{path.name}.{number}")
            if not older.is_file():
                break
            yield older


def show(console: Console, report: dict[str, Any]) -> None:
    """Print the verdicts as a table, and each problem with its evidence and what to do."""
    _show_input(console, report)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report["findings"]:
        verdict, _ = _VERDICTS[finding["verdict"]]
        table.add_row(verdict, f"[bold]{_plain(finding['title'])}[/]\n{_plain(finding['summary'])}")
    console.print(table)
    problems = [finding for finding in report["findings"] if finding["verdict"] == "problem"]
    for finding in problems:
        _show_problem(console, finding)
    console.print(f"\n{_conclusion(problems)}", style="bold")


def _show_input(console: Console, report: dict[str, Any]) -> None:
    files = report["files"]
    console.print(
        f"{_count(len(files), 'file')}, {_count(report['records'], 'record')}: "
        f"{_count(report['calls'], 'call')} ({report['calls_failed']:,} failed), "
        f"{_count(report['attempts'], 'attempt')}"
    )
    console.print(f"{_time(report['first_ts'])} to {_time(report['last_ts'])}")
    for file in files:
        odd = []
        if file["broken"]:
            odd.append(f"{_count(file['broken'], 'broken line')}")
        if file["newer"]:
            odd.append(f"{_count(file['newer'], 'record')} of a later version, passed over")
        # The lock beside a rotated log is empty and not worth a word.
        if file["lines"] and not file["records"]:
            odd.append("no record")
        if odd:
            console.print(f"{_plain(file['path'])}: {', '.join(odd)}", soft_wrap=True)
    console.print()


def _show_problem(console: Console, finding: dict[str, Any]) -> None:
    console.print(f"\n[bold red]{_plain(finding['title'])}[/]")
    evidence = Table(box=None, pad_edge=False, show_header=False)
    evidence.add_column()
    evidence.add_column(justify="right")
    for name, value in finding["evidence"].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            evidence.add_row(name.replace("_", " "), f"{value:,}")
    console.print(Padding(evidence, (0, 0, 0, 2)))
    for check in finding["evidence"].get("sample", ()):
        again = f", again in {check['again']}" if "again" in check else ""
        console.print(f"  {check['trace_id']}: {check['key']}{again}", soft_wrap=True)
    if finding["trace_ids"] and "sample" not in finding["evidence"]:
        console.print("  traces")
        for trace_id in finding["trace_ids"]:
            console.print(f"    {trace_id}")
    console.print(Padding(f"What to do: {_plain(finding['advice'])}", (0, 0, 0, 2)))


def _conclusion(problems: list[dict[str, Any]]) -> str:
    return f"{_count(len(problems), 'problem')}." if problems else "Healthy: no problem was found."


def _plain(text: str) -> str:
    """Text of the log, which may come from anywhere, for a terminal: neither markup nor commands."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
