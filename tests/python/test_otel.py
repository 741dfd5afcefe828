"""Spans of real calls, read back from the SDK's in-memory exporter."""

import asyncio
import subprocess
import sys
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode

from tidegate import (
    AsyncClient,
    CallError,
    Client,
    ConfigError,
    Fallback,
    Gate,
    Limits,
    RetryPolicy,
    _semconv,
    _trace,
    otel,
)
from tidegate.testing import FaultServer

CHAT = {"model": "m", "messages": []}
FAST = RetryPolicy(base=0.02, cap=0.02, min_delay=0.005)


class Bags(SpanProcessor):
    """Keeps the baggage that each span was started with."""

    def __init__(self):
        self.seen = []

    def on_start(self, span, parent_context=None):
        self.seen.append((span.name, dict(baggage.get_all(parent_context))))


class Observed:
    def __init__(self, gate, *, propagate=False, **tracing):
        self.gate = gate
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **tracing)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.instrumentation = otel.instrument(
            gate,
            tracer_provider=self.provider,
            meter_provider=MeterProvider([self.reader], shutdown_on_exit=False),
            propagate=propagate,
        )
        self.tracer = self.provider.get_tracer("test")

    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def metrics(self):
        data = self.reader.get_metrics_data()
        return {
            metric.name: metric
            for scope in data.resource_metrics[0].scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def observed():
    return Observed(
        Gate(retry=FAST, breaker=None, retry_budget=None, prices={"m": {"input": 1, "output": 2}})
    )


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert not _trace._calls


def children(spans, parent):
    return [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]


def test_a_call_has_a_child_for_each_attempt_and_wait(observed, server):
    server.script([{"status": 500}, {"status": 429, "headers": {"retry-after": "0.01"}}])
    answer = Client(server.url, "key", gate=observed.gate).post("/chat/completions", json=CHAT)
    spans = observed.exporter.get_finished_spans()
    call = observed.spans()["chat m"]
    assert [span.name for span in children(spans, call)] == ["POST", "backoff", "POST", "backoff", "POST"]
    assert len(spans) == 6
    assert call.kind == SpanKind.CLIENT
    assert call.status.status_code == StatusCode.UNSET
    assert call.instrumentation_scope.schema_url == _semconv.SCHEMA_URL
    attributes = dict(call.attributes)
    assert attributes.pop("tidegate.queue_s") >= 0
    port = int(server.url.rpartition(":")[2].removesuffix("/v1"))
    assert attributes == {
        "gen_ai.provider.name": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "server.address": "127.0.0.1",
        "server.port": port,
        "tidegate.attempts": 3,
        "tidegate.usage": "reported",
        "tidegate.cost_usd": "0.000022",
    }
    assert answer.info.trace_id == trace.format_trace_id(call.context.trace_id)
    attempts = [span for span in spans if span.name == "POST"]
    assert [span.attributes.get("http.response.status_code") for span in attempts] == [500, 429, 200]
    assert [span.attributes.get("http.request.resend_count") for span in attempts] == [None, 1, 2]
    assert [span.attributes.get("error.type") for span in attempts] == ["500", "429", None]
    assert [span.status.status_code for span in attempts] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert {span.attributes["url.full"] for span in attempts} == {f"{server.url}/chat/completions"}
    waits = [span for span in spans if span.name == "backoff"]
    assert [span.attributes["tidegate.reason"] for span in waits] == ["server_error", "rate_limit"]
    assert waits[1].attributes["tidegate.retry_after_s"] == 0.01
    for wait, retry in zip(waits, answer.info.retries, strict=True):
        assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(retry.delay_s, rel=0.25)
    # One after another, inside the call.
    ordered = children(spans, call)
    assert all(a.end_time <= b.end_time for a, b in pairwise(ordered))
    assert all(call.start_time <= span.start_time <= span.end_time <= call.end_time for span in ordered)


def test_names_are_those_of_the_published_conventions():
    known = {
        value
        for module in (gen_ai_attributes, http_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    for name, value in vars(_semconv).items():
        if isinstance(value, str) and value.startswith(("gen_ai.", "http.")):
            table = vars(gen_ai_metrics).values() if name.endswith("_METRIC") else known
            assert value in table, f"{name} is in no convention"
    providers = {provider.value for provider in gen_ai_attributes.GenAiProviderNameValues}
    assert {*_semconv._PROVIDERS.values()} <= providers
    operations = {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    assert {*_semconv._OPERATIONS.values()} <= operations


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "openai"),
        ("my-team.openai.azure.com", "azure.ai.openai"),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "aws.bedrock"),
        ("notapi.x.ai.example", "openai"),
        ("vllm.internal", "openai"),
    ],
)
def test_providers_are_told_by_their_host(host, provider):
    assert _semconv.provider(host) == provider


def test_the_parent_and_its_baggage_are_respected(observed, server):
    bags = Bags()
    observed.provider.add_span_processor(bags)
    client = Client(server.url, "key", gate=observed.gate)
    token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        with observed.tracer.start_as_current_span("request") as parent:
            answer = client.post("/chat/completions", json=CHAT)
    finally:
        otel_context.detach(token)
    spans = observed.spans()
    assert spans["chat m"].parent.span_id == parent.get_span_context().span_id
    assert {span.context.trace_id for span in spans.values()} == {parent.get_span_context().trace_id}
    assert answer.info.trace_id == trace.format_trace_id(parent.get_span_context().trace_id)
    assert bags.seen == [(name, {"tenant": "acme"}) for name in ("request", "chat m", "POST")]


def test_concurrent_calls_of_tasks_keep_to_their_parents(observed):
    with FaultServer(rules=[{"match": {"every": 3}, "respond": {"status": 503}}]) as server:
        client = AsyncClient(server.url, "key", gate=observed.gate, max_retries=9)
        parents = {}

        async def task(number):
            with observed.tracer.start_as_current_span(f"task {number}") as span:
                parents[number] = span.get_span_context()
                await asyncio.sleep(0)
                answer = await client.post("/chat/completions", json={**CHAT, "model": f"m{number}"})
            return number, answer.info.attempts

        async def main():
            return await asyncio.gather(*[task(number) for number in range(40)])

        attempts = dict(asyncio.run(main()))
    spans = observed.exporter.get_finished_spans()
    for number, parent in parents.items():
        [call] = [span for span in spans if span.name == f"chat m{number}"]
        assert call.parent.span_id == parent.span_id
        names = [span.name for span in children(spans, call)]
        assert names.count("POST") == attempts[number]
        assert names.count("backoff") == attempts[number] - 1
    assert sum(attempts.values()) > 40


def test_a_failed_call_says_why(observed, server):
    server.script([{"status": 400, "error": "invalid_request", "message": "words of the server"}])
    with pytest.raises(CallError):
        Client(server.url, "key", gate=observed.gate).post("/chat/completions", json=CHAT)
    call = observed.spans()["chat m"]
    assert call.status.status_code == StatusCode.ERROR
    assert call.status.description == "invalid_request"
    assert call.attributes["error.type"] == "400"
    assert call.attributes["tidegate.reason"] == "non_retryable"
    assert "words of the server" not in call.to_json()


def test_a_cancelled_call_ends_its_span(observed):
    with FaultServer([{"fault": "hang"}]) as server:

        async def main():
            client = AsyncClient(server.url, "key", gate=observed.gate)
            task = asyncio.create_task(client.post("/chat/completions", json=CHAT))
            while not server.ledger["requests"]["in_flight"]:  # noqa: ASYNC110 the server has no event
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # The events of the end come through the loop.
            while "chat m" not in observed.spans():  # noqa: ASYNC110 nor has the exporter
                await asyncio.sleep(0.005)

        asyncio.run(asyncio.wait_for(main(), 60))
    call, attempt = observed.spans()["chat m"], observed.spans()["POST"]
    assert call.attributes["error.type"] == "cancelled"
    assert attempt.attributes["error.type"] == "cancelled"
    assert attempt.parent.span_id == call.context.span_id


def test_the_wait_for_admission_is_a_span():
    observed = Observed(Gate(limits=Limits(concurrency=1, learn=False), breaker=None))
    with FaultServer(latency_ms=50) as server:

        async def main():
            client = AsyncClient(server.url, "key", gate=observed.gate)
            return await asyncio.gather(*[client.post("/chat/completions", json=CHAT) for _ in range(2)])

        answers = asyncio.run(main())
    waits = [span for span in observed.exporter.get_finished_spans() if span.name == "admission"]
    [queued] = [answer.info.queue_s for answer in answers if answer.info.queue_s > 0.01]
    [wait] = waits
    assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(queued, rel=0.25)


@pytest.mark.parametrize(
    ("propagate", "expected"),
    [(False, set()), (True, {"traceparent"}), (W3CBaggagePropagator(), {"baggage"})],
)
def test_the_trace_goes_on_upstream_only_when_asked(propagate, expected):
    observed = Observed(Gate(), propagate=propagate)
    with FaultServer(ledger={"record_headers": ["traceparent", "tracestate", "baggage"]}) as server:
        client = Client(server.url, "key", gate=observed.gate)
        token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            with observed.tracer.start_as_current_span("request"):
                client.post("/chat/completions", json=CHAT)
        finally:
            otel_context.detach(token)
        [headers] = [dict(entry["headers"]) for entry in server.ledger["entries"]]
    assert {"traceparent", "tracestate", "baggage"} & headers.keys() == expected
    if "traceparent" in expected:
        call = observed.spans()["chat m"].context
        ids, _, flags = headers["traceparent"].rpartition("-")
        assert ids == f"00-{call.trace_id:032x}-{call.span_id:016x}"
        assert int(flags, 16) & 1, "it is sampled"


def test_what_is_not_sampled_is_counted_all_the_same(server):
    observed = Observed(Gate(), sampler=ALWAYS_OFF)
    answer = Client(server.url, "key", gate=observed.gate).post("/chat/completions", json=CHAT)
    assert observed.spans() == {}
    assert answer.info.trace_id
    [point] = observed.metrics()["gen_ai.client.operation.duration"].data.data_points
    assert (point.count, point.sum) == (1, pytest.approx(answer.info.latency_s, abs=0.01))


def test_without_an_sdk_nothing_breaks(server):
    gate = Gate()
    otel.instrument(gate)

    async def main():
        client = AsyncClient(server.url, "key", gate=gate)
        return await asyncio.gather(*[client.post("/chat/completions", json=CHAT) for _ in range(20)])

    answers = asyncio.run(main())
    assert len({answer.info.trace_id for answer in answers}) == 20


def test_instruments_follow_the_conventions(observed):
    with FaultServer([{}, {"status": 400}]) as server:
        client = Client(server.url, "key", gate=observed.gate)
        client.post("/chat/completions", json=CHAT)
        with pytest.raises(CallError):
            client.post("/chat/completions", json=CHAT)
        client.post("/embeddings", json={"model": "e", "input": "Hello"})
        client.get("/models")
    metrics = observed.metrics()
    duration = metrics["gen_ai.client.operation.duration"]
    assert duration.unit == "s"
    told = {
        (point.attributes["gen_ai.operation.name"], point.attributes.get("error.type")): point
        for point in duration.data.data_points
    }
    assert set(told) == {("chat", None), ("chat", "invalid_request"), ("embeddings", None)}
    assert told["chat", None].explicit_bounds == tuple(_semconv.DURATION_BOUNDS)
    tokens = {
        (point.attributes["gen_ai.request.model"], point.attributes["gen_ai.token.type"]): point.sum
        for point in metrics["gen_ai.client.token.usage"].data.data_points
    }
    assert (tokens["m", "input"], tokens["m", "output"]) == (12, 5)
    assert metrics["gen_ai.client.token.usage"].unit == "{token}"
    assert metrics["tidegate.admission.wait"].data.data_points[0].count == 4
    assert {span.name for span in observed.exporter.get_finished_spans()} >= {"embeddings e", "GET"}


def test_each_collection_asks_the_core_anew(observed, server):
    client = Client(server.url, "key", gate=observed.gate)
    for calls in range(1, 4):
        client.post("/chat/completions", json=CHAT)
        [point] = observed.metrics()["tidegate.calls"].data.data_points
        assert point.value == calls


def test_uninstrument_ends_it(observed, server):
    client = Client(server.url, "key", gate=observed.gate)
    observed.instrumentation.uninstrument()
    client.post("/chat/completions", json=CHAT)
    assert observed.spans() == {}
    assert observed.reader.get_metrics_data() is None


def test_a_gate_that_is_gone_is_observed_no_more():
    observed = Observed(Gate())
    observed.gate = None
    assert observed.reader.get_metrics_data() is None


def test_a_call_without_instrumentation_has_the_current_trace_id(server):
    client = Client(server.url, "key", gate=Gate())
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        inside = client.post("/chat/completions", json=CHAT)
        own = client.post("/chat/completions", json=CHAT, trace_id="ab" * 16)
    outside = client.post("/chat/completions", json=CHAT)
    assert inside.info.trace_id == trace.format_trace_id(span.get_span_context().trace_id)
    assert own.info.trace_id == "ab" * 16
    assert outside.info.trace_id != inside.info.trace_id


def test_whoever_does_not_use_it_does_not_load_it():
    script = (
        "import sys, tidegate\n"
        "from tidegate.testing import FaultServer\n"
        "with FaultServer() as server:\n"
        "    tidegate.Client(server.url, 'key').post('/chat/completions', json={'model': 'm'})\n"
        "loaded = [n for n in sys.modules if n.startswith(('opentelemetry', 'prometheus_client'))]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)  # noqa: S603 it is the line above


@pytest.mark.parametrize(
    ("arguments", "field"), [({"gate": 1}, "gate"), ({"gate": None, "propagate": "yes"}, "propagate")]
)
def test_wrong_arguments_are_named(arguments, field):
    gate = arguments.pop("gate")
    with pytest.raises(ConfigError, match=field):
        otel.instrument(gate, **arguments)


async def test_a_substitute_has_a_span_beside_the_call_that_failed():
    with FaultServer() as server, FaultServer() as other:
        gate = Gate(fallbacks=[Fallback("small", base_url=other.url, api_key="k")])
        observed = Observed(gate)
        server.script([{"error": "insufficient_quota"}])
        async with AsyncClient(server.url, "k", gate=gate) as client:
            with observed.tracer.start_as_current_span("request"):
                await client.post("/chat/completions", json=CHAT)
        spans = observed.spans()
        failed, substitute = spans["chat m"], spans["chat small"]
        assert failed.parent == substitute.parent == spans["request"].context
        assert [link.context.span_id for link in substitute.links] == [failed.context.span_id]
        assert (failed.status.status_code, substitute.status.status_code) == (
            StatusCode.ERROR,
            StatusCode.UNSET,
        )
        asked = [(span.attributes["server.port"], span.attributes["gen_ai.request.model"])
                 for span in (failed, substitute)]  # fmt: skip
        assert asked == [(urlsplit(server.url).port, "m"), (urlsplit(other.url).port, "small")]
        attempts = [span for span in observed.exporter.get_finished_spans() if span.name == "POST"]
        assert [span.parent.span_id for span in attempts] == [
            failed.context.span_id,
            substitute.context.span_id,
        ]
        assert not _trace._calls
