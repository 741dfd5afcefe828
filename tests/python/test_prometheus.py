"""The collector: in the registry, over several processes, and behind gunicorn's workers."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tidegate import Client, ConfigError, Gate
from tidegate._multiprocess import merged, percentile
from tidegate.prometheus import Collector
from tidegate.testing import FaultServer

CHAT = {"model": "m", "messages": []}


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def test_histograms_carry_the_trace_of_a_recent_call(server):
    gate = Gate()
    registry = CollectorRegistry()
    registry.register(Collector(gate))
    client = Client(server.url, "key", gate=gate)
    traces = {client.post("/chat/completions", json=CHAT).info.trace_id for _ in range(5)}
    exemplars = [
        (sample.name, sample.exemplar)
        for family in parse_openmetrics(generate_openmetrics(registry).decode())
        for sample in family.samples
        if sample.exemplar
    ]
    assert exemplars
    for name, exemplar in exemplars:
        assert name == "tidegate_request_duration_seconds_bucket"
        assert exemplar.labels["trace_id"] in traces
        assert 0 < exemplar.value < 60
        assert float(exemplar.timestamp) > 1e9


def test_names_are_taken_once():
    registry = CollectorRegistry()
    registry.register(Collector(Gate()))
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("retry_total", "Another.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector(Gate()))


@pytest.mark.parametrize(
    ("arguments", "field"), [({"gate": 1}, "gate"), ({"multiprocess_dir": "/no/such"}, "multiprocess_dir")]
)
def test_wrong_arguments_are_named(arguments, field):
    with pytest.raises(ConfigError, match=field):
        Collector(**arguments)


WORKER = """
import sys, os
from prometheus_client import CollectorRegistry, generate_latest
from tidegate import Client, Gate
from tidegate.prometheus import Collector

gate = Gate(prices={"m": {"input": "0.15", "output": "0.60"}})
registry = CollectorRegistry()
registry.register(Collector(gate))
client = Client(sys.argv[1], "key", gate=gate)
print("ready", flush=True)
for line in sys.stdin:
    command, _, number = line.strip().partition(" ")
    if command == "call":
        for _ in range(int(number)):
            client.post("/chat/completions", json={"model": "m", "messages": []})
        print("called", flush=True)
    elif command == "scrape":
        text = generate_latest(registry).decode()
        print(len(text.splitlines()), text, sep="\\n", end="", flush=True)
    else:
        break
"""


class Worker:
    def __init__(self, script, url, folder):
        self.process = subprocess.Popen(  # noqa: S603 the script is the test's own
            [sys.executable, script, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        )
        assert self.process.stdout.readline() == "ready\n"

    def call(self, number):
        self.tell(f"call {number}")
        assert self.process.stdout.readline() == "called\n"

    def scrape(self):
        self.tell("scrape")
        count = int(self.process.stdout.readline())
        return samples("".join(self.process.stdout.readline() for _ in range(count)))

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.communicate("end\n", timeout=30)
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(30)


CALLS = "tidegate_calls_total", (("model", "m"), ("outcome", "ok"))
COST = "cost_usd_total", ()
P95 = "llm_latency_ms_p95", ()
BALANCE = "tidegate_retry_budget_balance"


def balances(told):
    return [value for (name, _), value in told.items() if name == BALANCE]


def test_processes_are_added_up_and_the_dead_stay_counted(server, tmp_path, wait_until):
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    folder = tmp_path / "metrics"
    folder.mkdir()
    workers = [Worker(script, server.url, folder) for _ in range(3)]
    try:
        for worker, calls in zip(workers, (12, 12, 6), strict=True):
            worker.call(calls)
        wait_until(lambda: workers[0].scrape()[CALLS] == 30, 30.0)
        told = workers[0].scrape()
        assert told[COST] == 0.000144
        assert P95 in told, "no process has 20 calls, together they have"
        [all_three] = balances(told)
        # One ends as it should, one is killed: what they counted stays, their gauges go.
        assert workers[1].end() == 0
        workers[2].process.send_signal(signal.SIGKILL)
        workers[2].end()
        wait_until(lambda: balances(workers[0].scrape()) == [pytest.approx(all_three / 3)], 30.0)
        told = workers[0].scrape()
        assert (told[CALLS], told[COST]) == (30, 0.000144)
        assert P95 not in told, "twelve latencies are left"
    finally:
        for worker in workers:
            worker.end()


def test_a_fork_publishes_for_itself(server, tmp_path, run_script):
    script = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest
from tidegate import Client, Gate
from tidegate.prometheus import Collector
gate = Gate()
registry = CollectorRegistry()
registry.register(Collector(gate, multiprocess_dir=sys.argv[2]))
client = Client(sys.argv[1], "key", gate=gate)
client.post("/chat/completions", json={"model": "m", "messages": []})
for _ in range(2):
    child = os.fork()
    if child == 0:
        for _ in range(3):
            client.post("/chat/completions", json={"model": "m", "messages": []})
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
print(generate_latest(registry).decode(), end="")
"""
    ended = run_script(script, server.url, tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert samples(ended.out)[CALLS] == 7


APP = """
import os
from prometheus_client import CollectorRegistry, make_wsgi_app
import tidegate
from tidegate.prometheus import Collector

gate = tidegate.configure()
registry = CollectorRegistry()
registry.register(Collector(gate))
metrics = make_wsgi_app(registry)
client = tidegate.Client()

def app(environ, start_response):
    if environ["PATH_INFO"] == "/metrics":
        return metrics(environ, start_response)
    client.post("/chat/completions", json={"model": "m", "messages": []})
    start_response("200 OK", [("content-type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["each worker loads", "loaded before the fork"])
def test_a_scrape_of_one_worker_of_gunicorn_tells_of_all(tmp_path, wait_until, options):
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    folder = tmp_path / "metrics"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return None

    def calls():
        return samples(get("/metrics") or "").get(CALLS, 0)

    with FaultServer() as server, (tmp_path / "log").open("wb") as log:
        gunicorn = subprocess.Popen(  # noqa: S603 the arguments are the test's own
            [sys.executable, "-m", "gunicorn", "-w", "4", "-b", f"127.0.0.1:{port}", *options, "app:app"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "PROMETHEUS_MULTIPROC_DIR": str(folder),
                "OPENAI_BASE_URL": server.url,
                "OPENAI_API_KEY": "key",
            },
        )
        try:
            wait_until(lambda: get("/metrics") is not None, 60.0)
            served = []

            def spread():
                threads = [threading.Thread(target=lambda: served.append(get("/"))) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return len(set(served) - {None}) >= 3

            wait_until(spread, 60.0)
            total = server.ledger["requests"]["total"]
            assert total == len(served)
            # Whichever worker is asked.
            wait_until(lambda: all(calls() == total for _ in range(8)), 60.0)
            # A worker that dies is replaced; what it has counted stays.
            os.kill(int(next(pid for pid in served if pid)), signal.SIGKILL)
            served.clear()
            wait_until(spread, 60.0)
            total = server.ledger["requests"]["total"]
            wait_until(lambda: all(calls() == total for _ in range(8)), 60.0)
        finally:
            gunicorn.terminate()
            assert gunicorn.wait(60) == 0


def plain(*calls):
    """A gate's metrics after calls that took so many milliseconds, as another process would publish them."""
    found = Gate()._engine.metrics()
    for family in found["families"]:
        if family["name"] == "tidegate_calls_total":
            family["samples"] = [[["m", "ok"], len(calls)]]
    return json.loads(json.dumps({**found, "latencies": [[call, 1] for call in sorted(calls)]}))


@given(st.lists(st.lists(st.integers(1, 100_000), max_size=30), max_size=5))
def test_the_percentile_of_all_is_that_of_all_their_calls(processes):
    told = merged([(plain(), True), *((plain(*calls), True) for calls in processes)])
    every = sorted(call for calls in processes for call in calls)
    families = {family["name"]: family["samples"] for family in told["families"]}
    expected = [[[], every[-(-len(every) * 95 // 100) - 1]]] if len(every) >= 20 else []
    assert families["llm_latency_ms_p95"] == expected
    assert families["tidegate_calls_total"][0][1] if every else True
    assert sum(value for _, value in families["tidegate_calls_total"]) == len(every)


def test_percentiles_need_twenty_samples():
    assert percentile([[5.0, 19]], 95) is None
    assert percentile([[5.0, 19], [7.0, 1]], 95) == 5.0
    assert percentile([[5.0, 18], [7.0, 2]], 95) == 7.0


def test_what_is_published_is_what_is_told(server):
    gate = Gate()
    Client(server.url, "key", gate=gate).post("/chat/completions", json=CHAT)
    registry = CollectorRegistry()
    registry.register(Collector(gate))
    alone = samples(generate_latest(registry).decode())
    one = gate._engine.metrics()
    two = merged([(one, True), (json.loads(json.dumps(one)), False)])
    for family in two["families"]:
        for values, value in family["samples"]:
            key = family["name"], tuple(sorted(zip(family["labels"], values, strict=True)))
            if family["kind"] == "counter":
                assert float(value) == pytest.approx(2 * alone[key])
            elif family["kind"] == "gauge" and family["name"] != BALANCE:
                assert value == alone[key], "gauges of the dead do not count"
