"""Processes that run tools against a store they share, and can be killed at every point of a call.

An effect is a line in a file, written with one call, so that two processes never lose one.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tidegate import Gate, ToolPolicy, _drive_once, current_execution
from tidegate._once import Ask, Body

POINTS = (
    "before_claim", "after_claim", "mid_effect", "after_effect", "during_commit", "after_commit",
)  # fmt: skip


def effect(path, **told):
    """Append one line that survives a kill of this process."""
    line = json.dumps(told) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def effects(path):
    """Return what was done."""
    if not Path(path).exists():
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def die():
    """End as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point):
    """Have this process die at a point of its next call."""
    do = _drive_once._do
    asked = []

    def dying(once, step):
        first = isinstance(step, Ask) and not asked
        last = isinstance(step, Ask) and bool(asked)
        if first and point == "before_claim":
            die()
        if last and point == "during_commit":
            # Sent, and not waited for.
            once.store.post(once.key, step.operation, 1.0)
            die()
        result = do(once, step)
        if first:
            asked.append(step)
            if point == "after_claim":
                die()
        if isinstance(step, Body) and point == "after_effect":
            die()
        if last and point == "after_commit":
            die()
        return result

    _drive_once._do = dying


def pay(path, point, amount):
    """Have an effect, and die in the middle of it if told to."""
    execution = current_execution()
    effect(path, amount=amount, key=execution.key, downstream=execution.downstream_key)
    if point == "mid_effect":
        die()
    return {"paid": amount, "by": os.getpid()}


def pay_in_transaction(point, amount):
    """Have an effect in the store's own file."""
    execution = current_execution()
    execution.connection.execute("INSERT INTO charges VALUES (?, ?)", (execution.key, amount))
    if point == "mid_effect":
        die()
    return {"paid": amount, "by": os.getpid()}


def policy_of(effect_class, **settings):
    return ToolPolicy(
        effect=effect_class, ignore=("path", "point"), **{"on_store_error": "refuse", **settings}
    )


def call(gate, key, effect_class, path, point=None, **settings):
    policy = policy_of(effect_class, **settings)
    if effect_class == "transactional":
        return gate.once(key, pay_in_transaction, point, 1, policy=policy)
    return gate.once(key, pay, path, point, 1, policy=policy)


def one(url, key, effect_class, path, point, lease):  # noqa: PLR0917 from the command line
    """Make one call, and print what came of it."""
    gate = Gate(store=url)
    if point not in ("", "mid_effect"):
        kill_at(point)
    try:
        told = call(gate, key, effect_class, path, point or None, lease=float(lease), wait=20.0)
    except Exception as error:  # noqa: BLE001 told to the test
        told = {"error": type(error).__name__, "reason": getattr(error, "reason", None)}
    print(json.dumps(told), flush=True)  # noqa: T201 told to whoever started it


def crowd(url, key, path, threads):
    """Call one key from many threads at once, and print the results."""
    gate = Gate(store=url)
    barrier, results = threading.Barrier(int(threads)), []

    def work():
        barrier.wait()
        results.append(call(gate, key, "at_most_once", path, wait=60.0))

    print("ready", flush=True)  # noqa: T201 told to whoever started it
    sys.stdin.readline()
    all_threads = [threading.Thread(target=work) for _ in range(int(threads))]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    print(json.dumps(results), flush=True)  # noqa: T201 told to whoever started it


def stopped(url, key, path, lease, effect_class):
    """Start a call, tell that its body runs, and go on when told to."""
    gate = Gate(store=url)

    def slow(path):
        effect(path, by=os.getpid())
        print("started", flush=True)  # noqa: T201 told to whoever started it
        sys.stdin.readline()
        return os.getpid()

    slow.__qualname__ = "slow"
    policy = policy_of(effect_class, lease=float(lease), wait=20.0)
    try:
        told = {"result": gate.once(key, slow, path, policy=policy)}
    except Exception as error:  # noqa: BLE001 told to the test
        told = {"error": type(error).__name__, "reason": getattr(error, "reason", None)}
    told["stale"] = "stale_owner" in "".join(
        line for line in gate.metrics_text().splitlines() if line.endswith(" 1") and "stale" in line
    )
    print(json.dumps(told), flush=True)  # noqa: T201 told to whoever started it


def patiently(condition, patience=30.0):
    """Wait for a condition."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        {"one": one, "crowd": crowd, "stopped": stopped}[sys.argv[1]](*sys.argv[2:])
