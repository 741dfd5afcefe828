"""Says what became of a call in one sentence that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate._errors import CallError

RETRYABLE_KINDS = frozenset(
    {
        "admission",
        "breaker_open",
        "conflict",
        "connection",
        "empty_response",
        "malformed_response",
        "overloaded",
        "rate_limit",
        "server",
        "stream_error",
        "stream_interrupted",
        "timeout",
    }
)

_WHY = {
    "non_retryable": "trying again would not help",
    "attempts": "all its attempts were used",
    "elapsed": "the next wait would end after RetryPolicy.max_elapsed",
    "hint_exceeds_budget": "the server asked for a longer wait than the call may take",
    "budget": "the retry budget is empty, as too many recent calls failed (see gate.snapshot(), RetryBudget)",
    "breaker_open": "the circuit breaker is open",
    "admission_deadline": "no place in the queue would come free in time",
    "request_too_large": "no limit will ever admit it",
    "deadline": "its total timeout ran out",
    "spend_cap": "a spend cap would be exceeded",
    "stream_interrupted": "a part of the stream had been handed on, which cannot be taken back",
    "cancelled": "it was cancelled",
    "closed": "the gate was shut down",
}

# Without a server there is nobody who could have acted twice.
_MAY_HAVE_ACTED = "the server may have acted on it, so that repeating it could act twice"

_ADVICE = {
    "rate_limit": "send less, or set Limits(rpm=, tpm=) to the quota",
    "quota": "add credit, or raise the limit on spending at the provider",
    "too_large": "shorten the request or lower its output limit",
    "bad_request": "correct the request",
    "auth": "check the API key and what it may do",
    "timeout": "raise the timeout or ask for a shorter answer",
    "connection": "check base_url, the network and the proxy",
    "redirect": "set base_url to the address that the server redirects to",
    "malformed_response": "check that base_url is an OpenAI-compatible API",
    "empty_response": "check what the model was asked for",
}

_LONGEST_MESSAGE = 300


def sentence(error: CallError) -> str:
    """Say what happened, how often it was tried, why no more, what to do, and the ids to ask with."""
    message = " ".join(error.message.split())
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[: _LONGEST_MESSAGE - 1]}…"
    what = _what(error)
    head = f"{what}: {message}" if what and message else what or message or type(error).__name__
    notes = [note for note in (gave_up(error), _advice(error), _ids(error)) if note]
    return f"{head.rstrip('. ')} ({'; '.join(notes)})" if notes else head


def _what(error: CallError) -> str:
    if error.status is None:
        # What the gate refuses is told by its own message in full.
        return error.kind if error.kind in {"connection", "timeout"} and error.reason != "deadline" else ""
    code = f", {error.code}" if error.code else ""
    return f"{error.status} {error.kind.replace('_', ' ')}{code}".rstrip()


def gave_up(error: CallError) -> str:
    """Say how often it was tried, and why no more."""
    if not error.reason:
        return ""
    why = _WHY.get(error.reason, error.reason)
    if error.reason == "non_retryable" and error.status is None and error.kind in {"connection", "timeout"}:
        why = _MAY_HAVE_ACTED
    if error.attempts == 0:
        return f"not sent because {why}"
    times = "1 attempt" if error.attempts == 1 else f"{error.attempts} attempts"
    return f"gave up after {times} in {_seconds(error.elapsed)} because {why}"


def _advice(error: CallError) -> str:
    if error.retry_after is not None and error.retryable:
        return f"wait {_seconds(error.retry_after)} before trying again"
    return _ADVICE.get(error.kind, "try again later" if error.retryable else "")


def _ids(error: CallError) -> str:
    if error.request_id:
        return f"request id {error.request_id}"
    return f"trace id {error.trace_id}" if error.trace_id else ""


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"  # noqa: PLR2004 where :.3g turns to 1e+03
