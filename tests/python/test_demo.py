import json
from decimal import Decimal

import pytest
from click.testing import CliRunner

from tidegate import __version__, _demo, _plot
from tidegate._commands import tidegate

OUTAGE = _demo.Outage(
    requests=30, ok=30, failed=0, retries=3, attempts_seen=33, prompt_tokens=360, completion_tokens=150,
    cost_usd=Decimal("0.0001440"), latencies=[number / 10 for number in range(30)],
)  # fmt: skip
LOADS = [
    _demo.Load(
        qps=20, concurrency=5, calls=160, ok=160, latencies=[0.3 + number / 100 for number in range(160)]
    ),
    _demo.Load(qps=5, concurrency=2, calls=40, ok=40, latencies=[0.3] * 40),
]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (range(1, 101), [50, 95, 99]),
        (range(100, 0, -1), [50, 95, 99]),
        (range(1, 21), [10, 19, 20]),
        (range(19), [None, None, None]),
        ([], [None, None, None]),
    ],
)
def test_percentiles_by_nearest_rank(samples, expected):
    assert _plot.quantiles(list(samples)) == expected


def test_bars_share_one_scale_and_fit():
    drawn = _plot.bars([("much", [1.0] * 20), ("less", [0.25] * 20), ("few", [1.0])], width=40, block="#")
    lines = drawn.splitlines()
    assert [line.count("#") for line in lines[:3]] == [20, 5, 0]
    assert lines[2].endswith("n/a")
    assert max(map(len, lines)) <= 40
    assert _plot.bars([], width=40, block="#") == "\n\n".strip()


@pytest.fixture
def measured(monkeypatch):
    async def run(advance):
        advance(1.0)
        return OUTAGE, LOADS

    monkeypatch.setattr(_demo, "run", run)


@pytest.mark.usefixtures("measured")
def test_json_is_one_object():
    result = CliRunner().invoke(tidegate, ["demo", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    expected = {
        "requests": 30, "ok": 30, "failed": 0, "retries": 3, "attempts_seen": 33, "prompt_tokens": 360,
        "completion_tokens": 150, "cost_usd": "0.000144",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert found["latency"][0] == {
        "qps": 20, "concurrency": 5, "requests": 160, "ok": 160, "p50_s": 1.09, "p95_s": 1.81, "p99_s": 1.88,
    }  # fmt: skip


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("columns", [40, 120])
def test_the_tables_fit_any_terminal(columns):
    result = CliRunner().invoke(tidegate, ["demo"], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.split() == ["cost,", "USD", "0.000144"] for line in lines)
    assert any(
        line.split() == ["20", "QPS", "/", "5", "160/160", "1.090", "1.810", "1.880"] for line in lines
    )
    assert "\x1b" not in result.stdout


def test_wrong_figures_fail_the_command(monkeypatch):
    async def run(_):
        return _demo.Outage(**{**vars(OUTAGE), "retries": 4}), LOADS

    monkeypatch.setattr(_demo, "run", run)
    result = CliRunner().invoke(tidegate, ["demo", "--json"])
    assert result.exit_code == 1
    assert "figures" in result.stderr


def test_the_version():
    assert CliRunner().invoke(tidegate, ["--version"]).output == f"tidegate {__version__}\n"


@pytest.mark.parametrize("text", ["{", '{"respones": []}', "3"])
def test_a_script_that_cannot_be_read(tmp_path, text):
    path = tmp_path / "script.json"
    path.write_text(text)
    result = CliRunner().invoke(tidegate, ["mock", "--port", "0", "--script", str(path)])
    assert result.exit_code != 0
    assert "must be" in result.output


@pytest.mark.parametrize("installed", [True, False], ids=["drop-in", "native"])
async def test_the_outage_is_survived_by_either_client(monkeypatch, installed):
    if not installed:
        monkeypatch.setattr(_demo.importlib.util, "find_spec", lambda _: None)
    assert (await _demo._outage()).as_expected()
