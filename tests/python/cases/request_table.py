"""Kind `request_table`: text that JSON can write and UTF-8 cannot."""

from __future__ import annotations

import functools
import json

from cases import adapter, serving
from cases.case import Check
from cases.play import Planned, play
from cases.tables import strangers
from tidegate import EncodeError

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
            refused = error
        else:
            refused = None
        asked = server.ledger["requests"]["total"]
    if refused is not None:
        assert not row["valid"], refused
        assert "messages" in str(refused)
        assert asked == 0
        return
    (sent,) = played.requests
    seen = json.loads(sent["body"])["messages"][0]["content"]
    if row["valid"]:
        assert seen == text
    else:
        seen.encode()
        assert "\N{REPLACEMENT CHARACTER}" in seen
