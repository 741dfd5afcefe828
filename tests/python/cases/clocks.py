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

from cases import adapter, child, serving
from cases.case import Check
from cases.expect import unknown, within
from tidegate import AsyncClient, Client, Limits


def two_keys(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_two_keys, content, variant, expect))


def _rate(limit):
    return Limits(rpm=round(limit["rate"] * 60 / limit["period_s"]), headroom=0.0, learn=False)


class _Keys:
    """Calls for two keys, by threads or tasks, that note how long they waited."""

    def __init__(self, url, gate, content):
        self.x = re.fullmatch(r"exhaust (\w+) then wait", content["thread_A"])[1]
        self.y = re.fullmatch(r"acquire (\w+)", content["thread_B"])[1]
        self.later = content["thread_B_at_s"]
        self.blocking = Client(url, adapter.KEY, gate=gate)
        self.asynchronous = AsyncClient(url, adapter.KEY, gate=gate)
        self.waits = {}

    @staticmethod
    def _post(client, model):
        return client.post("/chat/completions", json=adapter.REQUEST | {"model": model})

    def a_in_thread(self):
        self._post(self.blocking, self.x)
        self.waits["A"] = self._post(self.blocking, self.x).info.queue_s

    def b_in_thread(self):
        time.sleep(self.later)
        start = time.monotonic()
        self._post(self.blocking, self.y)
        self.waits["B"] = time.monotonic() - start

    async def a_in_task(self):
        await self._post(self.asynchronous, self.x)
        self.waits["A"] = (await self._post(self.asynchronous, self.x)).info.queue_s

    async def b_in_task(self):
        await asyncio.sleep(self.later)
        start = time.monotonic()
        await self._post(self.asynchronous, self.y)
        self.waits["B"] = time.monotonic() - start

    async def in_tasks(self):
        await asyncio.gather(self.a_in_task(), self.b_in_task())

    def run(self, variant):
        if variant == "async":
            asyncio.run(self.in_tasks())
            return
        mixed = {"threads": self.b_in_thread, "mixed": lambda: asyncio.run(self.b_in_task())}
        threads = [threading.Thread(target=run) for run in (self.a_in_thread, mixed[variant])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _two_keys(content, variant, expect):
    limits = {name: _rate(limit) for name, limit in content["limits"].items()}
    with serving.server() as server:
        keys = _Keys(server.url, adapter.gate({}, limits=limits), content)
        keys.run(variant)
    for name, wanted in expect.items():
        if name == "B_wait_s_max":
            assert keys.waits["B"] <= wanted
        elif name == "A_wait_s":
            within(keys.waits["A"], wanted, "the wait of A")
        else:
            unknown(name, wanted)


_COMPILER = shutil.which("cc")

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
    def lease(client):
        owner = tidegate._core.fingerprint("abandoned", "1", time.monotonic())[:16]
        policy = tidegate.ToolPolicy(effect="idempotent", lease=seconds)
        def tool():
            return None
        print_ = tidegate._core.fingerprint(tool.__qualname__, "1", {})
        begin = tidegate._core.Operation.begin(owner, print_, "idempotent", "tool", seconds, 900.0, True)
        key = f"lease {time.monotonic_ns()}"
        start = time.monotonic()
        assert client.gate._tools.store.answer(key, begin)[0] == "acquired"
        client.gate.once(key, tool, policy=policy)
        return time.monotonic() - start
    def measure(step):
        limits = tidegate.Limits(rpm=round(60 / seconds), headroom=0.0, learn=False)
        policy = tidegate.BreakerPolicy(
            window=1.0, minimum_calls=1, consecutive_hits=1, recency=0, open_for=seconds)
        gate = {
            "limiter": lambda: adapter.gate({"base_backoff_s": 0.01}, limits=limits),
            "backoff": lambda: adapter.gate({"base_backoff_s": 0.01}),
            "breaker": lambda: adapter.gate({"max_attempts": 1}, breaker=policy),
            "lease": lambda: adapter.gate({}),
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
    compiler = None if _COMPILER else "a C compiler is needed to set the clock of a process"
    for told in content["while"]:
        run = functools.partial(_stepped, told, content["steps_s"], expect)
        yield Check(told, run, compiler)


def _stepped(told, steps, expect):
    found = re.fullmatch(
        r"(limiter waiting|backoff of|breaker open|in-process idempotency lease) ([\d.]+) s", told
    )
    if not found:
        unknown("while", told)
    what = "lease" if found[1].endswith("lease") else found[1].split()[0]
    seconds = float(found[2])
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
        command = [_COMPILER, "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, check=True)  # noqa: S603 the compiler that is installed
        environment = {"LD_PRELOAD": str(library)}
        result = child.told(_STEPPED, server.url, what, seconds, json.dumps(steps), env=environment)
    (usual, _), *stepped = result
    assert usual >= seconds * 0.95
    for taken, lowest in stepped:
        # A refill for nothing would end the wait at once.
        assert abs(taken - usual) <= expect["each_duration_change_s_max"]
        assert lowest >= expect["tokens_never_below"]
