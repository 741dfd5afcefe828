"""However many calls come back together, and however fast streams are, a loop does not belong to them."""

import asyncio

import pytest

import tidegate
from tidegate import AsyncClient, Gate, Limits
from tidegate.testing import FaultServer

PATH = "/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
# What one pass of the loop may hand on: sixteen wake-ups, and eight chunks for each.
WAKE_UPS, CHUNKS = 16, 16 * 8


def gate():
    return Gate(breaker=None, limits=Limits(concurrency=None))


async def most_in_a_pass(work):
    """Return the most calls of `told`, which `work` takes, between two passes of the loop."""
    passes, count = [0], 0

    def told():
        nonlocal count
        count += 1

    async def watch():
        nonlocal count
        while True:
            await asyncio.sleep(0)
            passes.append(count)
            count = 0

    watcher = asyncio.ensure_future(watch())
    await asyncio.gather(*work(told))
    watcher.cancel()
    return max(passes)


async def read_native(client, told):
    async with client.stream(PATH, json=ASK) as events:
        async for _ in events:
            told()


async def read_dropin(client, told):
    stream = await client.chat.completions.create(**ASK, stream=True)
    async for _ in stream:
        told()


@pytest.mark.parametrize(
    ("make", "read"),
    [(AsyncClient, read_native), (tidegate.AsyncOpenAI, read_dropin)],
    ids=["native", "dropin"],
)
async def test_streams_that_have_all_ready_leave_the_loop_to_others(make, read):
    with FaultServer(usage={"completion_tokens": 200}) as server:
        client = make(base_url=server.url, api_key="k", gate=gate())
        most = await most_in_a_pass(lambda told: (read(client, told) for _ in range(100)))
    assert 0 < most <= CHUNKS


async def test_who_reads_what_is_there_already_lets_others_go_first():
    """A piece that came since the reader found nothing would be handed on out of turn, and more after it."""
    passed = []
    with FaultServer(usage={"completion_tokens": 20}) as server:
        client = AsyncClient(server.url, "k", gate=gate())
        async with client.stream(PATH, json=ASK) as events:
            core = events._answer
            # What is sent is there, or will be in no time.
            while server.ledger["requests"]["in_flight"]:  # noqa: ASYNC110 it is the server that tells
                await asyncio.sleep(0)
            while not core.ended:
                asyncio.get_running_loop().call_soon(passed.append, None)
                ticket = core.read()
                assert not ticket.future.done()
                await ticket.future
                assert passed
                passed.clear()


async def test_calls_that_come_back_together_are_handed_over_in_turns():
    with FaultServer(latency_ms=300) as server:
        client = AsyncClient(server.url, "k", gate=gate())

        async def call(told):
            await client.post(PATH, json=ASK)
            told()

        most = await most_in_a_pass(lambda told: (call(told) for _ in range(200)))
    assert 0 < most <= WAKE_UPS
