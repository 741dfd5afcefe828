"""One scripted run against the fault server, told alike by every sink, and secrets in none."""

import json
import logging
import math
import re

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tidegate import (
    BreakerPolicy,
    CallError,
    CircuitOpenError,
    Client,
    Gate,
    JSONFormatter,
    RetryBudget,
    RetryPolicy,
    SpendCap,
    _semconv,
    otel,
    tags,
)
from tidegate.prometheus import Collector
from tidegate.testing import FaultServer

CALLS = 30
SECRETS = {
    "key": "sk-secret-key",
    "header": "secret-header-value",
    "query": "secret-query-value",
    "prompt": "secret words of a prompt",
    "answer": "secret words of an answer",
    "error": "secret words of an error",
}
SIX = (
    "tool_call_total",
    "retry_total",
    "idempotency_suppressed_total",
    "breaker_open_total",
    "cost_usd_total",
)


class Sinks:
    """A gate with every sink on."""

    def __init__(self, folder):
        self.log = folder / "log.jsonl"
        self.gate = Gate(
            retry=RetryPolicy(base=0.001, cap=0.002, throttle_base=0.001, throttle_cap=0.002),
            breaker=BreakerPolicy(window=1.0, minimum_calls=5, consecutive_hits=1, recency=0, open_for=600.0),
            retry_budget=RetryBudget(capacity=1000),
            prices={"m": {"input": "0.15", "output": "0.60"}},
            log_file=self.log,
        )
        self.spans = InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.instrumentation = otel.instrument(
            self.gate,
            tracer_provider=tracers,
            meter_provider=MeterProvider([self.reader], shutdown_on_exit=False),
        )
        self.registry = CollectorRegistry()
        self.registry.register(Collector(self.gate))

    def of_text(self):
        return samples(parse_text(self.gate.metrics_text()))

    def of_prometheus_client(self):
        return samples(parse_text(generate_latest(self.registry).decode()))

    def of_openmetrics(self):
        return samples(parse_openmetrics(generate_openmetrics(self.registry).decode()))

    def of_opentelemetry(self):
        """The same series by the convention of `_semconv`: names and attributes translated back."""
        names = {own: name for name, (own, _) in _semconv.OWN_METRICS.items()}
        found = {}
        for scope in self.reader.get_metrics_data().resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels = {
                        "model" if key == _semconv.REQUEST_MODEL else key.removeprefix("tidegate."): value
                        for key, value in point.attributes.items()
                    }
                    if metric.name in names:
                        found[names[metric.name], frozenset(labels.items())] = point.value
        return found


def samples(families):
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def series(name, **labels):
    return name, frozenset(labels.items())


@pytest.fixture
def sinks(tmp_path):
    return Sinks(tmp_path)


def scripted_run(gate):
    """Thirty calls of which some are repeated, an outage of another model, and tools."""
    infos = []
    down = {"match": {"model": "down"}, "respond": {"status": 500, "error": "server_error"}}
    with FaultServer(rules=[down]) as server:
        server.script(
            [{"status": 500}, {"status": 429}, {"fault": "cut"}, {}, {"status": 503}, {}, {"status": 500}],
            rules=[down],
        )
        client = Client(server.url, "key", gate=gate)
        with tags(route="r"):
            for _ in range(CALLS):
                answer = client.post("/chat/completions", json={"model": "m", "messages": []})
                infos.append(answer.info)
        other = Client(server.url, "key", gate=gate, max_retries=0)
        for _ in range(10_000):
            try:
                other.post("/chat/completions", json={"model": "down", "messages": []})
            except CircuitOpenError as error:
                infos.append(error.info)
                break
            except CallError as error:
                infos.append(error.info)
        of_tool = dict.fromkeys(("key", "fingerprint", "outcome", "reason", "attempts"))
        of_tool.update(tool="charge", effect="read", log_level=logging.CRITICAL)
        for status in ("ok", "ok", "error"):
            gate._tools.store.tell(**of_tool, status=status, decision=None)
        for outcome in (
            "executed",
            "replay",
            "replay",
            "joined",
            "conflict",
            "in_doubt",
            "mismatch",
            "lease_lost",
        ):
            gate._tools.store.tell(**of_tool, status=None, decision=outcome)
        return infos, server.ledger


def test_each_sink_tells_the_six_metrics_exactly(sinks):
    infos, ledger = scripted_run(sinks.gate)
    expected = {
        series("tool_call_total", tool="charge", status="ok"): 2,
        series("tool_call_total", tool="charge", status="error"): 1,
        series("retry_total", reason="server_error"): 2,
        series("retry_total", reason="rate_limit"): 1,
        series("retry_total", reason="connection"): 1,
        series("retry_total", reason="overloaded"): 1,
        series("idempotency_suppressed_total"): 5,
        series("breaker_open_total"): 1,
        series("cost_usd_total"): 0.000144,
    }
    # A process' latencies are of calls that were sent, by nearest rank.
    latencies = sorted(info.latency_s * 1000 for info in infos if info.attempts)
    p95 = latencies[math.ceil(0.95 * len(latencies)) - 1]
    for tell in (sinks.of_text, sinks.of_prometheus_client, sinks.of_openmetrics, sinks.of_opentelemetry):
        told = tell()
        assert told["llm_latency_ms_p95", frozenset()] == pytest.approx(p95, rel=1 / 60)
        seen = {key: value for key, value in told.items() if key[0] in SIX and (value or not key[1])}
        assert seen == expected, tell.__name__
        assert told[series("tidegate_idempotency_total", outcome="lease_lost")] == 1
        assert told[series("tidegate_idempotency_total", outcome="in_doubt")] == 1
        assert told[series("tidegate_idempotency_total", outcome="store_unavailable")] == 0
        assert told[series("tidegate_breaker_rejections_total")] == 1
        assert told[series("tidegate_cost_usd_total", model="m", route="r", estimated="false")] == 0.000144
        attempts = sum(value for key, value in told.items() if key[0] == "tidegate_attempts_total")
        assert attempts == sum(info.attempts for info in infos)
        assert attempts == ledger["requests"]["total"]
        states = {
            dict(labels)["state"]: value
            for (name, labels), value in told.items()
            if name == "tidegate_breaker_state" and dict(labels)["scope"].endswith(" down")
        }
        assert states == {"open": 1, "half_open": 0, "closed": 0}


def test_the_sinks_agree_on_every_series(sinks):
    scripted_run(sinks.gate)
    text = sinks.of_text()
    # Balances grow by the second.
    steady = {key: value for key, value in text.items() if key[0] != "tidegate_retry_budget_balance"}
    for tell in (sinks.of_prometheus_client, sinks.of_openmetrics):
        told = tell()
        assert told.keys() == text.keys()
        assert {key: told[key] for key in steady} == pytest.approx(steady)
    told = sinks.of_opentelemetry()
    plain = {
        key: value for key, value in steady.items() if not re.search(r"_seconds_(bucket|sum|count)$", key[0])
    }
    assert {key: told[key] for key in plain} == pytest.approx(plain)


def test_below_twenty_calls_there_is_no_percentile(sinks, server):
    client = Client(server.url, "key", gate=sinks.gate)
    for number in range(20):
        for tell in (sinks.of_text, sinks.of_prometheus_client, sinks.of_opentelemetry):
            assert ("llm_latency_ms_p95", frozenset()) not in tell(), number
        client.post("/chat/completions", json={"model": "m", "messages": []})
    for tell in (sinks.of_text, sinks.of_prometheus_client, sinks.of_opentelemetry):
        assert ("llm_latency_ms_p95", frozenset()) in tell()


def test_every_counted_family_has_a_name_in_opentelemetry(sinks):
    families = {family["name"]: family["kind"] for family in sinks.gate._engine.metrics()["families"]}
    assert {name for name, kind in families.items() if kind == "histogram"} == set(_semconv.RECORDED_METRICS)
    assert {name for name, kind in families.items() if kind != "histogram"} == set(_semconv.OWN_METRICS)


def test_caps_are_told_with_their_limits(server):
    caps = [SpendCap("2.50", window="day"), SpendCap("0.5", tag="route=r")]
    gate = Gate(prices={"m": {"input": "0.15", "output": "0.60"}}, spend=caps)
    client = Client(server.url, "key", gate=gate)
    client.post("/chat/completions", json={"model": "m", "messages": []})
    with tags(route="r"):
        client.post("/chat/completions", json={"model": "m", "messages": []})
    told = samples(parse_text(gate.metrics_text()))
    assert told[series("tidegate_spend_limit_usd", cap="day")] == 2.5
    assert told[series("tidegate_spend_limit_usd", cap="total route=r")] == 0.5
    [day, of_route] = gate.snapshot()["spend"]
    assert told[series("tidegate_spend_usd", cap="day")] == float(day["spent_usd"]) == 0.0000096
    of_tag = told[series("tidegate_spend_usd", cap="total route=r")]
    assert of_tag == float(of_route["spent_usd"]) == 0.0000048


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        # With everything that a formatter could show.
        self.lines.append(JSONFormatter().format(record) + repr(vars(record)))


@pytest.fixture
def records():
    logger, handler = logging.getLogger("tidegate"), Records()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_secrets_are_in_no_sink(sinks, records):
    wrong = {"status": 400, "error": "invalid_request", "message": SECRETS["error"]}
    script = [{"status": 500, "body_text": SECRETS["error"]}, {}, wrong, {"fault": "malformed"}, {}]
    with FaultServer(script, content=SECRETS["answer"]) as server:
        client = Client(server.url, SECRETS["key"], gate=sinks.gate, headers={"x-own": SECRETS["header"]})
        question = {
            "model": "m",
            "messages": [{"role": "user", "content": SECRETS["prompt"]}],
            "user": "secret-user",
        }
        for _ in range(3):
            try:
                client.post("/chat/completions", json=question, params={"api-key": SECRETS["query"]})
            except CallError as error:
                shown = f"{error!r} {error.info!r}"
                assert SECRETS["key"] not in shown
    spans = [span.to_json() for span in sinks.spans.get_finished_spans()]
    outputs = {
        "log file": sinks.log.read_text("utf-8"),
        "logging": "\n".join(records),
        "metrics text": sinks.gate.metrics_text(),
        "prometheus-client": generate_latest(sinks.registry).decode(),
        "OpenMetrics": generate_openmetrics(sinks.registry).decode(),
        "spans": "\n".join(spans),
        "instruments": sinks.reader.get_metrics_data().to_json(),
        "usage": sinks.gate.usage(("model", "route")).to_json() + sinks.gate.usage().to_csv(),
        "snapshot": json.dumps(sinks.gate.snapshot()),
        "repr": repr((sinks.gate, client)),
    }
    for name, output in outputs.items():
        assert output, name
        for kind, secret in {**SECRETS, "user": "secret-user"}.items():
            assert secret not in output, f"the {kind} is in the {name}"
    assert len(spans) > 5
