//! Retry budget: a cap on the retries of a whole scope.
//!
//! Attempts per call bound what one caller adds to an outage; nothing but a shared budget bounds what all of
//! them add. It is small on purpose. A budget sized for a large service exceeds the whole traffic of one
//! process, and a fleet of such processes then retries as if there were none. First attempts never need it.

use std::time::Duration;

use crate::clock::Instant;
use crate::config::RetryBudgetPolicy;

/// Millionths of a retry.
const TOKEN: u64 = 1_000_000;
const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// Bounds of the capacity that is taken from the concurrency.
const MIN_CAPACITY: u32 = 3;
const MAX_CAPACITY: u32 = 32;

/// What a retry costs. One that costs more than the whole capacity takes all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// 1.
    Plain,
    /// 2: the failed attempt may have been served and billed, as after a timeout.
    OutcomeUnknown,
    /// 0.5: the server said when to come back, so it paces us itself.
    Hinted,
}

impl Cost {
    const fn micros(self) -> u64 {
        match self {
            Self::Plain => TOKEN,
            Self::OutcomeUnknown => 2 * TOKEN,
            Self::Hinted => TOKEN / 2,
        }
    }
}

/// The price paid for a retry. Dropping it leaves it paid.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Withdrawal {
    micros: u64,
}

/// Not enough for this retry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Empty {
    /// In retries.
    pub balance: f64,
    /// When the trickle alone will have made up for it; `None` without a trickle.
    pub refill_in: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// In retries.
    pub balance: f64,
    /// In retries.
    pub capacity: f64,
    /// Retries refused so far.
    pub refused_total: u64,
}

#[derive(Debug)]
pub struct RetryBudget {
    capacity: u64,
    deposit: u64,
    trickle_per_second: u64,
    balance: u64,
    /// Trickle below one millionth: in millionths times nanoseconds per second.
    remainder: u128,
    refilled_at: Instant,
    refused_total: u64,
}

impl RetryBudget {
    /// Full. `max_concurrency` sets the capacity where the policy does not; `None` is no limit.
    pub fn new(policy: &RetryBudgetPolicy, max_concurrency: Option<u32>, now: Instant) -> Self {
        let derived = max_concurrency.unwrap_or(MAX_CAPACITY).clamp(MIN_CAPACITY, MAX_CAPACITY);
        let capacity = u64::from(policy.capacity.unwrap_or(derived).max(1)) * TOKEN;
        Self {
            capacity,
            deposit: micros(policy.deposit),
            trickle_per_second: micros(policy.trickle),
            balance: capacity,
            remainder: 0,
            refilled_at: now,
            refused_total: 0,
        }
    }

    /// Pays for a retry. To be called after every other check has passed and before the wait.
    pub fn withdraw(&mut self, now: Instant, cost: Cost) -> Result<Withdrawal, Empty> {
        self.refill(now);
        let micros = cost.micros().min(self.capacity);
        let Some(balance) = self.balance.checked_sub(micros) else {
            self.refused_total = self.refused_total.saturating_add(1);
            return Err(Empty { balance: tokens(self.balance), refill_in: self.refill_in(micros) });
        };
        self.balance = balance;
        Ok(Withdrawal { micros })
    }

    /// The retry was never sent.
    #[allow(clippy::needless_pass_by_value, reason = "a withdrawal that is gone cannot be refunded again")]
    pub fn refund(&mut self, withdrawal: Withdrawal) {
        self.credit(withdrawal.micros);
    }

    /// A logical call has succeeded; if on a retry, `last_withdrawal` is what that one had cost.
    pub fn deposit_success(&mut self, now: Instant, last_withdrawal: Option<Withdrawal>) {
        self.refill(now);
        let returned = last_withdrawal.map_or(0, |withdrawal| withdrawal.micros);
        self.credit(self.deposit.saturating_add(returned));
    }

    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        self.refill(now);
        Snapshot {
            balance: tokens(self.balance),
            capacity: tokens(self.capacity),
            refused_total: self.refused_total,
        }
    }

    fn credit(&mut self, micros: u64) {
        self.balance = self.balance.saturating_add(micros).min(self.capacity);
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.since(self.refilled_at).as_nanos();
        self.refilled_at = self.refilled_at.max(now);
        let earned = elapsed * u128::from(self.trickle_per_second) + self.remainder;
        self.remainder = earned % NANOS_PER_SECOND;
        self.credit(u64::try_from(earned / NANOS_PER_SECOND).unwrap_or(u64::MAX));
    }

    fn refill_in(&self, micros: u64) -> Option<Duration> {
        let missing = u128::from(micros.saturating_sub(self.balance)) * NANOS_PER_SECOND;
        let nanos =
            missing.saturating_sub(self.remainder).div_ceil(u128::from(self.trickle_per_second).max(1));
        (self.trickle_per_second > 0).then(|| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

fn tokens(micros: u64) -> f64 {
    micros as f64 / TOKEN as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "policies are checked to be finite and not negative; a float cast saturates"
)]
fn micros(tokens: f64) -> u64 {
    (tokens * TOKEN as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn budget(capacity: u32) -> RetryBudget {
        let policy = RetryBudgetPolicy { capacity: Some(capacity), ..Default::default() };
        RetryBudget::new(&policy, None, Instant::ZERO)
    }

    fn balance(budget: &mut RetryBudget, now: Instant) -> f64 {
        budget.snapshot(now).balance
    }

    #[test]
    fn capacity_follows_the_concurrency() {
        let capacity = |max_concurrency| {
            RetryBudget::new(&RetryBudgetPolicy::default(), max_concurrency, at(0)).snapshot(at(0)).capacity
        };
        let capacities = [Some(1), Some(3), Some(20), Some(32), Some(1000), None].map(capacity);
        assert_eq!(capacities.map(|capacity| capacity.to_string()), ["3", "3", "20", "32", "32", "32"]);
    }

    #[test]
    fn costs_are_one_two_and_a_half() {
        let mut budget = budget(4);
        let mut pay = |cost| {
            drop(budget.withdraw(at(0), cost).unwrap());
            balance(&mut budget, at(0)).to_string()
        };
        assert_eq!(pay(Cost::Plain), "3");
        assert_eq!(pay(Cost::OutcomeUnknown), "1");
        assert_eq!(pay(Cost::Hinted), "0.5");
        let empty = budget.withdraw(at(0), Cost::Plain).unwrap_err();
        assert_eq!(empty.balance.to_string(), "0.5");
        assert_eq!(budget.snapshot(at(0)).refused_total, 1);
    }

    #[test]
    fn a_success_earns_a_tenth_and_the_price_of_its_retry() {
        let mut budget = budget(4);
        let withdrawals = [(); 3].map(|()| budget.withdraw(at(0), Cost::Plain).unwrap());
        budget.deposit_success(at(0), None);
        assert_eq!(balance(&mut budget, at(0)).to_string(), "1.1");
        let [first, second, _lost] = withdrawals;
        budget.deposit_success(at(0), Some(first));
        assert_eq!(balance(&mut budget, at(0)).to_string(), "2.2");
        budget.refund(second);
        assert_eq!(balance(&mut budget, at(0)).to_string(), "3.2");
    }

    #[test]
    fn trickle_is_exact_however_often_it_is_asked() {
        let (mut once, mut often) = (budget(32), budget(32));
        for budget in [&mut once, &mut often] {
            while budget.withdraw(at(0), Cost::Hinted).is_ok() {}
        }
        for millis in (0..600_000).step_by(7) {
            balance(&mut often, Instant::from_nanos(millis * 1_000_000));
        }
        let end = at(600);
        assert_eq!(balance(&mut often, end).to_string(), balance(&mut once, end).to_string());
        assert!((balance(&mut once, end) - 10.0).abs() < 0.001);
    }

    #[test]
    fn refill_in_is_the_first_moment_that_suffices() {
        let mut budget = budget(3);
        while budget.withdraw(at(0), Cost::Plain).is_ok() {}
        let wait = budget.withdraw(at(7), Cost::Plain).unwrap_err().refill_in.unwrap();
        let enough = at(7) + wait;
        let before = Instant::from_nanos(enough.as_nanos() - 1);
        assert!(budget.withdraw(before, Cost::Plain).is_err());
        assert!(budget.withdraw(enough, Cost::Plain).is_ok());
    }

    #[test]
    fn without_a_trickle_nobody_promises_a_refill() {
        let policy = RetryBudgetPolicy { capacity: Some(1), deposit: 0.0, trickle: 0.0 };
        let mut budget = RetryBudget::new(&policy, None, at(0));
        assert!(budget.withdraw(at(0), Cost::OutcomeUnknown).is_ok(), "takes all there is");
        let empty = budget.withdraw(Instant::FAR_FUTURE, Cost::Hinted).unwrap_err();
        assert_eq!(empty.refill_in, None);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_earns_nothing() {
        let mut budget = budget(3);
        while budget.withdraw(at(3600), Cost::Plain).is_ok() {}
        for now in [at(3600), at(0), at(3600)] {
            assert_eq!(balance(&mut budget, now).to_string(), "0");
        }
        assert_eq!(balance(&mut budget, Instant::FAR_FUTURE).to_string(), "3");
    }
}
