"""What a gate counts, as OpenTelemetry's instruments."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from tidegate import _semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.context import Context

    from tidegate._gate import Gate

_ATTRIBUTES = {"model": _semconv.REQUEST_MODEL}
_REFUSED = {"breaker_open", "admission_deadline", "request_too_large"}


class Instruments:
    """Counters and gauges read from the core when they are collected; histograms recorded as calls end.

    There are no asynchronous histograms in OpenTelemetry: those alone are counted here too.
    """

    def __init__(self, gate: Gate, meter: Meter) -> None:
        self._gate: Callable[[], Gate | None] = weakref.ref(gate)
        self._lock = threading.Lock()
        self._families: dict[str, list[Any]] = {}
        self._read: set[str] = set()
        for family in gate._engine.metrics()["families"]:
            if family["kind"] != "histogram":
                name, unit = _semconv.OWN_METRICS[family["name"]]
                create = (
                    meter.create_observable_counter
                    if family["kind"] == "counter"
                    else meter.create_observable_gauge
                )
                create(name, [self._callback(family["name"], family["labels"])], unit, family["help"])
        self._duration = meter.create_histogram(
            _semconv.DURATION_METRIC,
            "s",
            "Duration of logical calls, queues and retries included.",
            explicit_bucket_boundaries_advisory=_semconv.DURATION_BOUNDS,
        )
        self._first_chunk = meter.create_histogram(
            _semconv.FIRST_CHUNK_METRIC,
            "s",
            "Time from the request to the first chunk of a stream.",
            explicit_bucket_boundaries_advisory=_semconv.DURATION_BOUNDS,
        )
        self._tokens = meter.create_histogram(
            _semconv.TOKEN_METRIC,
            "{token}",
            "Tokens of a call.",
            explicit_bucket_boundaries_advisory=_semconv.TOKEN_BOUNDS,
        )
        self._wait = meter.create_histogram(
            _semconv.RECORDED_METRICS["tidegate_admission_wait_seconds"],
            "s",
            "Time in the queue of admission.",
            explicit_bucket_boundaries_advisory=[0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60],
        )

    def close(self) -> None:
        """Observe nothing any more."""
        self._gate = lambda: None

    def record(
        self, attributes: Mapping[str, Any], call: Mapping[str, Any], context: Context, *, stream: bool
    ) -> None:
        """Record a call that has ended. `context` is that of its span, from which exemplars are made."""
        refused = call.get("reason") in _REFUSED and not call.get("attempts")
        if not refused:
            self._wait.record(call.get("queue_s", 0.0), {}, context)
        if _semconv.OPERATION not in attributes:
            return
        ended = dict(attributes)
        if call.get("response_model"):
            ended[_semconv.RESPONSE_MODEL] = call["response_model"]
        if call.get("outcome") != "ok":
            ended[_semconv.ERROR_TYPE] = call.get("outcome", "_OTHER")
        self._duration.record(call.get("latency_s", 0.0), ended, context)
        if stream and "first_byte_s" in call:
            self._first_chunk.record(call["first_byte_s"], ended, context)
        for field, kind in (("prompt_tokens", "input"), ("completion_tokens", "output")):
            if field in call:
                self._tokens.record(call[field], {**ended, _semconv.TOKEN_TYPE: kind}, context)

    def _callback(self, family: str, labels: list[str]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        names = [_ATTRIBUTES.get(label, f"tidegate.{label}") for label in labels]

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(
                    float(value) if isinstance(value, str) else value, dict(zip(names, values, strict=True))
                )
                for values, value in self._samples(family)
            ]

        return observe

    def _samples(self, family: str) -> list[Any]:
        """Read one family. The core is asked once per collection: anew when a family is read again."""
        with self._lock:
            gate = self._gate()
            if gate is None:
                return []
            if not self._families or family in self._read:
                self._families = {
                    family["name"]: family["samples"] for family in gate._engine.metrics()["families"]
                }
                self._read = set()
            self._read.add(family)
            return self._families[family]
