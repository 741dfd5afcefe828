"""Kind `idem_sim`: calls of a tool under one key, by steps in prose.

A story is known by its steps. The tool's effect class is the one that the story assumes: where an owner that
is gone is replaced, the effect may repeat; else it is the default, at most once.
"""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import idem_workers
from cases import child, stores
from cases.case import Check
from cases.expect import unknown
from tidegate import (
    Gate,
    IdempotencyConflictError,
    IdempotencyMismatchError,
    OutcomeUnknownError,
    StoreUnavailableError,
    ToolPolicy,
    _core,
)


def checks(case):
    content, expect = case.content, case.expect
    stories = [*_main(content), *_variants(content)]
    for store in content["stores"]:
        for name, story in stories:
            yield Check(f"{store}-{name}", functools.partial(_play, store, story, content, expect))


def _play(store, story, content, expect):
    with stores.store(store) as (url, server):
        story(Scene(url, server, content, expect))


def _main(content):
    steps = " / ".join(content.get("steps", []))
    if not steps:
        return
    for pattern, name, story in (
        (r"P1: begin K, SIGKILL.* P2 call K.* P3 and P4 call K at once", "crashed_owner", _crashed_owner),
        (
            r"call key=K args=\{amount:10\} -> r1 / call key=K args=\{amount:11\} / restart",
            "payload",
            _payload,
        ),
        (r"t=0: P1 call K / t=[\d.]+: P2 call K", "lease", _lease),
    ):
        if re.match(pattern, steps):
            yield name, story
            return
    yield "steps", functools.partial(_strange, steps)


def _variants(content):
    known = {
        "variant_in_progress": _payload_in_progress,
        "variant_stopped": _paused,
    }
    for name in content:
        if name.startswith("variant_"):
            yield name, known.get(name, functools.partial(_strange, name))
    named = {
        "model_retry": _model_retry,
        "tool_raises_after_effect": _raises_after_effect,
        "tool_times_out": _times_out,
        "two_workers": _two_workers,
        "down_before": _down_before,
        "lost_after_tool": _lost_after_tool,
        "flush": _flush,
        "opt_in_open": _opt_in_open,
    }
    for variant in content.get("variants", []):
        yield variant["name"], named.get(variant["name"], functools.partial(_strange, variant["name"]))
    if "monitor" in content:
        yield "monitor", _every_key_has_a_ttl


def _strange(what, *_):
    unknown("story", what)


@dataclass(frozen=True)
class Scene:
    """Where a story plays: the store with its server, and the case."""

    url: str
    server: Any
    content: dict[str, Any]
    expect: dict[str, Any]


class Tool:
    """Counts how often it runs."""

    def __init__(self):
        self.runs = 0

    def __call__(self, amount=10):
        self.runs += 1
        return f"r{self.runs} of {amount}"


def _process(*arguments):
    path = child.os.pathsep.join(map(str, child._PATHS))
    return subprocess.Popen(  # noqa: S603 this interpreter
        [sys.executable, Path(idem_workers.__file__), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**child.os.environ, "PYTHONPATH": path},
    )


def _told(process):
    return json.loads(process.communicate(timeout=60)[0].strip().splitlines()[-1])


def _crashed_owner(scene):
    """An owner that died keeps others out until its lease ends, and then one of two takes over."""
    lease = scene.content["lease_s"]
    gate, tool = Gate(store=scene.url), Tool()
    policy = ToolPolicy(effect="idempotent", lease=lease, on_conflict="error")
    begun = time.monotonic()
    fingerprint = _core.fingerprint("Tool", "1", {})
    operation = _core.Operation.begin(b"0" * 16, fingerprint, "idempotent", "Tool", lease, 900.0, True)
    if gate._tools.store.answer("K", operation) is None:
        gate._tools.store.call("K", operation, 5.0)
    assert scene.expect["t=1"].startswith("InProgress")
    with pytest.raises(IdempotencyConflictError):
        gate.once("K", tool, policy=policy)
    assert time.monotonic() - begun < lease
    idem_workers.patiently(lambda: time.monotonic() - begun > lease + 0.1)
    results = []

    def call():
        waiting = ToolPolicy(effect="idempotent", lease=lease)
        results.append(gate.once("K", tool, policy=waiting))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [results[0]] * 2
    assert tool.runs == scene.expect["tool_runs_total_completed"]


def _payload(scene):
    tool = Tool()
    first = Gate(store=scene.url)
    result = first.once("K", tool, amount=10)
    with pytest.raises(IdempotencyMismatchError):
        first.once("K", tool, amount=11)
    # A new gate has nothing in memory, as after a restart; a memory store ends with its process.
    again = first if scene.url == "memory:" else Gate(store=scene.url)
    with pytest.raises(IdempotencyMismatchError):
        again.once("K", tool, amount=11)
    assert again.once("K", tool, 10) == result
    assert tool.runs == scene.expect["tool_runs"]


def _payload_in_progress(scene):
    gate, started, go = Gate(store=scene.url), threading.Event(), threading.Event()
    runs = []

    def tool(amount):
        runs.append(amount)
        started.set()
        go.wait()

    thread = threading.Thread(target=gate.once, args=("K", tool, 10))
    thread.start()
    started.wait()
    with pytest.raises(IdempotencyMismatchError):
        gate.once("K", tool, 11)
    go.set()
    thread.join()
    assert len(runs) == scene.expect["tool_runs"]


def _lease(scene):
    gate, runs, started = Gate(store=scene.url), [], threading.Event()
    policy = ToolPolicy(lease=scene.content["lease_s"])

    def tool():
        runs.append(1)
        started.set()
        time.sleep(scene.content["tool_s"])  # the work
        return "r1"

    thread = threading.Thread(target=gate.once, args=("K", tool), kwargs={"policy": policy})
    begun = time.monotonic()
    thread.start()
    started.wait()
    idem_workers.patiently(lambda: time.monotonic() - begun > scene.content["lease_s"] * 1.5)
    assert gate.once("K", tool, policy=policy) == "r1"
    thread.join()
    assert len(runs) == scene.expect["main"]["tool_runs"]


def _paused(scene):
    if scene.url == "memory:":
        pytest.skip("memory: one process, which is paused as a whole")
    lease = scene.content["lease_s"]
    with stores.tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "effects"
        first = _process("stopped", scene.url, "K", path, lease, "idempotent")
        assert first.stdout.readline() == "started\n"
        first.send_signal(signal.SIGSTOP)
        second = _process("stopped", scene.url, "K", path, lease, "idempotent")
        second.stdin.write("go\n")
        second.stdin.flush()
        by_second = _told(second)["result"]
        first.stdin.write("go\n")
        first.stdin.flush()
        first.send_signal(signal.SIGCONT)
        late = _told(first)
        third = _told(_process("stopped", scene.url, "K", path, lease, "idempotent"))
    assert scene.expect["variant_stopped"]["P3"] == "r2"
    assert by_second == third["result"] == second.pid
    assert late["stale"], "the late owner is told of"


def _model_retry(scene):
    gate, runs, asked = Gate(store=scene.url), [], []

    @gate.tool
    def pay(amount):
        runs.append(amount)
        return f"receipt {len(runs)}"

    def model():
        asked.append(1)
        return {"id": f"call_{len(asked)}", "amount": 1}

    results = []
    for fails in (True, False):
        with gate.journal("t1") as journal:
            results.append(pay(journal.ask(model)["amount"]))
            if fails:
                continue
    assert results == ["receipt 1"] * 2
    assert len(runs) == scene.expect["model_retry"]["tool_runs"]


def _raises_after_effect(scene):
    gate, runs = Gate(store=scene.url), []

    def tool():
        runs.append(1)
        raise ConnectionError("after the effect")

    with pytest.raises(ConnectionError):
        gate.once("K", tool)
    with pytest.raises(OutcomeUnknownError):
        gate.once("K", tool)
    assert len(runs) == 1


def _times_out(scene):
    gate, runs, go = Gate(store=scene.url), [], threading.Event()

    def tool():
        runs.append(1)
        go.wait()

    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            gate.once("K", tool, policy=ToolPolicy(timeout=0.2))
    go.set()
    assert len(runs) == scene.expect["tool_times_out"]["tool_runs"]


def _two_workers(scene):
    if scene.url == "memory:":
        gate, tool, results = Gate(store=scene.url), Tool(), []
        threads = [threading.Thread(target=lambda: results.append(gate.once("K", tool))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(results)) == 1
        assert tool.runs == scene.expect["two_workers"]["tool_runs"]
        return
    with stores.tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "effects"
        workers = [_process("one", scene.url, "K", "at_most_once", path, "", 30) for _ in range(2)]
        results = [_told(worker) for worker in workers]
        assert results[0] == results[1]
        assert len(idem_workers.effects(path)) == scene.expect["two_workers"]["tool_runs"]


def _down_before(scene):
    scene.server.kill()
    gate, tool = Gate(store=scene.url), Tool()
    with pytest.raises(StoreUnavailableError) as raised:
        gate.once("K", tool)
    assert raised.value.reason == scene.expect["down_before"]["error"]
    assert tool.runs == scene.expect["down_before"]["tool_runs"]


def _lost_after_tool(scene):
    gate, runs = Gate(store=scene.url), []
    policy = ToolPolicy(lease=60, on_conflict="error")

    def tool():
        runs.append(1)
        scene.server.kill()
        return "r1"

    # The result is the caller's all the same.
    assert gate.once("K", tool, policy=policy) == "r1"
    assert 'outcome="store_unavailable"} 1' in gate.metrics_text()
    scene.server.start()
    with pytest.raises((IdempotencyConflictError, OutcomeUnknownError)):
        gate.once("K", tool, policy=policy)
    assert len(runs) == scene.expect["lost_after_tool"]["tool_runs"]


def _flush(scene):
    gate, tool = Gate(store=scene.url), Tool()
    gate.once("K", tool)
    scene.server.command("FLUSHALL")
    gate.once("K", tool)
    assert scene.expect["flush"].startswith("tool runs again")
    assert tool.runs == 2


def _opt_in_open(scene):
    (config,) = [variant["config"] for variant in scene.content["variants"] if "config" in variant]
    scene.server.kill()
    gate, tool = Gate(store=scene.url), Tool()
    assert gate.once("K", tool, policy=ToolPolicy(**config)) == "r1 of 10"
    assert tool.runs == scene.expect["opt_in_open"]["tool_runs"]
    name = re.match(r"idempotency_(\w+)_total \+1", scene.expect["opt_in_open"]["metric"])[1]
    assert f'tidegate_idempotency_total{{outcome="{name}"}} 1' in gate.metrics_text()


def _every_key_has_a_ttl(scene):
    gate = Gate(store=scene.url)
    failing = ToolPolicy(effect="at_most_once")

    def fail():
        raise ConnectionError

    gate.once("done", Tool())
    with pytest.raises(ConnectionError):
        gate.once("in doubt", fail, policy=failing)
    started = threading.Event()
    go = threading.Event()

    def wait():
        started.set()
        go.wait()

    thread = threading.Thread(target=gate.once, args=("running", wait))
    thread.start()
    started.wait()
    keys = ("done", "in doubt", "running")
    ages = [int(scene.server.command("PTTL", f"tidegate:{key}")[1:]) for key in keys]
    go.set()
    thread.join()
    assert sum(age < 0 for age in ages) == scene.expect["keys_without_ttl"]
