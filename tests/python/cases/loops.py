"""Scenarios about event loops: one after another, not blocked, and each task's own context."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import time

from cases import adapter, child, serving, stores
from cases.case import Check
from cases.expect import unknown
from tidegate import AsyncClient, Client, ToolPolicy

_RUNS = """
    import asyncio, gc, sys
    import tidegate
    url, runs, variant, same = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
    shared = tidegate.AsyncClient(url, "key")
    async def main():
        client = shared if same else tidegate.AsyncClient(url, "key")
        answer = await client.post("/chat/completions", json={"model": "m", "messages": []})
        assert answer.status == 200
        if variant == "stream read half":
            stream = await client.stream("/chat/completions", json={"model": "m", "messages": []})
            await anext(stream)
            return
        if variant != "client never closed":
            return
        # Dropped without a word, its connections open.
        tidegate.AsyncClient(url, "other-key")
    for _ in range(runs):
        asyncio.run(main())
        gc.collect()
"""


def repeat_asyncio_run(content, expect):
    for variant in content["variants"]:
        run = functools.partial(_repeat, content, variant, expect)
        yield Check(variant.split(",")[0], run)


def _repeat(content, variant, expect):
    with serving.server() as server:
        ran = child.run(
            _RUNS,
            server.url,
            content["runs"],
            variant.split(",")[0],
            content["same_client"],
            env=content["env"],
        )
        asked = server.ledger["requests"]["total"]
        if variant == "stream read half":
            # A stream is opened beside each call.
            assert server.ledger["requests"]["streams"] == content["runs"]
            asked -= content["runs"]
    for name, wanted in expect.items():
        if name == "all_ok":
            assert (asked == content["runs"]) is wanted
        elif name == "stderr_must_not_contain":
            assert not [text for text in wanted if text in ran.stderr]
            assert "Warning" not in ran.stderr
        else:
            unknown(name, wanted)


_value = contextvars.ContextVar("value", default="nobody's")


class _Seen(logging.Filter):
    """Notes whose context each record of the client was made in."""

    def __init__(self):
        super().__init__()
        self.by_trace = {}

    def filter(self, record):
        self.by_trace.setdefault(record.trace_id, []).append((record.event, _value.get()))
        return True


def contexts(content, expect):
    for hook in content["hooks"]:
        skipped = None if hook == "log record filter" else f"there is no hook {hook}: logs tell of calls"
        yield Check(f"{hook}-async", functools.partial(_contexts, content, expect, _in_tasks), skipped)
    for also in content.get("also", ()):
        if also == "sync threads with copy_context":
            yield Check(also, functools.partial(_contexts, content, expect, _in_threads))
        else:
            yield Check(also, skipped="there are no hooks: logs tell of calls")


def _in_tasks(url, gate, count):
    async def call(client, number):
        _value.set(f"task {number}")
        call = client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": f"{number}"})
        return (await call).info.trace_id

    async def main():
        client = AsyncClient(url, adapter.KEY, gate=gate)
        return await asyncio.gather(*(call(client, number) for number in range(count)))

    return asyncio.run(main())


def _in_threads(url, gate, count):
    client = Client(url, adapter.KEY, gate=gate)
    traces = [""] * count

    def call(number):
        _value.set(f"task {number}")
        headers = {"x-test-call": f"{number}"}
        answer = client.post("/chat/completions", json=adapter.REQUEST, headers=headers)
        traces[number] = answer.info.trace_id

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(call, number))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return traces


def _contexts(content, expect, make):
    count = content["tasks"]
    rules = [
        {"match": {"header": {"x-test-call": f"{number}"}}, "respond": content["responses"]}
        for number in range(count)
    ]
    logger, seen = logging.getLogger("tidegate"), _Seen()
    level = logger.level
    logger.addFilter(seen)
    logger.setLevel(logging.DEBUG)
    try:
        with serving.server(rules=rules) as server:
            traces = make(server.url, adapter.gate(), count)
    finally:
        logger.removeFilter(seen)
        logger.setLevel(level)
    assert set(seen.by_trace) == set(traces)
    for name, wanted in expect.items():
        if name == "each_hook_sees":
            assert wanted == "value of its own task"
            for number, trace in enumerate(traces):
                events = [event for event, _ in seen.by_trace[trace]]
                assert "retry" in events
                assert "call" in events
                assert {value for _, value in seen.by_trace[trace]} == {f"task {number}"}
        elif name != "mixed_values":
            # Mixed values would show in the above.
            unknown(name, wanted)


class _Sleepy(logging.Handler):
    def emit(self, record):  # noqa: ARG002 logging calls it so
        time.sleep(0.05)


def ticker(content, expect):
    for variant in content["variants"]:
        run = functools.partial(_ticker, content, variant, expect)
        yield Check(variant, run)


def _ticker(content, variant, expect):
    strange = expect.keys() - {"ticker_gap_ms_max", "all_ok"}
    if strange:
        unknown("expectations", sorted(strange))
    with stores.store("sqlite" if variant.startswith("sqlite") else "memory") as (url, _):
        _tick_beside(content, variant, expect, adapter.gate({"gate": content["gate"]}, store=url))


def _tick_beside(content, variant, expect, gate):
    logger, sleepy = logging.getLogger("tidegate"), _Sleepy()
    if variant.startswith("log handler that sleeps"):
        logger.addHandler(sleepy)
    elif variant not in {"async only", "sync threads + async share gate and limiter", "sqlite store in use"}:
        unknown("variant", variant)
    try:
        with serving.server(latency_ms=content["upstream_delay_s"] * 1000) as server:
            fine, gap = asyncio.run(_tick(server.url, gate, content, threads=variant.startswith("sync")))
    finally:
        logger.removeHandler(sleepy)
    assert fine == expect["all_ok"]
    assert gap * 1000 <= expect["ticker_gap_ms_max"]


async def _tick(url, gate, content, *, threads):
    """Make the calls beside a ticker; return how many were answered, and the ticker's largest gap."""
    client, blocking = AsyncClient(url, adapter.KEY, gate=gate), Client(url, adapter.KEY, gate=gate)
    gaps = []

    async def tick():
        last = time.monotonic()
        while True:
            await asyncio.sleep(content["ticker_period_ms"] / 1000)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    in_threads = content["calls"] // 2 if threads else 0
    calls = [
        asyncio.to_thread(blocking.post, "/chat/completions", json=adapter.REQUEST) for _ in range(in_threads)
    ]

    async def call(number):
        return await client.post("/chat/completions", json=adapter.REQUEST | {"seed": number})

    # Each under a key of its own: the store is written to before and after it.
    policy = ToolPolicy(effect="read")
    calls += [
        gate.once(f"call {number}", call, number, policy=policy)
        for number in range(content["calls"] - in_threads)
    ]
    answers = await asyncio.gather(*calls)
    ticking.cancel()
    return sum(answer.status == 200 for answer in answers), max(gaps)
