"""Calls from processes that are many, that die, and that are paused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import idem_workers
import tidegate
from tidegate import Gate, OutcomeUnknownError

WORKERS = Path(idem_workers.__file__)
LEASE = 0.8


def start(*arguments):
    source = str(Path(tidegate.__file__).parents[1])
    return subprocess.Popen(  # noqa: S603 this interpreter
        [sys.executable, WORKERS, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )


def told(process, patience=120):
    out, _ = process.communicate(timeout=patience)
    return json.loads(out.strip().splitlines()[-1])


def one(url, key, effect, path, point=""):
    process = start("one", url, key, effect, path, point, LEASE)
    if point:
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
        return None
    return told(process)


def test_many_processes_and_threads_on_one_key_run_it_once(shared_url, tmp_path):
    path = tmp_path / "effects"
    crowd = [start("crowd", shared_url, "one key", path, 64) for _ in range(8)]
    for process in crowd:
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [result for process in crowd for result in told(process)]
    assert len(results) == 512
    assert results == [results[0]] * 512
    assert len(idem_workers.effects(path)) == 1


def make_table(url):
    """Make the table of a transactional tool, in a process of its own: nobody else opens the file here."""
    program = (
        "import sys, tidegate; from tidegate import *; "
        "sql = 'CREATE TABLE charges (key TEXT, amount INTEGER)'; "
        "make = lambda: current_execution().connection.execute(sql); "
        "tidegate.Gate(store=sys.argv[1]).once('table', make, policy=ToolPolicy(effect='transactional'))"
    )
    source = str(Path(tidegate.__file__).parents[1])
    subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", program, url], check=True, env={**os.environ, "PYTHONPATH": source}
    )


def charges(url, key):
    program = (
        "import sys, sqlite3; print(sqlite3.connect(sys.argv[1]).execute("
        "'SELECT count(*) FROM charges WHERE key = ?', (sys.argv[2],)).fetchone()[0])"
    )
    ran = subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", program, url.removeprefix("sqlite:///"), key], check=True, capture_output=True
    )
    return int(ran.stdout)


# How often the effect happened before anybody came back.
BEFORE = {"before_claim": 0, "after_claim": 0}


@pytest.mark.parametrize("point", idem_workers.POINTS)
@pytest.mark.parametrize("effect", ["read", "idempotent", "at_most_once"])
def test_a_crash_at_every_point(shared_url, tmp_path, effect, point):
    path = tmp_path / "effects"
    one(shared_url, "k", effect, path, point)
    done = idem_workers.effects(path)
    assert len(done) == BEFORE.get(point, 1)
    again = one(shared_url, "k", effect, path)
    after = idem_workers.effects(path)
    assert {line["downstream"] for line in after} <= {after[0]["downstream"]} if after else True
    if point in {"after_commit", "before_claim"}:
        assert again["paid"] == 1
        assert len(after) == 1
    elif effect == "at_most_once":
        committed = point == "during_commit" and "paid" in again
        assert committed or again == {"error": "OutcomeUnknownError", "reason": "in_doubt"}
        assert len(after) == len(done) <= 1
    else:
        assert again["paid"] == 1
        assert 1 <= len(after) <= 2


@pytest.mark.parametrize("point", idem_workers.POINTS)
def test_a_crash_at_every_point_of_a_transaction(tmp_path, point):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    make_table(url)
    # The body ends with the commit: what comes after it is after the commit.
    crash = {"during_commit": "after_effect"}.get(point, point)
    if crash != "after_commit":
        one(url, "k", "transactional", "-", crash)
    assert one(url, "k", "transactional", "-")["paid"] == 1
    assert one(url, "k", "transactional", "-")["paid"] == 1
    assert charges(url, "k") == 1


def test_a_record_of_a_crash_is_never_absent(shared_url, tmp_path):
    one(shared_url, "k", "at_most_once", tmp_path / "effects", "after_effect")
    store = Gate(store=shared_url)._tools.store
    record = store.get("k")
    assert record["state"] == "started"
    assert record["expires"] is None
    assert store.purge() == 0
    time.sleep(LEASE * 1.5)  # the lease
    with pytest.raises(OutcomeUnknownError):
        idem_workers.call(Gate(store=shared_url), "k", "at_most_once", tmp_path / "effects")
    assert [(key, found["state"]) for key, found in store.list("", ["in_doubt"], 9)] == [("k", "in_doubt")]


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
def test_an_owner_that_was_paused_beyond_its_lease_changes_nothing(shared_url, tmp_path, effect):
    path = tmp_path / "effects"
    first = start("stopped", shared_url, "k", path, LEASE, effect)
    assert first.stdout.readline() == "started\n"
    first.send_signal(signal.SIGSTOP)
    second = start("stopped", shared_url, "k", path, LEASE, effect)
    second.stdin.write("go\n")
    second.stdin.flush()
    by_second = told(second)
    if effect == "idempotent":
        assert by_second["result"] == second.pid
    else:
        assert by_second["error"] == "OutcomeUnknownError"
    before = Gate(store=shared_url)._tools.store.get("k")
    first.stdin.write("go\n")
    first.stdin.flush()
    first.send_signal(signal.SIGCONT)
    by_first = told(first)
    assert Gate(store=shared_url)._tools.store.get("k") == before
    if effect == "idempotent":
        assert by_first == {"result": second.pid, "stale": True}
        assert len(idem_workers.effects(path)) == 2
    else:
        assert by_first == {"error": "OutcomeUnknownError", "reason": by_first["reason"], "stale": True}
        assert len(idem_workers.effects(path)) == 1


def test_a_fork_has_a_connection_of_its_own(shared_url, tmp_path):
    path = tmp_path / "effects"
    gate = Gate(store=shared_url)
    first = idem_workers.call(gate, "k", "at_most_once", path)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            replayed = idem_workers.call(gate, "k", "at_most_once", path)
            own = idem_workers.call(gate, "of the child", "at_most_once", path)
            code = 0 if replayed == first and own["by"] == os.getpid() else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert idem_workers.call(gate, "of the child", "at_most_once", path)["by"] == pid
    assert len(idem_workers.effects(path)) == 2


def test_a_redis_that_comes_back_has_what_it_was_told(redis):
    import threading

    redis.command("FLUSHALL")
    gate = Gate(store=redis.url)
    done = []

    def tool():
        done.append(1)
        redis.kill()
        threading.Timer(1.0, redis.start).start()
        return "done"

    assert gate.once("k", tool) == "done"
    assert gate.once("k", tool) == "done"
    assert len(done) == 1
