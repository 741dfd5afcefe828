"""Places at which a call can wait, made so that it does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from cases.expect import unknown

HOLDER, VICTIM = "holder", "victim"
LONG_S = 30.0


@dataclass(frozen=True)
class Point:
    """Settings of the gate, rules of the server, and the calls that come before."""

    settings: dict[str, Any]
    rules: list[dict[str, Any]] = field(default_factory=list)
    prefill: int = 0
    holders: int = 0
    # The victim reads a stream.
    stream: bool = False


def _answers(name, responses, *, repeat_last=False):
    return {"match": {"header": {"x-test-call": name}}, "respond": responses, "repeat_last": repeat_last}


def named(told):
    """Return the point of a case: a name that may say how long, or a dict with the details."""
    details = told if isinstance(told, dict) else {"at": told}
    name, _, seconds = re.fullmatch(r"(\w+?)(_(\d+)s)?", details["at"]).groups()
    wait = float(seconds or LONG_S)
    strange = details.keys() - {"at", "responses", "repeat_last", "limiter", "prefill", "gate", "holder_s"}
    if strange:
        unknown("of a point", sorted(strange))
    responses, repeat = details.get("responses"), details.get("repeat_last", False)
    if name in {"request", "response_wait"}:
        return Point({}, [_answers(VICTIM, responses or [{"delay_s": wait}], repeat_last=repeat)])
    if name == "stream_next_wait":
        return Point({}, [_answers(VICTIM, [{"chunk_delay_s": wait}], repeat_last=True)], stream=True)
    if name == "backoff_sleep":
        busy = responses or [{"status": 503, "headers": {"Retry-After": str(wait)}}]
        return Point({"budget_s": 3 * wait}, [_answers(VICTIM, busy, repeat_last=True)])
    if name == "limiter_wait":
        return Point({"limiter": details.get("limiter", {"rpm": 1})}, [], details.get("prefill", 1))
    if name == "gate_wait":
        held = _answers(HOLDER, [{"delay_s": details.get("holder_s", wait)}], repeat_last=True)
        return Point({"gate": details.get("gate", 1)}, [held], 0, details.get("gate", 1))
    return unknown("point", told)
