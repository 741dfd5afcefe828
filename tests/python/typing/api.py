"""Never run, only type-checked: what users write must check, and what is wrong must not."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import TYPE_CHECKING, Any, assert_type

import tidegate
from tidegate import (
    AsyncClient,
    BreakerPolicy,
    CallInfo,
    Client,
    Gate,
    JSONFormatter,
    Limits,
    Prices,
    RateLimitError,
    Response,
    Retry,
    RetryBudget,
    RetryPolicy,
    Timeouts,
    Usage,
)
from tidegate.testing import FaultServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

gate = Gate(
    retry=RetryPolicy(max_attempts=3, max_elapsed=None),
    timeouts=Timeouts(first_byte=20.0, total=60),
    limits={"gpt-5*": Limits(rpm=500, tpm=200_000), "o*": "auto", "local": None},
    breaker=BreakerPolicy(on_open="no_retries"),
    retry_budget=RetryBudget(capacity=10),
    prices=Prices({"gpt-5*": {"input": "2.00", "output": Decimal(8)}}),
    log_file="calls.jsonl",
    seed=1,
)
Gate(limits=Limits("auto"))
Gate(limits="auto", prices={"m": {"input": 1}})
Gate(retry=None, limits=None, breaker=None, retry_budget=None)
assert_type(tidegate.configure(gate), Gate)
assert_type(tidegate.default_gate(), Gate)
assert_type(gate.snapshot(), dict[str, Any])
assert_type(gate.metrics_text(), str)

RetryPolicy(max_attemps=3)  # type: ignore[call-arg]
RetryPolicy(3)  # type: ignore[call-arg]
Limits("automatic")  # type: ignore[arg-type]
Gate(retries=3)  # type: ignore[call-arg]
Gate(timeouts=None)  # type: ignore[arg-type]
BreakerPolicy(on_open="close")  # type: ignore[arg-type]


async def asynchronous() -> None:
    """Calls from asyncio."""
    async with AsyncClient("https://api.example.test/v1", "sk-1", gate=gate, max_retries=2) as client:
        answer = await client.post("/chat/completions", json={"model": "m"}, timeout=5, tags={"route": "r"})
        assert_type(answer, Response)
        assert_type(await client.get("/models", params={"limit": 5, "after": None}), Response)
        assert_type(await client.request("PUT", "/x", content=b"x", total_timeout=None), Response)
        assert_type(client.with_options(timeout=3), AsyncClient)
        assert_type(client.copy(http2=True), AsyncClient)
        client.post("/x", timout=5)  # type: ignore[call-arg, unused-coroutine]
        client.with_options(retries=2)  # type: ignore[call-arg]


def blocking(error: RateLimitError) -> None:
    """Calls from a thread."""
    with Client(api_key="sk-1") as client:
        answer = client.post("/chat/completions", json={"model": "m"})
        assert_type(answer.cost_usd, Decimal | None)
        assert_type(answer.usage, Usage | None)
        assert_type(tidegate.info(answer), CallInfo)
        assert_type(answer.info.retries, tuple[Retry, ...])
        answer.status = 201  # type: ignore[misc]
    assert_type(error.retry_after, float | None)
    assert_type(error.headers, dict[str, str])
    assert_type(error.retryable, bool)


@tidegate.tags(route="summarise")
async def summarise(text: str) -> int:
    """Keep its signature under the decorator."""
    return len(text)


@tidegate.tags(route="count")
def count(text: str) -> int:
    """Keep its signature under the decorator."""
    return len(text)


async def labelled() -> AsyncIterator[int]:
    """Labels for a part of a function."""
    with tidegate.tags(tenant="acme"):
        assert_type(tidegate.current_tags(), dict[str, str])
        yield await summarise("x")
    assert_type(count("x"), int)
    count(1)  # type: ignore[arg-type]
    tidegate.tags(route=1)  # type: ignore[arg-type]


def faults() -> None:
    """A server that fails."""
    with FaultServer([{"status": 500}], quota={"rpm": 60}, latency_ms=(1, 5)) as server:
        assert_type(server.url, str)
        assert_type(server.ledger, dict[str, Any])
        server.script(rules=[{"match": {"model": "m"}, "respond": {"fault": "reset"}}], extend=True)


handler = logging.StreamHandler()
handler.setFormatter(JSONFormatter())
