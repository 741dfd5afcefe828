"""Scenario `stream_return`: however a stream is left, its place and its connection are free again."""

from __future__ import annotations

import asyncio
import functools
import gc

from cases import adapter, serving
from cases.cancelling import in_use, until
from cases.case import Check
from cases.expect import unknown
from cases.streamed import PATH
from tidegate import AsyncStream, Stream

_SLOW = {"chunk_delay_s": 0.05, "usage": {"completion_tokens": 1000}}


class _OnPurposeError(Exception):
    pass


def _fail():
    raise _OnPurposeError


def _end(variant, stream):
    if variant == "read_to_end":
        assert len(list(stream)) > 1
    elif variant == "break_and_drop":
        next(stream)
    elif variant == "close_explicit":
        next(stream)
        stream.close()
    elif variant == "exception_in_loop":
        try:
            with stream:
                for _ in stream:
                    _fail()
        except _OnPurposeError:
            pass
    else:
        unknown("variant", variant)


async def _aend(variant, stream):
    if variant == "read_to_end":
        assert len([event async for event in stream]) > 1
    elif variant == "break_and_drop":
        async for _ in stream:
            break
    elif variant == "close_explicit":
        await anext(stream)
        await stream.aclose()
    elif variant == "exception_in_loop":
        try:
            async with stream:
                async for _ in stream:
                    _fail()
        except _OnPurposeError:
            pass
    elif variant == "aclose_while_pending":
        reader = asyncio.create_task(_exhaust(stream))
        await asyncio.sleep(0.1)
        await stream.aclose()
        await reader
    else:
        unknown("variant", variant)


async def _exhaust(stream):
    async for _ in stream:
        pass


def stream_return(content, expect):
    for variant in content["variants"]:
        for mode in ("sync", "async"):
            if (variant, mode) == ("aclose_while_pending", "sync"):
                continue
            yield Check(f"{variant}-{mode}", functools.partial(_returns, content, expect, variant, mode))


def _returns(content, expect, variant, mode):
    # Twice what is there at a time: were one lost, the next would wait.
    count, places = content["streams_per_variant"], content["pool_or_gate"]
    answer = {} if variant == "read_to_end" else _SLOW
    rules = [{"match": {"stream": True}, "respond": answer}]
    with serving.server(rules=rules) as server:
        gate = adapter.gate({"gate": places})
        client = adapter.client(server.url, gate, mode)
        options = {"json": adapter.REQUEST, "total_timeout": content["timeout_s"] * 10}

        def sync():
            for _ in range(count):
                _end(variant, client.stream(PATH, **options))
            gc.collect()
            return [client.post(PATH, **options).status for _ in range(content["then_plain_requests"])]

        async def asynchronous():
            for _ in range(count):
                await _aend(variant, await client.stream(PATH, **options))
            gc.collect()
            return [
                (await client.post(PATH, **options)).status for _ in range(content["then_plain_requests"])
            ]

        plain = sync() if mode == "sync" else asyncio.run(asynchronous())
        for name, wanted in expect.items():
            if name == "plain_ok_each":
                assert (set(plain) == {200}) is wanted
            elif name == "server_disconnect_seen_within_s":
                until(lambda: server.ledger["requests"]["in_flight"] == 0, within=10 * wanted)
            elif name == "methods_present":
                found = {name for cls in (Stream, AsyncStream) for name in dir(cls)}
                assert set(wanted) <= found
            else:
                unknown(name, wanted)
        assert in_use(gate) == 0
        if variant == "read_to_end":
            assert server.ledger["connections"]["opened"] == 1
