"""Scenario `client_churn`: clients by the thousand, and one for everybody."""

from __future__ import annotations

import asyncio
import functools

from cases import adapter, child, serving
from cases.case import Check
from cases.expect import unknown
from tidegate import AsyncClient, CallError

# The HTTP library starts to connect while it waits for a connection to come free, and keeps both. So many
# more sockets than calls in flight, as a share, are put down to that.
SPARE_SOCKETS = 0.2

_CHURN = """
    import asyncio, gc, json, os, sys, time
    import tidegate
    url, kind, end = sys.argv[1], *sys.argv[4:6]
    clients, warmup = map(int, sys.argv[2:4])
    ask = {"model": "m", "messages": []}
    def state():
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return {
            "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            "threads": len(os.listdir("/proc/self/task")),
            "fds": len(os.listdir("/proc/self/fd")),
        }
    def use():
        client = tidegate.Client(url, "key")
        client.post("/chat/completions", json=ask)
        if end == "closed":
            client.close()
    async def use_async():
        client = tidegate.AsyncClient(url, "key")
        await client.post("/chat/completions", json=ask)
        if end == "closed":
            await client.aclose()
    async def many(count):
        for _ in range(count):
            await use_async()
    def run(count):
        if kind == "async":
            asyncio.run(many(count))
        else:
            for _ in range(count):
                use()
    run(warmup)
    before = state()
    run(clients - warmup)
    print(json.dumps([before, state()]))
"""


def client_churn(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_churn, content, variant, expect))
    yield Check("shared", functools.partial(_shared, content["shared"], expect))
    known = {"rss_growth_mb_max", "threads", "fds", "shared_errors", "shared_max_sockets"}
    if expect.keys() - known:
        yield Check("understood", functools.partial(unknown, "expectations", sorted(expect.keys() - known)))


def _churn(content, variant, expect):
    kind, end = variant.split()
    with serving.server(ledger={"record_bodies": False}) as server:
        before, after = child.told(_CHURN, server.url, content["clients"], content["warmup"], kind, end)
    assert after["rss_mb"] - before["rss_mb"] <= expect["rss_growth_mb_max"]
    for name in ("threads", "fds"):
        assert expect[name] == "baseline"
        assert after[name] <= before[name], name


def _shared(shared, expect):
    async def run(url):
        gate = adapter.gate({"gate": shared["gate"]})
        client = AsyncClient(url, adapter.KEY, gate=gate)
        calls = (client.post("/chat/completions", json=adapter.REQUEST) for _ in range(shared["concurrency"]))
        return await asyncio.gather(*calls, return_exceptions=True)

    with serving.server(latency_ms=shared["upstream_delay_s"] * 1000) as server:
        results = asyncio.run(run(server.url))
        most = server.ledger["connections"]["max_open"]
    assert sum(isinstance(result, CallError) for result in results) == expect["shared_errors"]
    assert all(result.status == 200 for result in results)
    assert server.ledger["requests"]["max_in_flight"] <= expect["shared_max_sockets"]
    assert most <= expect["shared_max_sockets"] * (1 + SPARE_SOCKETS)
