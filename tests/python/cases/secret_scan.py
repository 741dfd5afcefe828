"""Kind `secret_scan`: a credential must show nowhere but on the wire."""

from __future__ import annotations

import functools

from cases import child, serving
from cases.case import Check
from cases.expect import unknown
from cases.tables import strangers

_SURFACES = frozenset(
    {
        "all loggers at DEBUG",
        "RUST_LOG=trace stderr",
        "repr(client)",
        "str(error)",
        "repr(error)",
        "traceback with locals (cgitb / rich style)",
        "pickle of errors",
        "/metrics text",
        "config dump",
        "vars(client)",
    }
)

# Writes everything that a program could show of its clients and errors. The key comes by the environment.
_SHOW = """
    import asyncio, logging, pathlib, pickle, sys, tempfile, traceback
    import tidegate, tidegate.otel, tidegate.prometheus
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    logging.getLogger().handlers[0].setFormatter(tidegate.JSONFormatter())
    retry = tidegate.RetryPolicy(base=0.01, cap=0.01)
    streams = sys.argv[2] == "stream error"
    lines = pathlib.Path(tempfile.mkdtemp(), "calls.jsonl")
    gate = tidegate.Gate(retry=retry, timeouts=tidegate.Timeouts(attempt=0.5), log_file=lines)
    spans, meters, registry = InMemorySpanExporter(), InMemoryMetricReader(), CollectorRegistry()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    tidegate.otel.instrument(
        gate, tracer_provider=tracers, meter_provider=MeterProvider([meters]), propagate=True
    )
    registry.register(tidegate.prometheus.Collector(gate))
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    def show(*values):
        for value in values:
            print(value.decode("latin-1") if isinstance(value, bytes) else value)
    def reveal(client):
        show(repr(client), repr(vars(client)), repr(client._settings), repr(client._upstream))
        show(repr(client.gate), repr(client.gate._settings), client.gate.snapshot(), client.base_url)
        for slot in type(client._settings).__slots__:
            show(repr(getattr(client._settings, slot)))
    def explain(error):
        show(str(error), repr(error), repr(vars(error)), repr(error.info))
        show(*(pickle.dumps(error, protocol) for protocol in range(6)))
        show("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    def blocking():
        client = tidegate.Client(sys.argv[1], gate=gate)
        reveal(client)
        try:
            if streams:
                show(*client.stream("/chat/completions", json=ask))
            show(repr(client.post("/chat/completions", json=ask)))
        except tidegate.CallError as error:
            explain(error)
    async def asynchronous():
        client = tidegate.AsyncClient(sys.argv[1], gate=gate)
        reveal(client)
        try:
            if streams:
                async for event in await client.stream("/chat/completions", json=ask):
                    show(repr(event))
            show(repr(await client.post("/chat/completions", json=ask)))
        except tidegate.CallError as error:
            explain(error)
    blocking()
    asyncio.run(asynchronous())
    sinks = {
        "metrics": gate.metrics_text(),
        "openmetrics": generate_latest(registry).decode(),
        "lines": lines.read_text(),
        "spans": "".join(span.to_json() for span in spans.get_finished_spans()),
        "meters": meters.get_metrics_data().to_json(),
        "usage": gate.usage().to_csv(),
    }
    show(*sinks.values())
    print("empty sinks:", [name for name, told in sinks.items() if not told])
"""

_RUNS = {
    "ok": [],
    "401": [{"status": 401}],
    "retry then ok": [{"status": 500}, {}, {"status": 500}, {}],
    "timeout": [{"delay_s": 5}],
    "stream error": [{"fault": "stream_error"}] * 2,
    "connection refused": None,
}


def checks(case):
    for run in case.content["runs"]:
        yield Check(run, functools.partial(_scan, case.content, case.expect, run))
    unknown_surfaces = set(case.content["surfaces"]) - _SURFACES
    if unknown_surfaces:
        yield Check("surfaces", functools.partial(unknown, "surfaces", sorted(unknown_surfaces)))
    yield from strangers(
        case, {"api_key", "forbidden", "surfaces", "runs"}, {"matches", "server_still_receives"}
    )


def _scan(content, expect, run):
    if run not in _RUNS:
        unknown("run", run)
    key, script = content["api_key"], _RUNS[run]
    repeat = run in {"401", "timeout"}
    environment = {"OPENAI_API_KEY": key, "RUST_LOG": "trace"}
    with (
        serving.server(script or [], repeat_last=repeat, api_key=key) as server,
        serving.closed_port() as nobody,
    ):
        url = nobody if script is None else server.url
        ran = child.run(_SHOW, url, run, env=environment)
        credentials = {entry["credential"] for entry in server.ledger["entries"]}
    shown = ran.stdout + ran.stderr
    assert "AsyncClient" in shown
    assert "empty sinks: []" in shown
    assert sum(shown.count(text) for text in content["forbidden"]) == expect["matches"]
    if expect.get("server_still_receives") and script is not None:
        assert credentials == {"right"}
