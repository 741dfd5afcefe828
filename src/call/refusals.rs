//! Attempts that are refused here: by the queue, the breaker, a spend cap. Each says by figures why, and what to do.

use std::fmt::Write;

use super::{Call, Step};
use crate::admission::Refusal;
use crate::breaker::{Counts, OpenReason, Rejection};
use crate::clock::Instant;
use crate::error::Reason;
use crate::spend::Exceeded;

impl Call {
    /// No place could be had in time, or ever.
    pub fn refused(&mut self, now: Instant, refusal: Refusal) -> Step {
        self.leave_queue(now);
        let (reason, retry_after, message) = match refusal {
            // Only our guess of the answer's length was too large.
            Refusal::TooLarge { limit, .. } if self.plan.least_cost <= limit && limit < self.plan.cost => {
                self.plan.cost = limit;
                return self.gates(now);
            }
            Refusal::TooLarge { cost, limit } => (
                Reason::RequestTooLarge,
                None,
                format!(
                    "the request needs about {cost} tokens, but the limit is {limit} tokens per minute: \
                     shorten it or lower its output limit"
                ),
            ),
            Refusal::Deadline { eta } => (
                Reason::AdmissionDeadline,
                Some(eta),
                format!(
                    "the queue for {} needs another {:.3} s, more than this call may wait ({}): \
                     raise the limits or its timeout, or send less",
                    self.scope.name(),
                    eta.as_secs_f64(),
                    self.queue_told(now)
                ),
            ),
        };
        self.fail(now, reason, retry_after, Some(message))
    }

    pub(super) fn rejected(&mut self, now: Instant, rejection: &Rejection) -> Step {
        let name = self.scope.name();
        let message = match rejection.retry_after {
            Some(wait) => format!(
                "the circuit breaker for {name} is {} ({}), next try in {:.3} s",
                rejection.state.as_str(),
                self.why_open(rejection.reason),
                wait.as_secs_f64()
            ),
            None => format!(
                "an operator has forced the circuit breaker for {name} open: nothing is sent until \
                 gate.reset_breaker(model={:?})",
                self.scope.key.model
            ),
        };
        self.fail(now, Reason::BreakerOpen, rejection.retry_after, Some(message))
    }

    fn why_open(&mut self, reason: OpenReason) -> String {
        match self.breaker(|breaker| breaker.tripped_by()) {
            Some(Counts { total, failures }) if reason == OpenReason::FailureRate => {
                format!("failure_rate: {failures} of the last {total} calls failed")
            }
            _ => reason.as_str().to_owned(),
        }
    }

    /// How long the queue is, and what it waits for.
    fn queue_told(&self, now: Instant) -> String {
        let queue = self.scope.admission(now);
        let mut told = format!("{} in flight, {} waiting", queue.in_flight, queue.queued);
        if let Some(until) = queue.blocked_until {
            let wait = until.since(now).as_secs_f64();
            let _ = write!(told, ", none sent for {wait:.3} s because the server asked for that");
        }
        for (quota, what) in [(queue.requests, "requests"), (queue.tokens, "tokens")] {
            if let Some(quota) = quota {
                let _ = write!(told, ", {} {what} a minute", quota.limit);
            }
        }
        told
    }

    pub(super) fn overspent(&mut self, now: Instant, exceeded: &Exceeded) -> Step {
        self.fail(now, Reason::SpendCap, exceeded.resets_in, Some(exceeded.to_string()))
    }
}
