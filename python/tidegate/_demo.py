"""What ``tidegate demo`` measures: an outage survived without a storm, and a queue instead of a collapse."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate import _plot
from tidegate._client import AsyncClient, info
from tidegate._gate import Gate
from tidegate._policies import Limits
from tidegate._prices import Prices
from tidegate.testing import FaultServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tidegate._core import CallInfo

_QUESTION: dict[str, Any] = {
    "model": "demo-model",
    "messages": [{"role": "user", "content": "Say that all systems work."}],
}
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
        async with _client(server.url, gate) as ask:
            made = await asyncio.gather(*(_timed(ask) for _ in range(_CALLS)))
        seen = server.ledger["requests"]["total"]
    usages = [call.info.usage for call in made if call.ok and call.info.usage is not None]
    return Outage(
        requests=len(made),
        ok=sum(call.ok for call in made),
        failed=sum(not call.ok for call in made),
        # A call makes one request more than it makes retries.
        retries=sum(call.info.attempts - 1 for call in made),
        attempts_seen=seen,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost_usd=sum((call.info.cost_usd or Decimal(0) for call in made), Decimal(0)),
        latencies=[call.seconds for call in made],
    )


async def _load(qps: int, concurrency: int) -> Load:
    with FaultServer(latency_ms=_LATENCY_S * 1000) as server:
        gate = Gate(limits=Limits(concurrency=concurrency))
        async with _client(server.url, gate) as ask:
            start = asyncio.get_running_loop().time()
            calls = []
            for number in range(round(qps * _LOAD_S)):
                await asyncio.sleep(start + number / qps - asyncio.get_running_loop().time())
                calls.append(asyncio.create_task(_timed(ask)))
            made = await asyncio.gather(*calls)
    latencies = [call.seconds for call in made if call.ok]
    return Load(qps=qps, concurrency=concurrency, calls=len(made), ok=len(latencies), latencies=latencies)


@contextlib.asynccontextmanager
async def _client(url: str, gate: Gate) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Open what asks the question: the drop-in, or the native client where there is no openai package."""
    if importlib.util.find_spec("openai") is None:
        async with AsyncClient(url, "demo", gate=gate) as native:
            yield lambda: native.post("/chat/completions", json=_QUESTION)
        return
    from tidegate._openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="demo", gate=gate) as official:
        yield lambda: official.chat.completions.create(**_QUESTION)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """One call and how it went."""

    ok: bool
    info: CallInfo
    seconds: float


async def _timed(ask: Callable[[], Awaitable[object]]) -> _Made:
    start = time.perf_counter()
    try:
        answer, ok = await ask(), True
    except Exception as error:  # noqa: BLE001 `info` raises what is no failure of the call
        answer, ok = error, False
    seconds = time.perf_counter() - start
    return _Made(ok=ok, info=info(answer), seconds=seconds)


async def _tick(advance: Callable[[float], None]) -> None:
    # The overload takes as long to drain as its surplus takes to serve.
    whole = 20 * _LOAD_S * _LATENCY_S / 5
    start = time.perf_counter()
    while True:
        share = min((time.perf_counter() - start) / whole, 1.0)
        advance(_OUTAGE_SHARE + (1 - _OUTAGE_SHARE) * share)
        await asyncio.sleep(0.1)
