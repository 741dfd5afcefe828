"""The core's events as records of the logger ``tidegate``.

Nothing is printed unless the application configures logging. Each record's message is for people; its
fields (``trace_id``, ``event``, ``attempt``, ``outcome``, ``latency_s``, …) are attributes of the record, the
same as in the JSON-lines file. Prompts, completions, headers and keys are in neither.
"""

from __future__ import annotations

import logging
from typing import Any

from tidegate import _trace

logger = logging.getLogger("tidegate")
logger.addHandler(logging.NullHandler())

# More than any level that the core uses: nothing is passed on.
NOTHING = 100

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


def level_for_calls() -> int:
    """Return the lowest level that anybody listens to; 100 for nobody."""
    # `isEnabledFor` remembers its answers, and most applications listen to warnings alone.
    enabled = logger.isEnabledFor
    if not enabled(logging.WARNING):
        return NOTHING
    if not enabled(logging.INFO):
        return logging.WARNING
    return logging.DEBUG if enabled(logging.DEBUG) else logging.INFO


def emit(level: int, data: bytes) -> None:
    """Log one event of the core.

    Args:
        level: 10, 20 or 30, as in `logging`.
        data: The record as a JSON object.
    """
    watched = _trace.watching()
    if not watched and not logger.isEnabledFor(level):
        return
    import json

    record: dict[str, Any] = json.loads(data)
    if watched:
        _trace.hear(record)
    if logger.isEnabledFor(level):
        extra = {f"tidegate_{name}" if name in _STANDARD else name: value for name, value in record.items()}
        logger.log(level, "%s", _message(record), extra=extra)


_SUBSTITUTES = {"fallback": "a fallback is tried", "last_good": "the last good answer is given"}


def _message(record: dict[str, Any]) -> str:
    event = record.get("event")
    where = f"{record.get('model') or 'call'} at {record.get('origin', '?')}"
    if record.get("origin") == "function":
        where = f"function {record.get('model', '?')}"
    trace = f"[trace {record.get('trace_id', '?')}]"
    outcome = record.get("outcome", "?")
    reason = f" because of {record['reason']}" if "reason" in record else ""
    status = f" ({record['status']})" if "status" in record else ""
    if event == "attempt":
        text = (
            f"attempt {record.get('attempt', '?')} of {where}: {outcome}{status}{_after(record, 'latency_s')}"
        )
    elif event == "retry":
        text = (
            f"attempt {record.get('attempt', '?')} of {where} in {record.get('delay_s', 0.0):.3f} s{reason}"
        )
    elif event == "breaker":
        text = f"the circuit breaker of {where} is {outcome}{reason}"
    elif event == "degraded":
        text = f"{_SUBSTITUTES.get(outcome, outcome)} for {where} because of {record.get('reason', '?')}"
    elif event == "stacked":
        text = (
            f"a layer around this gate retries too: {where} is asked the same again after "
            f"{record.get('attempts', '?')} failed attempt(s); set that layer's retries to 0"
        )
    elif event == "tool":
        reason = f" ({record['reason']})" if "reason" in record else ""
        where = f" under key {record['idempotency_key']}" if "idempotency_key" in record else ""
        text = f"tool {record.get('tool', '?')}{where}: {outcome}{reason}"
    elif event == "wait":
        text = f"{where} waited {record.get('queue_s', 0.0):.3f} s for admission"
    else:
        ended = f", ended by {record['reason']}" if "reason" in record else ""
        attempts = record.get("attempts", "?")
        text = f"{where}: {outcome}{status} in {attempts} attempt(s){_after(record, 'latency_s')}{ended}"
    return f"{text} {trace}"


def _after(record: dict[str, Any], field: str) -> str:
    return f" after {record[field]:.3f} s" if field in record else ""


class JSONFormatter(logging.Formatter):
    """Writes each record as one line of JSON, tidegate's fields and everybody else's ``extra`` included.

    >>> handler = logging.StreamHandler()
    >>> handler.setFormatter(tidegate.JSONFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object without a line end."""
        import json

        line: dict[str, Any] = {
            "ts": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)
