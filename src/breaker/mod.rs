//! Circuit breaker: stops sending to an upstream that keeps failing, and finds out with a few probes when it
//! is back.
//!
//! One per (origin, credential, model), under a lock of its owner. It is told one outcome per *logical call*
//! while closed, at the call's end: retries that succeed are no failures, and one request that no attempt can
//! save is one failure, not four. Calls outlive the window and the time open, so each carries the generation
//! it was admitted in, and a result of an earlier generation changes nothing. There are no timers: what time
//! has brought about is worked out at the next call.

mod first_byte;
mod probes;
mod window;

use std::time::Duration;

use crate::clock::Instant;
use crate::config::BreakerPolicy;

use first_byte::FirstByte;
use probes::{ProbeId, Probes};
use window::Window;

pub use window::Counts;

/// When to ask again while all probes are out.
const PROBES_OUT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a probe that was answered 429 opens the breaker, whatever the hint.
const THROTTLED_MIN: Duration = Duration::from_secs(1);
const THROTTLED_MAX: Duration = Duration::from_secs(20);

/// What a call says about the health of its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    /// Nothing: cancelled, refused locally, or an error that is the request's own fault.
    Neutral,
    /// A rate limit. Neutral unless `count_429`, but a probe answered so opens the breaker for the server's
    /// hint (zero where it gave none), held between 1 s and 20 s.
    Throttled(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    Closed,
    Open,
    HalfOpen,
    /// Open until the operator says otherwise.
    ForcedOpen,
    /// Admits all and counts nothing until the operator says otherwise.
    Disabled,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::ForcedOpen => "forced_open",
            Self::Disabled => "disabled",
        }
    }
}

/// Why the breaker last opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenReason {
    FailureRate,
    ProbeFailed,
    /// A probe's lease ran out without a result.
    ProbeTimedOut,
    /// A probe was answered 429.
    ProbeThrottled,
    Operator,
}

impl OpenReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "failure_rate",
            Self::ProbeFailed => "probe_failed",
            Self::ProbeTimedOut => "probe_timed_out",
            Self::ProbeThrottled => "probe_throttled",
            Self::Operator => "operator",
        }
    }
}

/// Why no attempt may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// [`State::Open`], [`State::HalfOpen`] or [`State::ForcedOpen`].
    pub state: State,
    pub reason: OpenReason,
    /// `None` where only the operator knows.
    pub retry_after: Option<Duration>,
}

/// Leave to send one attempt, and the receipt for the outcome of its call.
///
/// Not `Copy`: [`Breaker::record`] takes it, so an outcome cannot be recorded twice. Forgetting one is
/// harmless unless it [is a probe](Self::is_probe); then record [`Outcome::Neutral`], or its place is taken
/// until the lease runs out.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Ticket {
    generation: u64,
    probe: Option<ProbeId>,
    /// The call has been recorded as a failure while still in flight.
    counted: bool,
}

impl Ticket {
    /// Probes are single attempts: their result is the breaker's verdict, not a reason to retry.
    pub const fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// The ticket of the same call's next attempt: what was counted for an earlier one is not counted again.
    pub const fn after(self, earlier: &Self) -> Self {
        Self { counted: self.counted || earlier.counted, ..self }
    }
}

/// What a breaker looks like from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub state: State,
    /// Why it last opened; `None` if it never did.
    pub reason: Option<OpenReason>,
    /// Zero where a probe may start now; `None` where none is due (closed, disabled, forced open).
    pub next_probe_in: Option<Duration>,
    /// Outcomes in the window; empty unless closed.
    pub window: Counts,
    pub probes_in_flight: usize,
    /// Results that came after the state had changed.
    pub late_total: u64,
    /// Times it opened; a failed probe counts in `reopened_total` instead.
    pub opened_total: u64,
    pub reopened_total: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Closed,
    Open { until: Instant },
    HalfOpen { successes: u32 },
    ForcedOpen,
    Disabled,
}

#[derive(Debug)]
pub struct Breaker {
    open_for: Duration,
    reopen_for: Duration,
    successes_needed: u32,
    probe_timeout: Duration,
    count_429: bool,
    learn_first_byte: bool,
    phase: Phase,
    /// Changes with every transition.
    generation: u64,
    reason: Option<OpenReason>,
    /// What was in the window when it opened.
    tripped_by: Counts,
    window: Window,
    probes: Probes,
    whole: FirstByte,
    stream: FirstByte,
    late_total: u64,
    opened_total: u64,
    reopened_total: u64,
}

impl Breaker {
    pub fn new(policy: &BreakerPolicy, now: Instant) -> Self {
        let floor = policy.slow_after.unwrap_or_default();
        Self {
            open_for: policy.open_for,
            reopen_for: policy.reopen_for,
            successes_needed: policy.half_open_successes,
            probe_timeout: policy.probe_timeout,
            count_429: policy.count_429,
            learn_first_byte: policy.slow_after.is_some(),
            phase: Phase::Closed,
            generation: 0,
            reason: None,
            tripped_by: Counts::default(),
            window: Window::new(policy, now),
            probes: Probes::new(policy.half_open_max_calls),
            whole: FirstByte::new(floor),
            stream: FirstByte::new(floor),
            late_total: 0,
            opened_total: 0,
            reopened_total: 0,
        }
    }

    /// Would an attempt be admitted now? Takes nothing, so a call can fail fast before it queues; the answer
    /// may have changed once it leaves the queue.
    pub fn peek(&mut self, now: Instant) -> Result<(), Rejection> {
        self.advance(now);
        match self.phase {
            Phase::Open { until } if now < until => Err(self.rejection(Some(until.since(now)))),
            Phase::HalfOpen { .. } if !self.probes.has_room() => {
                Err(self.rejection(Some(PROBES_OUT_RETRY_AFTER)))
            }
            Phase::ForcedOpen => Err(self.rejection(None)),
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::Disabled => Ok(()),
        }
    }

    /// Admits one attempt. Call it last before sending: a probe that waits in a queue keeps others out.
    /// `attempt_timeout` shortens the lease of a probe.
    pub fn acquire(&mut self, now: Instant, attempt_timeout: Option<Duration>) -> Result<Ticket, Rejection> {
        self.peek(now)?;
        if let Phase::Open { .. } = self.phase {
            self.transition(Phase::HalfOpen { successes: 0 });
        }
        let mut probe = None;
        if let Phase::HalfOpen { .. } = self.phase {
            let lease = attempt_timeout.map_or(self.probe_timeout, |timeout| timeout.min(self.probe_timeout));
            probe = self.probes.grant(now + lease);
        }
        Ok(Ticket { generation: self.generation, probe, counted: false })
    }

    /// The end of the logical call whose last attempt held `ticket`, or the verdict of a probe.
    #[allow(clippy::needless_pass_by_value, reason = "a ticket that is gone cannot be recorded again")]
    pub fn record(&mut self, now: Instant, ticket: Ticket, outcome: Outcome) {
        self.advance(now);
        if ticket.generation != self.generation {
            self.late_total = self.late_total.saturating_add(u64::from(!ticket.counted));
        } else if let Some(id) = ticket.probe {
            self.resolve_probe(now, id, outcome);
        } else if !ticket.counted {
            self.count(outcome);
        }
    }

    /// No first byte for [`slow_after`](Self::slow_after): the call counts as failed from now on, and whatever
    /// [`record`](Self::record) says later is not counted. Without this a hanging upstream goes unnoticed for
    /// as long as the attempt timeout. Probes are left to their lease.
    pub fn slow(&mut self, now: Instant, ticket: &mut Ticket) {
        self.advance(now);
        if ticket.counted || ticket.is_probe() {
            return;
        }
        ticket.counted = true;
        if ticket.generation == self.generation {
            self.count(Outcome::Failure);
        } else {
            self.late_total = self.late_total.saturating_add(1);
        }
    }

    /// The first content of a stream has come. For a probe that is the verdict; how the stream ends is an
    /// ordinary outcome, which [`record`](Self::record) still takes.
    pub fn stream_began(&mut self, now: Instant, ticket: &mut Ticket) {
        self.advance(now);
        let Some(id) = ticket.probe.take() else { return };
        if ticket.generation == self.generation {
            self.resolve_probe(now, id, Outcome::Success);
            ticket.generation = self.generation;
        }
    }

    /// Time from sending to the first byte of a call that succeeded.
    pub fn first_byte(&mut self, stream: bool, latency: Duration) {
        if self.learn_first_byte {
            if stream { &mut self.stream } else { &mut self.whole }.observe(latency);
        }
    }

    /// How long a call may be silent before [`slow`](Self::slow); `None` until 50 successes have shown what is
    /// usual here, and where the policy turns it off.
    pub fn slow_after(&self, stream: bool) -> Option<Duration> {
        if stream { &self.stream } else { &self.whole }.slow_after()
    }

    /// Refuses everything until [`reset`](Self::reset) or [`disable`](Self::disable).
    pub fn force_open(&mut self) {
        if matches!(self.phase, Phase::Closed | Phase::Disabled) {
            self.opened_total = self.opened_total.saturating_add(1);
        }
        self.reason = Some(OpenReason::Operator);
        self.transition(Phase::ForcedOpen);
    }

    /// Admits everything until [`reset`](Self::reset) or [`force_open`](Self::force_open).
    pub fn disable(&mut self) {
        self.transition(Phase::Disabled);
    }

    /// Closed, with nothing counted yet.
    pub fn reset(&mut self) {
        self.transition(Phase::Closed);
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Closed => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::HalfOpen { .. } => State::HalfOpen,
            Phase::ForcedOpen => State::ForcedOpen,
            Phase::Disabled => State::Disabled,
        }
    }

    /// Why it last opened; `None` if it never did.
    pub const fn reason(&self) -> Option<OpenReason> {
        self.reason
    }

    /// The outcomes that last opened it by their failures.
    pub const fn tripped_by(&self) -> Counts {
        self.tripped_by
    }

    /// Results that came after the state had changed.
    pub const fn late_total(&self) -> u64 {
        self.late_total
    }

    /// Two equal generations mean that no transition lies between them.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let next_probe_in = match self.phase {
            Phase::Open { until } => Some(until.since(now)),
            Phase::HalfOpen { .. } if self.probes.has_room() => Some(Duration::ZERO),
            Phase::HalfOpen { .. } => Some(PROBES_OUT_RETRY_AFTER),
            Phase::Closed | Phase::ForcedOpen | Phase::Disabled => None,
        };
        Snapshot {
            state: self.state(),
            reason: self.reason,
            next_probe_in,
            window: self.window.counts(now),
            probes_in_flight: self.probes.outstanding(),
            late_total: self.late_total,
            opened_total: self.opened_total,
            reopened_total: self.reopened_total,
        }
    }

    /// What time alone has brought about.
    fn advance(&mut self, now: Instant) {
        match self.phase {
            Phase::Closed if self.window.advance(now) => {
                self.opened_total = self.opened_total.saturating_add(1);
                self.tripped_by = self.window.counts(now);
                self.open(now + self.open_for, OpenReason::FailureRate);
            }
            Phase::HalfOpen { .. } => {
                // The failure is as old as the lease's end: a pause in traffic must not lengthen it.
                if let Some(expired) = self.probes.expired(now) {
                    self.reopen(expired + self.reopen_for, OpenReason::ProbeTimedOut);
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, outcome: Outcome) {
        let Phase::Closed = self.phase else { return };
        match outcome {
            Outcome::Success => self.window.add(false),
            Outcome::Failure => self.window.add(true),
            Outcome::Throttled(_) if self.count_429 => self.window.add(true),
            Outcome::Neutral | Outcome::Throttled(_) => {}
        }
    }

    fn resolve_probe(&mut self, now: Instant, id: ProbeId, outcome: Outcome) {
        let Phase::HalfOpen { successes } = self.phase else { return };
        self.probes.release(id);
        match outcome {
            Outcome::Success if successes.saturating_add(1) >= self.successes_needed => {
                self.transition(Phase::Closed);
            }
            Outcome::Success => self.phase = Phase::HalfOpen { successes: successes.saturating_add(1) },
            Outcome::Failure => self.reopen(now + self.reopen_for, OpenReason::ProbeFailed),
            Outcome::Throttled(hint) => {
                self.reopen(now + hint.clamp(THROTTLED_MIN, THROTTLED_MAX), OpenReason::ProbeThrottled);
            }
            Outcome::Neutral => {}
        }
    }

    fn reopen(&mut self, until: Instant, reason: OpenReason) {
        self.reopened_total = self.reopened_total.saturating_add(1);
        self.open(until, reason);
    }

    fn open(&mut self, until: Instant, reason: OpenReason) {
        self.reason = Some(reason);
        self.transition(Phase::Open { until });
    }

    fn transition(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation = self.generation.wrapping_add(1);
        self.window.clear();
        self.probes.clear();
    }

    fn rejection(&self, retry_after: Option<Duration>) -> Rejection {
        // Set by every way into a state that rejects.
        let reason = self.reason.unwrap_or(OpenReason::Operator);
        Rejection { state: self.state(), reason, retry_after }
    }
}
