"""A loop without `add_reader`, such as Windows' proactor, is served all the same."""

import asyncio
import gc
import threading

import pytest

from tidegate import APIStatusError, AsyncClient, Gate
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    def add_reader(self, fd, callback, *args):
        raise NotImplementedError

    def remove_reader(self, fd):
        raise NotImplementedError


@pytest.fixture
def runner():
    with asyncio.Runner(loop_factory=LoopWithoutReaders) as runner:
        yield runner


@pytest.fixture
def gate():
    return Gate(limits=None, breaker=None, retry_budget=None)


@pytest.fixture
def client(server, gate):
    return AsyncClient(server.url, "key", gate=gate)


def in_flight(gate):
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])


async def statuses(client, calls):
    answers = await asyncio.gather(*[client.post("/chat/completions", json=BODY) for _ in range(calls)])
    return [answer.status for answer in answers]


def test_two_hundred_calls_at_once(runner, client):
    assert runner.run(statuses(client, 200)) == [200] * 200
    assert runner.run(statuses(client, 200)) == [200] * 200


def test_errors(runner, client, server):
    server.script([{"status": 400}], repeat_last=True)
    with pytest.raises(APIStatusError):
        runner.run(client.post("/chat/completions", json=BODY))


def test_cancellation(runner, client, server, gate, wait_until):
    server.script([{"delay_s": 60}] * 20)

    async def main():
        tasks = [asyncio.ensure_future(client.post("/chat/completions", json=BODY)) for _ in range(20)]
        while server.ledger["requests"]["in_flight"] < 20:  # noqa: ASYNC110 it happens outside the loop
            await asyncio.sleep(0.002)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}
        return await statuses(client, 5)

    assert runner.run(main()) == [200] * 5
    wait_until(lambda: server.ledger["requests"]["by_finish"].get("client_closed") == 20)
    assert in_flight(gate) == 0


def wakers():
    return [thread for thread in threading.enumerate() if thread.name == "tidegate-waker"]


def test_one_thread_wakes_a_loop_and_ends_with_it(client, wait_until):
    gc.collect()
    wait_until(lambda: not wakers())
    loop = LoopWithoutReaders()
    try:
        for _ in range(3):
            loop.run_until_complete(statuses(client, 10))
        assert len(wakers()) == 1
    finally:
        loop.close()
    del loop

    def ended():
        gc.collect()
        return not wakers()

    wait_until(ended)


PRELUDE = """
import asyncio, os, signal, sys, threading, time
from tidegate import AsyncClient, Gate

class Loop(asyncio.SelectorEventLoop):
    def add_reader(self, *_):
        raise NotImplementedError
    remove_reader = add_reader

gate = Gate(limits=None)
client = AsyncClient(sys.argv[1], "key", gate=gate)

async def call(model="m"):
    return (await client.post("/chat/completions", json={"model": model, "messages": []})).status

async def many():
    assert set(await asyncio.gather(*[call() for _ in range(30)])) == {200}

def run(main):
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
"""

FORK = """
run(many())
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    run(many())
    sys.exit(0)
run(many())
assert os.waitpid(pid, 0)[1] == 0
"""

EXIT = """
async def main():
    tasks = [asyncio.ensure_future(call("slow")) for _ in range(20)]
    await asyncio.sleep(0)
    sys.exit(3)
run(main())
"""

DAEMONS = """
async def work():
    while True:
        await call()
for _ in range(4):
    threading.Thread(target=lambda: run(work()), daemon=True).start()
while gate.snapshot()["calls"] < 50:
    time.sleep(0.002)
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(FORK, 0, id="fork"),
        pytest.param(EXIT, 3, id="exit with calls in flight"),
        pytest.param(DAEMONS, 0, id="loops in daemon threads"),
    ],
)
@pytest.mark.parametrize("run", range(5))
def test_forks_and_ends(run_script, script, code, run):
    del run
    with FaultServer(rules=[{"match": {"model": "slow"}, "respond": {"delay_s": 60}}]) as server:
        ended = run_script(PRELUDE + script, server.url)
    assert (ended.code, ended.out, ended.err) == (code, "", "")
