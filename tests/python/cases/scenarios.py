"""Kind `scenario`: by name. One that is not known is skipped, by its name."""

from __future__ import annotations

from cases import (
    cancelling,
    churn,
    clocks,
    contention,
    leaving,
    loops,
    pickling,
    processes,
    returning,
    tls,
)
from cases.case import Check

_RUNNERS = {
    "cancel_and_count": cancelling.cancel_and_count,
    "cancel_churn": leaving.cancel_churn,
    "client_churn": churn.client_churn,
    "contextvars": loops.contexts,
    "exit": processes.exits,
    "fork": processes.fork,
    "gate_cancel_churn": leaving.gate_cancel_churn,
    "h2_goaway": tls.h2_goaway,
    "pickle_roundtrip": pickling.pickle_roundtrip,
    "private_ca": tls.private_ca,
    "repeat_asyncio_run": loops.repeat_asyncio_run,
    "sigint_sync": cancelling.sigint_sync,
    "sqlite_contention": contention.sqlite_contention,
    "stream_return": returning.stream_return,
    "ticker": loops.ticker,
    "two_keys": clocks.two_keys,
    "wall_clock_step": clocks.wall_clock_step,
}


def checks(case):
    name = case.content["scenario"]
    if name not in _RUNNERS:
        return [Check("all", skipped=f"the runner does not know the scenario {name}")]
    return list(_RUNNERS[name](case.content, case.expect))
