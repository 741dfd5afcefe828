"""Many streams at once: ``streams.py URL STREAMS`` prints the loop's lag and the CPU of a chunk as JSON.

Of the streams a fifth is cut by the server, a tenth left by the reader, a twentieth falls silent. The server
is to have the rules of `RULES`. The official client's chunks come through the drop-in, all gates on.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import json
import resource
import sys
import time

import chat
from in_flight import TICK_S
from open_files import allow_many

CHUNKS = 200
LEFT_AFTER = 20
RULES = [
    {"match": {"header": {"x-kind": kind}}, "respond": {"usage": {"completion_tokens": CHUNKS}, **answer}}
    for kind, answer in (
        ("whole", {}),
        ("left", {}),
        ("cut", {"fault": "cut"}),
        ("stalled", {"fault": "stall"}),
    )
]


def kinds(streams: int) -> list[str]:
    """Return which kind each stream is of, evenly mixed."""
    every_twenty = ["cut", "whole", "left", "whole", "whole"] * 4
    every_twenty[7], every_twenty[17] = "stalled", "whole"
    return [every_twenty[number % 20] for number in range(streams)]


def expected(streams: int) -> dict[str, int]:
    """Return how often each end is to be seen."""
    ends = {"whole": "complete", "cut": "stream_interrupted", "left": "left", "stalled": "timeout"}
    return dict(collections.Counter(ends[kind] for kind in kinds(streams)))


async def run(url: str, streams: int) -> dict[str, float]:
    """Measure the streams, all under way together."""
    import tidegate

    lags: list[float] = []
    # CPU time of the loop's thread from one tick to the next: its lag on a machine that does nothing else.
    busy: list[float] = []
    ends: collections.Counter[str] = collections.Counter()
    chunks = 0

    async def tick() -> None:
        while True:
            start, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            lags.append(time.perf_counter() - start - TICK_S)
            busy.append(time.thread_time() - used)

    async def one(kind: str) -> None:
        nonlocal chunks
        seen = 0
        request = {**chat.REQUEST, "stream": True, "extra_headers": {"x-kind": kind}}
        try:
            async with await client.chat.completions.create(**request) as stream:
                async for _ in stream:
                    seen += 1
                    if kind == "left" and seen == LEFT_AFTER:
                        break
            ends["left" if kind == "left" else "complete"] += 1
        except tidegate.StreamInterruptedError as error:
            ends[error.kind] += 1
        chunks += seen

    gate = tidegate.Gate(
        timeouts=tidegate.Timeouts(idle=2.0), breaker=None, limits=tidegate.Limits(concurrency=None)
    )
    async with tidegate.AsyncOpenAI(base_url=url, api_key=chat.KEY, gate=gate, max_retries=0) as client:
        await one("whole")
        ends.clear()
        chunks = 0
        # The pauses of the collector over what has been imported are not what is measured.
        gc.collect()
        gc.freeze()
        ticker = asyncio.ensure_future(tick())
        before = resource.getrusage(resource.RUSAGE_SELF)
        tasks = []
        for number, kind in enumerate(kinds(streams)):
            tasks.append(asyncio.ensure_future(one(kind)))
            if number % 10 == 0:  # a program that is asked for work bit by bit, as servers are
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        after = resource.getrusage(resource.RUSAGE_SELF)
        ticker.cancel()
        in_use = sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])
    assert dict(ends) == expected(streams), ends
    assert in_use == 0
    lags.sort()
    busy.sort()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "streams": streams,
        "cpu_us_per_chunk": cpu / chunks * 1e6,
        "lag_p50_s": lags[len(lags) // 2],
        "lag_p99_s": lags[len(lags) * 99 // 100],
        "lag_max_s": lags[-1],
        "busy_p99_s": busy[len(busy) * 99 // 100],
        "busy_max_s": busy[-1],
    }


if __name__ == "__main__":
    allow_many()
    json.dump(asyncio.run(run(sys.argv[1], int(sys.argv[2]))), sys.stdout)
