"""One client and gate for any number of event loops: one after another, at once, closed, forgotten."""

import asyncio
import contextvars
import gc
import threading
import weakref
from pathlib import Path

import pytest
import uvloop

from tidegate import APIStatusError, AsyncClient, Gate
from tidegate.testing import FaultServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def gate():
    return Gate(limits=None, breaker=None, retry_budget=None)


@pytest.fixture
def client(server, gate):
    return AsyncClient(server.url, "key", gate=gate)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request):
    return request.param


async def statuses(client, calls):
    answers = await asyncio.gather(*[client.post("/chat/completions", json=BODY) for _ in range(calls)])
    return [answer.status for answer in answers]


def run(new_loop, main):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def in_flight(gate):
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])


def files():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_three_loops_in_a_row(client, new_loop):
    for _ in range(3):
        assert run(new_loop, statuses(client, 20)) == [200] * 20


def test_the_connections_outlive_the_loops(server, client, new_loop):
    for _ in range(3):
        run(new_loop, statuses(client, 1))
    assert server.ledger["connections"]["opened"] == 1


def test_loops_in_threads_at_once(server, client, new_loop):
    server.script(rules=[{"respond": {"delay_s": 0.02}}])
    together, got = threading.Barrier(6), []

    def work():
        together.wait()
        for _ in range(3):
            got.extend(run(new_loop, statuses(client, 20)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [200] * 360
    assert server.ledger["requests"]["total"] == 360


def test_a_loop_that_is_run_from_several_threads_in_turn(client, new_loop):
    loop = new_loop()
    for _ in range(3):
        thread = threading.Thread(target=lambda: loop.run_until_complete(statuses(client, 5)))
        thread.start()
        thread.join()
    assert loop.run_until_complete(statuses(client, 5)) == [200] * 5
    loop.close()


def test_errors_cancellation_and_timeouts(server, client, gate, new_loop, wait_until):
    server.script([{"status": 400}, {"delay_s": 60}])

    async def main():
        with pytest.raises(APIStatusError):
            await client.post("/chat/completions", json=BODY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.post("/chat/completions", json=BODY), 0.05)
        return await statuses(client, 5)

    assert run(new_loop, main()) == [200] * 5
    wait_until(lambda: in_flight(gate) == 0)


def test_loops_leave_no_file_open(client, new_loop, wait_until):
    run(new_loop, statuses(client, 1))
    before = files()
    for _ in range(30):
        run(new_loop, statuses(client, 1))
    wait_until(lambda: files() <= before)


async def make_calls(client, calls):
    for _ in range(calls):
        task = asyncio.ensure_future(client.post("/chat/completions", json=BODY))
        # asyncio would report what is done here on purpose.
        task._log_destroy_pending = False


async def start_pending(client, gate, calls=20):
    await make_calls(client, calls)
    while in_flight(gate) < calls:  # noqa: ASYNC110 it happens outside the loop
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("are_started", [True, False])
def test_a_loop_closed_with_calls_pending(server, client, gate, wait_until, are_started):
    server.script([{"delay_s": 60}], repeat_last=True)

    def leave():
        loop = asyncio.new_event_loop()
        # The loop stops after the pass in which the calls are made, in which most of them are not started.
        loop.run_until_complete(start_pending(client, gate) if are_started else make_calls(client, 18))
        assert are_started or in_flight(gate) < 4
        loop.close()

    def settled():
        gc.collect()
        wait_until(lambda: in_flight(gate) == 0)
        wait_until(lambda: server.ledger["connections"]["open"] == 0)

    leave()
    settled()
    before = files()
    for _ in range(10):
        leave()
        settled()
    wait_until(lambda: files() <= before)


def test_calls_wait_while_their_loop_does(server, client):
    loop = asyncio.new_event_loop()

    async def make():
        return [asyncio.ensure_future(client.post("/chat/completions", json=BODY)) for _ in range(18)]

    calls = loop.run_until_complete(make())
    assert server.ledger["requests"]["total"] < 4
    answers = loop.run_until_complete(asyncio.gather(*calls))
    loop.close()
    assert [answer.status for answer in answers] == [200] * 18
    assert server.ledger["requests"]["total"] == 18


class InterruptedLoop(asyncio.SelectorEventLoop):
    """Ctrl-C comes while a call asks for a pass of the loop."""

    is_armed = False

    def call_soon(self, callback, *args, context=None):
        if self.is_armed and getattr(callback, "__name__", "") == "_flush":
            self.is_armed = False
            raise KeyboardInterrupt
        return super().call_soon(callback, *args, context=context)


def test_a_call_that_is_interrupted_while_it_starts_holds_up_no_other(server, client):
    server.script([{"delay_s": 0.3}] * 6)

    async def main():
        calls = [asyncio.ensure_future(client.post("/chat/completions", json=BODY)) for _ in range(6)]
        while server.ledger["requests"]["in_flight"] < 6:  # noqa: ASYNC110 it happens outside the loop
            await asyncio.sleep(0.002)
        asyncio.get_running_loop().is_armed = True
        with pytest.raises(KeyboardInterrupt):
            await client.post("/chat/completions", json=BODY)
        answers = [await client.post("/chat/completions", json=BODY), *await asyncio.gather(*calls)]
        return [answer.status for answer in answers]

    assert run(InterruptedLoop, main()) == [200] * 7
    assert server.ledger["requests"]["total"] == 7


def test_a_loop_that_is_forgotten(server, client, gate, wait_until):
    server.script([{"delay_s": 60}], repeat_last=True)

    def forget():
        loop = asyncio.new_event_loop()
        loop.run_until_complete(start_pending(client, gate))

    def settled():
        # asyncio's own warning about its loop and sockets is the only one.
        with pytest.warns(ResourceWarning) as warned:
            gc.collect()
        assert all(
            str(warning.message).startswith(("unclosed event loop", "unclosed <socket")) for warning in warned
        )
        wait_until(lambda: in_flight(gate) == 0)
        wait_until(lambda: server.ledger["connections"]["open"] == 0)

    forget()
    settled()
    before = files()
    for _ in range(10):
        forget()
        settled()
    assert files() <= before


DEBUG = """
import asyncio, sys
from tidegate import APIStatusError, AsyncClient, Gate
client = AsyncClient(sys.argv[1], "key", gate=Gate(limits=None))
async def call(model):
    return await client.post("/chat/completions", json={"model": model, "messages": []})
async def main():
    assert asyncio.get_running_loop().get_debug()
    assert {answer.status for answer in await asyncio.gather(*[call("m") for _ in range(50)])} == {200}
    try:
        await call("bad")
    except APIStatusError:
        pass
    task = asyncio.ensure_future(call("slow"))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
for _ in range(2):
    asyncio.run(main())
"""


def test_asyncios_debug_mode_finds_nothing(run_script):
    rules = [
        {"match": {"model": "bad"}, "respond": {"status": 400}},
        {"match": {"model": "slow"}, "respond": {"delay_s": 60}},
    ]
    with FaultServer(rules=rules) as server:
        ended = run_script(DEBUG, server.url, PYTHONASYNCIODEBUG="1")
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_without_a_running_loop_it_is_said(client):
    coroutine = client.post("/chat/completions", json=BODY)
    with pytest.raises(RuntimeError, match="no running event loop"):
        coroutine.send(None)


def test_a_loop_keeps_nothing_of_its_first_call(client, new_loop):
    class Thing:
        pass

    variable = contextvars.ContextVar("thing")

    async def first():
        thing = Thing()
        variable.set(thing)
        assert await statuses(client, 1) == [200]
        return weakref.ref(thing)

    async def main():
        kept = await asyncio.create_task(first())
        # The loop holds the task until its next turn.
        await asyncio.sleep(0)
        gc.collect()
        assert kept() is None
        assert await statuses(client, 1) == [200]

    run(new_loop, main())
