//! Policies in common use, to compare with: none of them goes through the core's gates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, RngExt};
use tidegate::breaker::{Breaker, Outcome, Ticket};
use tidegate::call::Step;
use tidegate::clock::Instant;
use tidegate::error::{CallError, Cause, Reason};
use tidegate::lock::Mutex;

use super::driver::Ended;

/// How long a control waits before attempt `n + 1`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    Fixed(Duration),
    /// Uniform below 0.2 s · 2^(n - 1), at most 5 s.
    FullJitter,
}

/// What a control asks before it repeats, and before it sends.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Nobody,
    Budget(Arc<Mutex<DepositBudget>>),
    /// A breaker that is told of every attempt.
    Breaker(Arc<Mutex<Breaker>>),
}

#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) attempts: u32,
    pub(crate) wait: Wait,
    pub(crate) ask: Ask,
}

impl Policy {
    pub(crate) fn four_attempts() -> Self {
        Self { attempts: 4, wait: Wait::FullJitter, ask: Ask::Nobody }
    }

    pub(crate) fn no_retry() -> Self {
        Self { attempts: 1, ..Self::four_attempts() }
    }

    /// Two layers that each make three attempts half a second apart: the outer one repeats what the inner one
    /// has given up on.
    pub(crate) fn nested() -> Self {
        Self { attempts: 3 * 3, wait: Wait::Fixed(Duration::from_millis(500)), ask: Ask::Nobody }
    }

    /// Four attempts under a budget as Finagle and tower set it by default.
    pub(crate) fn deposit_budget() -> Self {
        Self { ask: Ask::Budget(Arc::default()), ..Self::four_attempts() }
    }
}

/// 20 % of the requests of the last ten seconds, and ten retries a second on top.
#[derive(Debug, Default)]
pub(crate) struct DepositBudget {
    requests: VecDeque<Instant>,
    retries: VecDeque<Instant>,
}

impl DepositBudget {
    const TTL: Duration = Duration::from_secs(10);
    const RESERVE: usize = 10 * 10;

    fn expire(&mut self, now: Instant) {
        for times in [&mut self.requests, &mut self.retries] {
            while times.front().is_some_and(|&time| now.since(time) >= Self::TTL) {
                times.pop_front();
            }
        }
    }

    fn deposit(&mut self, now: Instant) {
        self.expire(now);
        self.requests.push_back(now);
    }

    fn withdraw(&mut self, now: Instant) -> bool {
        self.expire(now);
        let granted = self.retries.len() < Self::RESERVE + self.requests.len() / 5;
        if granted {
            self.retries.push_back(now);
        }
        granted
    }
}

/// A call under such a policy.
#[derive(Debug)]
pub(crate) struct Control {
    policy: Policy,
    started: Instant,
    sent: u32,
    ticket: Option<Ticket>,
}

impl Control {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, started: Instant::ZERO, sent: 0, ticket: None }
    }

    pub(crate) fn begin(&mut self, now: Instant) -> Step {
        self.started = now;
        if let Ask::Budget(budget) = &self.policy.ask {
            budget.lock().deposit(now);
        }
        self.send(now)
    }

    pub(crate) fn slept(&mut self, now: Instant) -> Step {
        self.send(now)
    }

    pub(crate) fn ended(&mut self, now: Instant, ended: &Ended, rng: &mut impl Rng) -> Step {
        let success = matches!(ended, Ended::Answered(reply) if reply.is_success());
        if let (Ask::Breaker(breaker), Some(ticket)) = (&self.policy.ask, self.ticket.take()) {
            breaker.lock().record(now, ticket, if success { Outcome::Success } else { Outcome::Failure });
        }
        if success {
            return Step::Done(Ok(()));
        }
        if self.sent >= self.policy.attempts {
            return self.fail(now, Reason::Attempts);
        }
        if let Ask::Budget(budget) = &self.policy.ask
            && !budget.lock().withdraw(now)
        {
            return self.fail(now, Reason::Budget);
        }
        let wait = match self.policy.wait {
            Wait::Fixed(wait) => wait,
            Wait::FullJitter => {
                let ceiling = Duration::from_millis(200 << (self.sent - 1)).min(Duration::from_secs(5));
                ceiling.mul_f64(rng.random::<f64>())
            }
        };
        Step::Sleep { until: now + wait }
    }

    fn send(&mut self, now: Instant) -> Step {
        if let Ask::Breaker(breaker) = &self.policy.ask {
            match breaker.lock().acquire(now, None) {
                Ok(ticket) => self.ticket = Some(ticket),
                Err(_) => return self.fail(now, Reason::BreakerOpen),
            }
        }
        self.sent += 1;
        Step::Send { number: self.sent, until: Instant::FAR_FUTURE, slow_at: Instant::FAR_FUTURE }
    }

    fn fail(&self, now: Instant, reason: Reason) -> Step {
        Step::Done(Err(Box::new(CallError {
            reason,
            cause: Cause::Local { message: reason.as_str().to_owned() },
            attempts: self.sent,
            elapsed: now.since(self.started),
            retry_after: None,
            request: None,
        })))
    }
}
