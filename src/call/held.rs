//! What a call holds while it runs, and how each thing goes back exactly once: the place, the breaker's ticket,
//! the retry that was paid for.

use super::Call;
use crate::admission::{Charge, Settlement};
use crate::breaker::{Breaker, OpenReason, Outcome, Rejection, State, Ticket};
use crate::classify::{Class, Health, Verdict};
use crate::clock::{self, Instant};
use crate::event::{Facts, Kind};
use crate::money::Pico;
use crate::retry_budget::{Cost, Empty};

/// An attempt that may have been served, for all we know.
pub(super) const SPENT: Settlement = Settlement::Failed { charge: Charge::Keep };

impl Call {
    /// The one way to the breaker; tells of it when its state changes.
    pub(super) fn breaker<T>(&mut self, f: impl FnOnce(&mut Breaker) -> T) -> Option<T> {
        let mut breaker = self.scope.breaker.as_ref()?.lock();
        let (generation, late) = (breaker.generation(), breaker.late_total());
        let result = f(&mut breaker);
        let late = breaker.late_total().saturating_sub(late);
        let changed = (breaker.generation() != generation).then(|| {
            let state = breaker.state();
            let reason = breaker.reason().filter(|_| state == State::Open).map(OpenReason::as_str);
            Facts { outcome: Some(state.as_str()), reason, ..Facts::default() }
        });
        drop(breaker);
        self.late += late;
        if let Some(facts) = changed {
            self.tell(Kind::Breaker, facts);
        }
        Some(result)
    }

    pub(super) fn breaker_rejection(&mut self, now: Instant) -> Option<Rejection> {
        self.breaker(|breaker| breaker.peek(now).err()).flatten()
    }

    pub(super) fn settle(&mut self, now: Instant, settlement: Settlement) {
        if let Some(permit) = self.permit.take() {
            permit.settle(now, settlement);
        }
    }

    /// Books what the attempt costs; with `None`, where nobody knows, all that was set aside for it.
    pub(super) fn pay(&mut self, cost: Option<Pico>) {
        if let Some(money) = self.money.take() {
            money.settle(cost);
        }
    }

    /// A hint on an answer that says "too much" holds back the whole scope, not only this call. A plain 503 does
    /// not: it speaks of one request or one backend as often as of all.
    pub(super) fn cool_down(&self, now: Instant, verdict: &Verdict) {
        let shared = match verdict.class {
            Class::RateLimit => true,
            Class::Overloaded => verdict.status != 503,
            _ => false,
        };
        // A request that names no model says nothing about which quota it was: one endpoint's hint must not hold
        // back all the others.
        if let Some(hint) = verdict.hint.filter(|_| shared && self.scope.has_model()) {
            self.scope.cool_down(now, now + hint.min(self.plan.retry.max_retry_after));
        }
    }

    /// A probe's verdict counts at once; an ordinary call's outcome is recorded once, at its end.
    pub(super) fn record_probe(&mut self, now: Instant, outcome: Outcome) -> bool {
        let probe = self.ticket.as_ref().is_some_and(Ticket::is_probe);
        if probe {
            self.record(now, outcome);
        }
        probe
    }

    pub(super) fn record(&mut self, now: Instant, outcome: Outcome) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker(|breaker| breaker.record(now, ticket, outcome));
        }
    }

    /// Pays for a retry out of the scope's budget, if it has one.
    pub(super) fn withdraw(&mut self, now: Instant, cost: Cost) -> Result<(), Empty> {
        let Some(budget) = &self.scope.budget else { return Ok(()) };
        self.withdrawal = Some(budget.lock().withdraw(now, cost)?);
        Ok(())
    }

    /// A retry that was not sent costs nothing.
    pub(super) fn refund_pending(&mut self) {
        if std::mem::take(&mut self.retry_pending)
            && let (Some(budget), Some(withdrawal)) = (&self.scope.budget, self.withdrawal.take())
        {
            budget.lock().refund(withdrawal);
        }
    }

    fn holds_anything(&self) -> bool {
        self.permit.is_some() || self.money.is_some() || self.ticket.is_some() || self.retry_pending
    }

    /// Nobody waits for this call any more: it gives back what it holds. Does nothing once it is over.
    pub fn abandon(&mut self, now: Instant) {
        if self.permit.is_some() {
            self.left_in_flight = true;
            self.tell_attempt(now, "cancelled", None, None);
        }
        self.settle(now, SPENT);
        // Dropped, it is free again if nothing was sent, and spent if something was.
        self.money = None;
        self.record(now, Outcome::Neutral);
        self.refund_pending();
    }
}

/// A verdict in the breaker's terms.
pub(super) fn outcome(verdict: &Verdict) -> Outcome {
    match (verdict.class, verdict.health) {
        (Class::RateLimit, _) => Outcome::Throttled(verdict.hint.unwrap_or_default()),
        (_, Health::Success) => Outcome::Success,
        (_, Health::Failure) => Outcome::Failure,
        (_, Health::Neutral) => Outcome::Neutral,
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.holds_anything() {
            self.abandon(clock::now());
        }
    }
}
