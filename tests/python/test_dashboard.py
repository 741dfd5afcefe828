"""The dashboard's queries, asked of a real Prometheus that scrapes a real gate."""

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import pytest
from click.testing import CliRunner

from tidegate import CallError, Client, Gate, Limits, RetryPolicy, SpendCap, tags
from tidegate._commands import tidegate
from tidegate.testing import FaultServer

TEXT = resources.files("tidegate").joinpath("dashboard.json").read_text("utf-8")
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
# What nothing in a test of this kind can bring about; the names are looked at all the same.
SILENT = {
    "tidegate_degraded_total",
    "tidegate_time_to_first_chunk_seconds",
}
NAME = re.compile(
    r"\b(?:tidegate_\w+|retry_total|tool_call_total|cost_usd_total|llm_latency_ms_p95|breaker_open_total"
    r"|idempotency_suppressed_total)"
)

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is missing; Debian's package of that name brings it",
)


def queries():
    return [
        (panel["title"], target["expr"])
        for panel in json.loads(TEXT)["panels"]
        for target in panel.get("targets", [])
    ]


def names(query):
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(query)}


def test_every_metric_stands_on_the_dashboard_and_no_other():
    families = {family["name"] for family in Gate()._engine.metrics()["families"]}
    asked = set().union(*(names(query) for _, query in queries()))
    assert asked == families


def test_panels_do_not_overlap():
    cells = [
        (place["x"] + x, place["y"] + y)
        for panel in json.loads(TEXT)["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_command_prints_it():
    printed = CliRunner().invoke(tidegate, ["dashboard"])
    assert (printed.exit_code, printed.output) == (0, TEXT)


class Exposition:
    """Serves a gate's metrics and keeps it busy: each scrape finds more than the one before."""

    def __init__(self, gate, upstream):
        self.scrapes = 0
        client = Client(upstream.url, "key", gate=gate)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                exposition.call(client, gate)
                text = gate.metrics_text().encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        exposition = self
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def call(self, client, gate):
        self.scrapes += 1
        for model in ("m", "unpriced", "fails", "silent", "too-large"):
            with tags(route=f"route of {model}"):
                try:
                    client.post("/chat/completions", json={**BODY, "model": model, "max_tokens": 10})
                except CallError:
                    assert model in {"fails", "too-large"}
        for _ in range(20):
            client.post("/chat/completions", json={**BODY, "max_tokens": 10})
        for _ in range(2):
            gate.once("charge:1", charge)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def charge():
    return "receipt"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def prometheus(tmp_path):
    """Start Prometheus on an exposition; return a function that asks it."""
    started = []

    def start(target):
        port = free_port()
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": "tidegate", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
            ],
        }
        # YAML reads JSON.
        (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        log = (tmp_path / "prometheus.log").open("wb")
        process = subprocess.Popen(  # noqa: S603 the arguments are the tests' own
            [  # noqa: S607 wherever it is installed
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        started.append((process, log))

        def ask(query):
            url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                return json.load(error)

        def ready():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
                    return True
            except OSError:
                return False

        return ask, ready

    yield start
    for process, log in started:
        process.terminate()
        process.wait(30)
        log.close()


@needs_prometheus
def test_every_query_is_answered(prometheus, wait_until):
    rules = [
        {"match": {"model": "fails"}, "respond": {"status": 503}},
        {
            "match": {"model": "silent"},
            "respond": {
                "body_json": {
                    "object": "chat.completion",
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "stop",
                            "message": {"role": "assistant", "content": "Hello"},
                        }
                    ],
                }
            },
        },
    ]
    gate = Gate(
        retry=RetryPolicy(max_attempts=2, base=0.001),
        breaker=None,
        limits={"too-large": Limits(tpm=5)},
        prices={"m": {"input": 1, "output": 2}},
        spend=SpendCap(1000, on_unpriced="allow"),
    )
    with FaultServer(rules=rules) as upstream, Exposition(gate, upstream) as exposition:
        ask, ready = prometheus(exposition.server.server_address[1])
        wait_until(ready, 60.0)
        variables = {"$job": "tidegate|other", "$__rate_interval": "1m", "$__range": "1h"}
        left = dict.fromkeys(queries())

        def answered():
            for title, query in list(left):
                text = query
                for name, value in variables.items():
                    text = text.replace(name, value)
                answer = ask(text)
                assert answer["status"] == "success", (title, query, answer)
                if answer["data"]["result"] or names(query) <= SILENT | {"tidegate_breaker_state"}:
                    left.pop((title, query))
            return not left

        try:
            wait_until(answered, 60.0)
        except AssertionError as error:
            raise AssertionError(f"without an answer: {list(left)}") from error
