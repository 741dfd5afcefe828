"""What ``tidegate demo`` measures: an outage survived without a storm, and a queue instead of a collapse."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate import _plot
from tidegate._client import AsyncClient
from tidegate._errors import CallError
from tidegate._gate import Gate
from tidegate._policies import Limits
from tidegate._prices import Prices
from tidegate.testing import FaultServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate._core import Response

_QUESTION = {"model": "demo-model", "messages": [{"role": "user", "content": "Say that all systems work."}]}
_CALLS = 30
_FAILURES = 3
# Two calls at a time, 0.3 s each, bear 6.7 calls per second; five bear 16.7.
_LATENCY_S = 0.3
_LOAD_S = 8.0
_OUTAGE_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What became of the calls, by the client's count and by the server's."""

    requests: int
    ok: int
    failed: int
    retries: int
    attempts_seen: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    latencies: list[float]

    def as_expected(self) -> bool:
        """Tell whether the figures are those that the server's script leads to."""
        found = (self.requests, self.ok, self.failed, self.retries, self.attempts_seen)
        bill = (self.prompt_tokens, self.completion_tokens, self.cost_usd)
        expected = (_CALLS, _CALLS, 0, _FAILURES, _CALLS + _FAILURES)
        return found == expected and bill == (360, 150, Decimal("0.000144"))

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures for a table."""
        quantiles = zip(_plot.NAMES, _plot.quantiles(self.latencies), strict=True)
        return [
            ("requests", str(self.requests)),
            ("ok", str(self.ok)),
            ("failed", str(self.failed)),
            ("retries", str(self.retries)),
            ("attempts seen by the server", str(self.attempts_seen)),
            ("prompt tokens", str(self.prompt_tokens)),
            ("completion tokens", str(self.completion_tokens)),
            ("cost, USD", _usd(self.cost_usd)),
            *((f"latency {name}", _plot.seconds(value)) for name, value in quantiles),
        ]


@dataclass(frozen=True, kw_only=True)
class Load:
    """Calls that arrive at a steady rate, and how long each took from its arrival to its answer."""

    qps: int
    concurrency: int
    calls: int
    ok: int
    latencies: list[float]

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.qps} QPS / {self.concurrency}"


def as_json(outage: Outage, loads: list[Load]) -> dict[str, Any]:
    """Return all figures as one object; times are in seconds, money is a decimal string."""
    figures = {name: value for name, value in vars(outage).items() if name != "latencies"}
    return {
        **figures,
        "cost_usd": _usd(outage.cost_usd),
        "outage_latency": _quantiles(outage.latencies),
        "latency": [
            {
                "qps": load.qps,
                "concurrency": load.concurrency,
                "requests": load.calls,
                "ok": load.ok,
                **_quantiles(load.latencies),
            }
            for load in loads
        ],
    }


def _usd(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def _quantiles(samples: list[float]) -> dict[str, float | None]:
    values = _plot.quantiles(samples)
    return {
        f"{name}_s": None if value is None else round(value, 6)
        for name, value in zip(_plot.NAMES, values, strict=True)
    }


async def run(advance: Callable[[float], None]) -> tuple[Outage, list[Load]]:
    """Measure both; `advance` is told the share that is done, 0 to 1."""
    outage = await _outage()
    advance(_OUTAGE_SHARE)
    ticking = asyncio.create_task(_tick(advance))
    try:
        loads = await asyncio.gather(_load(20, 5), _load(5, 2))
    finally:
        ticking.cancel()
    advance(1.0)
    return outage, list(loads)


async def _outage() -> Outage:
    with FaultServer([{"status": 500}] * _FAILURES) as server:
        gate = Gate(prices=Prices({"*": {"input": "0.15", "output": "0.60"}}))
        async with AsyncClient(server.url, "demo", gate=gate) as client:
            timed = await asyncio.gather(*(_timed(client) for _ in range(_CALLS)))
        seen = server.ledger["requests"]["total"]
    answers = [answer for answer, _ in timed if not isinstance(answer, CallError)]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    # A call makes one request more than it makes retries.
    sent = sum(
        answer.attempts if isinstance(answer, CallError) else answer.info.attempts for answer, _ in timed
    )
    return Outage(
        requests=len(timed),
        ok=len(answers),
        failed=len(timed) - len(answers),
        retries=sent - len(timed),
        attempts_seen=seen,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost_usd=sum((answer.cost_usd or Decimal(0) for answer in answers), Decimal(0)),
        latencies=[seconds for _, seconds in timed],
    )


async def _load(qps: int, concurrency: int) -> Load:
    with FaultServer(latency_ms=_LATENCY_S * 1000) as server:
        gate = Gate(limits=Limits(concurrency=concurrency))
        async with AsyncClient(server.url, "demo", gate=gate) as client:
            start = asyncio.get_running_loop().time()
            calls = []
            for number in range(round(qps * _LOAD_S)):
                await asyncio.sleep(start + number / qps - asyncio.get_running_loop().time())
                calls.append(asyncio.create_task(_timed(client)))
            timed = await asyncio.gather(*calls)
    latencies = [seconds for answer, seconds in timed if not isinstance(answer, CallError)]
    return Load(qps=qps, concurrency=concurrency, calls=len(timed), ok=len(latencies), latencies=latencies)


async def _timed(client: AsyncClient) -> tuple[Response | CallError, float]:
    start = time.perf_counter()
    try:
        answer: Response | CallError = await client.post("/chat/completions", json=_QUESTION)
    except CallError as error:
        answer = error
    return answer, time.perf_counter() - start


async def _tick(advance: Callable[[float], None]) -> None:
    # The overload takes as long to drain as its surplus takes to serve.
    whole = 20 * _LOAD_S * _LATENCY_S / 5
    start = time.perf_counter()
    while True:
        share = min((time.perf_counter() - start) / whole, 1.0)
        advance(_OUTAGE_SHARE + (1 - _OUTAGE_SHARE) * share)
        await asyncio.sleep(0.1)
