"""Scenarios in which many calls leave at random: nothing they held may stay behind."""

from __future__ import annotations

import asyncio
import functools
import random
import time

import pytest

from cases import adapter, serving
from cases.cancelling import in_use, until
from cases.case import Check
from cases.churn import SPARE_SOCKETS
from cases.expect import unknown
from tidegate import AdmissionError, AsyncClient, CallError, Limits


def cancel_churn(content, expect):
    for seed in content["seeds"]:
        yield Check(f"seed{seed}", functools.partial(_churn, content, expect, seed))


def _churn(content, expect, seed):
    generator = random.Random(seed)  # noqa: S311 reproducible

    async def run(client):
        calls = [
            asyncio.create_task(client.post("/chat/completions", json=adapter.REQUEST))
            for _ in range(content["start"])
        ]
        victims = generator.sample(calls, int(len(calls) * content["cancel_fraction"]))
        loop = asyncio.get_running_loop()
        for victim in victims:
            loop.call_later(generator.uniform(*content["cancel_window_s"]), victim.cancel)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert not [result for result in results if isinstance(result, CallError)]
        start = time.monotonic()
        plain = [
            client.post("/chat/completions", json=adapter.REQUEST)
            for _ in range(content["then_plain_requests"])
        ]
        answers = await asyncio.gather(*plain)
        return sum(answer.status == 200 for answer in answers), time.monotonic() - start

    with serving.server(latency_ms=content["server_delay_s"] * 1000) as server:
        gate = adapter.gate({"gate": content["gate"]})
        fine, taken = asyncio.run(run(adapter.client(server.url, gate, "async")))
        for name, wanted in expect.items():
            if name == "plain_ok":
                assert fine == wanted
            elif name == "plain_within_s":
                assert taken <= wanted
            elif name == "gate_in_use":
                until(lambda wanted=wanted: in_use(gate) == wanted)
            elif name == "open_sockets_max":
                most = wanted * (1 + SPARE_SOCKETS)
                until(lambda most=most: server.ledger["connections"]["open"] <= most)
            else:
                unknown(name, wanted)


def gate_cancel_churn(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_gate_churn, content, expect, variant))


async def _leave(client, variant, at):
    call = client.post("/chat/completions", json=adapter.REQUEST)
    if variant == "cancel":
        task = asyncio.create_task(call)
        await asyncio.sleep(at)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif variant == "wait_for timeout":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, at)
    elif variant == "exception in limiter":
        call.close()
        await asyncio.sleep(at)
        with pytest.raises(AdmissionError):
            # Shorter than what is left of the limiter's pause.
            await client.post("/chat/completions", json=adapter.REQUEST, total_timeout=0.01)
    else:
        unknown("variant", variant)


async def _one_seed(content, expect, variant, server, seed):
    """The limiter is busy because the server asked for a pause; calls come and leave before it ends."""
    generator = random.Random(seed)  # noqa: S311 reproducible
    wait = content["limiter_wait_s"]
    gate = adapter.gate({}, limits=Limits(concurrency=content["gate"], learn=False))
    client = AsyncClient(server.url, f"seed-{seed}", gate=gate)
    with pytest.raises(CallError):
        await client.post(
            "/chat/completions", json=adapter.REQUEST, headers={"x-test-call": "busy"}, max_attempts=1
        )
    leaving = [generator.uniform(0, wait) for _ in range(content["starts"])]
    await asyncio.gather(*(_leave(client, variant, at) for at in leaving))
    assert in_use(gate) == expect["gate_in_use_after"]
    then = await asyncio.gather(
        *(
            client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": f"then-{seed}"})
            for _ in range(expect["then_parallel"])
        )
    )
    assert all(answer.status == 200 for answer in then)
    assert in_use(gate) == expect["gate_in_use_after"]


def _gate_churn(content, expect, variant):
    strange = expect.keys() - {"gate_in_use_after", "then_parallel", "third_starts_within_s"}
    if strange:
        unknown("expectations", sorted(strange))
    first, last = (int(number) for number in content["cancel_at_s"].rpartition(" ")[2].split(".."))
    # Longer than any of them stays, also on a machine that is busy: none must get through.
    pause = {"status": 429, "headers": {"Retry-After": str(content["limiter_wait_s"] * 2)}}
    rules = [
        {"match": {"header": {"x-test-call": "busy"}}, "respond": pause},
        {"match": {"header": {"x-test-call": "then-*"}}, "respond": {"delay_s": 0.5}},
    ]

    async def run(server):
        seeds = range(first, last + 1)
        await asyncio.gather(*(_one_seed(content, expect, variant, server, seed) for seed in seeds))

    with serving.server(rules=rules) as server:
        asyncio.run(run(server))
        arrivals = {}
        for entry in server.ledger["entries"]:
            arrivals.setdefault(entry["headers"].get("x-test-call"), []).append(entry["arrived_s"])
        for name, times in arrivals.items():
            if name and name.startswith("then-"):
                assert max(times) - min(times) <= expect["third_starts_within_s"]
