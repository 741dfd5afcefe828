"""Metrics of several processes as one: each publishes its own in a folder, whoever is scraped adds them up.

A process publishes once a second, if something changed, and at its end. What a process that is gone has
counted goes on counting; its gauges do not. A process is alive while it holds the lock on its file
``….alive``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import weakref
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_EVERY_S = 1.0
# Fewer latencies say nothing about a percentile; the same number as in the core.
_FEWEST = 20


class Publisher:
    """Publishes a process' metrics in `folder`, and after a fork those of the child."""

    def __init__(self, folder: Path, read: Callable[[], dict[str, Any]]) -> None:
        if fcntl is None:  # pragma: no cover  (Windows)
            raise ConfigError("multiprocess_dir", folder, "needs file locks, which this system has not")
        if not folder.is_dir():
            raise ConfigError("multiprocess_dir", folder, "must be a folder that exists")
        self._folder = folder
        self._read = read
        self._start()
        atexit.register(self._stop)
        this = weakref.WeakMethod(self._restart)
        os.register_at_fork(after_in_child=lambda: (restart := this()) and restart())

    @property
    def name(self) -> str:
        """The stem of this process' files."""
        return self._name

    def _start(self) -> None:
        self._name = f"tidegate-{os.getpid()}-{os.urandom(4).hex()}"
        self._last = b""
        self._alive = (self._folder / f"{self._name}.alive").open("wb")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-metrics", daemon=True)
        self._thread.start()

    def _restart(self) -> None:
        # The lock is the parent's: closing this copy of its file does not release it.
        self._alive.close()
        self._start()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._publish()

    def _publish(self) -> None:
        # A full disk must not end the thread: the next time may do.
        with contextlib.suppress(OSError):
            text = json.dumps(self._read()).encode()
            if text != self._last:
                unfinished = self._folder / f"{self._name}.new"
                unfinished.write_bytes(text)
                unfinished.replace(self._folder / f"{self._name}.json")
                self._last = text

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join(_EVERY_S)
        self._publish()
        self._alive.close()


def others(folder: Path, own: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the metrics that the other processes published, and whether the process is alive."""
    for path in sorted(folder.glob("tidegate-*.json")):
        if path.stem == own:
            continue
        try:
            published = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        yield published, _alive(path.with_suffix(".alive"))


def _alive(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def merged(parts: list[tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """Add up the metrics of several processes; of those that are gone, what only grows."""
    families: dict[str, dict[str, Any]] = {}
    for part, alive in parts:
        for family in part["families"]:
            known = families.setdefault(family["name"], {**family, "samples": {}})
            if alive or family["kind"] != "gauge":
                for labels, value in family["samples"]:
                    at = known["samples"]
                    key = tuple(labels)
                    at[key] = _sum(at[key], value) if key in at else value
    for family in families.values():
        family["samples"] = [[list(labels), value] for labels, value in sorted(family["samples"].items())]
    latencies = sorted(pair for part, alive in parts if alive for pair in part["latencies"])
    p95 = percentile(latencies, 95)
    families["llm_latency_ms_p95"]["samples"] = [] if p95 is None else [[[], p95]]
    return {"families": list(families.values()), "latencies": latencies}


def percentile(latencies: list[list[float]], percent: int) -> float | None:
    """Return a percentile of ascending pairs of value and count, by nearest rank; `None` of fewer than 20."""
    total = int(sum(count for _, count in latencies))
    if total < _FEWEST:
        return None
    rank = -(-total * percent // 100)
    for value, count in latencies:
        rank -= int(count)
        if rank <= 0:
            return value
    return None


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, str):
        # Scientific notation is as good: whoever reads it makes a number of it.
        return str(Decimal(one) + Decimal(other))
    if not isinstance(one, dict):
        return one + other
    buckets = [
        [bound, count + more, max((seen, newer), key=_when)]
        for (bound, count, seen), (_, more, newer) in zip(one["buckets"], other["buckets"], strict=True)
    ]
    count, total = one["count"] + other["count"], _sum(one["sum"], other["sum"])
    return {"count": count, "sum": total, "buckets": buckets}


def _when(exemplar: list[Any] | None) -> float:
    return exemplar[2] if exemplar else 0.0
