"""The subcommands of ``tidegate``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tidegate import ConfigError, __version__, _demo, _doctor, _plot
from tidegate._batch_command import batch
from tidegate._idem_commands import idem
from tidegate.testing import FaultServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEXT = (
    "Next: run `tidegate mock` and call it from your code: "
    'tidegate.OpenAI(base_url="http://127.0.0.1:8089/v1", api_key="test").chat.completions.create(...); '
    "docs/quickstart.md goes on from there"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidegate", message="%(prog)s %(version)s")
def tidegate() -> None:
    """Guarded calls to OpenAI-compatible APIs."""


tidegate.add_command(batch)
tidegate.add_command(idem)


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error


@tidegate.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def demo(*, as_json: bool) -> None:
    """Replay an outage and an overload against a local server. Takes about 10 seconds."""
    # The server is here: no proxy of the environment leads to it.
    os.environ["NO_PROXY"] = "127.0.0.1"
    console = Console(highlight=False)
    with _readable_errors():
        if as_json:
            outage, loads = asyncio.run(_demo.run(lambda _: None))
            click.echo(json.dumps(_demo.as_json(outage, loads)))
        else:
            with _progress() as advance:
                outage, loads = asyncio.run(_demo.run(advance))
            _show(console, outage, loads)
    if not outage.as_expected():
        raise click.ClickException("the figures are not those that the script of the server asks for")


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("asking a server that fails", total=1.0)

        def advance(share: float) -> None:
            progress.update(task, completed=share)

        yield advance


def _show(console: Console, outage: _demo.Outage, loads: list[_demo.Load]) -> None:
    console.print("30 calls at once; the server answers the first three with 500\n", style="bold")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in outage.rows():
        table.add_row(name, value)
    console.print(table)
    console.print("\nCalls per second / at once: more than 0.3 s a call can bear, and less\n", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("load", "ok", *(f"{name}, s" for name in _plot.NAMES)):
        table.add_column(name, justify="left" if name == "load" else "right")
    for load in loads:
        quantiles = [_plot.seconds(value, unit="") for value in _plot.quantiles(load.latencies)]
        table.add_row(load.name, f"{load.ok}/{load.calls}", *quantiles)
    console.print(table)
    unicode = (console.encoding or "").lower().startswith("utf")
    rows = [(load.name, load.latencies) for load in loads]
    console.print()
    click.echo(_plot.bars(rows, width=min(console.width, 76), block="█" if unicode else "#"))
    console.print("\nThe wait is the queue's: the gate lets no more calls out than its limit.")
    console.print(f"\n{_NEXT}", soft_wrap=True)


def _json_file(_: click.Context, __: click.Parameter, path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} must be a JSON file that can be read ({error})") from error


@tidegate.command()
def alerts() -> None:
    """Print rules of alerts for Prometheus, with what to do when they fire."""
    click.echo(resources.files("tidegate").joinpath("alerts.yml").read_text("utf-8"), nl=False)


@tidegate.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON to import."""
    click.echo(resources.files("tidegate").joinpath("dashboard.json").read_text("utf-8"), nl=False)


_FILE = click.Path(path_type=Path, dir_okay=False)


@tidegate.command()
@click.option("--port", default=8089, show_default=True, help="0 takes one that is free.")
@click.option("--script", callback=_json_file, type=_FILE, help="JSON file: a list of answers, or an object.")
@click.option("--latency-ms", type=click.FloatRange(min=0), help="Pause before each answer.")
@click.option("--rpm", type=int, help="Requests per minute that are granted.")
@click.option("--tpm", type=int, help="Tokens per minute that are granted.")
@click.option("--concurrency", type=int, help="Requests at once that are granted.")
@click.option("--ledger", is_flag=True, help="Print what was served, as JSON, at the end.")
def mock(
    *,
    port: int,
    script: Any,
    latency_ms: float | None,
    rpm: int | None,
    tpm: int | None,
    concurrency: int | None,
    ledger: bool,
) -> None:
    """Serve an OpenAI-compatible API that answers and fails as told, until Ctrl-C."""
    limits = {"rpm": rpm, "tpm": tpm, "concurrency": concurrency}
    quota = {name: value for name, value in limits.items() if value is not None}
    script = {"responses": script} if isinstance(script, list) else script or {}
    with _readable_errors():
        server = FaultServer(port=port, latency_ms=latency_ms, quota=quota or None)
        with server:
            server.script(**_script_arguments(script))
            click.echo(f"Serving {server.url} until Ctrl-C")
            click.echo(f"  OPENAI_BASE_URL={server.url} OPENAI_API_KEY=test python your_program.py")
            sys.stdout.flush()
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                click.echo()
        if ledger:
            click.echo(json.dumps(server.ledger, indent=2))


def _script_arguments(script: object) -> dict[str, Any]:
    known = {"responses", "rules", "repeat_last"}
    if not isinstance(script, dict) or not script.keys() <= known:
        raise ConfigError(
            "script", "(file)", "must be a list of answers, or an object of responses, rules, repeat_last"
        )
    return script


class _UnusableInputError(click.ClickException):
    exit_code = 2


@tidegate.command()
@click.argument("log", type=_FILE, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def doctor(context: click.Context, *, log: tuple[Path, ...], as_json: bool) -> None:
    """Find out from the log of gates why calls went wrong.

    LOG is what Gate(log_file=...) wrote: the files of all processes, in any order. Older parts of a file that
    was rotated are read with it.

    The exit status is 0 if no problem was found, 1 if one was, and 2 if the files hold no record.
    """
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True)
    try:
        with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
            task = progress.add_task("reading", total=None)
            report = _doctor.examine(
                log, lambda read, total: progress.update(task, completed=read, total=total)
            )
    except _doctor.UnusableLogError as error:
        raise _UnusableInputError(str(error)) from error
    if as_json:
        click.echo(json.dumps(report))
    else:
        _doctor.show(Console(highlight=False), report)
    context.exit(0 if report["healthy"] else 1)
