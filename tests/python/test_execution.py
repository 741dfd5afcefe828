"""What the body of a tool has in hand: its transaction, and its word on how far it is."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from tidegate import ConfigError, Gate, ToolPolicy, current_execution


@pytest.fixture
def shop(tmp_path):
    """A gate whose store is the file that its tools write to."""
    gate = Gate(store=f"sqlite:///{tmp_path / 'shop.db'}")

    def tables():
        current_execution().connection.execute("CREATE TABLE charges (amount INTEGER)")

    gate.once("tables", tables, policy=TRANSACTIONAL)
    return gate


TRANSACTIONAL = ToolPolicy(effect="transactional", lease=0.2)


def charges(gate):
    def read():
        return current_execution().connection.execute("SELECT amount FROM charges")

    return gate.once(f"read {time.monotonic_ns()}", read, policy=TRANSACTIONAL)


def test_effect_and_result_are_committed_together(shop):
    def charge(amount):
        connection = current_execution().connection
        connection.execute("INSERT INTO charges VALUES (?)", (amount,))
        assert connection.changes == 1
        if amount < 0:
            raise ValueError("negative")
        return amount

    assert [shop.once("k", charge, 5, policy=TRANSACTIONAL) for _ in range(2)] == [5, 5]
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            shop.once("bad", charge, -1, policy=TRANSACTIONAL)
    assert charges(shop) == [(5,)]


def test_a_transaction_that_was_taken_over_is_rolled_back(shop):
    runs = []

    def charge():
        connection = current_execution().connection
        connection.execute("INSERT INTO charges VALUES (1)")
        if not runs:
            # The record is another's, as if this process had been paused before it began its transaction.
            connection.execute("UPDATE tidegate_idempotency SET fence = fence + 1 WHERE key = ?", ("k",))
        runs.append(1)
        return "done"

    assert shop.once("k", charge, policy=TRANSACTIONAL) == "done"
    assert len(runs) == 2
    assert charges(shop) == [(1,)]


def test_a_transaction_ends_with_its_tool(shop):
    kept = []

    def keep():
        kept.append(current_execution().connection)
        for wrong in ("SELEC", "SELECT * FROM nowhere"):
            with pytest.raises(ValueError, match="SQLite refused"):
                kept[0].execute(wrong)
        with pytest.raises(TypeError, match="no value of SQLite"):
            kept[0].execute("SELECT ?", ([],))
        return kept[0].execute("SELECT ?, ?, ?, ?, ?", (None, True, 1.5, "é", b"\x00"))

    assert shop.once("k", keep, policy=TRANSACTIONAL) == [(None, 1, 1.5, "é", b"\x00")]
    with pytest.raises(RuntimeError, match="over"):
        kept[0].execute("SELECT 1")


def test_transactional_needs_a_store_that_can():
    with pytest.raises(ConfigError, match="sqlite"):
        Gate().once("k", print, policy=ToolPolicy(effect="transactional"))


def test_the_last_word_before_a_crash_is_kept(shared_url):
    """Of a process that is killed right after it said how far it is."""
    script = f"""
import os, signal, sys
from tidegate import Gate, current_execution

def pay():
    current_execution().progress("before the bank")
    current_execution().progress("the bank was asked")
    os.kill(os.getpid(), signal.SIGKILL)

Gate(store={shared_url!r}).once(sys.argv[1], pay)
"""
    gate = Gate(store=shared_url)
    for key in ("first", "second", "third"):
        ended = subprocess.run([sys.executable, "-c", script, key], check=False, timeout=60)  # noqa: S603
        assert ended.returncode == -signal.SIGKILL
        assert gate._store.get(key)["note"] == "the bank was asked"


def test_progress_in_a_transaction_does_not_wait_for_its_end(tmp_path):
    gate = Gate(store=f"sqlite:///{tmp_path / 'store.db'}")

    def tool():
        started = time.monotonic()
        current_execution().connection.execute("CREATE TABLE sales (book TEXT)")
        current_execution().progress("made the table")
        return time.monotonic() - started

    # Whoever waits for the file waits for five seconds.
    assert gate.once("k", tool, policy=ToolPolicy(effect="transactional")) < 2.0


def test_progress_is_kept_for_whoever_must_decide(store_url, wait_until):
    gate = Gate(store=store_url)

    def tool():
        current_execution().progress("order 7 sent")
        wait_until(lambda: gate._tools.store.get("k")["note"] == "order 7 sent")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        gate.once("k", tool)
    record = gate._tools.store.get("k")
    assert (record["state"], record["note"], record["tool"]) == (
        "in_doubt",
        "order 7 sent",
        tool.__qualname__,
    )


def test_there_is_no_execution_outside_a_tool():
    with pytest.raises(RuntimeError, match="no tool is running"):
        current_execution()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_nothing_guards_has_its_downstream_key(is_async):
    """It runs because whoever acts downstream acts once per key."""
    seen = []

    def look():
        execution = current_execution()
        execution.progress("half")
        seen.append((execution.downstream_key, execution.is_guarded, execution.fence))

    async def look_async():
        look()

    policy = ToolPolicy(effect="idempotent", on_store_error="run")
    for gate in (Gate(), Gate(store="redis://127.0.0.1:1/0")):
        if is_async:
            asyncio.run(gate.once("k", look_async, policy=policy))
        else:
            gate.once("k", look, policy=policy)
    (guarded, *of_guarded), (unguarded, *of_unguarded) = seen
    assert guarded == unguarded
    assert (of_guarded, of_unguarded) == ([True, 1], [False, 0])
    with pytest.raises(RuntimeError, match="no tool is running here"):
        current_execution()
