"""The doctor over logs of eight processes that really ran, with one fault planted at a time, or none."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tidegate import _commands, _doctor
from tidegate.testing import FaultServer

PROCESSES = 8

WORKER = """
import asyncio, itertools, random, sys, time, uuid
from pathlib import Path
import tenacity
from tidegate import AsyncClient, BreakerPolicy, CircuitOpenError, Client, Gate, NoEffectError, RetryPolicy
from tidegate import TidegateError

url, log, number, stop, processes = *sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5])

def body(i, model="flaky"):
    return {"model": model, "messages": [{"role": "user", "content": f"{number}/{i}"}]}

def gate(**settings):
    return Gate(**{
        "retry": RetryPolicy(base=0.02, cap=0.05), "retry_budget": None, "breaker": None, "limits": None,
        "log_file": log, **settings,
    })

def post(client, i, **options):
    return client.post("/chat/completions", json=body(i), **options)
"""

STEADY = """
# The fault is over for all before the steady traffic begins.
Path(f"{log}.done").touch()
while len(list(Path(log).parent.glob("*.done"))) < processes:
    time.sleep(0.01)
client = Client(url, "key", gate=gate())
# The doctor takes a tenth of a second for one moment: the last of them has to be without the fault.
ends = time.monotonic() + 0.5
for i in itertools.count():
    client.post("/chat/completions", json=body(i, "steady"))
    if i >= 40 and time.monotonic() > ends:
        break
"""

HEALTHY = """
breaker = BreakerPolicy(window=2, minimum_calls=10, open_for=0.3, reopen_for=0.2)
gate = gate(retry=RetryPolicy(base=0.05, cap=0.2), breaker=breaker)

async def work(client, i):
    n = 0
    while not stop.exists():
        n += 1
        # Half of them ask the same for ever, as a health check does, and with the same pause.
        what = body("same" if i % 2 else f"{i}/{n}", "m")
        key = {"Idempotency-Key": f"{number}-{i}-{n}"}
        try:
            await client.post("/chat/completions", json=what, headers=key)
        except TidegateError:
            pass
        await asyncio.sleep(0.02)

async def main():
    async with AsyncClient(url, "key", gate=gate) as client:
        await asyncio.gather(*(work(client, i) for i in range(4)))

asyncio.run(main())
"""

TENACITY = """
policy = {"stop": tenacity.stop_after_attempt(3), "wait": WAIT, "reraise": True}

async def one(client, i):
    try:
        async for attempt in tenacity.AsyncRetrying(**policy):
            with attempt:
                await post(client, i)
    except TidegateError:
        pass

async def main():
    async with AsyncClient(url, "key", gate=gate()) as client:
        RUN

asyncio.run(main())
"""

TOGETHER = "await asyncio.gather(*(one(client, i) for i in range(5)))"
TOGETHER_THE_SAME = "await asyncio.gather(*(one(client, 0) for i in range(5)))"
ONE_BY_ONE_THE_SAME = "[await one(client, 0) for i in range(4)]"

LOOP = """
client = Client(url, "key", gate=gate(retry=None))
for i in range(6):
    order = f"{number}-{i}"
    for _ in range(3):
        try:
            post(client, i, headers={"Idempotency-Key": KEY})
            break
        except TidegateError:
            time.sleep(WAIT)
"""


class Site:
    """Eight processes, each with its log, before one server."""

    def __init__(self, folder, server):
        self.server = server
        self.folder = folder
        self.stop = folder / "stop"
        self.logs = [folder / f"{number}.jsonl" for number in range(PROCESSES)]
        self.running = []

    def start(self, script, **words):
        for word, text in words.items():
            script = script.replace(word, text)
        path = self.folder / "worker.py"
        path.write_text(WORKER + script, encoding="utf-8")
        for number, log in enumerate(self.logs):
            command = [sys.executable, path, self.server.url, log, str(number), self.stop, str(PROCESSES)]
            self.running.append(subprocess.Popen(command))  # noqa: S603

    def finish(self):
        assert [process.wait(timeout=120) for process in self.running] == [0] * len(self.running)
        self.running.clear()

    def run(self, script, **words):
        self.start(script, **words)
        self.finish()

    def told(self, event):
        """The least number of records of a kind that a log holds."""
        text = [log.read_text("utf-8") if log.exists() else "" for log in self.logs]
        return min(lines.count(f'"event":"{event}"') for lines in text)

    def diagnose(self):
        seen = []
        report = _doctor.examine(self.logs, lambda read, total: seen.append((read, total)))
        assert seen[-1][0] == seen[-1][1] == sum(log.stat().st_size for log in self.logs)
        assert all(file["broken"] == 0 for file in report["files"])
        return {finding["name"]: finding for finding in report["findings"]}


@pytest.fixture
def site(tmp_path):
    with FaultServer(rules=[{"match": {"model": "flaky"}, "respond": {"status": 500}}]) as server:
        site = Site(tmp_path, server)
        yield site
        site.stop.touch()
        for process in site.running:
            process.wait(timeout=60)


def problems(findings):
    return {name for name, finding in findings.items() if finding["verdict"] == "problem"}


def test_healthy_processes_raise_no_alarm(tmp_path, wait_until):
    ordinary = [
        {"match": {"every": 40}, "respond": {"status": 503}},
        {"match": {"every": 50}, "respond": {"status": 429, "headers": {"retry-after": "0.2"}}},
    ]
    with FaultServer(rules=ordinary, latency_ms=(20, 60)) as server:
        site = Site(tmp_path, server)
        site.start(HEALTHY)
        try:
            wait_until(lambda: site.told("call") >= 60, patience=100)
            server.script(rules=[{"match": {}, "respond": {"status": 500}}])
            wait_until(lambda: site.told("breaker") >= 1, patience=100)
            server.script(rules=ordinary)
            before = site.told("call")
            wait_until(lambda: site.told("call") >= before + 150, patience=100)
        finally:
            site.stop.touch()
            site.finish()
    findings = site.diagnose()
    assert problems(findings) == set(), json.dumps(findings, indent=1)
    assert findings["breaker"]["verdict"] == "ok"
    assert findings["breaker"]["evidence"]["recovered"] >= PROCESSES
    assert findings["jitter"]["verdict"] == "ok"
    assert findings["jitter"]["evidence"]["gate_waits"] > 100
    assert findings["upstream_errors"]["verdict"] == "ok"
    assert findings["upstream_errors"]["evidence"]["rate_limited"] > 0


@pytest.mark.parametrize("run", [TOGETHER, TOGETHER_THE_SAME, ONE_BY_ONE_THE_SAME])
def test_retries_around_retries_are_measured(site, run):
    site.run(TENACITY + STEADY, WAIT="tenacity.wait_random(0.05, 0.4)", RUN=run)
    sent = site.server.ledger["requests"]["by_status"]["500"]
    calls = 5 if run != ONE_BY_ONE_THE_SAME else 4
    assert sent == PROCESSES * calls * 3 * 4
    findings = site.diagnose()
    assert problems(findings) == {"double_retries"}, json.dumps(findings, indent=1)
    found = findings["double_retries"]
    assert found["evidence"]["worst_attempts"] >= 12
    assert found["evidence"]["attempts"] >= 0.9 * sent
    if run == TOGETHER:
        assert found["evidence"]["amplification"] == 12
        assert found["evidence"]["requests"] == PROCESSES * 5
    texts = [log.read_text("utf-8") for log in site.logs]
    assert all(any(trace in text for text in texts) for trace in found["trace_ids"])


# Far longer than a loaded machine is late.
FIXED_WAIT = "tenacity.wait_fixed(2)"


def test_fixed_sleeps_around_single_attempts_are_found(site):
    single = TENACITY.replace("gate=gate()", "gate=gate(retry=None)")
    site.run(single + STEADY, WAIT=FIXED_WAIT, RUN=TOGETHER)
    findings = site.diagnose()
    assert problems(findings) == {"jitter"}, json.dumps(findings, indent=1)
    assert findings["jitter"]["evidence"]["outer_loop_retry_1_fixed_at_s"] == pytest.approx(2, abs=0.5)


def test_random_sleeps_around_single_attempts_are_left_alone(site):
    site.run(LOOP + STEADY, KEY="order", WAIT="random.uniform(0, 0.4)")
    findings = site.diagnose()
    assert problems(findings) == set(), json.dumps(findings, indent=1)
    assert findings["jitter"]["verdict"] == "ok"
    assert findings["idempotency_keys"]["verdict"] == "ok"
    assert findings["idempotency_keys"]["evidence"]["tried_again_with_same_key"] == PROCESSES * 6 * 2


def test_both_layers_and_fixed_sleeps_are_two_findings(site):
    site.run(TENACITY + STEADY, WAIT=FIXED_WAIT, RUN=TOGETHER)
    findings = site.diagnose()
    assert problems(findings) == {"double_retries", "jitter"}, json.dumps(findings, indent=1)


FIXED = """
client = Client(url, "key", gate=gate(retry=RetryPolicy(base=0.02, cap=0.02, min_delay=0.02)))
"""

PLAIN = """
client = Client(url, "key", gate=gate())
"""

FAILING = """
for i in range(5):
    try:
        post(client, i)
    except TidegateError:
        pass
"""


def test_the_gates_own_fixed_waits_are_found(site):
    site.run(FIXED + FAILING + STEADY)
    findings = site.diagnose()
    assert problems(findings) == {"jitter"}, json.dumps(findings, indent=1)
    assert findings["jitter"]["evidence"]["gate_retry_1_fixed_at_s"] == 0.02


def test_keys_made_anew_for_each_try_are_found(site):
    site.run(LOOP + STEADY, KEY="str(uuid.uuid4())", WAIT="random.uniform(0, 0.4)")
    findings = site.diagnose()
    assert problems(findings) == {"idempotency_keys"}, json.dumps(findings, indent=1)
    sample = findings["idempotency_keys"]["evidence"]["sample"]
    assert len(sample) == 20
    assert {check["key"] for check in sample} == {"changed"}


CHARGES = """
# Each order reaches every process, as from a queue that delivers more than once.
tools = gate(store=STORE)
for order in range(10):
    tools.once(f"charge:{order}", CHARGE, order)
"""


def test_charges_that_a_shared_store_keeps_single_are_reconciled(site):
    site.run(CHARGES + STEADY, STORE=repr(f"sqlite:///{site.folder}/store.db"), CHARGE="lambda order: order")
    findings = site.diagnose()
    assert problems(findings) == set(), json.dumps(findings, indent=1)
    found = findings["duplicates"]
    assert found["verdict"] == "ok"
    assert found["evidence"]["executed"] == 10
    assert found["evidence"]["suppressed"] == 10 * (PROCESSES - 1)


def test_charges_made_by_every_process_for_itself_are_found(site):
    site.run(CHARGES + STEADY, STORE='"memory:"', CHARGE="lambda order: order")
    findings = site.diagnose()
    assert problems(findings) == {"duplicates"}, json.dumps(findings, indent=1)
    evidence = findings["duplicates"]["evidence"]
    assert evidence["keys_executed_more_than_once"] == 10
    assert evidence["extra_effects"] == 10 * (PROCESSES - 1)


KEYS = """
tools = gate()
for order in range(5):
    for attempt in range(2):
        def charge(order):
            if attempt == 0:
                raise NoEffectError("refused")
        try:
            tools.once(KEY, charge, f"{number}/{order}")
        except NoEffectError:
            pass
"""


def test_keys_of_tools_that_change_between_tries_are_found(site):
    site.run(KEYS + STEADY, KEY="str(uuid.uuid4())")
    findings = site.diagnose()
    assert problems(findings) == {"idempotency_keys"}, json.dumps(findings, indent=1)
    assert findings["idempotency_keys"]["evidence"]["tried_again_with_another_key"] == PROCESSES * 5


def test_keys_of_tools_that_stay_the_same_are_left_alone(site):
    site.run(KEYS + STEADY, KEY='f"charge:{number}/{order}"')
    findings = site.diagnose()
    assert problems(findings) == set(), json.dumps(findings, indent=1)
    assert findings["idempotency_keys"]["evidence"]["tried_again_with_same_key"] == PROCESSES * 5


def test_an_upstream_that_fails_now_is_found(site):
    site.run(STEADY.replace("+ 0.5", "") + PLAIN + FAILING)
    findings = site.diagnose()
    assert problems(findings) == {"upstream_errors"}, json.dumps(findings, indent=1)
    assert findings["upstream_errors"]["evidence"]["server_errors"] == PROCESSES * 5 * 4


def test_a_breaker_that_nobody_closes_is_found(site):
    site.run(
        """
policy = BreakerPolicy(window=1, minimum_calls=5, open_for=0.2, reopen_for=0.2)
client = Client(url, "key", gate=gate(breaker=policy, retry=None))
refused = n = 0
while refused < 60:
    n += 1
    try:
        post(client, n)
    except CircuitOpenError:
        refused += 1
    except TidegateError:
        pass
    time.sleep(0.01)
"""
        + STEADY
    )
    # What took a second is told of as minutes.
    for log in site.logs:
        told = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        opened = next(line["ts"] for line in told if line["event"] == "breaker")
        for line in told:
            line["ts"] += max(line["ts"] - opened, 0.0) * 400 - 3600
        log.write_text("".join(json.dumps(line) + "\n" for line in told), "utf-8")
    findings = site.diagnose()
    assert problems(findings) == {"breaker"}, json.dumps(findings, indent=1)
    assert findings["breaker"]["evidence"]["stuck_open"] == PROCESSES


def line(ts, event="call", **facts):
    return json.dumps({"schema": 1, "ts": ts, "event": event, "outcome": "ok", **facts}) + "\n"


def failing(count):
    facts = {"outcome": "server_error", "status": 500, "latency_s": 0.1, "trace_id": f"{7:032x}"}
    return "".join(line(1e9 + i, "attempt", **facts) for i in range(count))


@pytest.fixture
def doctor():
    def run(*arguments):
        return CliRunner().invoke(_commands.tidegate, ["doctor", *map(str, arguments)])

    return run


def test_the_exit_status_tells_scripts(doctor, tmp_path):
    healthy, ill = tmp_path / "healthy.jsonl", tmp_path / "ill.jsonl"
    healthy.write_text("".join(line(1e9 + i) for i in range(30)), "utf-8")
    ill.write_text(failing(30), "utf-8")
    assert (doctor(healthy).exit_code, doctor(ill).exit_code, doctor(healthy, ill).exit_code) == (0, 1, 1)
    report = json.loads(doctor("--json", ill).stdout)
    assert report["healthy"] is False
    assert [finding["name"] for finding in report["findings"]] == [
        "upstream_errors",
        "double_retries",
        "idempotency_keys",
        "jitter",
        "breaker",
        "duplicates",
    ]


def test_what_cannot_be_read_is_named(doctor, tmp_path):
    empty, other, newer = tmp_path / "empty", tmp_path / "other", tmp_path / "newer"
    empty.touch()
    other.write_text("Traceback (most recent call last):\n{}\n", "utf-8")
    newer.write_text('{"schema": 999, "ts": 1.0, "event": "call"}\n', "utf-8")
    for path, why in [
        (tmp_path / "none", "No such file"),
        (empty, "no record in 0 line(s)"),
        (other, "no record in 2 line(s)"),
        (newer, "a later version of tidegate wrote it"),
    ]:
        for options in [(), ("--json",)]:
            ended = doctor(*options, path)
            assert (ended.exit_code, ended.stdout) == (2, "")
            assert why in ended.stderr
            assert str(path) in ended.stderr
    assert doctor().exit_code == 2


def test_broken_lines_are_counted_and_never_fatal(doctor, tmp_path):
    log = tmp_path / "log.jsonl"
    whole = "".join(line(1e9 + i) for i in range(30)).encode()
    log.write_bytes(b"\xff\xfe\n" + whole + b"[1]\nx" * 10 + line(1e9 + 40).encode()[:25])
    ended = doctor(log)
    assert ended.exit_code == 0
    assert "12 broken lines" in ended.stdout
    assert json.loads(doctor("--json", log).stdout)["files"][0]["broken"] == 12


def test_older_parts_of_a_rotated_log_are_read_once(doctor, tmp_path):
    for name, start in [("log.jsonl", 200), ("log.jsonl.1", 100), ("log.jsonl.2", 0)]:
        (tmp_path / name).write_text("".join(line(1e9 + start + i) for i in range(50)), "utf-8")
    (tmp_path / "log.jsonl.lock").touch()
    for arguments in [(tmp_path / "log.jsonl",), sorted(tmp_path.iterdir())]:
        report = json.loads(doctor("--json", *arguments).stdout)
        assert report["records"] == report["calls"] == 150
        assert (report["first_ts"], report["last_ts"]) == (1e9, 1e9 + 249)
        assert "no record" not in doctor(*arguments).stdout


def test_a_problem_is_told_with_evidence_and_what_to_do(doctor, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(failing(30), "utf-8")
    text = " ".join(doctor(log).stdout.split())
    assert "1 file, 30 records: 0 calls (0 failed), 30 attempts" in text
    assert "100.0 % of 30 attempts failed (0 with 429, 30 with 5xx, 0 unanswered)" in text
    assert "What to do: The upstream fails now." in text
    assert f"{7:032x}" in text
    assert text.endswith("1 problem.")


def test_what_a_log_holds_is_shown_as_it_is(doctor, tmp_path):
    """A model's name comes from a caller; it is no markup and no terminal's command."""
    log = tmp_path / "log.jsonl"
    about = {"origin": "https://a.test", "model": "[red]m[/]\x1b[2J", "gate": "1"}
    log.write_text(
        line(1e9, "breaker", **about | {"outcome": "open"})
        + line(1e9 + 90, "call", **about | {"outcome": "breaker_open"}),
        "utf-8",
    )
    ended = doctor(log)
    assert ended.exit_code == 1
    assert "[red]m[/]" in ended.stdout
    assert "\x1b" not in ended.stdout
