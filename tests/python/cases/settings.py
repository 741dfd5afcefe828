"""Kinds about settings of client, process and socket: `settings_table`, `env_table`, `socket_options`."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cases import adapter, serving
from cases.case import Check
from cases.expect import unknown
from cases.play import Planned, play
from cases.tables import strangers
from tidegate import APITimeoutError, Timeouts

_OMITTED = "<omitted>"
_SLACK_S = 0.3
_DESCRIPTORS = Path("/proc/self/fd")
_PROXY_NAMES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def settings_table(case):
    assert case.content["server"] == "accepts and never answers"
    for number, row in enumerate(case.content["rows"]):
        for mode in ("sync", "async"):
            yield Check(f"row{number}-{mode}", functools.partial(_timeout, row, mode))
    yield from strangers(case, {"rows", "server"}, {"rows"})


def _timeout(row, mode):
    assert not row.keys() - {"client_timeout", "call_timeout", "effective", "effective_s", "note"}
    client_options, call_options = (
        {} if row[name] == _OMITTED else {"timeout": row[name]} for name in ("client_timeout", "call_timeout")
    )
    with serving.server([{"fault": "hang"}], repeat_last=True) as server:
        gate = adapter.gate({"max_attempts": 1})
        client = adapter.client(server.url, gate, mode, **client_options)
        assert client.timeouts.attempt is not None
        assert math.isfinite(client.timeouts.attempt)
        if "effective_s" not in row:
            if not row["effective"].startswith("documented finite default"):
                unknown("effective", row["effective"])
            assert client.timeouts == Timeouts()
            return
        played = play(server, client, [Planned(options=call_options)], mode)
    (call,) = played.calls
    assert isinstance(call.error, APITimeoutError)
    assert adapter.kind(call.error) == "timeout"
    assert row["effective_s"] <= call.elapsed <= row["effective_s"] + _SLACK_S


def env_table(case):
    assert case.content["target"] == "http://127.0.0.1:PORT"
    expect = dict(case.expect)
    by_row = {name: said for name, said in expect.items() if name.startswith("row_")}
    lenient = {
        int(number)
        for name, said in by_row.items()
        if "ok or one clear config error" in said
        for number in re.findall(r"\d+", name)
    }
    for number, row in enumerate(case.content["rows"]):
        yield Check(f"row{number}", functools.partial(_environment, row, number in lenient))
    known = {"import", "request", *by_row}
    yield from strangers(case, {"rows", "target"}, known)


_ONE_REQUEST = textwrap.dedent(
    """
    import asyncio, json, sys
    import tidegate
    url, ask = sys.argv[1], {"model": "m", "messages": []}
    def tell(call):
        try:
            return call().status
        except tidegate.ConfigError as error:
            return f"ConfigError {error}"
    async def post():
        async with tidegate.AsyncClient(url, "k") as client:
            return await client.post("/chat/completions", json=ask)
    print(json.dumps([
        tell(lambda: tidegate.Client(url, "k").post("/chat/completions", json=ask)),
        tell(lambda: asyncio.run(post())),
    ]))
    """
)


def _environment(row, lenient):
    assert not row.keys() - {"env", "no_proxy", "via_proxy", "note"}
    # A fault server takes requests in the form that proxies are sent, too.
    with serving.server() as target, serving.server() as proxy:
        named = serving.filled(row["env"])
        named = {name: value.replace("PROXYPORT", str(proxy.port)) for name, value in named.items()}
        taken = {*_PROXY_NAMES, *map(str.lower, _PROXY_NAMES), "REQUEST_METHOD"}
        environment = {name: value for name, value in os.environ.items() if name not in taken}
        ran = subprocess.run(  # noqa: S603 this interpreter
            [sys.executable, "-c", _ONE_REQUEST, target.url],
            env=environment | named | {"NO_PROXY": row["no_proxy"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        through = row.get("via_proxy", False)
        for told in json.loads(ran.stdout):
            if told != 200:
                assert lenient, told
                assert any(name.lower() in told.lower() for name in named), told
        asked = proxy.ledger["requests"]["total"] if through else target.ledger["requests"]["total"]
        assert asked == json.loads(ran.stdout).count(200)
        if through:
            assert target.ledger["requests"]["total"] == 0


def socket_options(case):
    yield Check("options", functools.partial(_options, case.content["options"], case.expect))
    yield from strangers(case, {"options", "inspect"}, set(case.expect))


def _connected_to(port):
    """Return this process's open sockets that lead to a port of this host."""
    found = []
    for entry in _DESCRIPTORS.iterdir():
        try:
            candidate = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        try:
            if candidate.getpeername()[1] == port:
                found.append(candidate)
                continue
        except (OSError, IndexError, TypeError):
            pass
        candidate.close()
    return found


def _options(options, expect):
    if not _DESCRIPTORS.is_dir():
        pytest.skip("needs /proc to find the client's socket")
    levels = {name: getattr(socket, level) for level, name in options}
    with serving.server() as server:
        client = adapter.client(server.url, adapter.gate())
        client.post("/chat/completions", json=adapter.REQUEST)
        # Of both ends, which live in this process, the client's is the one with the server as its peer.
        (connected,) = _connected_to(server.port)
        with connected:
            for name, wanted in expect.items():
                option = name.removesuffix("_s_max")
                if option not in levels:
                    unknown(name, wanted)
                value = connected.getsockopt(levels[option], getattr(socket, option))
                if name.endswith("_s_max"):
                    assert 0 < value <= wanted
                else:
                    assert bool(value) is bool(wanted)
