"""Every policy a user can set. Seconds are floats; `None` turns a bound off.

A wrong value raises `ConfigError` at construction, naming the field, the value and the rule.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 see the next
from dataclasses import dataclass, field
from decimal import Decimal  # noqa: TC003 readers of the fields' types resolve them
from typing import Literal

from tidegate import _core
from tidegate._errors import ConfigError
from tidegate._fields import known_fields


@known_fields("retry")
@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When and how often a failed attempt is repeated.

    Waits are drawn evenly between 0 and a ceiling that doubles with each retry (full jitter). A wait that the
    server asks for (``Retry-After``) beats them.

    Attributes:
        max_attempts: Requests per call, the first included. Default 4.
        base: Ceiling of the first wait after a transient failure, in seconds. Default 0.2.
        cap: Upper bound of that ceiling, in seconds. Default 5.
        throttle_base: The same as `base` after a 429 that names no wait. Default 1.
        throttle_cap: The same as `cap` after a 429 that names no wait. Default 20.
        min_delay: No local wait is shorter, in seconds. Default 0.
        max_elapsed: No retry, and no wait, may start that would end later than this many seconds after the
            call began; `None` is no limit. Default 15.
        max_retry_after: A server that asks for a longer wait, in seconds, is not waited for. Default 120.

    Raises:
        ConfigError: A value is out of its range, or `base` is greater than `cap`.
    """

    max_attempts: int = 4
    base: float = 0.2
    cap: float = 5.0
    throttle_base: float = 1.0
    throttle_cap: float = 20.0
    min_delay: float = 0.0
    max_elapsed: float | None = 15.0
    max_retry_after: float = 120.0

    def __post_init__(self) -> None:
        _core.check_policy("retry", self)


@known_fields("timeouts")
@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Bounds on one attempt and on the whole call, in seconds.

    Attributes:
        connect: Name look-up, TCP and TLS. Default 5.
        first_byte: From the request to the first byte of the answer. Default `None`: `attempt` bounds it.
        idle: Longest gap within an answer. Default `None`: `attempt` bounds it.
        attempt: One attempt, from connect to the last byte. Default 600, as in the official client.
        total: The whole call with its queues, attempts and waits; also cuts the attempt in flight. Default
            `None`.

    Raises:
        ConfigError: A value is not a finite number greater than 0.
    """

    connect: float = 5.0
    first_byte: float | None = None
    idle: float | None = None
    attempt: float | None = 600.0
    total: float | None = None

    def __post_init__(self) -> None:
        _core.check_policy("timeouts", self)


@known_fields("limits")
@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may be in flight, and how fast, per origin, credential and model.

    ``Limits("auto")`` is the defaults: rates are learned from the provider's headers.

    Attributes:
        concurrency: Attempts in flight; `None` is no limit. Default 1,000.
        rpm: Requests per minute that the provider grants. Default `None`: learned if `learn`, else no limit.
        tpm: Tokens per minute that the provider grants, prompt and output together. Default as for `rpm`.
        headroom: Share of the provider's quota that is left unused, 0 or more and less than 1. Default 0.1.
        burst_seconds: Requests that may start at once after a pause, as seconds of the rate. Default 1.
        tpm_burst_seconds: The same for tokens. Default 6.
        strict_minute: Slow the refill so that no window of 60 s exceeds the quota, burst included. Default
            false.
        oversize: What happens to a request that costs more tokens than the burst allows, but no more than a
            minute's quota: ``"debt"`` lets it in when the burst is full, and later requests wait until the
            excess is paid back; ``"refuse"`` raises. Default ``"debt"``.
        start: ``"full"`` grants one burst at once, ``"empty"`` nothing, for fleets that restart together.
            Default ``"full"``.
        learn: Take rates from the provider's rate-limit headers where none is given here. Default true.

    Raises:
        ConfigError: A value is out of its range.
    """

    preset: Literal["auto"] = field(default="auto", kw_only=False, repr=False, compare=False)
    concurrency: int | None = 1000
    rpm: int | None = None
    tpm: int | None = None
    headroom: float = 0.1
    burst_seconds: float = 1.0
    tpm_burst_seconds: float = 6.0
    strict_minute: bool = False
    oversize: Literal["debt", "refuse"] = "debt"
    start: Literal["full", "empty"] = "full"
    learn: bool = True

    def __post_init__(self) -> None:
        if self.preset != "auto":
            raise ConfigError(
                "limits", self.preset, 'must be "auto", or keywords such as concurrency=5, rpm=500'
            )
        _core.check_policy("limits", self)


@known_fields("breaker")
@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens and how it recovers. There is one per origin, credential and model.

    Attributes:
        window: Sliding window in seconds, evaluated ten times over its length. Default 30.
        minimum_calls: Fewer outcomes in the window never trip. Default 50.
        failure_rate_threshold: Share of failures that is a hit; exactly this share counts. Default 0.25.
        consecutive_hits: Hits in a row that open the breaker. Default 2.
        recency: A hit also needs that share of failures among so many last outcomes; 0 turns it off. Default
            20.
        open_for: Seconds open after a trip. Default 20.
        reopen_for: Seconds open after a failed probe. Default 5.
        half_open_max_calls: Probes at the same time while half-open. Default 3.
        half_open_successes: Successful probes that close the breaker. Default 2.
        probe_timeout: A probe without a result is a failure after so many seconds, or after the attempt's
            timeout where that is shorter. Default 30.
        slow_after: Seconds without a first byte after which a call is recorded as a failure while still in
            flight; `None` turns that off. Default 15.
        count_429: Rate-limit answers count as failures. Default false.
        on_open: ``"fail"`` fails at once; ``"no_retries"`` sends the first attempt all the same. Default
            ``"fail"``.

    Raises:
        ConfigError: A value is out of its range.
    """

    window: float = 30.0
    minimum_calls: int = 50
    failure_rate_threshold: float = 0.25
    consecutive_hits: int = 2
    recency: int = 20
    open_for: float = 20.0
    reopen_for: float = 5.0
    half_open_max_calls: int = 3
    half_open_successes: int = 2
    probe_timeout: float = 30.0
    slow_after: float | None = 15.0
    count_429: bool = False
    on_open: Literal["fail", "no_retries"] = "fail"

    def __post_init__(self) -> None:
        _core.check_policy("breaker", self)


@known_fields("retry_budget")
@dataclass(frozen=True, kw_only=True)
class RetryBudget:
    """The cap on the retries of all calls together, which keeps an outage from multiplying the traffic.

    Attributes:
        capacity: Retries that may be taken at once. Default `None`: the limit on concurrency, between 3 and
            32.
        deposit: Retries earned by each call that succeeds. Default 0.1.
        trickle: Retries earned per second of time. Default 1/60.

    Raises:
        ConfigError: A value is out of its range.
    """

    capacity: int | None = None
    deposit: float = 0.1
    trickle: float = 1.0 / 60.0

    def __post_init__(self) -> None:
        _core.check_policy("retry_budget", self)


@known_fields("spend")
@dataclass(frozen=True, kw_only=True)
class SpendCap:
    """How much the calls of a gate, or those with one tag, may cost.

    An attempt sets aside the most it can cost before it is sent, so that the cap holds however many calls are
    in flight, and books what it did cost at its end; where nobody knows, as after a timeout or a reset, all
    that was set aside. The prompt is estimated. An answer without an output limit has 4,096 tokens set aside,
    or twice the longest answers of late where that is more.

    Attributes:
        limit: US dollars; text and `decimal.Decimal` are exact. ``SpendCap("2.50")``.
        window: ``"total"``, as long as the gate lives; ``"day"``, the calendar day in UTC; or a number of
            seconds, 1 or more, the first window beginning when the gate is made. Default ``"total"``.
        tag: ``"name=value"`` of the calls it applies to, all of them together; see `tidegate.tags`. Default
            `None`: every call.
        on_unpriced: What happens to a call whose model has no price: ``"refuse"`` raises, ``"allow"`` sends
            it and counts it apart. Default ``"refuse"``.

    Raises:
        ConfigError: A value is out of its range.
    """

    limit: str | Decimal | int | float = field(kw_only=False)
    window: float | Literal["total", "day"] = "total"
    tag: str | None = None
    on_unpriced: Literal["refuse", "allow"] = "refuse"

    def __post_init__(self) -> None:
        _core.check_policy("spend", self)


@known_fields("fallback")
@dataclass(frozen=True, kw_only=True)
class Fallback:
    """Another model, another endpoint, or both, for a call that its own upstream cannot take.

    It is used when the breaker is open, the quota is exhausted, or the request fits neither the limits nor
    the time that it has; never for a mistake of the caller. The answer says so: ``info(answer).notice``.

    Attributes:
        model: Put in the place of the model that was asked for; `None` keeps it.
        base_url: Where to send it; `None` is where it was to go. Breaker, limits and budget are those of this
            place.
        api_key: Sent as ``Authorization: Bearer`` with `base_url`. Default `None`: no credential; the
            client's own is never sent to another place.
        headers: Sent with every request to `base_url`.

    Raises:
        ConfigError: Neither `model` nor `base_url` is given, a credential or headers come without a
            `base_url`, or a value is of the wrong type.
    """

    model: str | None = field(default=None, kw_only=False)
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("model", "base_url", "api_key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                shown = "***" if name == "api_key" else value
                raise ConfigError(f"fallback.{name}", shown, "must be text, or None")
        if self.model is None and self.base_url is None:
            raise ConfigError("fallback", "Fallback()", "must name a model or a base_url")
        if self.base_url is None and (self.api_key is not None or self.headers):
            raise ConfigError("fallback.base_url", None, "must be given with api_key or headers")


@known_fields("degrade")
@dataclass(frozen=True, kw_only=True)
class Degrade:
    """The last good answer to the same request, for when no upstream can give one.

    It takes the place of an error that is the upstream's fault, and says so: ``info(answer).notice``. Streams
    are not kept.

    Attributes:
        ttl: Seconds after which an answer is too old. Default 300.
        max_bytes: Memory for answers; the oldest are forgotten first. Default 64 MiB.

    Raises:
        ConfigError: A value is out of its range.
    """

    ttl: float = 300.0
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        _core.check_policy("degrade", self)
