"""A process ends as its script says, whatever is in flight: not by a signal, not late, without noise."""

import os

import pytest

from tidegate.testing import FaultServer

# Threads race with the interpreter's end: one run proves little. 60 is thorough.
RUNS = int(os.environ.get("TIDEGATE_EXIT_RUNS", "10"))

PRELUDE = """
import asyncio, atexit, logging, os, sys, threading, time
import tidegate
from tidegate import AsyncClient, Client, Gate

url = sys.argv[1]
gate = Gate(limits=None, breaker=None, retry_budget=None)
client = Client(url, "key", gate=gate)
aclient = AsyncClient(url, "key", gate=gate)

def body(model):
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}

def call(model="fast", **options):
    return client.post("/chat/completions", json=body(model), **options).status

async def acall(model="fast", **options):
    return (await aclient.post("/chat/completions", json=body(model), **options)).status

def in_flight():
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])

def until_in_flight(calls):
    while in_flight() < calls:
        time.sleep(0.002)

def at_end():
    print("end", time.monotonic(), flush=True)
"""

COMPLETE = """
async def main():
    assert await asyncio.gather(*[acall() for _ in range(15)]) == [200] * 15
asyncio.run(main())
assert [call() for _ in range(15)] == [200] * 15
at_end()
"""

CANCELLED = """
async def main():
    tasks = [asyncio.ensure_future(acall("slow")) for _ in range(20)]
    while in_flight() < 20:
        await asyncio.sleep(0.002)
asyncio.run(main())
at_end()
"""

EXIT_IN_CALLBACK = """
async def main():
    tasks = [asyncio.ensure_future(acall("slow")) for _ in range(20)]
    while in_flight() < 20:
        await asyncio.sleep(0.002)
    at_end()
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""

DAEMONS_WAIT = """
for _ in range(10):
    threading.Thread(target=call, args=("slow",), daemon=True).start()
until_in_flight(10)
at_end()
"""

# They log, and build errors: Python that runs below Rust.
DAEMONS_BUSY = """
logging.basicConfig(level=logging.DEBUG, stream=open(os.devnull, "w"))
def work():
    while True:
        try:
            call("half", max_attempts=1)
        except tidegate.TidegateError:
            pass
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
while gate.snapshot()["calls"] < 100:
    time.sleep(0.002)
at_end()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
"""

DAEMON_LOOPS = """
async def work():
    while True:
        try:
            await acall("half", max_attempts=1)
        except tidegate.TidegateError:
            pass
async def main():
    await asyncio.gather(*[work() for _ in range(8)])
for _ in range(4):
    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
while gate.snapshot()["calls"] < 100:
    time.sleep(0.002)
at_end()
"""

# Daemon threads that run Python of the caller's below Rust while the runtime is stopped, and then go on.
LATE = """
from collections.abc import Mapping
from pathlib import Path

inside = threading.Event()

def runs(thread):
    try:
        return (thread / "comm").read_text() == "tidegate\\n"
    except OSError:
        return False

def until_the_runtime_is_gone():
    inside.set()
    while any(map(runs, Path("/proc/self/task").iterdir())):
        time.sleep(0.001)

class Late(Mapping):
    def __getitem__(self, name):
        return "value"
    def __iter__(self):
        until_the_runtime_is_gone()
        return iter(["x-late"])
    def __len__(self):
        return 1

async def acall_or_tell(**options):
    try:
        await acall(**options)
    except RuntimeError as error:
        # The process would end before asyncio had let the error through.
        os.write(2, repr(error).encode())

def end(work):
    call()
    threading.Thread(target=work, daemon=True).start()
    inside.wait()
    at_end()
"""

LATE_CALL = LATE + "end(lambda: call(headers=Late()))"

LATE_IN_A_LOOP = LATE + "end(lambda: asyncio.run(acall_or_tell(headers=Late())))"

LATE_FUTURE = (
    LATE
    + """
class Loop(asyncio.SelectorEventLoop):
    def create_future(self):
        if sys._getframe(1).f_code.co_name == "_start":
            until_the_runtime_is_gone()
        return super().create_future()
def work():
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(acall_or_tell())
end(work)
"""
)

# A filter, not a handler: the end of `logging` waits for the locks of its handlers.
LATE_IN_A_FILTER = (
    LATE
    + """
def call_late(record):
    if record.model == "outer" and not inside.is_set():
        call(headers=Late())
    return True
logging.getLogger("tidegate").addFilter(call_late)
logging.getLogger("tidegate").setLevel(logging.DEBUG)
end(lambda: asyncio.run(acall("outer")))
"""
)

THREAD_ENDS_LATER = """
def work():
    assert call("later") == 200
    at_end()
threading.Thread(target=work).start()
"""

RAISES = """
for _ in range(5):
    threading.Thread(target=call, args=("slow",), daemon=True).start()
until_in_flight(5)
at_end()
raise LookupError("the script's own")
"""

LOOP_LEFT_OPEN = """
loop = asyncio.new_event_loop()
async def main():
    tasks = [asyncio.ensure_future(acall("slow")) for _ in range(20)]
    while in_flight() < 20:
        await asyncio.sleep(0.002)
    return tasks
tasks = loop.run_until_complete(main())
at_end()
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # asyncio's own words about a loop that was left open
sys.exit(5)
"""

# The loop stops after the pass in which the calls are made.
CALLS_NOT_STARTED = """
loop = asyncio.new_event_loop()
async def main():
    return [asyncio.ensure_future(acall("slow")) for _ in range(18)]
tasks = loop.run_until_complete(main())
assert in_flight() < 4
at_end()
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # asyncio's own words about a loop that was left open
sys.exit(5)
"""

# A handler that runs behind tidegate's own, which has dropped the calls.
LOOP_WHILE_ENDED = """
loop = asyncio.new_event_loop()
async def main():
    tasks = [asyncio.ensure_future(acall("slow")) for _ in range(6)]
    while in_flight() < 6:
        await asyncio.sleep(0.002)
    return tasks
tasks = loop.run_until_complete(main())
def while_ended():
    results = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(result) for result in results] == [RuntimeError] * 6, results
    loop.close()
    at_end()
own = tidegate._core._at_exit
atexit.unregister(own)
atexit.register(while_ended)
atexit.register(own)
"""

CALL_WHILE_ENDING = """
@atexit.register
def while_ending():
    assert call() == 200
    at_end()
"""


@pytest.fixture(scope="module")
def slow_server():
    rules = [
        {"match": {"model": "slow"}, "respond": {"delay_s": 60}},
        {"match": {"model": "later"}, "respond": {"delay_s": 0.2}},
        {"match": {"model": "half", "every": 2}, "respond": {"status": 400}},
    ]
    with FaultServer(rules=rules) as server:
        yield server


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(COMPLETE, 0, id="complete"),
        pytest.param(CANCELLED, 0, id="cancelled by asyncio.run"),
        pytest.param(EXIT_IN_CALLBACK, 3, id="sys.exit in a callback"),
        pytest.param(DAEMONS_WAIT, 0, id="daemon threads wait"),
        pytest.param(DAEMONS_BUSY, 0, id="daemon threads call on and on"),
        pytest.param(DAEMON_LOOPS, 0, id="loops in daemon threads"),
        pytest.param(LATE_CALL, 0, id="a daemon thread starts a call meanwhile"),
        pytest.param(LATE_IN_A_LOOP, 0, id="a loop in a daemon thread starts a call meanwhile"),
        pytest.param(LATE_FUTURE, 0, id="a loop in a daemon thread makes a future meanwhile"),
        pytest.param(LATE_IN_A_FILTER, 0, id="a log filter in a daemon thread starts a call meanwhile"),
        pytest.param(THREAD_ENDS_LATER, 0, id="a thread ends later"),
        pytest.param(RAISES, 1, id="exception at module level"),
        pytest.param(LOOP_LEFT_OPEN, 5, id="a loop left open"),
        pytest.param(CALLS_NOT_STARTED, 5, id="a loop left open with calls it has not started"),
        pytest.param(LOOP_WHILE_ENDED, 0, id="a loop that runs when all is ended"),
        pytest.param(CALL_WHILE_ENDING, 0, id="a call in atexit"),
    ],
)
def test_a_process_ends_as_its_script_says(run_script, slow_server, script, code):
    for _ in range(RUNS):
        ended = run_script(PRELUDE + script, slow_server.url)
        assert ended.code == code, ended
        if code == 1:
            assert ended.err.startswith("Traceback"), ended
            assert ended.err.endswith("LookupError: the script's own\n"), ended
            assert ended.err.count("Traceback") == 1, ended
        else:
            assert not ended.err, ended
        _, when = ended.out.split()
        assert ended.at - float(when) < 2.0, ended


BEFORE_IMPORT = """
import atexit
@atexit.register
def after_ours():
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


def test_a_call_after_the_end_is_refused_not_hung(run_script, slow_server):
    ended = run_script(BEFORE_IMPORT + PRELUDE + "call()", slow_server.url)
    assert (ended.code, ended.err) == (0, "")
    assert "shutting down" in ended.out
