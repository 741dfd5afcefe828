"""Scenarios in which a call is ended from outside while it waits."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import random
import time

import pytest
from tidegate import AdmissionError, AsyncClient, CallError, Limits

from cases import adapter, child, pending, points, serving
from cases.case import Check
from cases.expect import unknown

# For how long a server is watched for requests that must not come.
_WATCH_S = 0.3
_SETTLE_S = 5.0


def in_use(gate):
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])


def until(condition, within=_SETTLE_S):
    """Wait until `condition` holds; fail if it does not within so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


def cancel_and_count(content, expect):
    for point in content["points"]:
        for mode in content["modes"]:
            skipped = None
            if mode == "anyio_scope" and importlib.util.find_spec("anyio") is None:
                skipped = "anyio is not installed"
            run = _interrupt_and_count if mode == "KeyboardInterrupt_sync" else _cancel_and_count
            check = functools.partial(run, point, mode, content["cancel_after_s"], expect)
            yield Check(f"{point['at']}-{mode}", check, skipped)


async def _task_cancel(call, after):
    task = asyncio.create_task(call)
    await asyncio.sleep(after)
    asked = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - asked


async def _wait_for(call, after):
    asked = time.monotonic() + after
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, after)
    return time.monotonic() - asked


async def _timeout(call, after):
    asked = time.monotonic() + after
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after):
            await call
    return time.monotonic() - asked


async def _anyio_scope(call, after):
    import anyio

    asked = time.monotonic() + after
    with anyio.move_on_after(after) as scope:
        await call
    assert scope.cancelled_caught
    return time.monotonic() - asked


_MODES = {
    "task.cancel": _task_cancel,
    "asyncio.wait_for": _wait_for,
    "asyncio.timeout": _timeout,
    "anyio_scope": _anyio_scope,
}


def _cancel_and_count(told, mode, after, expect):
    point = points.named(told)

    async def run(server):
        client = adapter.client(server.url, adapter.gate(point.settings), "async")

        def post(name):
            return client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": name})

        for _ in range(point.prefill):
            await post("prefill")
        holders = [asyncio.create_task(post(points.HOLDER)) for _ in range(point.holders)]
        while server.ledger["requests"]["in_flight"] < point.holders:
            await asyncio.sleep(0.005)
        late = await _MODES[mode](post(points.VICTIM), after)
        seen = server.ledger["requests"]["total"]
        await asyncio.sleep(_WATCH_S)
        more = server.ledger["requests"]["total"] - seen
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
        return late, more, client.gate

    with serving.server(rules=point.rules) as server:
        late, more, gate = asyncio.run(run(server))
        _hold_ended(late, more, gate, expect)


def _hold_ended(late, more, gate, expect):
    for name, wanted in expect.items():
        if name == "ends_within_s":
            assert late <= wanted
        elif name == "requests_after_cancel":
            assert more == wanted
        elif name == "gate_in_use_after":
            until(lambda: in_use(gate) == wanted)
        elif name != "raises":
            # What is raised depends on the mode, and is checked there.
            unknown(name, wanted)


_INTERRUPTED = """
    import json, os, signal, sys, threading, time
    from cases import adapter, points
    url, told, after = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    point = points.named(told)
    gate = adapter.gate(point.settings)
    client = adapter.client(url, gate)
    def post(name, model="test-model"):
        ask = adapter.REQUEST | {"model": model}
        return client.post("/chat/completions", json=ask, headers={"x-test-call": name})
    def in_use():
        return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])
    for _ in range(point.prefill):
        post("prefill")
    for _ in range(point.holders):
        threading.Thread(target=post, args=(points.HOLDER,), daemon=True).start()
    while in_use() < point.holders:
        time.sleep(0.005)
    asked = []
    def interrupt():
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(after, interrupt).start()
    raised = "nothing"
    try:
        post(points.VICTIM)
    except BaseException as error:
        raised = type(error).__name__
    late = time.monotonic() - asked[0]
    deadline = time.monotonic() + 5
    while in_use() > point.holders and time.monotonic() < deadline:
        time.sleep(0.005)
    # What the interrupted call waited for may go on for long: the next one has another scope.
    status = post("next", "another-model").status
    print(json.dumps({"raised": raised, "late": late, "status": status, "in_use": in_use() - point.holders}))
"""


def _interrupt(told, after):
    """Return what became of a sync call that was interrupted, and how many requests it made."""
    with serving.server(rules=points.named(told).rules) as server:
        result = child.told(_INTERRUPTED, server.url, json.dumps(told), after)
        sent = [entry["headers"].get("x-test-call") for entry in server.ledger["entries"]]
        return result, sent.count(points.VICTIM)


def _interrupt_and_count(told, mode, after, expect):
    result, sent = _interrupt(told, after)
    assert result["raised"] == "KeyboardInterrupt", mode
    assert sent == (1 if told["at"] in {"request", "backoff_sleep"} else 0)
    assert result["late"] <= expect["ends_within_s"]
    assert result["in_use"] == expect["gate_in_use_after"]


def sigint_sync(content, expect):
    for point in content["points"]:
        run = functools.partial(_sigint, point, content["sigint_after_s"], expect)
        yield Check(point, run, pending.variant(point))


def _sigint(point, after, expect):
    result, _ = _interrupt(point, after)
    for name, wanted in expect.items():
        if name == "raises":
            assert result["raised"] == wanted
        elif name == "within_s":
            assert result["late"] <= wanted
        elif name == "next_call":
            assert (result["status"] == 200) is (wanted == "ok")
        elif name == "gate_in_use":
            assert result["in_use"] == wanted
        else:
            unknown(name, wanted)


def cancel_churn(content, expect):
    for seed in content["seeds"]:
        yield Check(f"seed{seed}", functools.partial(_churn, content, expect, seed))


def _churn(content, expect, seed):
    generator = random.Random(seed)

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
                until(lambda wanted=wanted: server.ledger["connections"]["open"] <= wanted)
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
    generator = random.Random(seed)
    wait = content["limiter_wait_s"]
    gate = adapter.gate({}, limits=Limits(concurrency=content["gate"], learn=False))
    client = AsyncClient(server.url, f"seed-{seed}", gate=gate)
    with pytest.raises(CallError):
        await client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": "busy"}, max_attempts=1)
    # The last ones leave a little before the pause ends, so that none of them gets through.
    leaving = [generator.uniform(0, wait * 0.9) for _ in range(content["starts"])]
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
    pause = {"status": 429, "headers": {"Retry-After": str(content["limiter_wait_s"])}}
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
