"""Scenario `sqlite_contention`: many processes on one file."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import idem_workers
from cases import child
from cases.case import Check
from tidegate import Gate, StoreUnavailableError

_WORKER = """
    import asyncio, json, sys, time
    from pathlib import Path
    import idem_workers
    from tidegate import Gate, ToolPolicy
    url, effects, number, is_async = sys.argv[1:5]
    keys, shared = map(int, sys.argv[5:])
    policy = ToolPolicy(wait=120, ignore=("key",))
    names = [f"shared {key}" if key < shared else f"own {number} {key}" for key in range(keys)]
    def tool(key):
        idem_workers.effect(effects, key=key)
    async def async_tool(key):
        tool(key)
    blocked = [0.0]
    async def ticker():
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            blocked[0], last = max(blocked[0], now - last), now
    async def main(gate):
        ticking = asyncio.ensure_future(ticker())
        for key in names:
            await gate.once(key, async_tool, key, policy=policy)
        ticking.cancel()
    print("ready", flush=True)
    sys.stdin.readline()
    gate = Gate(store=url)
    if is_async == "yes":
        asyncio.run(main(gate))
    else:
        for key in names:
            gate.once(key, tool, key, policy=policy)
    print(json.dumps(blocked[0] * 1000))
"""


def sqlite_contention(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_variant, variant, content, expect))


def _variant(variant, content, expect):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "store.db"
        if variant == "read-only dir":
            _read_only(directory, path)
            return
        if variant == "file of zero bytes left by a crash":
            path.touch()
        elif variant == "old WAL left behind":
            _crash_with_a_log(path)
            assert path.with_name("store.db-wal").exists()
        elif variant not in {"default dir", "async client"}:
            pytest.skip(f"the runner does not know the variant {variant}")
        _contend(directory, path, content, expect, is_async=variant == "async client")


def _read_only(directory, path):
    runs = []
    directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        # Root may write anywhere but where there is no directory.
        target = path if os.geteuid() else Path("/proc/tidegate/store.db")
        with pytest.raises(StoreUnavailableError, match="cannot be used"):
            Gate(store=f"sqlite:///{target}").once("k", runs.append, 1)
    finally:
        directory.chmod(stat.S_IRWXU)
    assert runs == []


def _crash_with_a_log(path):
    child.run(
        """
        import os, sys
        from tidegate import Gate
        gate = Gate(store=sys.argv[1])
        gate.once("earlier", lambda: 1)
        os.kill(os.getpid(), 9)
        """,
        f"sqlite:///{path}",
        expect=-9,
    )


def _contend(directory, path, content, expect, *, is_async):
    effects, processes, keys = directory / "effects", content["processes"], content["keys_each"]
    shared = int(keys * content["shared_fraction"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, child._PATHS))}
    workers = [
        subprocess.Popen(  # noqa: S603 this interpreter
            [
                sys.executable, "-c", textwrap.dedent(_WORKER), f"sqlite:///{path}", str(effects),
                str(number), "yes" if is_async else "no", str(keys), str(shared),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(processes)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    locked, blocked = 0, []
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        locked += err.count("locked")
        assert worker.returncode == 0, err
        blocked.append(json.loads(out))
    assert locked == expect["locked_errors"]
    done = [line["key"] for line in idem_workers.effects(effects)]
    assert len(done) == len(set(done)) * expect["runs_per_shared_key"]
    assert len(done) == shared + processes * (keys - shared)
    # The median: on a machine with fewer cores than processes one of them waits for its turn to run.
    assert sorted(blocked)[len(blocked) // 2] <= expect["loop_block_ms_max"]
    mode = child.run(
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
        "print(connection.execute('PRAGMA journal_mode').fetchone()[0])",
        path,
    )
    assert mode.stdout.strip() == expect["journal_mode"]
