"""Scenarios about waits: of one key beside another, and under a wall clock that is set anew."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from tidegate import AsyncClient, Client, Limits

from cases import adapter, child, pending, serving
from cases.case import Check
from cases.expect import unknown, within


def two_keys(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_two_keys, content, variant, expect))


def _rate(limit):
    return Limits(rpm=round(limit["rate"] * 60 / limit["period_s"]), headroom=0.0, learn=False)


def _two_keys(content, variant, expect):
    assert content["thread_A"] == "exhaust X then wait"
    assert content["thread_B"] == "acquire Y"
    limits = {name: _rate(limit) for name, limit in content["limits"].items()}
    waits = {}
    with serving.server() as server:
        gate = adapter.gate({}, limits=limits)
        blocking = Client(server.url, adapter.KEY, gate=gate)
        asynchronous = AsyncClient(server.url, adapter.KEY, gate=gate)

        def post(client, model):
            return client.post("/chat/completions", json=adapter.REQUEST | {"model": model})

        def a_in_thread():
            post(blocking, "X")
            waits["A"] = post(blocking, "X").info.queue_s

        async def a_in_task():
            await post(asynchronous, "X")
            waits["A"] = (await post(asynchronous, "X")).info.queue_s

        async def b_in_task():
            await asyncio.sleep(content["thread_B_at_s"])
            start = time.monotonic()
            await post(asynchronous, "Y")
            waits["B"] = time.monotonic() - start

        def b_in_thread():
            time.sleep(content["thread_B_at_s"])
            start = time.monotonic()
            post(blocking, "Y")
            waits["B"] = time.monotonic() - start

        async def both():
            await asyncio.gather(a_in_task(), b_in_task())

        if variant == "async":
            asyncio.run(both())
        else:
            other = b_in_thread if variant == "threads" else lambda: asyncio.run(b_in_task())
            threads = [threading.Thread(target=run) for run in (a_in_thread, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    for name, wanted in expect.items():
        if name == "B_wait_s_max":
            assert waits["B"] <= wanted
        elif name == "A_wait_s":
            within(waits["A"], wanted, "the wait of A")
        else:
            unknown(name, wanted)


# Shifts the wall clock of one process and leaves its monotonic clock alone.
_STEPPER = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long shift;
void step_wall_clock(long seconds) { shift += seconds; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += shift;
    return failed;
}
"""

_STEPPED = """
    import ctypes, json, sys, threading, time
    import tidegate
    from cases import adapter
    what, seconds, steps = sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4])
    library = ctypes.CDLL(None)
    def limiter(client):
        client.post("/chat/completions", json=adapter.REQUEST)
        client.post("/chat/completions", json=adapter.REQUEST)
    def backoff(client):
        client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": "busy"})
    def breaker(client):
        def state():
            try:
                client.post("/chat/completions", json=adapter.REQUEST, headers={"x-test-call": "down"})
            except tidegate.CircuitOpenError:
                return "open"
            except tidegate.InternalServerError:
                return "closed"
        while state() == "closed":
            time.sleep(0.002)
        start = time.monotonic()
        while state() == "open":
            time.sleep(0.002)
        return time.monotonic() - start
    def measure(step):
        limits = tidegate.Limits(rpm=round(60 / seconds), headroom=0.0, learn=False)
        policy = tidegate.BreakerPolicy(
            window=1.0, minimum_calls=1, consecutive_hits=1, recency=0, open_for=seconds)
        gate = {
            "limiter": lambda: adapter.gate({"base_backoff_s": 0.01}, limits=limits),
            "backoff": lambda: adapter.gate({"base_backoff_s": 0.01}),
            "breaker": lambda: adapter.gate({"max_attempts": 1}, breaker=policy),
        }[what]()
        client = tidegate.Client(sys.argv[1], "key", gate=gate)
        before, start = time.time() - time.monotonic(), time.monotonic()
        timer = threading.Timer(seconds / 2, library.step_wall_clock, (step,))
        timer.start()
        taken = globals()[what](client) or time.monotonic() - start
        timer.join()
        stepped = time.time() - time.monotonic() - before
        assert abs(stepped - step) < 0.5, stepped
        levels = [scope[name]["level"] for scope in gate.snapshot()["scopes"]
                  for name in ("requests", "tokens") if scope[name]]
        return taken, min(levels, default=0.0)
    print(json.dumps([measure(step) for step in [0, *steps]]))
"""


def wall_clock_step(content, expect):
    strange = expect.keys() - {"each_duration_change_s_max", "tokens_never_below", "no_free_refill"}
    if strange:
        yield Check("understood", functools.partial(unknown, "expectations", sorted(strange)))
    compiler = None if shutil.which("cc") else "a C compiler is needed to set a process's clock"
    for told in content["while"]:
        run = functools.partial(_stepped, told, content["steps_s"], expect)
        yield Check(told, run, pending.variant(told) or compiler)


def _stepped(told, steps, expect):
    found = re.fullmatch(r"(limiter waiting|backoff of|breaker open) ([\d.]+) s", told)
    if not found:
        unknown("while", told)
    what, seconds = found[1].split()[0], float(found[2])
    rules = [
        {
            "match": {"header": {"x-test-call": "busy"}, "every": 2},
            "respond": {"content": "pong"},
        },
        {
            "match": {"header": {"x-test-call": "busy"}},
            "respond": {"status": 503, "headers": {"Retry-After": str(seconds)}},
        },
        {"match": {"header": {"x-test-call": "down"}}, "respond": {"status": 500}},
    ]
    with serving.server(rules=rules) as server, tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "stepper.c", Path(name) / "stepper.so"
        source.write_text(_STEPPER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        environment = {"LD_PRELOAD": str(library)}
        result = child.told(_STEPPED, server.url, what, seconds, json.dumps(steps), env=environment)
    (usual, _), *stepped = result
    assert usual >= seconds * 0.95
    for taken, lowest in stepped:
        # A refill for nothing would end the wait at once.
        assert abs(taken - usual) <= expect["each_duration_change_s_max"]
        assert lowest >= expect["tokens_never_below"]
