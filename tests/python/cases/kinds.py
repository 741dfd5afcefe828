"""Which runner serves which kind of case."""

from __future__ import annotations

from cases import (
    args_key,
    breaker_sim,
    http_script,
    idem_sim,
    label_metrics,
    limiter_sim,
    raw_http,
    request_table,
    scenarios,
    secret_scan,
    settings,
    sse,
    tables,
    tokens,
    usage_cost,
)
from cases.case import Check

_RUNNERS = {
    "args_key": args_key.checks,
    "backoff_table": tables.backoff_table,
    "breaker_sim": breaker_sim.checks,
    "duration_table": tables.duration_table,
    "env_table": settings.env_table,
    "estimate_table": tokens.estimate_table,
    "http_script": http_script.checks,
    "idem_sim": idem_sim.checks,
    "limiter_sim": limiter_sim.checks,
    "metrics": label_metrics.checks,
    "raw_http": raw_http.checks,
    "request_table": request_table.checks,
    "retry_after_table": tables.retry_after_table,
    "scenario": scenarios.checks,
    "secret_scan": secret_scan.checks,
    "settings_table": settings.settings_table,
    "socket_options": settings.socket_options,
    "sse": sse.checks,
    "sse_generated": sse.generated,
    "token_table": tokens.token_table,
    "usage_cost": usage_cost.checks,
}


def checks(case):
    """Return what is to be checked of a case."""
    if case.kind in _RUNNERS:
        return list(_RUNNERS[case.kind](case))

    def refuse():
        raise AssertionError(f"no runner for cases of kind {case.kind}")

    return [Check("kind", refuse)]
