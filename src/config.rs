//! Every policy a user can set, with its default and the rules it must keep.

use std::time::Duration;

use crate::error::ConfigError;
use crate::money::Pico;

type Checked = Result<(), ConfigError>;

fn rule(holds: bool, field: &str, value: impl ToString, rule: &str) -> Checked {
    if holds { Ok(()) } else { Err(ConfigError::new(field, value, rule)) }
}

/// Reads seconds that came from outside, where NaN, infinities and negatives are possible.
pub fn seconds(field: &str, value: f64) -> Result<Duration, ConfigError> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| ConfigError::new(field, value, "must be a finite number of seconds, 0 or more"))
}

/// When and how often a failed attempt is repeated (SEMANTICS of the seed: 200 ms, 5 s, 4 attempts, 15 s).
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Requests per call, the first included. Default 4.
    pub max_attempts: u32,
    /// Ceiling of the first wait after a transient failure; doubles per retry. Default 0.2 s.
    pub base: Duration,
    /// Upper bound of that ceiling. Default 5 s.
    pub cap: Duration,
    /// The same after a 429 that names no wait. Default 1 s.
    pub throttle_base: Duration,
    /// Default 20 s.
    pub throttle_cap: Duration,
    /// No local backoff is shorter. Default 0: true full jitter.
    pub min_delay: Duration,
    /// No retry and no wait may start that would end later than this after the call began. Default 15 s;
    /// `None` is no limit.
    pub max_elapsed: Option<Duration>,
    /// A server that asks for a longer wait is not waited for. Default 120 s.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            base: Duration::from_millis(200),
            cap: Duration::from_secs(5),
            throttle_base: Duration::from_secs(1),
            throttle_cap: Duration::from_secs(20),
            min_delay: Duration::ZERO,
            max_elapsed: Some(Duration::from_secs(15)),
            max_retry_after: Duration::from_secs(120),
        }
    }
}

impl RetryPolicy {
    pub fn validate(&self) -> Checked {
        rule(self.max_attempts >= 1, "retry.max_attempts", self.max_attempts, "must be 1 or more")?;
        rule(
            self.base <= self.cap,
            "retry.base",
            self.base.as_secs_f64(),
            "must not be greater than retry.cap",
        )?;
        rule(
            self.throttle_base <= self.throttle_cap,
            "retry.throttle_base",
            self.throttle_base.as_secs_f64(),
            "must not be greater than retry.throttle_cap",
        )
    }
}

/// Bounds on one attempt, and on the whole call. `None` is no limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeouts {
    /// Name look-up, TCP and TLS. Default 5 s.
    pub connect: Duration,
    /// From the request to the first byte of the answer. Default `None`: `attempt` bounds it.
    pub first_byte: Option<Duration>,
    /// Longest gap within an answer. Default `None`: `attempt` bounds it.
    pub idle: Option<Duration>,
    /// One attempt, from connect to the last byte. Default 600 s, as in the official SDK.
    pub attempt: Option<Duration>,
    /// The whole call: queues, attempts and waits; also cuts the attempt in flight. Default `None`.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: None,
            idle: None,
            attempt: Some(Duration::from_secs(600)),
            total: None,
        }
    }
}

impl Timeouts {
    pub fn validate(&self) -> Checked {
        let zero = |field: &str, value: Option<Duration>| {
            rule(value != Some(Duration::ZERO), field, 0, "must be greater than 0; None turns it off")
        };
        zero("timeouts.connect", Some(self.connect))?;
        zero("timeouts.first_byte", self.first_byte)?;
        zero("timeouts.idle", self.idle)?;
        zero("timeouts.attempt", self.attempt)?;
        zero("timeouts.total", self.total)
    }
}

/// What happens to a request that costs more tokens than the burst allows, but no more than a minute's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oversize {
    /// It enters once the bucket is full; the excess is paid back before the next one enters.
    Debt,
    /// It is refused at once.
    Refuse,
}

/// What a fresh controller may spend before the first refill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// One burst.
    Full,
    /// Nothing: for fleets that restart together.
    Empty,
}

/// How much may be in flight, and how fast, per (origin, credential, model).
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Attempts in flight. Default 1,000. `None` is no limit.
    pub concurrency: Option<u32>,
    /// Requests per minute that the provider grants. `None`: learned where `learn`, else no limit.
    pub rpm: Option<u64>,
    /// Tokens per minute that the provider grants, prompt and output together.
    pub tpm: Option<u64>,
    /// Share of the provider's quota that is left unused. Where the quota is learned and the provider announces
    /// what remains, less than this share remaining slows the requests down in proportion. Default 0.1.
    pub headroom: f64,
    /// Requests that may start at once after a pause, as seconds of the rate. Default 1.
    pub burst_seconds: f64,
    /// The same for tokens. Default 6.
    pub tpm_burst_seconds: f64,
    /// Slows the refill so that no window of 60 s exceeds the quota, burst included. Default false.
    pub strict_minute: bool,
    /// Default [`Oversize::Debt`].
    pub oversize: Oversize,
    /// Default [`Start::Full`].
    pub start: Start,
    /// Takes rates from the provider's rate-limit headers where none is given here. Default true.
    pub learn: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrency: Some(1000),
            rpm: None,
            tpm: None,
            headroom: 0.1,
            burst_seconds: 1.0,
            tpm_burst_seconds: 6.0,
            strict_minute: false,
            oversize: Oversize::Debt,
            start: Start::Full,
            learn: true,
        }
    }
}

impl Limits {
    pub fn validate(&self) -> Checked {
        const POSITIVE: &str = "must be 1 or more; None is no limit";
        rule(self.concurrency != Some(0), "limits.concurrency", 0, POSITIVE)?;
        rule(self.rpm != Some(0), "limits.rpm", 0, POSITIVE)?;
        rule(self.tpm != Some(0), "limits.tpm", 0, POSITIVE)?;
        rule(
            (0.0..1.0).contains(&self.headroom),
            "limits.headroom",
            self.headroom,
            "must be 0 or more and less than 1",
        )?;
        let burst = |field: &str, value: f64| {
            rule(value > 0.0 && value <= 60.0, field, value, "must be more than 0 and at most 60 seconds")
        };
        burst("limits.burst_seconds", self.burst_seconds)?;
        burst("limits.tpm_burst_seconds", self.tpm_burst_seconds)
    }
}

/// What a call does when its breaker is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOpen {
    /// Fail at once.
    Fail,
    /// Send the first attempt all the same, but never retry.
    NoRetries,
}

/// When a scope's breaker opens and how it recovers.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerPolicy {
    /// Sliding window, evaluated ten times over its length. Default 30 s.
    pub window: Duration,
    /// Fewer outcomes in the window never trip. Default 50.
    pub minimum_calls: u32,
    /// Share of failures that is a hit; exactly this share counts. Default 0.25.
    pub failure_rate_threshold: f64,
    /// Hits in a row that open the breaker. Default 2.
    pub consecutive_hits: u32,
    /// A hit also needs the same share of failures among this many latest outcomes, whenever they were, so
    /// that an upstream that has recovered is not cut off; 0 turns it off. Default 20.
    pub recency: u32,
    /// Time open after a trip. Default 20 s.
    pub open_for: Duration,
    /// Time open after a failed probe. Default 5 s.
    pub reopen_for: Duration,
    /// Probes at the same time while half-open. Default 3.
    pub half_open_max_calls: u32,
    /// Probe successes that close the breaker. Default 2.
    pub half_open_successes: u32,
    /// A probe without a result is a failure after this, or after the attempt timeout where that is
    /// shorter. Default 30 s.
    pub probe_timeout: Duration,
    /// Shortest time without a first byte that is recorded as a failure while still in flight; `None` turns
    /// that off. Default 15 s.
    pub slow_after: Option<Duration>,
    /// Rate-limit answers count as failures. Default false.
    pub count_429: bool,
    /// Default [`OnOpen::Fail`].
    pub on_open: OnOpen,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(30),
            minimum_calls: 50,
            failure_rate_threshold: 0.25,
            consecutive_hits: 2,
            recency: 20,
            open_for: Duration::from_secs(20),
            reopen_for: Duration::from_secs(5),
            half_open_max_calls: 3,
            half_open_successes: 2,
            probe_timeout: Duration::from_secs(30),
            slow_after: Some(Duration::from_secs(15)),
            count_429: false,
            on_open: OnOpen::Fail,
        }
    }
}

impl BreakerPolicy {
    pub fn validate(&self) -> Checked {
        const POSITIVE: &str = "must be 1 or more";
        rule(
            self.window >= Duration::from_millis(10),
            "breaker.window",
            self.window.as_secs_f64(),
            "must be at least 0.01 seconds",
        )?;
        rule(self.minimum_calls > 0, "breaker.minimum_calls", 0, POSITIVE)?;
        rule(
            self.failure_rate_threshold > 0.0 && self.failure_rate_threshold <= 1.0,
            "breaker.failure_rate_threshold",
            self.failure_rate_threshold,
            "must be more than 0 and at most 1",
        )?;
        rule(self.consecutive_hits > 0, "breaker.consecutive_hits", 0, POSITIVE)?;
        rule(self.recency <= 1000, "breaker.recency", self.recency, "must be at most 1,000; 0 turns it off")?;
        rule(
            (1..=1000).contains(&self.half_open_max_calls),
            "breaker.half_open_max_calls",
            self.half_open_max_calls,
            "must be between 1 and 1,000",
        )?;
        rule(
            self.half_open_successes > 0,
            "breaker.half_open_successes",
            self.half_open_successes,
            POSITIVE,
        )?;
        rule(!self.open_for.is_zero(), "breaker.open_for", 0, "must be greater than 0")?;
        rule(!self.reopen_for.is_zero(), "breaker.reopen_for", 0, "must be greater than 0")?;
        rule(!self.probe_timeout.is_zero(), "breaker.probe_timeout", 0, "must be greater than 0")
    }
}

/// The cap on retries of a whole scope.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryBudgetPolicy {
    /// Retries that may be taken at once. Default `None`: the limit on concurrency, between 3 and 32.
    pub capacity: Option<u32>,
    /// Earned by each call that succeeds. Default 0.1.
    pub deposit: f64,
    /// Earned per second of time. Default 1/60.
    pub trickle: f64,
}

impl Default for RetryBudgetPolicy {
    fn default() -> Self {
        Self { capacity: None, deposit: 0.1, trickle: 1.0 / 60.0 }
    }
}

impl RetryBudgetPolicy {
    pub fn validate(&self) -> Checked {
        let amount = |field: &str, value: f64| {
            rule((0.0..=1000.0).contains(&value), field, value, "must be a finite number between 0 and 1,000")
        };
        rule(self.capacity != Some(0), "retry_budget.capacity", 0, "must be 1 or more")?;
        amount("retry_budget.deposit", self.deposit)?;
        amount("retry_budget.trickle", self.trickle)
    }
}

/// What a call may answer with when no upstream can: the last good answer to the same request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degrade {
    /// An older answer is not given. Default 5 min.
    pub ttl: Duration,
    /// Memory for answers; the oldest go first. Default 64 MiB.
    pub max_bytes: usize,
}

impl Default for Degrade {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(300), max_bytes: 64 << 20 }
    }
}

impl Degrade {
    pub fn validate(&self) -> Checked {
        rule(!self.ttl.is_zero(), "degrade.ttl", 0, "must be greater than 0")?;
        rule(self.max_bytes > 0, "degrade.max_bytes", 0, "must be 1 or more")
    }
}

/// The time over which a spend cap counts. What was spent is forgotten when the next window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpendWindow {
    /// As long as the gate lives.
    Total,
    /// One window after the other, the first from when the gate was made. Not less than 1 s.
    Every(Duration),
    /// The calendar day in UTC, by the wall clock.
    Day,
}

/// What a spend cap does with a call whose model has no price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnpriced {
    /// Refuse it: a cap that counts it as free does not hold.
    Refuse,
    /// Let it through and count it apart.
    Allow,
}

/// How much the calls of a gate, or those with a tag, may cost in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendCap {
    pub limit: Pico,
    /// Default [`SpendWindow::Total`].
    pub window: SpendWindow,
    /// `key=value` of the calls that it applies to, all of them together. Default `None`: every call.
    pub tag: Option<String>,
    /// Default [`OnUnpriced::Refuse`].
    pub on_unpriced: OnUnpriced,
}

impl SpendCap {
    /// A cap on every call, for as long as the gate lives.
    pub fn new(limit: Pico) -> Self {
        Self { limit, window: SpendWindow::Total, tag: None, on_unpriced: OnUnpriced::Refuse }
    }

    pub fn validate(&self) -> Checked {
        rule(self.limit > Pico::ZERO, "spend.limit", 0, "must be more than 0 USD")?;
        if let SpendWindow::Every(window) = self.window {
            rule(
                window >= Duration::from_secs(1),
                "spend.window",
                window.as_secs_f64(),
                "must be at least 1 second",
            )?;
        }
        let Some(tag) = &self.tag else { return Ok(()) };
        let named = tag.split_once('=').is_some_and(|(key, _)| !key.is_empty());
        rule(named, "spend.tag", tag, "must be key=value")
    }
}
