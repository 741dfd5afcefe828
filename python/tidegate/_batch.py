"""``tidegate batch``: asks what a file of requests holds, and keeps each answer as it comes.

The lines of both files are those of OpenAI's Batch API. What has an answer in the results is never asked
again, so that a run that was killed goes on where it was: asked twice is only what was under way.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate._errors import (
    AdmissionError,
    AuthenticationError,
    CallError,
    CircuitOpenError,
    ConfigError,
    EncodeError,
    QuotaExhaustedError,
    SpendCapExceededError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tidegate._client import AsyncClient
    from tidegate._core import CallInfo, Response

# What one of these says holds for every request.
_HOPELESS = (AuthenticationError, QuotaExhaustedError, SpendCapExceededError)
# Nothing was sent: asking again is no retry.
_UNSENT = (CircuitOpenError, AdmissionError)
# Seconds between looks whether an open breaker lets a call through, where it does not say, and at most.
_LOOK, _LONGEST_LOOK = 1.0, 5.0


class BatchError(Exception):
    """Files that cannot be worked on: which line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the file of requests."""

    custom_id: str
    path: str
    body: dict[str, Any]


def read_requests(path: Path) -> Iterator[Request]:
    """Read the file of requests.

    Raises:
        BatchError: A line is no request, or has the ``custom_id`` of an earlier one.
    """
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            request = _request(line, f"{path}, line {number}")
            first = seen.setdefault(request.custom_id, number)
            if first != number:
                raise BatchError(
                    f"{path}, line {number}: custom_id {request.custom_id!r} is that of line {first}: "
                    "each request needs one of its own"
                )
            yield request


def _request(line: bytes, place: str) -> Request:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BatchError(f"{place}: must be a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise BatchError(f"{place}: must be a JSON object")
    custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise BatchError(f"{place}: custom_id = {custom_id!r}: must be text that is not empty")
    if value.get("method", "POST") != "POST":
        raise BatchError(f"{place}: method = {value['method']!r}: must be 'POST'")
    if not isinstance(url, str) or not url.startswith("/"):
        raise BatchError(f"{place}: url = {url!r}: must be a path such as '/v1/chat/completions'")
    if not isinstance(body, dict):
        raise BatchError(f"{place}: body = {body!r:.60}: must be an object")
    if body.get("stream"):
        raise BatchError(f"{place}: body.stream = {body['stream']!r}: answers are kept whole; leave it out")
    # The client's base URL has the version.
    return Request(custom_id, url.removeprefix("/v1"), body)


@dataclass(slots=True)
class Tally:
    """What the runs over a file have come to; of those before this one, what their results tell."""

    requests: int = 0
    answered_before: int = 0
    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    stopped: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every request has its answer."""
        return self.answered_before + self.answered == self.requests

    def add(self, told: dict[str, Any]) -> None:
        """Count what an answer took, as its line tells."""
        self.prompt_tokens += told["prompt_tokens"] or 0
        self.completion_tokens += told["completion_tokens"] or 0
        self.cost_usd += Decimal(told["cost_usd"] or 0)


class Results:
    """The file of results: a line for each answer, of this run and of those before it.

    Raises:
        BatchError: Another process is at work on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        self._lines: list[bytes] = []
        self._writing = threading.Lock()
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise BatchError(f"{path}: another process is at work on it") from error

    def load(self, tally: Tally) -> None:
        """Read what is answered already, and drop a last line that was not finished.

        Raises:
            BatchError: A line is no result of a batch.
        """
        self._file.seek(0)
        whole = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    # The process was killed within it, or the disk was full.
                    self._file.truncate(whole)
                    return
                whole += len(line)
                try:
                    value = json.loads(line)
                    self.done.add(value["custom_id"])
                    tally.add(value["tidegate"])
                except (ValueError, KeyError, TypeError) as error:
                    place = f"{self.path}, line {number}"
                    raise BatchError(f"{place}: is no result of a batch; name another file") from error

    async def keep(self, line: dict[str, Any]) -> None:
        """Write a line, together with those that others wait for, and return when it is on the disk."""
        self._lines.append(_written(line))
        await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what waits for it, or nothing of it."""
        with self._writing:
            lines, self._lines = self._lines, []
            if not lines:
                return
            before, left = self._file.seek(0, os.SEEK_END), memoryview(b"".join(lines))
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file)
            except OSError:
                # What comes later must not stand behind half a line.
                self._file.truncate(before)
                raise

    def close(self) -> None:
        """Let another process work on it."""
        self._file.close()


def _written(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Batch:
    """One run over the requests.

    Attributes:
        client: Makes the calls; its gate retries, queues, and caps what is spent.
        results: Where answers are kept.
        workers: Calls at once.
        patience: Seconds without an answer after which the run stops.
        pause: Seconds after which what failed for a passing reason is asked again, in the end.
        tally: What it has come to.
        errors: Lines of the requests that have no answer, by their ``custom_id``.
    """

    client: AsyncClient
    results: Results
    workers: int
    patience: float
    pause: float
    tally: Tally
    on_progress: Callable[[], None]
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    _last_answer: float = 0.0

    async def run(self, requests: Iterable[Request]) -> None:
        """Ask what has no answer; in the end again, while that helps, what failed for a passing reason."""
        self._last_answer = asyncio.get_running_loop().time()
        done = self.results.done
        try:
            again = await self._ask_all(one for one in requests if one.custom_id not in done)
            while again:
                await asyncio.sleep(self.pause)
                again = await self._ask_all(iter(again))
        finally:
            self.results.flush()

    async def _ask_all(self, requests: Iterator[Request]) -> list[Request]:
        """Ask each once; return what is worth asking again."""
        answered_before = self.tally.answered
        again: list[Request] = []

        async def work() -> None:
            for request in requests:
                if not await self._ask(request):
                    again.append(request)
                if self.tally.stopped is not None:
                    return

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(work())
        except* (OSError, BatchError) as failures:
            # The disk is full, say, or the file of requests was changed.
            raise failures.exceptions[0] from None
        worthwhile = self.tally.stopped is None and self.tally.answered > answered_before
        return again if worthwhile else []

    async def _ask(self, request: Request) -> bool:
        """Return whether it is settled."""
        try:
            answer = await self._answer(request)
        except (ConfigError, EncodeError) as error:
            self.errors[request.custom_id] = _refused_line(request, error)
            return True
        except CallError as error:
            # What stops the run before it is sent is not a failure of the request.
            if not self._stops_for(error) or error.attempts:
                line = self.errors[request.custom_id] = _error_line(request, error)
                self.tally.add(line["tidegate"])
            return not error.retryable
        self._last_answer = asyncio.get_running_loop().time()
        line = _result_line(request, answer)
        await self.results.keep(line)
        self.errors.pop(request.custom_id, None)
        self.tally.answered += 1
        self.tally.add(line["tidegate"])
        self.on_progress()
        return True

    async def _answer(self, request: Request) -> Response:
        while True:
            try:
                return await self.client.post(request.path, json=request.body)
            except _UNSENT as error:
                # Nothing was sent: to ask again when the gate may let it through is no retry.
                if error.attempts or self.tally.stopped is not None or self._is_out_of_patience():
                    raise
                await asyncio.sleep(min(error.retry_after or _LOOK, _LONGEST_LOOK))

    def _stops_for(self, error: CallError) -> bool:
        if isinstance(error, _HOPELESS):
            reason = str(error)
        elif error.retryable and self._is_out_of_patience():
            reason = f"no answer for {self.patience:g} s, the last time: {error}"
        else:
            return False
        self.tally.stopped = self.tally.stopped or reason
        return True

    def _is_out_of_patience(self) -> bool:
        return asyncio.get_running_loop().time() - self._last_answer > self.patience


def _result_line(request: Request, answer: Response) -> dict[str, Any]:
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": _body(answer.content)}
    return _line(request, answer.info, response=response, error=None)


def _refused_line(request: Request, error: ConfigError | EncodeError) -> dict[str, Any]:
    told = {"code": "bad_request", "message": str(error), "may_pass": False}
    return _line(request, None, response=None, error=told)


def _error_line(request: Request, error: CallError) -> dict[str, Any]:
    response = None
    if error.status is not None:
        response = {"status_code": error.status, "request_id": error.request_id, "body": _body(error.body)}
    told = {"code": error.kind, "message": str(error), "may_pass": error.retryable}
    return _line(request, error.info, response=response, error=told)


def _body(body: bytes | None) -> Any:
    text = (body or b"").decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _line(request: Request, info: CallInfo | None, **outcome: Any) -> dict[str, Any]:
    usage = None if info is None else info.usage
    cost = None if info is None or info.cost_usd is None else str(info.cost_usd)
    told = {
        "attempts": 0 if info is None else info.attempts,
        "usage": None if usage is None else usage.source,
        "prompt_tokens": None if usage is None else usage.prompt_tokens,
        "completion_tokens": None if usage is None else usage.completion_tokens,
        "cost_usd": cost,
    }
    trace_id = None if info is None else info.trace_id
    return {"id": trace_id, "custom_id": request.custom_id, **outcome, "tidegate": told}


def write_errors(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write the lines of the requests that have no answer; without one there is no file."""
    text = b"".join(map(_written, lines))
    if text:
        path.write_bytes(text)
    else:
        path.unlink(missing_ok=True)
