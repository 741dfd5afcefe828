"""``tidegate batch``: each request gets one answer, however often the run is killed."""

import asyncio
import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from decimal import Decimal

import pytest
from click.testing import CliRunner

from tidegate import AsyncClient, BreakerPolicy, Gate, RetryPolicy, _batch_command
from tidegate._batch import Batch, Results, Tally, read_requests
from tidegate._commands import tidegate
from tidegate.testing import FaultServer

PRICES = {"m": {"input": "2.00", "output": "8.00"}}
PATIENCE = 60.0


def request(number, **body):
    body = {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}], **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.fixture
def files(tmp_path):
    return tmp_path / "requests.jsonl", tmp_path / "results.jsonl", tmp_path / "results.errors.jsonl"


@pytest.fixture
def run(files, monkeypatch):
    monkeypatch.setattr(_batch_command, "_PAUSE", 0.01)

    def run(server, *options, key="k"):
        env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": server.url}
        return CliRunner().invoke(tidegate, ["batch", *map(str, files[:2]), *options], env=env)

    return run


def told(result):
    return json.loads(result.stdout)


def test_each_request_gets_its_answer_once(files, run):
    requests, results, errors = files
    write(requests, [request(number) for number in range(40)])
    with FaultServer([{"status": 500}, {"status": 429, "retry_after_s": 0.01}]) as server:
        first = run(server, "--json")
        again = run(server, "--json")
        ledger = server.ledger
    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    assert ledger["requests"]["total"] == 42
    got = lines(results)
    assert sorted(line["custom_id"] for line in got) == sorted(f"r{number}" for number in range(40))
    for line in got:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["message"]["content"]
        assert line["response"]["request_id"].startswith("req_")
        assert line["tidegate"]["usage"] == "reported"
    assert not errors.exists()
    assert (told(first)["answered"], told(again)["answered"], told(again)["answered_before"]) == (40, 0, 40)
    used = ledger["usage"]
    for run_told in (told(first), told(again)):
        assert run_told["prompt_tokens"] == used["prompt_tokens"]
        assert run_told["completion_tokens"] == used["completion_tokens"]


def process(server, files, *options):
    env = {**os.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "batch",
        *map(str, files[:2]),
        "--concurrency",
        "8",
        *options,
    ]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 our own


def wait_for_answers(results, number, running):
    deadline = time.monotonic() + PATIENCE
    while len(results.read_bytes().splitlines() if results.exists() else ()) < number:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_run_that_is_killed_goes_on_where_it_was(files):
    requests, results, _ = files
    write(requests, [request(number) for number in range(300)])
    draw, kills, had = random.Random(7), 5, 0  # noqa: S311 no secret
    with FaultServer(latency_ms=(10, 40)) as server:
        for _ in range(kills):
            with process(server, files) as running:
                wait_for_answers(results, had + draw.randint(5, 30), running)
                running.kill()
            # A line that was not finished is none.
            had = results.read_bytes().count(b"\n")
        with process(server, files, "--json") as running:
            out, _ = running.communicate(timeout=PATIENCE)
        asked = server.ledger["requests"]["total"]
    assert running.returncode == 0
    assert json.loads(out)["answered_before"] == had
    assert sorted(line["custom_id"] for line in lines(results)) == sorted(f"r{n}" for n in range(300))
    # Only what was under way is asked twice.
    assert 300 <= asked <= 300 + kills * 8


def test_ctrl_c_keeps_what_has_come(files):
    requests, results, _ = files
    write(requests, [request(number) for number in range(300)])
    with FaultServer(latency_ms=20) as server:
        with process(server, files) as running:
            wait_for_answers(results, 20, running)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=PATIENCE)
        asked = server.ledger["requests"]["total"]
    assert running.returncode == 130
    assert "interrupted" in out
    assert "the same command goes on" in out
    assert err == ""
    kept = lines(results)
    assert 20 <= len(kept) <= asked <= len(kept) + 8


@pytest.mark.parametrize("cut", [1, 40, 10_000])
def test_a_line_that_was_not_finished_is_asked_again(files, run, cut):
    requests, results, _ = files
    write(requests, [request(number) for number in range(3)])
    with FaultServer() as server:
        run(server)
        whole = results.read_bytes()
        last = whole.splitlines(keepends=True)[-1]
        results.write_bytes(whole[: -min(cut, len(last) - 1)])
        again = run(server, "--json")
    assert told(again)["answered_before"] == 2
    assert sorted(line["custom_id"] for line in lines(results)) == ["r0", "r1", "r2"]


class FullDisk:
    """A file that takes some bytes more."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, data):
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(bytes(data[: self._room]))
        self._room -= written
        return written

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_disk_that_is_full_ends_the_run_and_spoils_nothing(files, run, monkeypatch):
    requests, results, _ = files
    write(requests, [request(number) for number in range(30)])

    class Full(Results):
        def __init__(self, path):
            super().__init__(path)
            self._file = FullDisk(self._file, 10_000)

    monkeypatch.setattr(_batch_command, "Results", Full)
    with FaultServer() as server:
        stopped = run(server)
        monkeypatch.undo()
        kept = lines(results)
        again = run(server, "--json")
    assert stopped.exit_code == 2
    assert "No space left on device" in stopped.stderr
    assert 0 < len(kept) < 30
    assert told(again)["answered_before"] == len(kept)
    assert sorted(line["custom_id"] for line in lines(results)) == sorted(f"r{n}" for n in range(30))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("{", "line 2: must be a JSON object"),
        ("[]", "line 2: must be a JSON object"),
        (request(1) | {"custom_id": ""}, "line 2: custom_id = ''"),
        (request(1) | {"custom_id": 7}, "line 2: custom_id = 7"),
        (request(1) | {"method": "GET"}, "line 2: method = 'GET'"),
        (request(1) | {"url": "v1/x"}, "line 2: url = 'v1/x'"),
        (request(1) | {"body": None}, "line 2: body = None"),
        (request(1, stream=True), "line 2: body.stream = True"),
        (request(0), "line 2: custom_id 'r0' is that of line 1"),
    ],
)
def test_a_file_that_holds_no_requests_is_refused_before_any_is_sent(files, run, wrong, problem):
    text = wrong if isinstance(wrong, str) else json.dumps(wrong)
    files[0].write_text(f"{json.dumps(request(0))}\n{text}\n\n", "utf-8")
    with FaultServer() as server:
        refused = run(server)
        assert server.ledger["requests"]["total"] == 0
    assert refused.exit_code == 2
    assert f"{files[0]}, {problem}" in refused.stderr
    assert lines(files[1]) == []


def test_a_file_of_something_else_is_not_touched(files, run):
    requests, results, _ = files
    write(requests, [request(0)])
    for text in ("precious\n", json.dumps(request(0)) + "\n"):
        results.write_text(text, "utf-8")
        with FaultServer() as server:
            refused = run(server)
        assert refused.exit_code == 2
        assert "line 1: is no result of a batch" in refused.stderr
        assert results.read_text("utf-8") == text


def test_one_process_at_a_time(files, run):
    write(files[0], [request(0)])
    with contextlib.closing(Results(files[1])), FaultServer() as server:
        refused = run(server)
    assert refused.exit_code == 2
    assert "another process is at work on it" in refused.stderr


def test_what_cannot_be_answered_is_told_and_asked_again_only_by_the_next_run(files, run):
    requests, results, errors = files
    write(requests, [request(0), request(1, model="bad"), request(2), {**request(3), "url": "/%2e%2e/x"}])
    rules = [{"match": {"model": "bad"}, "respond": {"status": 400, "error": "context_length"}}]
    with FaultServer(rules=rules) as server:
        partly = run(server, "--json")
        assert server.ledger["requests"]["total"] == 3
        again = run(server)
        assert server.ledger["requests"]["total"] == 4
    assert (partly.exit_code, again.exit_code) == (1, 1)
    assert (told(partly)["answered"], told(partly)["failed"]) == (2, 2)
    by_id = {line["custom_id"]: line for line in lines(errors)}
    assert by_id.keys() == {"r1", "r3"}
    assert by_id["r1"]["response"]["status_code"] == 400
    assert by_id["r1"]["error"]["code"] == "too_large"
    assert by_id["r1"]["error"]["may_pass"] is False
    assert by_id["r3"]["response"] is None
    assert f"2 failed: {errors} tells why" in again.output
    assert "the same command goes on" in again.output
    assert sorted(line["custom_id"] for line in lines(results)) == ["r0", "r2"]


def test_what_failed_for_a_passing_reason_is_asked_again_in_the_end(files, run):
    requests, _, errors = files
    write(requests, [request(0, model="slow"), *(request(number) for number in range(1, 4))])
    # The first has used up its attempts before the server has come to itself.
    answers = [{"status": 503, "retry_after_s": 0.01}] * 6 + [{}]
    with FaultServer(rules=[{"match": {"model": "slow"}, "respond": answers}]) as server:
        done = run(server, "--json", "--concurrency", "1")
        assert server.ledger["requests"]["total"] == 10
    assert done.exit_code == 0, done.output
    assert told(done)["failed"] == 0
    assert not errors.exists()


@pytest.mark.parametrize("status", [{"status": 401}, {"error": "insufficient_quota"}])
def test_what_holds_for_all_stops_the_run(files, run, status):
    write(files[0], [request(number) for number in range(100)])
    with FaultServer([status], repeat_last=True) as server:
        stopped = run(server, "--concurrency", "2")
        assert server.ledger["requests"]["total"] <= 3
    assert stopped.exit_code == 1
    assert "stopped with 9" in stopped.output
    assert "not asked: " in stopped.output


def test_a_cap_holds_over_all_runs(files, run, tmp_path):
    requests, results, _ = files
    write(requests, [request(number, max_tokens=5) for number in range(50)])
    prices = write(tmp_path / "prices.json", [PRICES])
    with FaultServer() as server:
        small = run(server, "--json", "--prices", str(prices), "--max-usd", "0.001")
        more = run(server, "--json", "--prices", str(prices), "--max-usd", "0.002")
        nothing = run(server, "--json", "--prices", str(prices), "--max-usd", "0.001")
        without = run(server, "--max-usd", "1")
    for result, cap in ((small, Decimal("0.001")), (more, Decimal("0.002"))):
        assert result.exit_code == 1
        assert "the spend cap of $0.00" in told(result)["stopped"]
        assert told(result)["failed"] == 0
        # A call's prompt is estimated before it is sent.
        assert cap / 2 < Decimal(told(result)["cost_usd"]) < cap * Decimal("1.3")
    assert told(nothing)["stopped"] == "nothing is left of $0.001"
    of_lines = sum(Decimal(line["tidegate"]["cost_usd"]) for line in lines(results))
    assert Decimal(told(nothing)["cost_usd"]) == of_lines > 0
    assert without.exit_code == 2
    assert "--max-usd = 1: needs --prices" in without.stderr


def batch(results, client, tally, **settings):
    settings = {"workers": 4, "patience": PATIENCE, "pause": 0.0, "on_progress": lambda: None, **settings}
    return Batch(client=client, results=results, tally=tally, **settings)


TOUCHY = BreakerPolicy(
    window=0.1, minimum_calls=1, consecutive_hits=1, recency=0, open_for=0.2, reopen_for=0.1
)


async def test_an_outage_is_waited_out(files):
    requests, results, _ = files
    write(requests, [request(number) for number in range(60)])
    gate = Gate(retry=RetryPolicy(max_attempts=1), breaker=TOUCHY)
    tally = Tally(requests=60)
    with FaultServer(latency_ms=5) as server, contextlib.closing(Results(results)) as kept:
        client = AsyncClient(server.url, "k", gate=gate)
        down = asyncio.ensure_future(batch(kept, client, tally).run(read_requests(requests)))
        async with asyncio.timeout(PATIENCE):
            while tally.answered < 10:  # noqa: ASYNC110 it is counted elsewhere
                await asyncio.sleep(0)
            server.script([{"status": 503}], repeat_last=True)
            while not gate.breakers()[0].opened:  # noqa: ASYNC110
                await asyncio.sleep(0)
        server.script([{}], repeat_last=True)
        await asyncio.wait_for(down, PATIENCE)
    assert tally.answered == len(lines(results)) == 60
    assert tally.stopped is None
    assert "tidegate_stacked_retries_total 0" in gate.metrics_text()


async def test_nobody_waits_for_ever(files):
    requests, results, _ = files
    write(requests, [request(number) for number in range(60)])
    gate = Gate(retry=RetryPolicy(max_attempts=1), breaker=TOUCHY)
    tally = Tally(requests=60)
    with (
        FaultServer([{"status": 503}], repeat_last=True) as server,
        contextlib.closing(Results(results)) as kept,
    ):
        client = AsyncClient(server.url, "k", gate=gate)
        run = batch(kept, client, tally, patience=0.3)
        await asyncio.wait_for(run.run(read_requests(requests)), PATIENCE)
        assert server.ledger["requests"]["total"] < 60
    assert tally.stopped.startswith("no answer for 0.3 s")
    assert all(line["error"]["may_pass"] for line in run.errors.values())
    assert lines(results) == []
