"""The one place that knows tidegate's names for the settings and errors of the cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import (
    AsyncClient,
    BreakerPolicy,
    CallError,
    Client,
    Gate,
    Limits,
    Prices,
    RetryPolicy,
    Timeouts,
)

if TYPE_CHECKING:
    from typing import Any

KEY = "sk-test-case"
REQUEST = {"model": "test-model", "messages": [{"role": "user", "content": "ping"}]}

_RETRY = {
    "max_attempts": ("max_attempts",),
    "base_backoff_s": ("base", "throttle_base"),
    "max_backoff_s": ("cap", "throttle_cap"),
    "budget_s": ("max_elapsed",),
    "max_server_wait_s": ("max_retry_after",),
}
_TIMEOUTS = {
    "connect_timeout_s": ("connect",),
    "read_timeout_s": ("first_byte", "idle"),
    "idle_timeout_s": ("idle",),
    "budget_s": ("total",),
}
# What tidegate tells apart and the format does not.
_KINDS = {"conflict": "bad_request", "redirect": "bad_request", "admission": "rate_limit"}


def _policy(cls, table, settings):
    return cls(**{name: settings[key] for key, names in table.items() if key in settings for name in names})


def gate(settings=None, **more: Any):
    """Make a gate from the settings of a case; `more` are settings of `Gate` itself."""
    settings = dict(settings or {})
    known = _RETRY.keys() | _TIMEOUTS.keys() | {"gate", "stream", "limiter"}
    unknown = settings.keys() - known
    assert not unknown, f"unknown client settings: {sorted(unknown)}"
    given = {"concurrency": settings["gate"]} if "gate" in settings else {}
    given |= settings.get("limiter", {})
    if given:
        more["limits"] = Limits(**given)
    return Gate(
        retry=_policy(RetryPolicy, _RETRY, settings),
        timeouts=_policy(Timeouts, _TIMEOUTS, settings),
        seed=1,
        **more,
    )


def client(server_url, made_gate, mode="sync", **more: Any):
    cls = {"sync": Client, "async": AsyncClient}[mode]
    return cls(server_url, KEY, gate=made_gate, **more)


def kind(error: CallError):
    """Return the format's word for what went wrong."""
    return _KINDS.get(error.kind, error.kind)


def limits(given):
    """Return the limits of a simulation, without the reserve that is left to others by default.

    Requests are held to the strict form, in which no window of a minute exceeds the limit. Of tokens a whole
    minute's may go at once, as the cases assume, and the bucket is never overdrawn.
    """
    given = dict(given)
    if "requests" in given:
        given["rpm"] = round(given.pop("requests") * 60 / given.pop("period_s"))
    unknown = given.keys() - {"rpm", "tpm"}
    assert not unknown, f"unknown limits: {sorted(unknown)}"
    if "tpm" in given:
        given |= {"tpm_burst_seconds": 60.0, "oversize": "refuse"}
    else:
        given |= {"strict_minute": True}
    return Limits(headroom=0.0, learn=False, **given)


def breaker(config):
    """Return the breaker of a simulation, judged at each tenth of its window and opened by one hit."""
    config = dict(config)
    open_for = config.pop("open_s")
    policy = BreakerPolicy(
        window=config.pop("window_s"),
        minimum_calls=config.pop("min_requests"),
        failure_rate_threshold=config.pop("error_rate"),
        half_open_max_calls=config.pop("half_open_max"),
        open_for=open_for,
        reopen_for=open_for,
        consecutive_hits=1,
        recency=0,
        half_open_successes=1,
    )
    assert not config, f"unknown breaker settings: {sorted(config)}"
    return policy


def _per_million(amounts):
    from decimal import Decimal

    amounts = dict(amounts)
    scale = Decimal(1_000_000) / Decimal(amounts.pop("per"))
    return {name: f"{Decimal(amount) * scale:f}" for name, amount in amounts.items()}


def price_table(book):
    """Return prices of a case by model: plain amounts, or amounts by service tier."""
    table = {}
    for model, amounts in book.items():
        tiers = {"default": amounts} if "per" in amounts else dict(amounts)
        table[model] = _per_million(tiers.pop("default"))
        if tiers:
            table[model]["tiers"] = {tier: _per_million(rates) for tier, rates in tiers.items()}
    return table


def prices(book):
    return Prices(price_table(book))
