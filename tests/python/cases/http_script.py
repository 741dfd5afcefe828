"""Kind `http_script`: responses served in order, and what the calls and the server should then have seen."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

from cases import adapter, serving
from cases.case import Check
from cases.expect import hold
from cases.play import Planned, play

_ENTRY_POINTS = ("sync", "async")
_KNOWN = frozenset(
    {
        "name",
        "client",
        "responses",
        "repeat_last",
        "entry_points",
        "server",
        "server2",
        "calls",
        "match_by",
        "note",
    }
)
_OF_ALL = "never AttributeError/TypeError/ValidationError"


def checks(case):
    expect = dict(case.expect)
    # Any exception but a call's own error fails the test in any case.
    for_all = expect.pop("all", _OF_ALL)
    scripts = case.content["scripts"]
    strays = expect.keys() - {script["name"] for script in scripts}
    unknown = case.content.keys() - {"id", "kind", "scripts", "expect", "note", "level"}
    for script in scripts:
        for entry in script.get("entry_points", _ENTRY_POINTS):
            run = functools.partial(hold_script, script, expect.get(script["name"]), entry)
            yield Check(f"{script['name']}-{entry}", run)
    if strays or unknown or for_all != _OF_ALL:

        def refuse():
            raise AssertionError(f"not understood: {sorted(strays | unknown)}, all: {for_all!r}")

        yield Check("understood", refuse)


def hold_script(script, expect, entry):
    """Play one script through one kind of client and hold it to what is expected."""
    assert expect, "a script must expect something"
    assert not script.keys() - _KNOWN, f"unknown fields of a script: {sorted(script.keys() - _KNOWN)}"
    hold(run(script, entry), expect)


def run(script, entry, **gate_settings):
    """Play one script through one kind of client."""
    with contextlib.ExitStack() as stack:
        elsewhere = stack.enter_context(serving.server(script.get("server2", [])))
        settings = _settings(serving.filled(script, PORT2=elsewhere.port))
        server = stack.enter_context(serving.server(**settings))
        url = server.url
        if "server" in script:
            assert script["server"] == "closed_port", f"unknown server {script['server']!r}"
            url = stack.enter_context(serving.closed_port())
        gate = adapter.gate(script.get("client"), **gate_settings)
        mode = entry.removesuffix("_stream")
        client = adapter.client(url, gate, mode)
        streams = entry.endswith("_stream") or script.get("client", {}).get("stream", False)
        calls = [dataclasses.replace(call, stream=streams) for call in _calls(script)]
        played = play(server, client, calls, mode)
        played.elsewhere = elsewhere.ledger
        played.script = script
        return played


def _settings(script):
    """Return the settings of the server that plays `script`."""
    if isinstance(script.get("calls"), list):
        assert script.get("match_by") == "header x-test-call", "calls are matched by a header"
        rules = [
            {
                "match": {"header": {"x-test-call": call["id"]}},
                "respond": call["responses"],
                "repeat_last": call.get("repeat_last", False),
            }
            for call in script["calls"]
        ]
        return {"rules": rules}
    return {"script": script.get("responses", []), "repeat_last": script.get("repeat_last", False)}


def _calls(script):
    calls = script.get("calls", 1)
    if isinstance(calls, int):
        return [Planned()] * calls
    return [Planned(call["id"], call.get("at_s", 0.0)) for call in calls]
