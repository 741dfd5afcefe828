//! Answers that stream. Until their first content they may be repeated like any other; from then on the call has
//! begun for the caller, and what ends it is told, never repeated.

use std::time::Duration;

use super::{Call, Ended, Step, StreamEnd};
use crate::admission::Announced;
use crate::breaker::Outcome;
use crate::clock::Instant;
use crate::error::{CallError, Reason};

impl Call {
    /// The first content of a stream has come, `after` so long. The place stays taken until [`Self::ended`].
    pub fn began(&mut self, now: Instant, announced: &Announced, after: Duration) {
        if let Some(permit) = &self.permit {
            permit.learn(now, announced);
        }
        let stream = self.plan.stream;
        self.breaker(|breaker| breaker.first_byte(stream, after));
        if let Some(mut ticket) = self.ticket.take() {
            self.breaker(|breaker| breaker.stream_began(now, &mut ticket));
            self.ticket = Some(ticket);
        }
    }

    /// The stream has ended, however it did.
    pub fn ended(&mut self, now: Instant, ended: Ended) -> Step {
        let Ended { how, settlement, cost, status, request_id } = ended;
        // Before the place is given on, as with an answer.
        if let StreamEnd::Interrupted { verdict, .. } = &how {
            self.cool_down(now, verdict);
        }
        self.settle(now, settlement);
        self.pay(cost);
        match how {
            StreamEnd::Complete => {
                self.tell_attempt(now, "success", Some(status), request_id);
                self.succeeded(now)
            }
            StreamEnd::Interrupted { verdict, cause } => {
                self.tell_attempt(now, verdict.class.as_str(), Some(status), request_id);
                self.record(now, super::held::outcome(&verdict));
                Step::Done(Err(Box::new(CallError {
                    reason: Reason::StreamInterrupted,
                    cause,
                    attempts: self.attempts,
                    elapsed: now.since(self.started),
                    retry_after: verdict.hint,
                    request: None,
                })))
            }
            StreamEnd::Cancelled => {
                self.tell_attempt(now, "cancelled", Some(status), request_id);
                self.record(now, Outcome::Neutral);
                Step::Done(Err(Box::new(CallError::cancelled(self.attempts, now.since(self.started)))))
            }
            StreamEnd::Deadline => self.cut(now),
        }
    }
}
