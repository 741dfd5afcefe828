"""One contender in a process of its own: ``contenders.py NAME URL CALLS IN_FLIGHT WARM_UP`` prints JSON."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

Call = "Callable[[], Awaitable[str]]"
TEXT = "All systems work as expected"


async def tidegate_on(url: str) -> AsyncIterator[Call]:
    """`tidegate.AsyncClient`, every gate configured."""
    async for call in _tidegate(url, on=True):
        yield call


async def tidegate_off(url: str) -> AsyncIterator[Call]:
    """`tidegate.AsyncClient`, every gate off."""
    async for call in _tidegate(url, on=False):
        yield call


async def _tidegate(url: str, *, on: bool) -> AsyncIterator[Call]:
    import tidegate

    async with tidegate.AsyncClient(url, chat.KEY, gate=chat.gate(on=on)) as client:

        async def call() -> str:
            answer = await client.post("/chat/completions", json=chat.REQUEST)
            return answer.json()["choices"][0]["message"]["content"]

        yield call


async def drop_in(url: str) -> AsyncIterator[Call]:
    """`tidegate.AsyncOpenAI`, every gate configured."""
    import tidegate

    async with tidegate.AsyncOpenAI(base_url=url, api_key=chat.KEY, gate=chat.gate(on=True)) as client:

        async def call() -> str:
            answer = await client.chat.completions.create(**chat.REQUEST)
            return answer.choices[0].message.content or ""

        yield call


async def pyreqwest(url: str) -> AsyncIterator[Call]:
    """pyreqwest: reqwest in Python, no gates."""
    from datetime import timedelta

    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().timeout(timedelta(seconds=600)).max_connections(20_000)
    builder = builder.http1_only().default_headers({"authorization": f"Bearer {chat.KEY}"})
    target = f"{url}/chat/completions"
    async with builder.build() as client:

        async def call() -> str:
            answer = await client.post(target).body_json(chat.REQUEST).build().send()
            return (await answer.json())["choices"][0]["message"]["content"]

        yield call


async def aiohttp(url: str) -> AsyncIterator[Call]:
    """Bare aiohttp with orjson, no gates."""
    import aiohttp as library
    import orjson

    target = f"{url}/chat/completions"
    headers = {"authorization": f"Bearer {chat.KEY}", "content-type": "application/json"}
    connector = library.TCPConnector(limit=0)
    async with library.ClientSession(connector=connector, headers=headers) as session:

        async def call() -> str:
            async with session.post(target, data=orjson.dumps(chat.REQUEST)) as answer:
                answer.raise_for_status()
                return orjson.loads(await answer.read())["choices"][0]["message"]["content"]

        yield call


async def openai(url: str) -> AsyncIterator[Call]:
    """The official client, as it comes."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=chat.KEY) as client:

        async def call() -> str:
            answer = await client.chat.completions.create(**chat.REQUEST)
            return answer.choices[0].message.content or ""

        yield call


async def drop_in_streamed(url: str) -> AsyncIterator[Call]:
    """`tidegate.AsyncOpenAI`, every gate configured, answers read chunk by chunk."""
    import tidegate

    async with tidegate.AsyncOpenAI(base_url=url, api_key=chat.KEY, gate=chat.gate(on=True)) as client:
        yield _streamed(client)


async def openai_streamed(url: str) -> AsyncIterator[Call]:
    """The official client, as it comes, answers read chunk by chunk."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=chat.KEY) as client:
        yield _streamed(client)


def _streamed(client: Any) -> Call:
    async def call() -> str:
        chunks = await client.chat.completions.create(**chat.REQUEST, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    return call


ASYNC = {
    function.__name__: function
    for function in (
        tidegate_on,
        tidegate_off,
        drop_in,
        pyreqwest,
        aiohttp,
        openai,
        drop_in_streamed,
        openai_streamed,
    )
}


@contextmanager
def tidegate_sync(url: str) -> Iterator[Callable[[], str]]:
    """`tidegate.Client`, every gate configured."""
    import tidegate

    with tidegate.Client(url, chat.KEY, gate=chat.gate(on=True)) as client:

        def call() -> str:
            answer = client.post("/chat/completions", json=chat.REQUEST)
            return answer.json()["choices"][0]["message"]["content"]  # type: ignore[no-any-return]

        yield call


@contextmanager
def drop_in_sync(url: str) -> Iterator[Callable[[], str]]:
    """`tidegate.OpenAI`, every gate configured."""
    import tidegate

    with tidegate.OpenAI(base_url=url, api_key=chat.KEY, gate=chat.gate(on=True)) as client:
        yield _completed(client)


@contextmanager
def openai_sync(url: str) -> Iterator[Callable[[], str]]:
    """The official client, as it comes."""
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=chat.KEY) as client:
        yield _completed(client)


def _completed(client: Any) -> Callable[[], str]:
    return lambda: client.chat.completions.create(**chat.REQUEST).choices[0].message.content or ""


THREADED = {function.__name__: function for function in (tidegate_sync, drop_in_sync, openai_sync)}


async def run_async(name: str, url: str, calls: int, in_flight: int, warm_up: int) -> dict[str, Any]:
    """Measure a contender that awaits."""

    async def worker(call: Callable[[], Awaitable[str]], numbers: Iterator[int]) -> list[float]:
        latencies = []
        for _ in numbers:
            start = time.perf_counter()
            text = await call()
            latencies.append(time.perf_counter() - start)
            _check(text)
        return latencies

    async def drive(call: Callable[[], Awaitable[str]], calls: int) -> list[list[float]]:
        numbers = iter(range(calls))
        return await asyncio.gather(*(worker(call, numbers) for _ in range(in_flight)))

    async for call in ASYNC[name](url):
        await drive(call, warm_up)
        before, start = cpu_s(), time.perf_counter()
        latencies = await drive(call, calls)
        return _measured(before, start, latencies)
    raise AssertionError(name)


def run_threads(name: str, url: str, calls: int, threads: int, warm_up: int) -> dict[str, Any]:
    """Measure a contender in threads that block."""

    def worker(call: Callable[[], str], calls: int, latencies: list[float]) -> None:
        for _ in range(calls):
            start = time.perf_counter()
            text = call()
            latencies.append(time.perf_counter() - start)
            _check(text)

    def drive(call: Callable[[], str], calls: int) -> list[list[float]]:
        latencies: list[list[float]] = [[] for _ in range(threads)]
        workers = [threading.Thread(target=worker, args=(call, calls // threads, each)) for each in latencies]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        return latencies

    with THREADED[name](url) as call:
        drive(call, warm_up)
        before, start = cpu_s(), time.perf_counter()
        return _measured(before, start, drive(call, calls))


def cpu_s() -> float:
    """Return the CPU time of this process so far, user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _measured(cpu_before: float, start: float, latencies: list[list[float]]) -> dict[str, Any]:
    wall, cpu = time.perf_counter() - start, cpu_s() - cpu_before
    return {"cpu_s": cpu, "wall_s": wall, "latencies_s": [each for some in latencies for each in some]}


def _check(text: str) -> None:
    if not text.startswith(TEXT):
        raise AssertionError(f"not the server's answer: {text!r}")


def main() -> None:
    """Measure the contender that the command line names."""
    name, url, *counts = sys.argv[1:]
    calls, in_flight, warm_up = map(int, counts)
    if name in THREADED:
        result = run_threads(name, url, calls, in_flight, warm_up)
    else:
        result = asyncio.run(run_async(name, url, calls, in_flight, warm_up))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
