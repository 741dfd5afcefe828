"""Kind `request_table`: text that JSON can write and UTF-8 cannot."""

from __future__ import annotations

import functools
import json

from tidegate import EncodeError

from cases import adapter, serving
from cases.case import Check
from cases.play import Planned, play
from cases.tables import strangers

_DECODE = "json.loads('\"'+content_json+'\"')"


def checks(case):
    assert case.content["decode"] == _DECODE
    for number, row in enumerate(case.content["rows"]):
        for mode in ("sync", "async"):
            yield Check(f"row{number}-{mode}", functools.partial(_run, row, mode))
    yield from strangers(case, {"rows", "decode"}, {"valid", "invalid"})


def _run(row, mode):
    text = json.loads(f'"{row["content_json"]}"')
    request = adapter.REQUEST | {"messages": [{"role": "user", "content": text}]}
    with serving.server() as server:
        client = adapter.client(server.url, adapter.gate(), mode)
        try:
            played = play(server, client, [Planned(body=request)], mode)
        except EncodeError as error:
            assert not row["valid"], error
            assert "messages" in str(error)
            assert server.ledger["requests"]["total"] == 0
            return
    (sent,) = played.requests
    seen = json.loads(sent["body"])["messages"][0]["content"]
    if row["valid"]:
        assert seen == text
    else:
        seen.encode()
        assert "\N{REPLACEMENT CHARACTER}" in seen
