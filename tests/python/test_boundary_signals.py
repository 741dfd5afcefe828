"""Ctrl-C and other signals end a wait at once, wherever it waits."""

import signal

import pytest

from tidegate.testing import FaultServer

# From the signal to the handler's exception, in seconds.
FELT_AS_AT_ONCE = 0.2

SYNC = """
import os, signal, sys, threading, time
from tidegate import Client, Gate, Limits

url, waits_in, how = sys.argv[1:]
limits = {
    "response": Limits(), "body": Limits(), "backoff": Limits(),
    "gate": Limits(concurrency=1), "limiter": Limits(rpm=1, headroom=0.0),
}[waits_in]
gate = Gate(limits=limits, breaker=None, retry_budget=None)
client = Client(url, "key", gate=gate)

def call(model):
    return client.post("/chat/completions", json={"model": model, "messages": []})

def scope(model):
    return next((s for s in gate.snapshot()["scopes"] if s["model"] == model), {"queued": 0, "in_flight": 0})

class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

raised, number = (KeyboardInterrupt, signal.SIGINT) if how == "SIGINT" else (Alarm, signal.SIGALRM)
signal.signal(signal.SIGALRM, ring)
sent = 0.0

if waits_in == "gate":
    threading.Thread(target=call, args=(waits_in,), daemon=True).start()
    while not scope(waits_in)["in_flight"]:
        time.sleep(0.002)
if waits_in == "limiter":
    call(waits_in)
others = scope(waits_in)["in_flight"]

def is_waiting():
    if waits_in in ("gate", "limiter"):
        return scope(waits_in)["queued"] == 1
    if waits_in == "backoff":
        return gate.snapshot()["retries"] == 1
    return scope(waits_in)["in_flight"] == 1

def send():
    global sent
    while not is_waiting():
        time.sleep(0.002)
    time.sleep(0.02)  # into the middle of a wait
    sent = time.monotonic()
    os.kill(os.getpid(), number)

threading.Thread(target=send, daemon=True).start()
try:
    call(waits_in)
except raised:
    print(time.monotonic() - sent)
while scope(waits_in)["in_flight"] != others or scope(waits_in)["queued"]:
    time.sleep(0.002)
assert call("healthy").status == 200
"""


@pytest.fixture(scope="module")
def waiting_server():
    rules = [
        {"match": {"model": "gate"}, "respond": {"delay_s": 60}},
        {"match": {"model": "response"}, "respond": {"fault": "hang"}},
        {"match": {"model": "body"}, "respond": {"fault": "stall"}},
        {"match": {"model": "backoff"}, "respond": {"status": 503, "headers": {"retry-after": "10"}}},
    ]
    with FaultServer(rules=rules) as server:
        yield server


@pytest.mark.parametrize("how", ["SIGINT", "SIGALRM"])
@pytest.mark.parametrize("waits_in", ["response", "body", "backoff", "gate", "limiter"])
def test_a_signal_ends_a_sync_wait(run_script, waiting_server, waits_in, how):
    ended = run_script(SYNC, waiting_server.url, waits_in, how)
    assert (ended.code, ended.err) == (0, "")
    assert float(ended.out) <= FELT_AS_AT_ONCE


HANDLED = """
import os, signal, sys, threading, time
from tidegate import Client
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
client = Client(sys.argv[1], "key")
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
answer = client.post("/chat/completions", json={"model": "later", "messages": []})
assert answer.status == 200 and len(seen) == 1
assert time.monotonic() - seen[0] > 0.3, "the handler runs while the call waits"
"""


def test_a_handler_that_returns_does_not_disturb_the_call(run_script):
    with FaultServer([{"delay_s": 1.0}]) as server:
        ended = run_script(HANDLED, server.url)
        assert (ended.code, ended.err) == (0, "")
        assert server.ledger["requests"]["total"] == 1


ASYNC = """
import asyncio, os, signal, sys, threading, time
from tidegate import AsyncClient, Gate
gate = Gate()
client = AsyncClient(sys.argv[1], "key", gate=gate)

async def call(model):
    return await client.post("/chat/completions", json={"model": model, "messages": []})

def in_flight():
    return sum(scope["in_flight"] for scope in gate.snapshot()["scopes"])

def send():
    global sent
    while in_flight() < 20:
        time.sleep(0.002)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

async def main():
    await asyncio.gather(*[call("response") for _ in range(20)])

threading.Thread(target=send, daemon=True).start()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print(time.monotonic() - sent)
while in_flight():
    time.sleep(0.002)
assert asyncio.run(call("healthy")).status == 200
"""


def test_ctrl_c_ends_asyncio_run(run_script, waiting_server):
    ended = run_script(ASYNC, waiting_server.url)
    assert (ended.code, ended.err) == (0, "")
    assert float(ended.out) <= FELT_AS_AT_ONCE


UNHANDLED = """
import os, signal, sys, threading, time
from tidegate import Client, Gate
gate = Gate()
def send():
    while not gate.snapshot()["scopes"] or not gate.snapshot()["scopes"][0]["in_flight"]:
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send, daemon=True).start()
Client(sys.argv[1], "key", gate=gate).post("/chat/completions", json={"model": "response", "messages": []})
"""


def test_ctrl_c_that_nobody_handles_ends_the_process_as_python_does(run_script, waiting_server):
    ended = run_script(UNHANDLED, waiting_server.url)
    assert ended.code == -signal.SIGINT
    assert ended.err.endswith("KeyboardInterrupt\n")
