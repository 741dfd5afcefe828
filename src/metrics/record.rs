//! What is told to the metrics, in the words of those who tell it.

use std::time::Duration;

use super::metric::{Label, Metric};
use super::registry::Registry;
use crate::event::TraceId;

/// Outcome of a call or an attempt that succeeded.
pub const OK: &str = "ok";

/// A logical call that has ended, however it did.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord<'a> {
    pub model: &'a str,
    /// The caller's tag; empty where there is none.
    pub route: &'a str,
    /// [`OK`], a [`crate::error::Reason`], or another word of this project; never a message.
    pub outcome: &'a str,
    /// Requests put on the wire.
    pub attempts: u32,
    /// From the call to its end, the last byte of a stream included.
    pub duration: Duration,
    /// For streams.
    pub time_to_first_chunk: Option<Duration>,
    /// The kinds of a direction must not overlap: they are added up.
    pub tokens: &'a [TokenCount],
    /// `None` where nothing is billed that has a price.
    pub cost: Option<Cost>,
    /// There is something to bill, and no price for it.
    pub unpriced: bool,
    /// An answer came, but without its usage.
    pub usage_missing: bool,
    /// Where to look a call of this kind up.
    pub exemplar: Option<Exemplar>,
}

/// A call by which a series can be explained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exemplar {
    pub trace_id: TraceId,
    /// Unix time in seconds.
    pub ts: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    pub direction: Direction,
    /// `text`, `cached`, `cache_write`, `reasoning`, `audio` and the like.
    pub kind: &'static str,
    pub tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Input,
    Output,
}

impl Direction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// Pico-dollars: what rests on stated usage, and what on an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    pub reported: u128,
    pub estimated: u128,
}

impl CallRecord<'_> {
    pub(super) fn count(&self, registry: &mut Registry) {
        let model = registry.intern(Label::Model, self.model);
        let outcome = registry.intern(Label::Outcome, self.outcome);
        registry.count(Metric::Calls, [model, outcome], 1);
        registry.observe(Metric::RequestDuration, [model, outcome], self.duration, self.exemplar);
        if let Some(wait) = self.time_to_first_chunk {
            registry.observe(Metric::TimeToFirstChunk, [model], wait, self.exemplar);
        }
        for count in self.tokens.iter().filter(|count| count.tokens > 0) {
            let direction = registry.intern(Label::Direction, count.direction.as_str());
            let kind = registry.intern(Label::Kind, count.kind);
            registry.count(Metric::Tokens, [model, direction, kind], count.tokens);
        }
        if self.usage_missing {
            registry.count(Metric::AnswersWithoutUsage, [model], 1);
        }
        if self.unpriced {
            registry.count(Metric::CallsUnpriced, [model], 1);
        }
        if let Some(Cost { reported, estimated }) = self.cost {
            let route = registry.intern(Label::Route, self.route);
            registry.charge(Metric::Cost, [], reported.saturating_add(estimated));
            for (name, part) in [("false", reported), ("true", estimated)] {
                // What is free is told of too.
                if part > 0 || (name == "false" && estimated == 0) {
                    let estimated = registry.intern(Label::Estimated, name);
                    registry.charge(Metric::CostByModel, [model, route, estimated], part);
                }
            }
        }
    }
}

/// What became of an execution that was asked for under an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdempotencyOutcome {
    /// The tool ran.
    Executed,
    /// An earlier result was given.
    Replay,
    /// The result of an execution in progress was waited for.
    Joined,
    /// Refused: an equal one is in progress.
    Conflict,
    /// Refused: nobody knows whether an earlier one took effect.
    InDoubt,
    /// Refused: the key was used for something else.
    Mismatch,
    /// The lease ran out while the tool ran.
    LeaseLost,
    /// A result came from an owner that had been replaced, and was discarded.
    StaleOwner,
    /// The store could not be reached.
    StoreUnavailable,
    /// The tool ran although the store could not be reached.
    Bypassed,
}

impl IdempotencyOutcome {
    pub const ALL: [Self; 10] = [
        Self::Executed,
        Self::Replay,
        Self::Joined,
        Self::Conflict,
        Self::InDoubt,
        Self::Mismatch,
        Self::LeaseLost,
        Self::StaleOwner,
        Self::StoreUnavailable,
        Self::Bypassed,
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replay => "replay",
            Self::Joined => "joined",
            Self::Conflict => "conflict",
            Self::InDoubt => "in_doubt",
            Self::Mismatch => "mismatch",
            Self::LeaseLost => "lease_lost",
            Self::StaleOwner => "stale_owner",
            Self::StoreUnavailable => "store_unavailable",
            Self::Bypassed => "bypassed",
        }
    }

    /// True if a duplicate was kept from running.
    pub const fn is_suppression(self) -> bool {
        matches!(self, Self::Replay | Self::Joined | Self::Conflict | Self::InDoubt)
    }
}

/// A reading of live state, taken when the metrics are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gauge<'a> {
    InFlight(u64),
    AdmissionQueued(u64),
    /// `scope` names origin and model, never a credential; a state that an operator forced counts as `open` or
    /// `closed`.
    BreakerState {
        scope: &'a str,
        state: &'a str,
    },
    RetryBudgetBalance {
        scope: &'a str,
        balance: f64,
    },
    /// `cap` is the name of a spend cap.
    Spend {
        cap: &'a str,
        pico_usd: u128,
        limit_pico_usd: u128,
    },
}

impl Gauge<'_> {
    pub(super) fn set(&self, registry: &mut Registry) {
        match *self {
            Self::InFlight(count) => registry.gauge(Metric::InFlight, [], count as f64),
            Self::AdmissionQueued(count) => registry.gauge(Metric::AdmissionQueued, [], count as f64),
            Self::BreakerState { scope, state } => {
                let scope = registry.intern(Label::Scope, scope);
                let state = match state {
                    "forced_open" => "open",
                    "disabled" => "closed",
                    other => other,
                };
                for possible in ["closed", "open", "half_open"] {
                    let label = registry.intern(Label::State, possible);
                    let number = if possible == state { 1.0 } else { 0.0 };
                    registry.gauge(Metric::BreakerState, [scope, label], number);
                }
            }
            Self::RetryBudgetBalance { scope, balance } => {
                let scope = registry.intern(Label::Scope, scope);
                registry.gauge(Metric::RetryBudgetBalance, [scope], balance);
            }
            Self::Spend { cap, pico_usd, limit_pico_usd } => {
                let cap = registry.intern(Label::Cap, cap);
                registry.charge(Metric::Spend, [cap], pico_usd);
                registry.charge(Metric::SpendLimit, [cap], limit_pico_usd);
            }
        }
    }
}
