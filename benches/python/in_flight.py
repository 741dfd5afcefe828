"""Many calls in flight at once: ``in_flight.py URL CALLS`` prints memory per call and the loop's lag as JSON.

The server must take longer to answer than this process takes to send everything.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import chat
from open_files import allow_many

TICK_S = 0.005


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


async def run(url: str, calls: int) -> dict[str, float]:
    """Measure `calls` calls of `tidegate.AsyncClient`, every gate configured, all in flight together."""
    import tidegate

    lags: list[float] = []
    held: list[int] = []

    async def tick() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK_S)
            lags.append(time.perf_counter() - start - TICK_S)
            held.append(resident_bytes())

    async def call() -> None:
        answer = await client.post("/chat/completions", json=chat.REQUEST)
        assert answer.json()["choices"]

    async def start_all() -> list[asyncio.Task[None]]:
        tasks = []
        for number in range(calls):
            tasks.append(asyncio.ensure_future(call()))
            if number % 50 == 0:  # a program that is asked for work bit by bit, as servers are
                await asyncio.sleep(0)
        return tasks

    async with tidegate.AsyncClient(url, chat.KEY, gate=chat.gate(on=True)) as client:
        await call()
        gc.collect()
        before = resident_bytes()
        ticker = asyncio.ensure_future(tick())
        start = time.perf_counter()
        tasks = await start_all()
        sent_s = time.perf_counter() - start
        await asyncio.gather(*tasks)
        ticker.cancel()
    lags.sort()
    return {
        "bytes_per_call": (max(held) - before) / calls,
        "lag_p99_s": lags[len(lags) * 99 // 100],
        "lag_max_s": lags[-1],
        "sent_s": sent_s,
    }


if __name__ == "__main__":
    allow_many()
    json.dump(asyncio.run(run(sys.argv[1], int(sys.argv[2]))), sys.stdout)
