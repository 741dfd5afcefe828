"""Kind `usage_cost`: what an answer costs, by the price table alone and through a call."""

from __future__ import annotations

import functools
import json
from decimal import Decimal

from cases import adapter, serving
from cases.case import Check
from cases.expect import counters
from cases.play import Planned, play
from cases.tables import strangers
from tidegate._core import _probe

_MODEL = "test-model"
_FIELDS = frozenset(
    {
        "name",
        "model",
        "response_model",
        "requested",
        "response_tier",
        "usage",
        "prices",
        "cost_usd",
        "or",
        "wrong",
        "never",
        "note",
        "input_uncached",
        "input_total",
        "total_tokens",
    }
)


def checks(case):
    content = case.content
    rows = [*content["rows"], *([content["free_model"]] if "free_model" in content else [])]
    for number, row in enumerate(rows):
        book = {row.get("model", _MODEL): row["prices"]} if "prices" in row else content["book"]
        name = row.get("name", f"row{number}")
        yield Check(f"{name}-table", functools.partial(_by_table, row, book))
        for mode in ("sync", "async"):
            yield Check(f"{name}-{mode}", functools.partial(_by_call, row, book, mode))
    yield from strangers(case, {"rows", "book", "free_model"}, {"rows"})


def _allowed(row):
    return {
        None if cost is None else Decimal(cost) for cost in (row["cost_usd"], row.get("or", row["cost_usd"]))
    }


def _hold(row, cost):
    assert not row.keys() - _FIELDS, f"unknown fields: {sorted(row.keys() - _FIELDS)}"
    assert cost in _allowed(row)
    assert cost not in {Decimal(row[name]) for name in ("wrong", "never") if name in row}


def _by_table(row, book):
    tier = row.get("response_tier") or row.get("requested")
    table = json.dumps(adapter.price_table(book))
    cost = _probe.cost(table, row.get("model", _MODEL), tier, json.dumps(row["usage"]))
    _hold(row, None if cost is None else Decimal(cost))


def _by_call(row, book, mode):
    model = row.get("model", _MODEL)
    request = adapter.REQUEST | {"model": model}
    answer = {
        "id": "chatcmpl-ok",
        "object": "chat.completion",
        "created": 1,
        "model": row.get("response_model", model),
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "pong"}, "finish_reason": "stop"}
        ],
        "usage": row["usage"],
    }
    if row.get("requested"):
        request["service_tier"] = row["requested"]
    if row.get("response_tier"):
        answer["service_tier"] = row["response_tier"]
    with serving.server([{"body_json": answer}]) as server:
        gate = adapter.gate(prices=adapter.prices(book))
        played = play(server, adapter.client(server.url, gate, mode), [Planned(body=request)], mode)
    (call,) = played.calls
    assert call.error is None
    cost, usage = call.response.cost_usd, call.response.usage
    _hold(row, cost)
    assert counters(gate, "tidegate_calls_unpriced_total") == (1 if cost is None else 0)
    assert Decimal(str(counters(gate, "cost_usd_total"))) == (cost or 0)
    assert usage.prompt_tokens == row.get("input_total", row["usage"]["prompt_tokens"])
    assert usage.total_tokens == row.get("total_tokens", row["usage"]["total_tokens"])
    if "input_uncached" in row:
        assert usage.prompt_tokens - usage.cached_tokens == row["input_uncached"]
