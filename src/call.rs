//! The life of one logical call, as a state machine without I/O.
//!
//! It is told what happened and answers with the next step. Top to bottom, this file is the order of the gates:
//!
//! 1. breaker and spend caps, a look that consumes nothing   (`gates`)
//! 2. admission: concurrency, requests, tokens               (`gates` → [`Step::Admit`])
//! 3. spend caps, the money, after the wait                  (`admitted`)
//! 4. breaker, the permit, after the wait                    (`admitted`)
//! 5. the attempt                                            (`admitted` → [`Step::Send`])
//! 6. settlement of permit, tokens and money, once           (`answered`, `failed`, `cut`; a stream: `ended`)
//! 7. may it be repeated: class, attempts, time, breaker, then the retry budget   (`decide`)
//! 8. the wait, holding nothing                              (`decide` → [`Step::Sleep`])
//!
//! The drivers are `drive.rs` (HTTP) and whoever else has something to guard.

mod function;
mod held;
mod plan;
mod refusals;
mod streamed;

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

pub use self::function::Raised;
pub use self::plan::{Answered, Ended, Plan, RetryMade, Spending, StreamEnd};

use self::held::{SPENT, outcome};
use crate::admission::Settlement;
use crate::backoff::{self, BackoffClass};
use crate::breaker::{Outcome, Rejection, State, Ticket};
use crate::classify::{self, Class, Retry, Verdict};
use crate::clock::Instant;
use crate::config::OnOpen;
use crate::error::{CallError, Cause, Reason, TransportError};
use crate::event::{Facts, Kind};
use crate::money::Pico;
use crate::retry_budget::{Cost, Withdrawal};
use crate::scope::{Permit, Scope};
use crate::spend::Reservation;

/// What the driver does next.
#[derive(Debug)]
pub enum Step {
    /// Get a place from the scope, then call [`Call::admitted`] or [`Call::refused`].
    Admit { cost: u64, limit: Instant },
    /// Send attempt `number` (1 is the first), then call [`Call::answered`] or [`Call::failed`]; at `until`,
    /// abandon it and call [`Call::cut`]. At `slow_at`, if no byte has come, call [`Call::slow`] and go on. An answer
    /// that is handed on as it comes: [`Call::began`], later [`Call::ended`].
    Send { number: u32, until: Instant, slow_at: Instant },
    /// Do nothing until then, then call [`Call::slept`].
    Sleep { until: Instant },
    /// The call is over; the answer last given to [`Call::answered`] is its result, or this error.
    Done(Result<(), Box<CallError>>),
}

/// A failed attempt, as the decision needs it.
#[derive(Debug)]
struct Failure {
    verdict: Verdict,
    cause: Cause,
    outcome_unknown: bool,
}

#[derive(Debug)]
pub struct Call {
    plan: Plan,
    scope: Arc<Scope>,
    started: Instant,
    deadline: Instant,
    retry_deadline: Instant,
    attempts: u32,
    queued_at: Option<Instant>,
    queue: Duration,
    sent_at: Instant,
    permit: Option<Permit>,
    money: Option<Reservation>,
    ticket: Option<Ticket>,
    withdrawal: Option<Withdrawal>,
    /// The retry that the withdrawal paid for has not been sent.
    retry_pending: bool,
    last: Option<Failure>,
    repeated_once: bool,
    retries: Vec<RetryMade>,
    events: Vec<(Kind, Facts)>,
    /// Results that the breaker ignored as those of an earlier state.
    late: u64,
    /// It ended while an attempt was under way.
    left_in_flight: bool,
}

impl Call {
    pub fn new(plan: Plan, scope: Arc<Scope>, now: Instant) -> Self {
        let deadline = plan.total.map_or(Instant::FAR_FUTURE, |total| now + total);
        let retry_deadline =
            plan.retry.max_elapsed.map_or(Instant::FAR_FUTURE, |elapsed| now + elapsed).min(deadline);
        Self {
            plan,
            scope,
            started: now,
            deadline,
            retry_deadline,
            attempts: 0,
            queued_at: None,
            queue: Duration::ZERO,
            sent_at: now,
            permit: None,
            money: None,
            ticket: None,
            withdrawal: None,
            retry_pending: false,
            last: None,
            repeated_once: false,
            retries: Vec::new(),
            events: Vec::new(),
            late: 0,
            left_in_flight: false,
        }
    }

    pub fn begin(&mut self, now: Instant) -> Step {
        if now >= self.deadline {
            let message = String::from("no time is left of the guarded call that it was made in");
            return self.fail(now, Reason::Deadline, None, Some(message));
        }
        match self.plan.resent_after {
            Some(requests) => self.resent(now, requests),
            None => self.gates(now),
        }
    }

    /// Somebody around this gate makes a failed request again. To the upstream that is a retry, and so it is to
    /// the budget; when that is empty, this call retries nothing of its own.
    fn resent(&mut self, now: Instant, requests: u32) -> Step {
        self.tell(Kind::Stacked, Facts { attempts: Some(requests), ..Facts::default() });
        if self.withdraw(now, Cost::Plain).is_err() {
            self.plan.max_attempts = 1;
        }
        self.gates(now)
    }

    fn gates(&mut self, now: Instant) -> Step {
        if let Some(Err(rejection)) = self.breaker(|breaker| breaker.peek(now))
            && !self.passes(&rejection)
        {
            return self.rejected(now, &rejection);
        }
        if let Some(Err(exceeded)) = self.plan.spending.as_ref().map(|spending| spending.check(now)) {
            return self.overspent(now, &exceeded);
        }
        self.queued_at = Some(now);
        let limit = if self.attempts == 0 { self.deadline } else { self.retry_deadline };
        Step::Admit { cost: self.plan.cost, limit }
    }

    /// A place was granted.
    pub fn admitted(&mut self, now: Instant, mut permit: Permit) -> Step {
        self.leave_queue(now);
        match self.plan.spending.as_ref().map(|spending| spending.reserve(now)) {
            Some(Ok(money)) => self.money = Some(money),
            Some(Err(exceeded)) => {
                permit.settle(now, Settlement::NeverSent);
                return self.overspent(now, &exceeded);
            }
            None => {}
        }
        let attempt_timeout = self.plan.attempt_timeout;
        match self.breaker(|breaker| breaker.acquire(now, attempt_timeout)) {
            Some(Ok(ticket)) => {
                self.ticket = Some(match self.ticket.take() {
                    Some(earlier) => ticket.after(&earlier),
                    None => ticket,
                });
            }
            Some(Err(rejection)) if !self.passes(&rejection) => {
                permit.settle(now, Settlement::NeverSent);
                return self.rejected(now, &rejection);
            }
            Some(Err(_)) | None => {}
        }
        permit.mark_sent();
        if let Some(money) = &mut self.money {
            money.mark_sent();
        }
        self.permit = Some(permit);
        self.retry_pending = false;
        self.attempts += 1;
        self.sent_at = now;
        let stream = self.plan.stream;
        let slow_after = self.breaker(|breaker| breaker.slow_after(stream)).flatten();
        let slow_at = slow_after.map_or(Instant::FAR_FUTURE, |after| now + after);
        Step::Send { number: self.attempts, until: self.deadline, slow_at }
    }

    /// The attempt in flight has been silent for longer than answers take here.
    pub fn slow(&mut self, now: Instant) {
        if let Some(mut ticket) = self.ticket.take() {
            self.breaker(|breaker| breaker.slow(now, &mut ticket));
            self.ticket = Some(ticket);
        }
    }

    /// An answer came in full; `settlement` is what it says about tokens.
    pub fn answered(&mut self, now: Instant, answer: Answered, rng: &mut impl Rng) -> Step {
        let Answered { verdict, cause, settlement, cost, announced, status, first_byte, request_id } = answer;
        if let Some(permit) = &self.permit {
            permit.learn(now, &announced);
        }
        let stream = self.plan.stream;
        if let Some(first_byte) = first_byte.filter(|_| verdict.class == Class::Success) {
            self.breaker(|breaker| breaker.first_byte(stream, first_byte));
        }
        // Before the place is given on: the next in line must not take it into the server's pause.
        self.cool_down(now, &verdict);
        self.settle(now, settlement);
        self.pay(cost);
        self.tell_attempt(now, verdict.class.as_str(), Some(status), request_id);
        if verdict.class != Class::Success {
            // A gateway gave up waiting; whoever is behind it may have finished.
            let outcome_unknown = matches!(status, 504 | 524);
            return self.decide(now, Failure { verdict, cause, outcome_unknown }, rng);
        }
        self.succeeded(now)
    }

    fn succeeded(&mut self, now: Instant) -> Step {
        self.record(now, Outcome::Success);
        if let Some(budget) = &self.scope.budget {
            budget.lock().deposit_success(now, self.withdrawal.take());
        }
        Step::Done(Ok(()))
    }

    /// No answer came.
    pub fn failed(&mut self, now: Instant, error: TransportError, rng: &mut impl Rng) -> Step {
        let outcome_unknown = error.kind.outcome_unknown();
        self.settle(now, if outcome_unknown { SPENT } else { Settlement::NeverSent });
        self.pay((!outcome_unknown).then_some(Pico::ZERO));
        let verdict = classify::failure(&error);
        self.tell_attempt(now, error.kind.as_str(), None, None);
        self.decide(now, Failure { verdict, cause: Cause::Transport(error), outcome_unknown }, rng)
    }

    /// The caller's deadline came while the attempt was in flight.
    pub fn cut(&mut self, now: Instant) -> Step {
        self.left_in_flight = true;
        self.settle(now, SPENT);
        self.pay(None);
        self.record(now, Outcome::Neutral);
        self.tell_attempt(now, "deadline", None, None);
        let message = format!(
            "the call took longer than its total timeout of {:.3} s; the attempt in flight was stopped",
            self.deadline.since(self.started).as_secs_f64()
        );
        self.last = None;
        self.fail(now, Reason::Deadline, None, Some(message))
    }

    /// The wait before a retry is over.
    pub fn slept(&mut self, now: Instant) -> Step {
        self.gates(now)
    }

    /// Whether a failure may be repeated, and after what wait. Everything is checked before the budget pays,
    /// and the budget pays before the wait.
    fn decide(&mut self, now: Instant, failure: Failure, rng: &mut impl Rng) -> Step {
        let verdict = &failure.verdict;
        let hint = verdict.hint;
        let class = verdict.class;
        let throttled = class == Class::RateLimit;
        let was_probe = self.record_probe(now, outcome(verdict));

        let repeatable = match verdict.retry {
            Retry::Yes => true,
            Retry::Once => !std::mem::replace(&mut self.repeated_once, true),
            Retry::No | Retry::NotNow => false,
        };
        let far = verdict.retry == Retry::NotNow && hint.is_some();
        let unsafe_to_repeat = failure.outcome_unknown && self.plan.replay_unsafe;
        let cost = match hint {
            _ if failure.outcome_unknown => Cost::OutcomeUnknown,
            // A wait of zero paces nobody.
            Some(hint) if !hint.is_zero() => Cost::Hinted,
            _ => Cost::Plain,
        };
        self.last = Some(failure);

        if far {
            return self.fail(now, Reason::HintExceedsBudget, hint, None);
        }
        if !repeatable || unsafe_to_repeat {
            return self.fail(now, Reason::NonRetryable, hint, None);
        }
        if was_probe {
            let opens_in = self.breaker_rejection(now).and_then(|rejection| rejection.retry_after);
            return self.fail(now, Reason::BreakerOpen, hint.or(opens_in), None);
        }
        if self.attempts >= self.plan.max_attempts {
            return self.fail(now, Reason::Attempts, hint, None);
        }
        let kind = if throttled { BackoffClass::Throttle } else { BackoffClass::Transient };
        let delay = backoff::delay(&self.plan.retry, self.attempts - 1, kind, hint, rng);
        if hint.is_some_and(|hint| hint > self.plan.retry.max_retry_after) {
            return self.fail(now, Reason::HintExceedsBudget, hint, None);
        }
        if now + delay > self.retry_deadline {
            let reason = if hint.is_some() { Reason::HintExceedsBudget } else { Reason::Elapsed };
            return self.fail(now, reason, hint, None);
        }
        if let Some(rejection) = self.breaker_rejection(now) {
            return self.fail(now, Reason::BreakerOpen, rejection.retry_after, None);
        }
        if let Err(empty) = self.withdraw(now, cost) {
            return self.fail(now, Reason::Budget, hint.or(empty.refill_in), None);
        }
        self.retry_pending = true;
        self.retries.push(RetryMade { reason: class.as_str().into(), delay });
        self.tell(
            Kind::Retry,
            Facts {
                attempt: Some(self.attempts + 1),
                reason: Some(class.as_str()),
                delay_s: Some(delay.as_secs_f64()),
                retry_after_s: hint.map(|hint| hint.as_secs_f64()),
                ..Facts::default()
            },
        );
        Step::Sleep { until: now + delay }
    }
}

/// The small steps of the above.
impl Call {
    /// `on_open = no_retries` lets first attempts through a breaker that has opened by itself.
    fn passes(&self, rejection: &Rejection) -> bool {
        let operators = rejection.state == State::ForcedOpen;
        self.attempts == 0 && self.plan.on_open == OnOpen::NoRetries && !operators
    }

    fn leave_queue(&mut self, now: Instant) {
        /// A shorter wait is no queue.
        const WORTH_TELLING: Duration = Duration::from_millis(1);
        let Some(queued_at) = self.queued_at.take() else { return };
        let waited = now.since(queued_at);
        self.queue += waited;
        if waited > WORTH_TELLING {
            self.tell(Kind::Wait, Facts { queue_s: Some(waited.as_secs_f64()), ..Facts::default() });
        }
    }

    fn tell_attempt(
        &mut self,
        now: Instant,
        outcome: &'static str,
        status: Option<u16>,
        request_id: Option<String>,
    ) {
        let facts = Facts {
            attempt: Some(self.attempts),
            outcome: Some(outcome),
            status,
            request_id,
            latency_s: Some(now.since(self.sent_at).as_secs_f64()),
            ..Facts::default()
        };
        self.tell(Kind::Attempt, facts);
    }

    /// Most calls have one event, and facts are large.
    fn tell(&mut self, kind: Kind, facts: Facts) {
        if self.events.is_empty() {
            self.events.reserve_exact(1);
        }
        self.events.push((kind, facts));
    }

    /// Ends the call. An upstream failure, where there was one, is the cause; a refusal of our own is it where
    /// nothing was sent.
    fn fail(
        &mut self,
        now: Instant,
        reason: Reason,
        retry_after: Option<Duration>,
        message: Option<String>,
    ) -> Step {
        self.refund_pending();
        self.money = None;
        let last = self.last.take();
        self.record(now, last.as_ref().map_or(Outcome::Neutral, |failure| outcome(&failure.verdict)));
        let cause = match (last, message) {
            (Some(failure), _) => failure.cause,
            (None, message) => Cause::Local { message: message.unwrap_or_default() },
        };
        Step::Done(Err(Box::new(CallError {
            reason,
            cause,
            attempts: self.attempts,
            elapsed: now.since(self.started),
            retry_after,
            request: None,
        })))
    }

    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether it ended while an attempt was under way: nobody will tell what that one used.
    pub fn left_in_flight(&self) -> bool {
        self.left_in_flight
    }

    /// Time spent waiting for admission, over all attempts.
    pub fn queue_time(&self) -> Duration {
        self.queue
    }

    pub fn retries(&self) -> &[RetryMade] {
        &self.retries
    }

    /// What happened since the last look, for the log and the metrics.
    pub fn take_events(&mut self) -> Vec<(Kind, Facts)> {
        std::mem::take(&mut self.events)
    }

    /// Results ignored by the breaker since the last look.
    pub fn take_late(&mut self) -> u64 {
        std::mem::take(&mut self.late)
    }
}
