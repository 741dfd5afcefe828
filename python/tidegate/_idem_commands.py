"""``tidegate idem``: looks at the records of tools, and decides those that are in doubt."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from tidegate import _codec, _core
from tidegate._errors import ConfigError
from tidegate._gate import Gate
from tidegate._tool_errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATES = ("claimed", "started", "in_doubt", "done")
# More records than anybody looks through, and characters than a line has.
_MOST = 1_000_000
_WIDE = 10_000
_TIMES = ("created", "updated", "started", "lease_until", "expires")


@click.group()
def idem() -> None:
    """Records of tools that run once: show, resolve, purge."""


def _store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        "url",
        envvar="TIDEGATE_STORE",
        required=True,
        help="URL as for Gate(store=); or set TIDEGATE_STORE, which keeps passwords off the command line.",
    )(command)


@contextmanager
def _opened(url: str) -> Iterator[_core.Store]:
    try:
        if url.startswith("memory"):
            raise click.ClickException(
                "a memory store is in its own process: there is nothing to see from here"
            )
        scheme, _, path = url.partition(":///")
        if scheme == "sqlite" and path and not os.path.exists(path):  # noqa: PTH110 Path's raises where it cannot look
            raise click.ClickException(f"there is no file {path}: no tool has kept a record there")
        yield Gate(store=url)._store
    except (ConfigError, StoreUnavailableError) as error:
        raise click.ClickException(str(error)) from error


@idem.command()
@_store_option
@click.argument("key", required=False)
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only these; may be repeated.")
@click.option("--prefix", default="", help="Only keys that begin so.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--result", "with_result", is_flag=True, help="Show results too; they may hold personal data.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    *,
    url: str,
    key: str | None,
    state: tuple[str, ...],
    prefix: str,
    limit: int,
    with_result: bool,
    as_json: bool,
) -> None:
    """Show the record of KEY; without one, those to decide, or those in the states that are named.

    To decide are those in doubt, and those of tools that were started and whose process is gone: they come in
    doubt when they are asked for again.
    """
    with _opened(url) as store:
        if key is not None:
            record = store.get(key)
            if record is None:
                raise click.ClickException(f"there is no record of {key}: it was never run, or has expired")
            found = [(key, record)]
        else:
            found = store.list(prefix, list(state), limit) if state else _to_decide(store, prefix, limit)
    rows = [_readable(name, record, with_result=with_result) for name, record in found]
    if as_json:
        click.echo(json.dumps(rows[0] if key is not None else rows, indent=2))
    elif key is not None:
        _show_one(rows[0])
    else:
        _show_many(rows)


def _to_decide(store: _core.Store, prefix: str, limit: int) -> list[tuple[str, dict[str, Any]]]:
    records = store.list(prefix, ["in_doubt", "started"], _MOST)
    return [(key, record) for key, record in records if _needs_a_decision(record)][:limit]


def _needs_a_decision(record: dict[str, Any]) -> bool:
    is_gone = record["state"] == "started" and record["lease_until"] <= time.time()
    return bool(record["state"] == "in_doubt" or (is_gone and record["effect"] == "at_most_once"))


def _readable(key: str, record: dict[str, Any], *, with_result: bool) -> dict[str, Any]:
    row = {"key": key, **record}
    for name in _TIMES:
        if row[name] is not None:
            moment = dt.datetime.fromtimestamp(row[name], dt.UTC)
            row[name] = moment.isoformat(timespec="milliseconds")
    data: bytes | None = row.pop("result")
    if data is not None:
        row["result_bytes"] = len(data)
        if with_result:
            row["result"] = data.decode("utf-8", "replace")
    return {name: value for name, value in row.items() if value is not None}


def _show_one(row: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in row.items():
        table.add_row(name, str(value))
    _print(table)


def _print(table: Table) -> None:
    # Whoever reads a pipe looks for whole keys; nobody meant what is in one as markup.
    width = None if sys.stdout.isatty() else _WIDE
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def _show_many(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("There is nothing to decide.")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("key", "tool", "state", "started", "attempts", "note"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            *(str(row.get(name, "")) for name in ("key", "tool", "state", "started", "attempts", "note"))
        )
    _print(table)


def _json_value(_: click.Context, __: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"must be JSON, such as '\"receipt 7\"' ({error})") from error


@idem.command()
@_store_option
@click.argument("key")
@click.option("--done", is_flag=True, help="The effect happened: repetitions get --result.")
@click.option("--not-done", is_flag=True, help="It did not, and will not: it may run again.")
@click.option(
    "--result", callback=_json_value, help="What the tool would have returned, as JSON. Default null."
)
@click.option(
    "--fence", type=click.IntRange(min=1), help="Only if it is still this acquisition, as `show` told it."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def resolve(
    *, url: str, key: str, done: bool, not_done: bool, result: Any, fence: int | None, yes: bool
) -> None:
    """Decide on KEY, whose tool was started and never heard of again. Look downstream first."""
    if done == not_done:
        raise click.UsageError("say --done or --not-done, one of the two")
    if not_done and result is not None:
        raise click.UsageError("--result is for --done")
    with _opened(url) as store:
        record = store.get(key)
        if record is None:
            raise click.ClickException(f"there is no record of {key}: it was never run, or has expired")
        if not yes:
            means = "was done" if done else "was NOT done, and may run again"
            started = _readable(key, record, with_result=False).get("started", "never")
            click.confirm(f"{record['tool']} under {key}, started {started}, {means}?", abort=True)
        codec, data = _codec.encode(result) if done else (None, b"")
        judged = record["fence"] if fence is None else fence
        operation = _core.Operation.resolve(judged, done, codec, data)
        if store.call(key, operation, 5.0) != ("held",):
            raise click.ClickException(f"nothing was changed: {_why_held(key, record, fence)}")
    click.echo(f"{key} is {'done' if done else 'free again'}")


def _why_held(key: str, record: dict[str, Any], fence: int | None) -> str:
    if fence is not None and fence != record["fence"]:
        return f"the fence of {key} is {record['fence']} and not {fence}: it is another execution's by now"
    return f"{key} is {record['state']}: either its owner is at work, or it was decided meanwhile"


@idem.command()
@_store_option
def purge(*, url: str) -> None:
    """Drop the records that have expired. Those in doubt never expire. Redis does it by itself."""
    with _opened(url) as store:
        count = store.purge()
    click.echo(f"{count} expired record(s) dropped")
