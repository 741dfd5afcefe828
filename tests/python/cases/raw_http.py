"""Kind `raw_http`: the exact bytes of an answer."""

from __future__ import annotations

import functools
import re

from cases import adapter, serving
from cases.case import Check
from cases.expect import hold
from cases.play import Planned, play

_MODES = ("sync", "async")
_KNOWN = frozenset(
    {
        "id",
        "kind",
        "raw_file",
        "client",
        "then",
        "second_response",
        "repeat_variant",
        "server",
        "calls",
        "pause_between_calls_s",
        "expect",
        "note",
    }
)


def checks(case):
    for mode in _MODES:
        if "server" in case.content:
            for name, end in _ends(case.content["server"]).items():
                yield Check(f"{name}-{mode}", functools.partial(_stale, case, end, mode))
            continue
        yield Check(mode, functools.partial(_run, case, mode))
        variant = case.content.get("repeat_variant")
        if variant is not None:
            yield Check(f"{variant}-{mode}", functools.partial(_run, case, mode, variant))


def _run(case, mode, variant=None):
    content = case.content
    assert not content.keys() - _KNOWN, f"unknown fields: {sorted(content.keys() - _KNOWN)}"
    first = serving.raw(case.bytes_of(content["raw_file"]))
    following = content.get("then", content.get("second_response", []))
    following = following if isinstance(following, list) else [following]
    expect = dict(case.expect)
    repeated = expect.pop(content.get("repeat_variant"), None)
    if variant is not None:
        assert repeated, f"nothing is expected of the variant {variant}"
        expect, following = repeated, []
    script = [first, *following]
    with serving.server(script, repeat_last=len(script) == 1) as server:
        client = adapter.client(server.url, adapter.gate(content.get("client")), mode)
        hold(play(server, client, [Planned()], mode), expect)


def _ends(told):
    """Return how the first connection ends, by name, from the prose of a case about stale connections."""
    assert told["connection_1"][0] == "serve raw_file to request 1"
    assert told["connection_2"] == "serve raw_file"
    ends = {}
    for text in [told["connection_1"][1], *re.split(r";\s*or\s+", told.get("variant", ""))]:
        if found := re.search(r"(FIN|RST) (\d+) ms after response", text):
            ends[f"{found[1].lower()}_later"] = {
                "close": found[1].lower(),
                "close_after_s": int(found[2]) / 1000,
            }
        elif found := re.search(r"close \((FIN|RST)\)|(RST|FIN) instead of", text):
            word = (found[1] or found[2]).lower()
            ends[f"{word}_on_next_byte"] = {"on_next_byte": word}
        else:
            assert not text, f"unknown behaviour of a server: {text}"
    return ends


def _stale(case, end, mode):
    """Two calls; the connection of the first one is gone when the second one takes it."""
    content = case.content
    assert not content.keys() - _KNOWN, f"unknown fields: {sorted(content.keys() - _KNOWN)}"
    expect = dict(case.expect)
    alone = expect.pop("with_max_attempts_1", {})
    answer = serving.raw(case.bytes_of(content["raw_file"]))
    del answer["close"]
    plan = [
        Planned(at=number * content.get("pause_between_calls_s", 0.0)) for number in range(content["calls"])
    ]
    for more, wanted in (({}, expect), ({"max_attempts": 1}, alone)):
        with serving.server([answer | end, answer | {"close": "keep"}], repeat_last=True) as server:
            client = adapter.client(server.url, adapter.gate(content.get("client", {}) | more), mode)
            hold(play(server, client, plan, mode), wanted)
