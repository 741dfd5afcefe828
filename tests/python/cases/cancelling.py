"""Scenarios in which a call is ended from outside while it waits."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import time

import pytest

from cases import adapter, child, points, serving
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
        while server.ledger["requests"]["in_flight"] < point.holders:  # noqa: ASYNC110 the server tells nobody
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
            until(lambda wanted=wanted: in_use(gate) == wanted)
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
        if point.stream:
            headers = {"x-test-call": points.VICTIM}
            list(client.stream("/chat/completions", json=adapter.REQUEST, headers=headers))
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
        yield Check(point, run)


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
