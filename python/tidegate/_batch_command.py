"""``tidegate batch``: the command around `_batch`."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidegate._batch import Batch, BatchError, Results, Tally, read_requests, write_errors
from tidegate._client import AsyncClient
from tidegate._errors import ConfigError
from tidegate._gate import Gate
from tidegate._policies import Limits, RetryPolicy, SpendCap
from tidegate._prices import Prices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILE = click.Path(path_type=Path, dir_okay=False)
# Nobody waits for one of these answers.
_RETRY = RetryPolicy(max_attempts=6, base=0.5, cap=20.0, max_elapsed=None)
# Seconds before what failed for a passing reason is asked again.
_PAUSE = 15.0
_INTERRUPTED = "interrupted"


class _UnusableInputError(click.ClickException):
    exit_code = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    base_url: str | None
    concurrency: int
    rpm: int | None
    tpm: int | None
    timeout: float
    patience: float
    prices: Prices | None
    max_usd: Decimal | None
    log_file: Path | None

    def gate(self, spent: Decimal) -> Gate:
        """Make the gate of a run, of whose cap so much is spent."""
        caps = () if self.max_usd is None else (SpendCap(self.max_usd - spent),)
        return Gate(
            limits=Limits(concurrency=self.concurrency, rpm=self.rpm, tpm=self.tpm),
            retry=_RETRY,
            prices=self.prices,
            spend=caps,
            log_file=self.log_file,
        )


@click.command()
@click.argument("requests", type=_FILE)
@click.argument("results", type=_FILE)
@click.option(
    "--errors", type=_FILE, help="Where failures are told. Default: RESULTS with .errors in its name."
)
@click.option("--base-url", envvar="OPENAI_BASE_URL", help="Where the API is, version included.")
@click.option(
    "--concurrency", default=16, show_default=True, type=click.IntRange(min=1), help="Calls at once."
)
@click.option("--rpm", type=click.IntRange(min=1), help="Requests per minute; without it, it is learnt.")
@click.option("--tpm", type=click.IntRange(min=1), help="Tokens per minute; without it, it is learnt.")
@click.option("--prices", type=_FILE, help="File of prices, as for Prices.load.")
@click.option("--max-usd", help="Stop before all runs over RESULTS have cost more; needs --prices.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for one attempt.")
@click.option(
    "--patience", default=600.0, show_default=True, help="Stop after so many seconds without an answer."
)
@click.option("--log", "log_file", type=_FILE, help="Write each attempt there, for `tidegate doctor`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def batch(
    context: click.Context,
    /,
    *,
    requests: Path,
    results: Path,
    errors: Path | None,
    prices: Path | None,
    max_usd: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Ask each line of REQUESTS and keep the answers in RESULTS.

    Lines are those of OpenAI's Batch API. The same command goes on where a run was killed, interrupted or
    stopped: what has an answer is not asked again. The key is read from OPENAI_API_KEY.

    The exit status is 0 if every request has its answer, 1 if not, and 2 if the files cannot be worked on.
    """
    errors = errors or results.with_suffix(f".errors{results.suffix}")
    tally = Tally()
    try:
        given = _Settings(prices=_prices(prices), max_usd=_dollars(max_usd, prices), **settings)
        with _opened(results) as kept:
            _run(given, requests, kept, errors, tally)
    except KeyboardInterrupt:
        tally.stopped = _INTERRUPTED
    except (BatchError, ConfigError, OSError) as error:
        raise _UnusableInputError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_as_json(tally)))
    else:
        click.echo(_sentences(tally, errors, has_prices=prices is not None))
    context.exit(0 if tally.is_complete else 130 if tally.stopped == _INTERRUPTED else 1)


def _prices(path: Path | None) -> Prices | None:
    return None if path is None else Prices.load(path)


def _dollars(text: str | None, prices: Path | None) -> Decimal | None:
    if text is None:
        return None
    if prices is None:
        raise ConfigError("--max-usd", text, "needs --prices: nothing else says what a call costs")
    SpendCap(text)
    return Decimal(text)


@contextmanager
def _opened(path: Path) -> Iterator[Results]:
    results = Results(path)
    try:
        yield results
    finally:
        results.close()


def _run(given: _Settings, requests: Path, results: Results, errors: Path, tally: Tally) -> None:
    results.load(tally)
    for request in read_requests(requests):
        tally.requests += 1
        tally.answered_before += request.custom_id in results.done
    if given.max_usd is not None and tally.cost_usd >= given.max_usd:
        tally.stopped = f"nothing is left of ${given.max_usd}"
        return
    client = AsyncClient(given.base_url, gate=given.gate(tally.cost_usd), timeout=given.timeout)
    with _progress(tally) as advance:
        run = Batch(
            client=client,
            results=results,
            workers=given.concurrency,
            patience=given.patience,
            pause=_PAUSE,
            tally=tally,
            on_progress=advance,
        )
        try:
            asyncio.run(run.run(read_requests(requests)))
        finally:
            tally.failed = len(run.errors)
            write_errors(errors, run.errors.values())


@contextmanager
def _progress(tally: Tally) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("asking", total=tally.requests, completed=tally.answered_before)
        yield lambda: progress.update(task, completed=tally.answered_before + tally.answered)


def _as_json(tally: Tally) -> dict[str, Any]:
    return {
        "requests": tally.requests,
        "answered": tally.answered,
        "answered_before": tally.answered_before,
        "failed": tally.failed,
        "stopped": tally.stopped,
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "cost_usd": str(tally.cost_usd),
    }


def _sentences(tally: Tally, errors: Path, *, has_prices: bool) -> str:
    have = tally.answered + tally.answered_before
    lines = [
        f"{have:,} of {tally.requests:,} requests have their answer, {tally.answered_before:,} from before"
    ]
    if tally.failed:
        lines.append(f"{tally.failed:,} failed: {errors} tells why")
    if tally.stopped is not None:
        left = tally.requests - have - tally.failed
        lines.append(f"stopped with {left:,} not asked: {tally.stopped}")
    lines.append(f"{tally.prompt_tokens:,} prompt and {tally.completion_tokens:,} completion tokens")
    if has_prices:
        lines[-1] += f", ${tally.cost_usd}"
    if not tally.is_complete:
        lines.append("the same command goes on with what has no answer")
    return "\n".join(lines)
