"""Who used what: by model, tag, tool and window, as rows, CSV and JSON."""

import asyncio
import csv
import io
import json
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tidegate import AsyncClient, CallError, Client, ConfigError, Gate, UsageRow, tags
from tidegate._usage import report
from tidegate.testing import FaultServer

CHAT = {"model": "m", "messages": []}


@pytest.fixture
def gate():
    return Gate(prices={"m": {"input": "0.15", "output": "0.60"}})


def calls(usage):
    return {tuple(row.group.values()): row.calls for row in usage}


def test_tags_follow_tasks_and_threads(gate, server):
    async def summarise(client):
        with tags(route="summarise"):
            await asyncio.gather(
                *[asyncio.create_task(client.post("/chat/completions", json=CHAT)) for _ in range(3)]
            )
            with tags(tool="search"):
                await client.post("/chat/completions", json={**CHAT, "model": "n"})
                await asyncio.to_thread(
                    Client(server.url, "key", gate=gate).post, "/chat/completions", json=CHAT
                )

    async def main():
        client = AsyncClient(server.url, "key", gate=gate)
        await asyncio.gather(summarise(client), client.post("/chat/completions", json=CHAT))

    asyncio.run(main())
    thread = threading.Thread(
        target=tags(route="nightly")(Client(server.url, "key", gate=gate).post),
        args=("/chat/completions",),
        kwargs={"json": CHAT},
    )
    thread.start()
    thread.join()
    assert calls(gate.usage()) == {("m",): 6, ("n",): 1}
    assert calls(gate.usage("route")) == {("",): 1, ("summarise",): 5, ("nightly",): 1}
    assert calls(gate.usage(("route", "tool"))) == {
        ("", ""): 1,
        ("nightly", ""): 1,
        ("summarise", ""): 3,
        ("summarise", "search"): 2,
    }
    assert calls(gate.usage(["tool", "model"]))["search", "n"] == 1


def test_sums_are_exact(gate):
    script = [{"status": 500}, {}, {"status": 400}]
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "cached_tokens": 40, "reasoning_tokens": 4}
    with FaultServer(script, usage=usage) as server:
        client = Client(server.url, "key", gate=gate)
        client.post("/chat/completions", json=CHAT)
        with pytest.raises(CallError):
            client.post("/chat/completions", json=CHAT)
        client.post("/chat/completions", json={**CHAT, "model": "unpriced"})
    [of_m, other] = gate.usage()
    # Without a price of their own, cached tokens cost what others do.
    assert of_m == UsageRow(
        group={"model": "m"},
        calls=2,
        failed=1,
        attempts=3,
        prompt_tokens=100,
        cached_tokens=40,
        completion_tokens=10,
        reasoning_tokens=4,
        cost_usd=of_m.cost_usd,
    )
    assert (other.unpriced, other.cost_usd) == (1, 0)
    [total] = gate.usage(())
    assert (total.calls, total.cost_usd) == (3, of_m.cost_usd)
    assert total.cost_usd == sum(
        Decimal(line.rpartition(" ")[2])
        for line in gate.metrics_text().splitlines()
        if line.startswith("cost_usd_total ")
    )


def row(hour, model="m", labels=None, **sums):
    zero = {name: "0" if name.endswith("_usd") else 0 for name in UsageRow.__slots__[2:]}
    start = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp()) + 3600 * hour
    return {"hour": start, "model": model, "tags": labels or {}, **zero, **sums}


HOURS = [row(22, calls=1), row(23, calls=2, cost_usd="0.000000000001"), row(24, calls=4), row(25, calls=8)]


def at(hour):
    return datetime(2026, 11, 30, tzinfo=UTC) + timedelta(hours=hour)


def test_windows_are_hours_and_days_of_utc():
    by_hour = report(HOURS, "model", "hour", None, None)
    assert [(found.start, found.calls) for found in by_hour] == [
        (at(22), 1),
        (at(23), 2),
        (at(24), 4),
        (at(25), 8),
    ]
    by_day = report(HOURS, (), "day", None, None)
    assert [(found.start, found.calls) for found in by_day] == [(at(0), 3), (at(24), 12)]
    assert by_day[0].cost_usd == Decimal("0.000000000001")


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (None, None, 15),
        (23, None, 14),
        (23.5, None, 14),
        (None, 24, 3),
        (None, 24.5, 7),
        (24, 25, 4),
        (30, None, 0),
    ],
)
def test_hours_that_touch_the_stretch_count(since, until, found):
    told = report(HOURS, (), None, since and at(since), until and at(until))
    assert sum(one.calls for one in told) == found


def test_folded_tags_are_other():
    rows = [row(1, labels={"route": "a"}, calls=1), {**row(1, calls=2), "tags": None}]
    assert calls(report(rows, "route", None, None, None)) == {("a",): 1, ("other",): 2}


def test_csv_and_json_hold_every_row():
    labels = {"route": 'a "quoted", odd\nname'}
    rows = [row(22, labels=labels, calls=3, cost_usd="0.000144"), row(23, calls=1)]
    usage = report(rows, ("route", "model"), "hour", None, None)
    [first, second] = csv.DictReader(io.StringIO(usage.to_csv()))
    assert first["route"] == labels["route"]
    assert (first["start"], first["model"], first["calls"]) == ("2026-11-30T22:00:00+00:00", "m", "3")
    assert (first["cost_usd"], second["cost_usd"]) == ("0.000144", "0")
    [one, two] = json.loads(usage.to_json())
    assert one["group"] == {"route": labels["route"], "model": "m"}
    assert (one["cost_usd"], two["calls"]) == ("0.000144", 1)
    assert "start" not in json.loads(report(rows, (), None, None, None).to_json())[0]
    assert repr(usage) == "<UsageReport by route, model: 2 rows>"
    assert usage[:1] == (usage[0],)
    assert report([], "model", None, None, None).to_csv().count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"by": 1}, "by"),
        ({"by": ["model", "not a tag"]}, "by"),
        ({"by": ["route", "route"]}, "by"),
        ({"by": "calls"}, "by"),
        ({"window": "week"}, "window"),
        ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001 that is what is wrong
        ({"until": "2026-01-01"}, "until"),
    ],
)
def test_wrong_arguments_are_named(gate, arguments, field):
    with pytest.raises(ConfigError, match=field):
        gate.usage(**arguments)
