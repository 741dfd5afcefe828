"""The rules that `tidegate alerts` prints, by Prometheus' own tool: when they fire and when they must not."""

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate import Client, Gate
from tidegate._commands import tidegate

RULES = resources.files("tidegate").joinpath("alerts.yml")
CASES = sorted((Path(__file__).parents[1] / "alerts").glob("*_test.yml"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing; Debian's package prometheus brings it"
)


def promtool(*arguments, given=None):
    return subprocess.run(  # noqa: S603 the arguments are the tests' own
        ["promtool", *map(str, arguments)],  # noqa: S607 wherever it is installed
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@needs_promtool
def test_the_rules_are_valid():
    with resources.as_file(RULES) as path:
        checked = promtool("check", "rules", "--lint=all", "--lint-fatal", path)
    assert checked.returncode == 0, checked.stderr
    assert "3 rules found" in checked.stdout


@needs_promtool
def test_each_alert_fires_when_it_should_and_is_silent_when_it_should():
    assert CASES
    tested = promtool("test", "rules", *CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


# What each alert stands on: without it, some case must fail.
WEAKER = {
    "the factor": ("> 3 *", "> 1.5 *"),
    "the floor of retries": ("0.05\n", "0.0001\n"),
    "the least number of duplicates": (">= 10\n", ">= 1\n"),
    "the state instead of the counter": (
        'sum by (job, instance, scope) (tidegate_breaker_state{state=~"open|half_open"}) > 0',
        "breaker_open_total > 0",
    ),
    "half-open as open": ("open|half_open", "open"),
    "the minute": ("for: 1m", "for: 0s"),
    "a baseline without the last minutes": (" offset 5m", ""),
    "a baseline for what is new": (" or sum by (job) (rate(retry_total[5m])) * 0", ""),
}


@needs_promtool
@pytest.mark.parametrize("part", WEAKER)
def test_the_cases_would_notice_a_weaker_rule(tmp_path, part):
    old, new = WEAKER[part]
    text = RULES.read_text("utf-8")
    weaker = text.replace(old, new)
    assert weaker != text
    if part == "the least number of duplicates":
        weaker = weaker.replace("0.01\n", "0.0001\n")
    (tmp_path / "python" / "tidegate").mkdir(parents=True)
    (tmp_path / "python" / "tidegate" / "alerts.yml").write_text(weaker, encoding="utf-8")
    (tmp_path / "tests" / "alerts").mkdir(parents=True)
    copies = [tmp_path / "tests" / "alerts" / cases.name for cases in CASES]
    for cases, copy in zip(CASES, copies, strict=True):
        copy.write_text(cases.read_text("utf-8"), encoding="utf-8")
    assert "FAILED" in promtool("test", "rules", *copies).stderr


@needs_promtool
def test_the_metrics_text_is_valid(server):
    gate = Gate(prices={"m": {"input": 1, "output": 2}})
    server.script([{"status": 500}])
    Client(server.url, "key", gate=gate).post("/chat/completions", json={"model": "m", "messages": []})
    checked = promtool("check", "metrics", given=gate.metrics_text())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_command_prints_the_rules():
    printed = CliRunner().invoke(tidegate, ["alerts"])
    assert (printed.exit_code, printed.output) == (0, RULES.read_text("utf-8"))
    assert printed.output.count("runbook: |") == printed.output.count("- alert:") == 3
