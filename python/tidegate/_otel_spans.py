"""The spans of one call, made from the core's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from tidegate import _semconv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from tidegate._otel_metrics import Instruments

_BAD_STATUS = 400

# Of a call's event: field, attribute.
_CALL_ATTRIBUTES = {
    "prompt_tokens": _semconv.INPUT_TOKENS,
    "cached_tokens": _semconv.CACHED_TOKENS,
    "completion_tokens": _semconv.OUTPUT_TOKENS,
    "reasoning_tokens": _semconv.REASONING_TOKENS,
    "attempts": "tidegate.attempts",
    "queue_s": "tidegate.queue_s",
    "reason": "tidegate.reason",
    "cost_usd": "tidegate.cost_usd",
    "usage": "tidegate.usage",
}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class CallSpan:
    """The span of a call under way, and its children.

    An attempt is called by its method, ``POST``; waits are ``admission`` and ``backoff``.
    """

    __slots__ = (
        "_attributes",
        "_backoff",
        "_context",
        "_instruments",
        "_method",
        "_parent",
        "_span",
        "_started",
        "_stream",
        "_tracer",
        "_url",
    )

    def __init__(
        self,
        *,
        tracer: trace.Tracer,
        span: trace.Span,
        parent: Context,
        context: Context,
        started: int,
        method: str,
        url: str,
        attributes: dict[str, Any],
        stream: bool,
        instruments: Instruments,
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._parent = parent
        self._context = context
        self._started = started
        self._method = method
        self._url = url
        self._attributes = attributes
        self._instruments = instruments
        self._backoff: Mapping[str, Any] | None = None
        self._stream = stream

    def hear(self, record: Mapping[str, Any]) -> None:
        """Take one event of the call."""
        event, now = record["event"], _nanoseconds(record["ts"])
        self._end_backoff(now)
        if event == "attempt":
            self._attempt(record, now)
        elif event == "retry":
            self._backoff = record
        elif event == "wait":
            self._child("admission", now - _nanoseconds(record["queue_s"]), now, {})
        elif event == "breaker":
            attributes = {"tidegate.breaker.state": record.get("outcome", "")}
            if "reason" in record:
                attributes["tidegate.reason"] = record["reason"]
            self._span.add_event("breaker", attributes, now)
        elif event == "call":
            self._end(record, now)

    def substitute(self, record: Mapping[str, Any]) -> CallSpan:
        """Begin the span of the call that is made instead of this one, beside it."""
        attributes, started = dict(self._attributes), _nanoseconds(record["ts"])
        attributes.pop(_semconv.SERVER_PORT, None)
        attributes.update(_semconv.server(record["origin"]))
        if _semconv.PROVIDER in attributes:
            attributes[_semconv.PROVIDER] = _semconv.provider(attributes[_semconv.SERVER_ADDRESS])
        span: trace.Span = trace.INVALID_SPAN
        if self._span.get_span_context().is_valid:
            span = self._tracer.start_span(
                "fallback",
                self._parent,
                SpanKind.CLIENT,
                {**attributes, "tidegate.reason": record.get("reason", "")},
                links=[trace.Link(self._span.get_span_context())],
                start_time=started,
            )
        return CallSpan(
            tracer=self._tracer,
            span=span,
            parent=self._parent,
            context=trace.set_span_in_context(span, self._parent),
            started=started,
            method=self._method,
            url=self._url if self._url.startswith(record["origin"] + "/") else record["origin"],
            attributes=attributes,
            stream=self._stream,
            instruments=self._instruments,
        )

    def lose(self) -> None:
        """End the span of a call that nobody hears of any more."""
        self._span.set_status(Status(StatusCode.ERROR, "the call was lost with its event loop"))
        self._span.end()

    def _attempt(self, record: Mapping[str, Any], now: int) -> None:
        status, number = record.get("status"), record.get("attempt", 1)
        attributes = {
            _semconv.METHOD: self._method,
            _semconv.URL: self._url,
            _semconv.SERVER_ADDRESS: self._attributes[_semconv.SERVER_ADDRESS],
            "tidegate.outcome": record.get("outcome", ""),
        }
        if _semconv.SERVER_PORT in self._attributes:
            attributes[_semconv.SERVER_PORT] = self._attributes[_semconv.SERVER_PORT]
        if number > 1:
            attributes[_semconv.RESEND_COUNT] = number - 1
        if status is not None:
            attributes[_semconv.STATUS_CODE] = status
        if "request_id" in record:
            attributes["tidegate.request_id"] = record["request_id"]
        failed = record.get("outcome") != "success"
        if failed:
            bad = status is not None and status >= _BAD_STATUS
            attributes[_semconv.ERROR_TYPE] = str(status) if bad else record.get("outcome", "_OTHER")
        start = now - _nanoseconds(record.get("latency_s", 0.0))
        self._child(self._method, start, now, attributes, kind=SpanKind.CLIENT, failed=failed)

    def _end_backoff(self, now: int) -> None:
        """The wait that was announced is over: it was slept, or the call ended before."""
        record, self._backoff = self._backoff, None
        if record is None:
            return
        start = _nanoseconds(record["ts"])
        attributes = {
            "tidegate.reason": record.get("reason", ""),
            "tidegate.delay_s": record.get("delay_s", 0.0),
        }
        if "retry_after_s" in record:
            attributes["tidegate.retry_after_s"] = record["retry_after_s"]
        self._child("backoff", start, min(start + _nanoseconds(record.get("delay_s", 0.0)), now), attributes)

    def _child(
        self,
        name: str,
        start: int,
        end: int,
        attributes: dict[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        failed: bool = False,
    ) -> None:
        if not self._span.is_recording():
            return
        # Latencies come from another clock than the times of day.
        start = max(start, self._started)
        span = self._tracer.start_span(name, self._context, kind, attributes, start_time=start)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(max(start, end))

    def _end(self, record: Mapping[str, Any], now: int) -> None:
        span = self._span
        for field, attribute in _CALL_ATTRIBUTES.items():
            if field in record:
                span.set_attribute(attribute, record[field])
        if _semconv.OPERATION in self._attributes:
            if "model" in record:
                # A substitute's is known only now.
                self._attributes[_semconv.REQUEST_MODEL] = record["model"]
                span.set_attribute(_semconv.REQUEST_MODEL, record["model"])
                span.update_name(f"{self._attributes[_semconv.OPERATION]} {record['model']}")
            model = record.get("response_model") or record.get("model")
            if model and record.get("outcome") == "ok":
                span.set_attribute(_semconv.RESPONSE_MODEL, model)
            if self._stream and "first_byte_s" in record:
                span.set_attribute(_semconv.TIME_TO_FIRST_CHUNK, record["first_byte_s"])
        if record.get("outcome") != "ok":
            status = record.get("status")
            outcome = record.get("outcome", "_OTHER")
            span.set_attribute(_semconv.ERROR_TYPE, str(status) if status is not None else outcome)
            span.set_status(Status(StatusCode.ERROR, outcome))
        self._instruments.record(self._attributes, record, self._context, stream=self._stream)
        span.end(max(now, self._started))
