"""Makes the calls of a script and notes what came of them, at both ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cases import adapter, streamed
from tidegate import CallError

if TYPE_CHECKING:
    from tidegate import Response


@dataclass(frozen=True)
class Planned:
    """A call to be made: when, and under what name."""

    name: str = ""
    at: float = 0.0
    body: Any = field(default_factory=lambda: dict(adapter.REQUEST))
    options: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    leave_after: int | None = None

    def arguments(self):
        headers = {"x-test-call": self.name} if self.name else {}
        return {"json": self.body, "headers": headers, **self.options}


@dataclass
class Ended:
    """A call that was made. Anything but an error of a call is no outcome and fails the test."""

    name: str
    started: float
    ended: float = 0.0
    response: Response | streamed.Streamed | None = None
    error: CallError | None = None
    # What came of a stream, also where it failed.
    came: streamed.Streamed = field(default_factory=streamed.Streamed)

    @property
    def elapsed(self):
        return self.ended - self.started


@dataclass
class Played:
    """What came of a script. Times are seconds from the start of the first call."""

    calls: list[Ended]
    ledger: dict[str, Any]
    requests: list[dict[str, Any]]
    gate: Any
    script: dict[str, Any] = field(default_factory=dict)
    elsewhere: dict[str, Any] | None = None

    @property
    def error(self):
        return next((call.error for call in self.calls if call.error is not None), None)

    def call(self, name):
        return next(call for call in self.calls if call.name == name)

    def requests_of(self, name):
        return [request for request in self.requests if request["headers"].get("x-test-call") == name]


def play(server, client, planned, mode):
    """Make the planned calls with a sync client (a thread each) or an async one (a task each)."""
    origin = server.ledger["elapsed_s"]
    make = _in_threads if mode == "sync" else _in_tasks
    calls = make(client, planned, time.monotonic())
    ledger = server.ledger
    requests = [_since(origin, request) for request in ledger["entries"]]
    requests.sort(key=lambda request: request["arrived_s"])
    return Played(calls, ledger, requests, client.gate)


def _since(origin, request):
    ended = request["ended_s"]
    return request | {
        "arrived_s": request["arrived_s"] - origin,
        "ended_s": None if ended is None else ended - origin,
    }


def _in_threads(client, planned, origin):
    results = [Ended(call.name, call.at) for call in planned]
    failures = []

    def make(call, result):
        try:
            time.sleep(call.at)
            result.started = time.monotonic() - origin
            try:
                if call.stream:
                    streamed.read(client, call.arguments(), result.came, call.leave_after)
                    result.response = result.came
                else:
                    result.response = client.post("/chat/completions", **call.arguments())
            except CallError as error:
                result.error = error
            result.ended = time.monotonic() - origin
        except BaseException as failure:
            failures.append(failure)
            raise

    if len(planned) == 1:
        make(planned[0], results[0])
        return results
    threads = [threading.Thread(target=make, args=pair) for pair in zip(planned, results, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def _in_tasks(client, planned, origin):
    async def make(call):
        await asyncio.sleep(call.at)
        result = Ended(call.name, time.monotonic() - origin)
        try:
            if call.stream:
                await streamed.aread(client, call.arguments(), result.came, call.leave_after)
                result.response = result.came
            else:
                result.response = await client.post("/chat/completions", **call.arguments())
        except CallError as error:
            result.error = error
        return dataclasses.replace(result, ended=time.monotonic() - origin)

    async def make_all():
        return await asyncio.gather(*(make(call) for call in planned))

    return asyncio.run(make_all())
