"""Traces and metrics of a gate for OpenTelemetry (extra: ``otel``).

>>> import tidegate.otel
>>> tidegate.otel.instrument(gate)

Each call is a span, with a child for each attempt and each wait; what the gate counts becomes instruments.
Prompts, completions, headers and keys are in neither.
"""

from __future__ import annotations

import random
import time
import weakref
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

try:
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, trace
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tidegate.otel needs opentelemetry-api: pip install 'tidegate[otel]'", name=error.name
    ) from error

from tidegate import _core, _semconv, _trace
from tidegate._errors import ConfigError
from tidegate._gate import Gate, default_gate
from tidegate._otel_metrics import Instruments
from tidegate._otel_spans import CallSpan

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Instrumentation", "instrument"]


def instrument(
    gate: Gate | None = None,
    /,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    propagate: bool | TextMapPropagator = False,
) -> Instrumentation:
    """Tell OpenTelemetry of every call of a gate, whichever client makes it.

    Spans are children of the span that is current where the call is made, and the call's ``trace_id`` in logs
    is that trace's. Call it once per gate; again replaces the earlier.

    Args:
        gate: Default: `tidegate.default_gate`.
        tracer_provider: Default: the global one.
        meter_provider: Default: the global one.
        propagate: Send ``traceparent`` with each request, so that a server of yours can go on with the trace.
            Off by default: a provider has no use for it. A propagator instead of true decides itself what is
            sent, baggage for example.

    Raises:
        ConfigError: An argument has the wrong type.
    """
    if gate is not None and not isinstance(gate, Gate):
        raise ConfigError("gate", repr(gate), "must be a Gate")
    if isinstance(propagate, bool):
        propagator: TextMapPropagator | None = TraceContextTextMapPropagator() if propagate else None
    elif isinstance(propagate, TextMapPropagator):
        propagator = propagate
    else:
        raise ConfigError("propagate", repr(propagate), "must be True, False, or a propagator")
    tracer = trace.get_tracer("tidegate", _core.VERSION, tracer_provider, schema_url=_semconv.SCHEMA_URL)
    meter = metrics.get_meter("tidegate", _core.VERSION, meter_provider, schema_url=_semconv.SCHEMA_URL)
    return Instrumentation(gate or default_gate(), tracer, meter, propagator)


class Instrumentation:
    """A gate that OpenTelemetry is told of; see `instrument`."""

    def __init__(
        self,
        gate: Gate,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        propagator: TextMapPropagator | None,
    ) -> None:
        self._gate = weakref.ref(gate)
        self._tracer = tracer
        self._propagator = propagator
        self._instruments = Instruments(gate, meter)
        self._begin = self._begin_call
        gate._engine.observe(self._begin)

    def uninstrument(self) -> None:
        """Tell of no further calls. Those under way are told of to their end."""
        gate = self._gate()
        if gate is not None:
            gate._engine.observe(None)
        self._instruments.close()

    def _begin_call(
        self,
        method: str,
        url: str,
        model: str | None,
        stream: bool,  # noqa: FBT001 the core's order
    ) -> tuple[str | None, str, list[tuple[str, str]]]:
        """Begin the span of a call; return its trace id, its own id, and headers to be sent."""
        parts = urlsplit(url)
        operation = _semconv.operation(parts.path)
        attributes = _semconv.server(url)
        if operation is not None:
            attributes[_semconv.PROVIDER] = _semconv.provider(parts.hostname or "")
            attributes[_semconv.OPERATION] = operation
            if model is not None:
                attributes[_semconv.REQUEST_MODEL] = model
        parent = otel_context.get_current()
        started = time.time_ns()
        span = self._tracer.start_span(
            f"{operation} {model}" if operation and model else operation or method,
            context=parent,
            kind=trace.SpanKind.CLIENT,
            attributes={**attributes, _semconv.REQUEST_STREAM: True} if stream and operation else attributes,
            start_time=started,
        )
        context = trace.set_span_in_context(span, parent)
        headers: dict[str, str] = {}
        if self._propagator is not None:
            self._propagator.inject(headers, context)
        here = span.get_span_context()
        above = trace.get_current_span(parent).get_span_context()
        # Without a tracer the "new" span is its parent, which other calls share.
        own = here.is_valid and here.span_id != above.span_id
        span_id = here.span_id if own else random.getrandbits(64) | 1
        call = CallSpan(
            tracer=self._tracer,
            span=span if own else trace.INVALID_SPAN,
            parent=parent,
            context=context,
            started=started,
            method=method,
            url=url,
            attributes=attributes,
            stream=stream,
            instruments=self._instruments,
        )
        text = trace.format_span_id(span_id)
        _trace.watch(text, call)
        return trace.format_trace_id(here.trace_id) if here.is_valid else None, text, list(headers.items())
