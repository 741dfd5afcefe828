//! Token bucket in integers, so that what it grants can be stated exactly.

use crate::clock::Instant;

/// Levels are counted in millionths of a token.
pub(super) const MICRO: i64 = 1_000_000;

const NANOS_PER_MINUTE: u64 = 60_000_000_000;

/// Grants at most `capacity + rate * w` in every window of length w. The level may be negative: a debt that the
/// refill pays first.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// Micro-tokens per minute, at least 1.
    rate: u64,
    /// Micro-tokens.
    capacity: i64,
    level: i64,
    /// Micro-tokens times nanoseconds that did not yet make a whole micro-token per minute.
    carry: u64,
    last: Instant,
}

impl Bucket {
    pub(super) fn new(rate: u64, capacity: i64, level: i64, now: Instant) -> Self {
        Self { rate: rate.max(1), capacity, level: level.min(capacity), carry: 0, last: now }
    }

    /// Adds what time has earned, and tells how much that is, with or without room for it. A `now` before the last
    /// one earns and costs nothing.
    pub(super) fn refill(&mut self, now: Instant) -> i64 {
        if now <= self.last {
            return 0;
        }
        let elapsed = now.as_nanos() - self.last.as_nanos();
        self.last = now;
        // Below 2^128: elapsed and rate are below 2^64, and the carry is below one minute.
        let product = u128::from(elapsed) * u128::from(self.rate) + u128::from(self.carry);
        let earned = if let Ok(product) = u64::try_from(product) {
            self.carry = product % NANOS_PER_MINUTE;
            i64::try_from(product / NANOS_PER_MINUTE)
        } else {
            let minute = u128::from(NANOS_PER_MINUTE);
            self.carry = u64::try_from(product % minute).unwrap_or(0);
            i64::try_from(product / minute)
        };
        let earned = earned.unwrap_or(i64::MAX);
        self.take(earned.saturating_neg());
        earned
    }

    /// A negative amount is given back, as far as there is room.
    pub(super) fn take(&mut self, amount: i64) {
        self.level = self.level.saturating_sub(amount);
        self.clamp();
    }

    pub(super) fn lower_to(&mut self, level: i64) {
        self.level = self.level.min(level);
    }

    /// Takes effect from the last refill on.
    pub(super) fn reshape(&mut self, rate: u64, capacity: i64) {
        self.rate = rate.max(1);
        self.capacity = capacity;
        self.clamp();
    }

    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(1);
    }

    /// Earliest time at which the level is `needed`, refilling at `rate`, or at the bucket's own.
    pub(super) fn reaches(&self, needed: i128, rate: Option<u64>) -> Instant {
        let missing = needed.saturating_sub(self.level.into());
        if missing <= 0 {
            return self.last;
        }
        let rate = u128::from(rate.unwrap_or(self.rate).max(1));
        let missing = missing.unsigned_abs().saturating_mul(NANOS_PER_MINUTE.into());
        let wait = missing.saturating_sub(self.carry.into()).div_ceil(rate);
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        Instant::from_nanos(self.last.as_nanos().saturating_add(wait))
    }

    pub(super) const fn level(&self) -> i64 {
        self.level
    }

    pub(super) const fn capacity(&self) -> i64 {
        self.capacity
    }

    pub(super) const fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) const fn last(&self) -> Instant {
        self.last
    }

    fn clamp(&mut self) {
        if self.level >= self.capacity {
            self.level = self.capacity;
            self.carry = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_third_of_a_token_per_second_is_never_rounded_away() {
        let mut bucket = Bucket::new(20_000_000, 5 * MICRO, 0, Instant::ZERO);
        for ms in 1..=3_000 {
            bucket.refill(Instant::from_nanos(ms * 1_000_000));
        }
        assert_eq!(bucket.level(), MICRO);
    }

    #[test]
    fn time_that_goes_back_changes_nothing() {
        let mut bucket = Bucket::new(60_000_000, 10 * MICRO, 0, Instant::from_nanos(5 * SECOND));
        bucket.refill(Instant::from_nanos(7 * SECOND));
        bucket.refill(Instant::ZERO);
        bucket.refill(Instant::from_nanos(7 * SECOND));
        assert_eq!(bucket.level(), 2 * MICRO);
        bucket.refill(Instant::FAR_FUTURE);
        assert_eq!(bucket.level(), 10 * MICRO);
    }

    #[test]
    fn extremes_saturate() {
        let mut bucket = Bucket::new(u64::MAX, i64::MAX, i64::MIN, Instant::ZERO);
        bucket.refill(Instant::FAR_FUTURE);
        bucket.take(i64::MAX);
        assert_eq!(bucket.reaches(i128::MAX, Some(0)), Instant::FAR_FUTURE);
        bucket.take(i64::MIN);
        bucket.take(i64::MIN);
        assert_eq!(bucket.level(), i64::MAX);
    }

    proptest! {
        /// The promised instant is exact: one nanosecond earlier is too early.
        #[test]
        fn reaches_is_exact(
            rate in 1..10_000_000_000_u64, level in -1_000_000_000..1_000_000_i64, needed in 1..1_000_000_000_i64,
            warmup in 0..10_000_000_000_u64,
        ) {
            let mut bucket = Bucket::new(rate, 1_000_000_000, level, Instant::ZERO);
            bucket.refill(Instant::from_nanos(warmup));
            let at = bucket.reaches(needed.into(), None);
            if bucket.level() < needed {
                let mut early = bucket.clone();
                early.refill(Instant::from_nanos(at.as_nanos() - 1));
                prop_assert!(early.level() < needed);
            }
            bucket.refill(at);
            prop_assert!(bucket.level() >= needed);
        }

        #[test]
        fn refilling_often_or_once_is_the_same(
            rate in 1..10_000_000_000_u64, mut steps in prop::collection::vec(0..100_000_000_000_u64, 1..40),
        ) {
            steps.sort_unstable();
            let mut often = Bucket::new(rate, i64::MAX, 0, Instant::ZERO);
            let mut once = often.clone();
            for &step in &steps {
                often.refill(Instant::from_nanos(step));
            }
            once.refill(Instant::from_nanos(*steps.last().unwrap()));
            prop_assert_eq!((often.level(), often.carry), (once.level(), once.carry));
        }
    }
}
