"""Kinds `estimate_table` and `token_table`: what a request is expected to cost before it is sent."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import string
import time

from cases import adapter, serving
from cases.case import Check
from cases.expect import unknown
from cases.play import Planned, play
from cases.tables import strangers
from tidegate import Limits, RequestTooLargeError
from tidegate._core import _probe

# Granted at once, but for the noise of a busy machine.
_AT_ONCE_S = 0.5
_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")


def _request(content, **more):
    return {"model": "test-model", "messages": [{"role": "user", "content": content}], **more}


def _estimate(request):
    return _probe.estimate(json.dumps(request).encode())


def estimate_table(case):
    for number, row in enumerate(case.content["rows"]):
        yield Check(f"row{number}", functools.partial(_reservation, row))
    yield from strangers(case, {"rows"}, {"rows"})


def _reservation(row):
    wanted = row.keys() - {*_OUTPUT_FIELDS, "tpm", "prompt", "note"}
    given = {name: row[name] for name in _OUTPUT_FIELDS if name in row}
    request = _request(row.get("prompt", "ping"), **given)
    prompt, output, reserved = _estimate(request)
    for name in wanted:
        if name == "output_min":
            assert output >= row[name]
        elif name == "output":
            assert output == row[name]
            assert reserved == prompt + output
        elif name == "granted_on_full_bucket":
            call, requests = _send(request, row["tpm"])
            assert call.error is None
            assert (call.response.info.queue_s < _AT_ONCE_S) is row[name]
            assert len(requests) == 1
        elif name == "refused" and row[name] == "larger than limit":
            call, requests = _send(request, row["tpm"])
            assert isinstance(call.error, RequestTooLargeError)
            assert requests == []
        elif name != "or":
            # `or` is what a server may do instead.
            unknown(name, row[name])


def _send(request, tpm=None):
    limits = {} if tpm is None else {"limits": Limits(tpm=tpm, headroom=0.0)}
    with serving.server() as server:
        client = adapter.client(server.url, adapter.gate({"budget_s": 5}, **limits))
        played = play(server, client, [Planned(body=request)], "sync")
        return played.calls[0], played.requests


def token_table(case):
    content, expect = case.content, case.expect
    for number, text in enumerate(content.get("rows", ())):
        yield Check(f"row{number}", functools.partial(_text, text, expect))
    for number, spec in enumerate(content.get("generators", ())):
        yield Check(f"generated{number}", functools.partial(_generated, spec, content["control"], expect))
    for number, part in enumerate(content.get("parts", ())):
        limiter = content.get("limiter", {})
        yield Check(f"part{number}", functools.partial(_part, part, limiter, expect))
    if "tools_example" in content:
        yield Check("tools", functools.partial(_tools, content["tools_example"], expect))
    yield from strangers(
        case,
        {"rows", "generators", "control", "parts", "limiter", "tools_example"},
        {
            "estimate_min",
            "no_exception",
            "server_sees_text_unchanged",
            "time_each_s_max",
            "ratio_to_control_max",
            "loop_block_ms_max",
            "no_stack_overflow",
            "estimate_per_part_max",
            "estimate_per_part_min",
            "granted_at_once",
            "tools_estimate_min",
        },
    )


def _text(text, expect):
    prompt, _, _ = _estimate(_request(text))
    assert prompt >= expect["estimate_min"]
    if expect.get("server_sees_text_unchanged"):
        call, (request,) = _send(_request(text))
        assert call.error is None
        assert json.loads(request["body"])["messages"][0]["content"] == text


def _made(spec):
    if "random_letters" in spec:
        generator = random.Random(spec.get("seed", 0))  # noqa: S311 reproducible
        letters = generator.choices(string.ascii_letters, k=spec["random_letters"])
        return "".join(letters)
    return spec["repeat"] * spec["n"]


def _generated(spec, control, expect):
    body, other = (json.dumps(_request(_made(given))).encode() for given in (spec, control))
    prompt, _, _ = _probe.estimate(body)
    assert prompt >= expect["estimate_min"]
    # The best of three: what is slow by nature is slow each time.
    taken, usual = (min(_timed(given) for _ in range(3)) for given in (body, other))
    assert taken <= expect["time_each_s_max"]
    assert taken <= expect["ratio_to_control_max"] * max(usual, 1e-3)
    blocked = min(_longest_block(_request(_made(spec))) for _ in range(3))
    assert blocked * 1000 <= expect["loop_block_ms_max"]


def _timed(body):
    start = time.perf_counter()
    _probe.estimate(body)
    return time.perf_counter() - start


def _longest_block(request):
    """Return for how long at most a call with this request keeps its event loop from other work."""

    async def ticker(gaps):
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async def call(url):
        client = adapter.client(url, adapter.gate(), "async")
        gaps = []
        ticking = asyncio.create_task(ticker(gaps))
        await client.post("/chat/completions", json=request)
        ticking.cancel()
        return max(gaps)

    with serving.server(ledger={"record_bodies": False}) as server:
        return asyncio.run(call(server.url))


def _filled(part):
    """Return a content part with `<N chars>` replaced by so many."""
    return json.loads(re.sub(r"<(\d+) chars>", lambda found: "A" * int(found[1]), json.dumps(part)))


def _part(part, limiter, expect):
    without, _, _ = _estimate(_request([]))
    request = _request([_filled(part)])
    tokens = _estimate(request)[0] - without
    assert expect["estimate_per_part_min"] <= tokens <= expect["estimate_per_part_max"]
    if expect.get("granted_at_once"):
        call, _ = _send(request, limiter["tpm"])
        assert call.error is None
        assert call.response.info.queue_s < _AT_ONCE_S


def _tools(tools, expect):
    without, _, _ = _estimate(_request("hi"))
    tokens, _, _ = _estimate(_request("hi", tools=tools))
    assert tokens - without >= expect["tools_estimate_min"]
