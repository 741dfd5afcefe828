"""Many streams at once, with every kind of end, and their bills beside the server's."""

import asyncio
import collections
import gc
import random
import resource

import pytest

from tidegate import (
    AsyncClient,
    Client,
    Gate,
    Limits,
    Prices,
    StreamInterruptedError,
    Timeouts,
)
from tidegate.testing import FaultServer

PATH = "/chat/completions"
PRICES = {"m": {"input": "2.50", "cached_input": "1.25", "output": "10.00"}}
CHUNKS = 200


def ask(number, words=60):
    text = " ".join(f"word{number % 7}" for _ in range(words))
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def in_use(made):
    return sum(scope["in_flight"] for scope in made.snapshot()["scopes"])


def rules(kinds):
    """Return rules for streams by the kind that a header names."""
    usage = {"completion_tokens": CHUNKS}
    answers = {
        "whole": {"usage": usage},
        "left": {"usage": usage, "chunk_delay_s": 0.002},
        "cut": {"usage": usage, "fault": "cut"},
        "stalled": {"usage": usage, "fault": "stall"},
    }
    assert kinds <= answers.keys()
    return [{"match": {"header": {"x-kind": kind}}, "respond": answers[kind]} for kind in sorted(kinds)]


async def one(client, number, kind, ends):
    chunks = 0
    try:
        async with client.stream(PATH, json=ask(number), headers={"x-kind": kind}) as events:
            async for event in events:
                chunks += bool(event.json()["choices"][0]["delta"].get("content"))
                if kind == "left" and chunks == 20:
                    break
        ends[kind, "left" if kind == "left" else "complete"] += 1
        wrong = "" if kind == "left" or chunks == CHUNKS else f"{chunks} chunks are not all"
        info = events.info
    except StreamInterruptedError as error:
        ends[kind, error.kind] += 1
        told = len(error.partial_text.split())
        wrong = "" if 0 < chunks < CHUNKS and told == chunks else f"{told} words of {chunks} chunks"
        info = error.info
    assert not wrong
    return info


def test_five_hundred_streams_end_as_they_should(wait_until):
    kinds = ["cut"] * 100 + ["left"] * 50 + ["stalled"] * 25
    kinds += ["whole"] * (500 - len(kinds))
    random.Random(4).shuffle(kinds)  # noqa: S311 reproducible

    async def run(client):
        ends = collections.Counter()
        infos = await asyncio.gather(*(one(client, number, kind, ends) for number, kind in enumerate(kinds)))
        return ends, sum(info.attempts for info in infos)

    def memory():
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    with FaultServer(rules=rules(set(kinds)), usage={"estimate": True}, prices=PRICES) as server:
        made = Gate(
            prices=Prices(PRICES), breaker=None, timeouts=Timeouts(idle=5.0), limits=Limits(concurrency=None)
        )
        client = AsyncClient(server.url, "k", gate=made)
        _, sent = asyncio.run(run(client))
        before = memory()
        for _ in range(2):
            ends, more = asyncio.run(run(client))
            sent += more
            assert ends == {
                ("whole", "complete"): 325,
                ("cut", "stream_interrupted"): 100,
                ("left", "left"): 50,
                ("stalled", "timeout"): 25,
            }
            assert in_use(made) == 0
            # Connections of whole streams are kept; the others are gone.
            wait_until(lambda: server.ledger["connections"]["open"] <= kinds.count("whole"))
        assert memory() - before < 32, "memory comes back"
        wait_until(lambda: server.ledger["requests"]["in_flight"] == 0)
        assert server.ledger["requests"]["total"] == sent


def _pairs(server, infos):
    """Return our usage beside the server's, request by request."""
    entries = server.ledger["entries"]
    by_number = {entry["headers"].get("x-number"): entry for entry in entries if entry["status"] == 200}
    return [(info, by_number[number]) for number, info in infos]


@pytest.mark.parametrize("length", [40, 300])
def test_estimates_of_cut_streams_are_near_the_servers_count(length):
    usage = {"estimate": True, "completion_tokens": length}
    with FaultServer(usage=usage, prices=PRICES, ledger={"record_headers": ["x-number"]}) as server:
        made = Gate(prices=Prices(PRICES), breaker=None)
        client = Client(server.url, "k", gate=made)
        for number in range(30):
            list(client.stream(PATH, json=ask(number)))
        server.script([{"fault": "cut"}], repeat_last=True)
        found = []
        for number in range(30):
            with pytest.raises(StreamInterruptedError) as caught:
                list(client.stream(PATH, json=ask(number), headers={"x-number": f"{number}"}))
            found.append((f"{number}", caught.value.info))
        pairs = _pairs(server, found)
    for info, entry in pairs:
        assert info.usage.source == "estimated"
        ours = info.usage.prompt_tokens + info.usage.completion_tokens
        theirs = entry["usage"]["prompt_tokens"] + entry["usage"]["completion_tokens"]
        assert abs(ours - theirs) <= max(0.03 * theirs, 1), (info.usage, entry["usage"])
