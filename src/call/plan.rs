//! What goes into a call, and what its driver tells it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::admission::{Announced, Settlement};
use crate::classify::Verdict;
use crate::clock::Instant;
use crate::config::{OnOpen, RetryPolicy};
use crate::error::Cause;
use crate::money::Pico;
use crate::spend::{Exceeded, Moment, Reservation, SpendLedger};

/// What a call may do and what it is expected to cost.
#[derive(Debug, Clone)]
pub struct Plan {
    pub retry: Arc<RetryPolicy>,
    /// Requests per call; the policy's unless the caller named another.
    pub max_attempts: u32,
    /// Limit on the whole call.
    pub total: Option<Duration>,
    pub attempt_timeout: Option<Duration>,
    /// Tokens, prompt and answer together.
    pub cost: u64,
    /// The part of the cost that is no guess: a limit below it can never admit the request.
    pub least_cost: u64,
    /// The request acts on the world at the server: an attempt whose outcome is unknown is not repeated.
    pub replay_unsafe: bool,
    pub stream: bool,
    /// What an open breaker does to a first attempt.
    pub on_open: OnOpen,
    /// The same request has failed just now, after so many attempts in all: whoever makes it again retries
    /// around this gate.
    pub resent_after: Option<u32>,
    /// `None` where there is no spend cap.
    pub spending: Option<Spending>,
}

/// The caps that a call's attempts count under, and the most that one of them can cost.
#[derive(Debug, Clone)]
pub struct Spending {
    pub ledger: Arc<SpendLedger>,
    pub tags: Vec<(String, String)>,
    /// `None`: the model has no price.
    pub max_cost: Option<Pico>,
    /// The wall clock when the call began; a call lives too shortly to see it step.
    pub started: (Instant, SystemTime),
}

impl Spending {
    pub(super) fn check(&self, now: Instant) -> Result<(), Exceeded> {
        self.ledger.check(self.at(now), &self.tags(), self.max_cost)
    }

    pub(super) fn reserve(&self, now: Instant) -> Result<Reservation, Exceeded> {
        self.ledger.reserve(self.at(now), &self.tags(), self.max_cost)
    }

    fn at(&self, now: Instant) -> Moment {
        let (started, wall) = self.started;
        Moment { now, wall: wall + now.since(started) }
    }

    fn tags(&self) -> Vec<(&str, &str)> {
        self.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }
}

/// What the driver read from an answer.
#[derive(Debug)]
pub struct Answered {
    pub verdict: Verdict,
    /// The answer as the user's exception will show it, should it be a failure.
    pub cause: Cause,
    pub settlement: Settlement,
    /// What it is billed; `None` where nobody knows.
    pub cost: Option<Pico>,
    /// What it says about the provider's quota.
    pub announced: Announced,
    pub status: u16,
    pub request_id: Option<String>,
    pub first_byte: Option<Duration>,
}

/// One retry that was made: why, and after what wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetryMade {
    pub reason: Cow<'static, str>,
    pub delay: Duration,
}

/// A stream that had begun has ended.
#[derive(Debug)]
pub struct Ended {
    pub how: StreamEnd,
    /// What it used, as far as anybody knows.
    pub settlement: Settlement,
    /// What it is billed; `None` where nobody knows.
    pub cost: Option<Pico>,
    pub status: u16,
    pub request_id: Option<String>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one a stream, and it is taken apart at once")]
pub enum StreamEnd {
    Complete,
    /// It broke off, or the server said that it failed.
    Interrupted {
        verdict: Verdict,
        cause: Cause,
    },
    /// The caller wants no more of it.
    Cancelled,
    /// The caller's deadline.
    Deadline,
}
