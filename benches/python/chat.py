"""The one request that every contender sends, and the gate that tidegate sends it through."""

from __future__ import annotations

from typing import Any

KEY = "sk-test"
REQUEST: dict[str, Any] = {
    "model": "gpt-5.4-mini",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant who answers in one sentence."},
        {
            "role": "user",
            "content": "Summarise this ticket for the engineer on call: since the last deployment the "
            "checkout page answers with an error for about one customer in twenty; a reload helps. The "
            "logs show time-outs towards the payment provider, but its status page is green.",
        },
    ],
    "temperature": 0.2,
    "max_completion_tokens": 256,
}


def gate(*, on: bool) -> Any:
    """Return a gate with every mechanism on, its limits out of reach; or with all of them off."""
    from tidegate import BreakerPolicy, Gate, Limits, RetryBudget, RetryPolicy

    if not on:
        return Gate(retry=None, limits=None, breaker=None, retry_budget=None)
    return Gate(
        retry=RetryPolicy(),
        limits=Limits(concurrency=20_000, rpm=60_000_000, tpm=60_000_000_000),
        breaker=BreakerPolicy(),
        retry_budget=RetryBudget(),
        prices={"gpt-5.4*": {"input": "0.75", "cached_input": "0.075", "output": "4.50"}},
    )
