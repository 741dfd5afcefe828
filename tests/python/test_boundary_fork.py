"""A client used before a fork works on both sides of it, and neither side hears the other's answers."""

import json

import pytest

from tidegate.testing import FaultServer

PRELUDE = """
import asyncio, json, multiprocessing, os, signal, sys, threading, time, warnings
from concurrent.futures import ProcessPoolExecutor
from tidegate import AsyncClient, Client, Gate

# Newer Pythons warn of every fork of a process with threads; it is what is tested here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
url, log_file = sys.argv[1:3]
gate = Gate(limits=None, log_file=log_file)
client = Client(url, "key", gate=gate)
aclient = AsyncClient(url, "key", gate=gate)

# The server repeats the model's name in its answer: whose it is can be told.
def call(name):
    answer = client.post("/chat/completions", json={"model": name, "messages": []})
    assert answer.json()["model"] == name, (answer.json(), name)
    return name

async def acall(name):
    answer = await aclient.post("/chat/completions", json={"model": name, "messages": []})
    assert answer.json()["model"] == name, (answer.json(), name)
    return name

async def many(side, calls=20):
    names = [f"{side}-{n}" for n in range(calls)]
    assert await asyncio.gather(*[acall(name) for name in names]) == names

def use(side):
    call(f"{side}-sync")
    asyncio.run(many(side))
    threads = [threading.Thread(target=call, args=(f"{side}-thread-{n}",)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return side

def child(work):
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(20)
    work()
    sys.exit(0)

def ended(pid):
    assert os.waitpid(pid, 0)[1] == 0

def in_flight():
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])
"""

FORK = """
use("before")
pid = child(lambda: use("child"))
use("parent")
ended(pid)
"""

# The child counts for itself.
FORK_COUNTS = """
use("before")
def work():
    assert gate.snapshot()["calls"] == 0
    use("child")
    assert gate.snapshot()["calls"] == 26
ended(child(work))
assert gate.snapshot()["calls"] == 26
"""

GRANDCHILD = """
use("before")
def work():
    use("child")
    ended(child(lambda: use("grandchild")))
ended(child(work))
use("parent")
"""

IN_FLIGHT = """
async def main():
    tasks = [asyncio.ensure_future(acall(f"slow-{n}")) for n in range(30)]
    while in_flight() < 30:
        await asyncio.sleep(0.002)
    def work():
        assert gate.snapshot()["calls"] == 0
        call("child-sync")
    pid = os.fork()
    if pid == 0:
        # Unwinds through the parent's loop, whose tasks are cancelled here and not there.
        signal.alarm(20)
        work()
        sys.exit(0)
    assert await asyncio.gather(*tasks) == [f"slow-{n}" for n in range(30)]
    # The child, in closing its copy of the loop, has taken the loop's own wake-up out of the epoll set
    # that the two share: only timers are left here.
    while not (status := os.waitpid(pid, os.WNOHANG))[0]:
        await asyncio.sleep(0.01)
    assert status[1] == 0
asyncio.run(main())
"""

# Forks in the pass of the loop in which the calls are made.
NOT_STARTED = """
async def main():
    tasks = [asyncio.ensure_future(acall(f"parent-{n}")) for n in range(12)]
    loop, forked = asyncio.get_running_loop(), []
    def fork():
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            call("child-sync")
            sys.exit(0)
        forked.append(pid)
    loop.call_soon(fork)
    assert await asyncio.gather(*tasks) == [f"parent-{n}" for n in range(12)]
    while not (status := os.waitpid(forked[0], os.WNOHANG))[0]:
        await asyncio.sleep(0.01)
    assert status[1] == 0
asyncio.run(main())
"""

THREADS_IN_FLIGHT = """
threads = [threading.Thread(target=call, args=(f"slow-{n}",)) for n in range(20)]
for thread in threads:
    thread.start()
while in_flight() < 20:
    time.sleep(0.002)
pids = [child(lambda: use("child")) for _ in range(3)]
for thread in threads:
    thread.join()
for pid in pids:
    ended(pid)
use("parent")
"""

IN_A_SIGNAL_HANDLER = """
pids = []
def handler(*_):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        use("child")
        sys.exit(0)
    pids.append(pid)
signal.signal(signal.SIGUSR1, handler)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
call("slow-1")
ended(*pids)
use("parent")
"""

FROM_A_THREAD = """
use("before")
def work():
    use("child")
    os._exit(0)  # as multiprocessing does: a thread that returns ends no process
def fork():
    ended(child(work))
thread = threading.Thread(target=fork)
thread.start()
use("parent")
thread.join()
"""

MULTIPROCESSING = """
use("before")
context = multiprocessing.get_context("fork")
processes = [context.Process(target=use, args=(f"child{n}",)) for n in range(4)]
for process in processes:
    process.start()
use("parent")
for process in processes:
    process.join()
    assert process.exitcode == 0
"""

EXECUTOR = """
use("before")
with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
    names = [f"child-{n}" for n in range(40)]
    assert list(pool.map(call, names)) == names
    use("parent")
"""

# A loop that lies idle across the fork: each side makes its own.
LOOP_BETWEEN_RUNS = """
loop = asyncio.new_event_loop()
loop.run_until_complete(many("before"))
def work():
    with asyncio.Runner() as runner:
        runner.run(many("child"))
    os._exit(0)  # without a word from asyncio about the parent's loop
pid = child(work)
loop.run_until_complete(many("parent"))
ended(pid)
loop.close()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(FORK, id="fork"),
        pytest.param(FORK_COUNTS, id="each counts for itself"),
        pytest.param(GRANDCHILD, id="grandchild"),
        pytest.param(IN_FLIGHT, id="async calls in flight"),
        pytest.param(NOT_STARTED, id="async calls not started"),
        pytest.param(THREADS_IN_FLIGHT, id="sync calls in flight in threads"),
        pytest.param(IN_A_SIGNAL_HANDLER, id="in a signal handler during a call"),
        pytest.param(FROM_A_THREAD, id="from a thread"),
        pytest.param(MULTIPROCESSING, id="multiprocessing"),
        pytest.param(EXECUTOR, id="ProcessPoolExecutor"),
        pytest.param(LOOP_BETWEEN_RUNS, id="between runs of a loop"),
    ],
)
@pytest.mark.parametrize("run", range(3))
def test_both_sides_of_a_fork_make_calls(run_script, tmp_path, script, run):
    log_file = tmp_path / f"log{run}.jsonl"
    rules = [{"match": {"model": "slow-*"}, "respond": {"delay_s": 0.3}}]
    with FaultServer(rules=rules) as server:
        ended = run_script(PRELUDE + script, server.url, log_file)
        assert (ended.code, ended.out, ended.err) == (0, "", "")
        served = server.ledger["requests"]["total"]
    lines = [json.loads(line) for line in log_file.read_text(encoding="utf-8").splitlines()]
    assert sum(line["event"] == "call" for line in lines) == served
    assert all(line["outcome"] == "ok" for line in lines if line["event"] == "call")
    assert len({line["trace_id"] for line in lines}) == served
