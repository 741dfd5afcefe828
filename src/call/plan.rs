//! What goes into a call, and what its driver tells it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::admission::{Announced, Settlement};
use crate::classify::Verdict;
use crate::config::{OnOpen, RetryPolicy};
use crate::error::Cause;

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
}

/// What the driver read from an answer.
#[derive(Debug)]
pub struct Answered {
    pub verdict: Verdict,
    /// The answer as the user's exception will show it, should it be a failure.
    pub cause: Cause,
    pub settlement: Settlement,
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
