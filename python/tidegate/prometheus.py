"""A gate's metrics in the registry of prometheus-client (extra: ``prometheus``).

>>> from prometheus_client import REGISTRY
>>> from tidegate.prometheus import Collector
>>> REGISTRY.register(Collector(gate))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as _Collector
    from prometheus_client.samples import Exemplar
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tidegate.prometheus needs prometheus-client: pip install 'tidegate[prometheus]'", name=error.name
    ) from error

from tidegate._errors import ConfigError
from tidegate._gate import Gate, default_gate
from tidegate._multiprocess import Publisher, merged, others

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

__all__ = ["Collector"]


class Collector(_Collector):
    """Reads the gate each time that the registry is scraped; nothing is counted twice.

    In OpenMetrics the buckets of histograms carry exemplars: the trace id of a recent call.

    With several processes (gunicorn's workers), a scrape reaches one of them. Give them a folder of their
    own, by `multiprocess_dir` or ``PROMETHEUS_MULTIPROC_DIR``, and each scrape tells of all: counts are added
    up, and stay when a worker goes; gauges are sums over the workers that live. What others counted may be a
    second old. Make the collector once per process, or before the fork, in a `CollectorRegistry` of its own;
    empty the folder before the processes start, as for prometheus-client itself.
    """

    def __init__(
        self, gate: Gate | None = None, *, multiprocess_dir: str | os.PathLike[str] | None = None
    ) -> None:
        """Make a collector.

        Args:
            gate: Default: `tidegate.default_gate`.
            multiprocess_dir: Folder that the processes share. Default: ``PROMETHEUS_MULTIPROC_DIR``, if set.

        Raises:
            ConfigError: An argument has the wrong type, or the folder does not exist.
        """
        if gate is not None and not isinstance(gate, Gate):
            raise ConfigError("gate", repr(gate), "must be a Gate")
        self._gate = gate or default_gate()
        folder = multiprocess_dir or os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._publisher: Publisher | None = None
        if folder:
            self._folder = Path(os.fsdecode(folder))
            self._publisher = Publisher(self._folder, self._gate._engine.metrics)

    def describe(self) -> Iterator[Metric]:
        """Yield the names of all families, so that the registry refuses a second of them."""
        for family in self._gate._engine.metrics()["families"]:
            yield _family({**family, "samples": []})

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has samples."""
        found = self._gate._engine.metrics()
        if self._publisher is not None:
            found = merged([(found, True), *others(self._folder, self._publisher.name)])
        for family in found["families"]:
            if family["samples"]:
                yield _family(family)


def _family(family: dict[str, Any]) -> Metric:
    name, text, labels = family["name"], family["help"], family["labels"]
    if family["kind"] == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, value in family["samples"]:
            buckets = [
                (bound, count, _exemplar(exemplar)) if exemplar else (bound, count)
                for bound, count, exemplar in value["buckets"]
            ]
            histogram.add_metric(values, buckets, float(value["sum"]))
        return histogram
    make = CounterMetricFamily if family["kind"] == "counter" else GaugeMetricFamily
    plain = make(name, text, labels=labels)
    for values, value in family["samples"]:
        plain.add_metric(values, float(value))
    return plain


def _exemplar(exemplar: list[Any]) -> Exemplar:
    trace_id, seconds, timestamp = exemplar
    return Exemplar({"trace_id": trace_id}, seconds, timestamp)
