"""The interpreter is free while calls wait, and the loop is never held up."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate import AsyncClient, Client, Gate, Limits
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def pace(busy):
    """Return the share of wall time that a counting thread gets."""
    started, ran = time.monotonic(), time.thread_time()
    while busy() and time.monotonic() - started < 0.5:
        pass
    return (time.thread_time() - ran) / (time.monotonic() - started)


def paced(busy):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(pace, busy).result()


def in_flight(gate):
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])


async def test_a_thread_counts_on_while_async_calls_wait():
    alone = paced(lambda: True)
    with FaultServer([{"delay_s": 60}], repeat_last=True) as server:
        gate = Gate(limits=None)
        client = AsyncClient(server.url, "key", gate=gate)
        tasks = [asyncio.ensure_future(client.post("/chat/completions", json=BODY)) for _ in range(200)]
        async with asyncio.timeout(20):
            while in_flight(gate) < 200:  # noqa: ASYNC110 it happens outside the loop
                await asyncio.sleep(0.002)
        beside = await asyncio.to_thread(pace, lambda: True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # The same share, but for what else the machine does meanwhile; without the GIL it would be none.
    assert beside > alone / 4


def test_a_thread_counts_on_while_sync_calls_wait(wait_until):
    alone = paced(lambda: True)
    with FaultServer([{"delay_s": 60}], repeat_last=True) as server:
        gate = Gate(limits=None)
        client = Client(server.url, "key", gate=gate)
        with ThreadPoolExecutor(50) as pool:
            calls = [
                pool.submit(client.post, "/chat/completions", json=BODY, total_timeout=3.0, max_attempts=1)
                for _ in range(50)
            ]
            wait_until(lambda: in_flight(gate) == 50)
            beside = paced(lambda: True)
            assert in_flight(gate) == 50
            server.stop()
            wait_until(lambda: all(call.done() for call in calls))
    assert beside > alone / 4


class Ticker:
    """Ticks every 10 ms on the running loop and remembers the longest gap."""

    def __init__(self):
        self.longest = 0.0
        self.ticks = 0

    async def run(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now
            self.ticks += 1


@pytest.mark.parametrize("threads", [0, 10])
async def test_the_loop_goes_on_while_calls_queue(threads):
    with FaultServer(latency_ms=300) as server:
        gate = Gate(limits=Limits(concurrency=2))
        client, blocking = AsyncClient(server.url, "key", gate=gate), Client(server.url, "key", gate=gate)
        # Pools and threads are made on first use: that is not what is measured.
        await client.post("/chat/completions", json=BODY)
        others = [
            threading.Thread(target=blocking.post, args=("/chat/completions",), kwargs={"json": BODY})
            for _ in range(threads)
        ]
        ticker = Ticker()
        ticking = asyncio.ensure_future(ticker.run())
        for thread in others:
            thread.start()
        calls = [client.post("/chat/completions", json=BODY) for _ in range(10)]
        answers = await asyncio.gather(*calls)
        ticking.cancel()
        await asyncio.to_thread(lambda: [thread.join() for thread in others])
        assert [answer.status for answer in answers] == [200] * 10
        assert server.ledger["requests"]["max_in_flight"] == 2
    # 5 batches at least: it has seen enough. A loop that waits for one of them stands still for longer.
    assert ticker.ticks >= 20
    assert ticker.longest < 0.29
