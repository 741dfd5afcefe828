//! How fast to go on a learned quota that others may share, told by what the provider says remains of it.

use super::bucket::MICRO;
use crate::clock::Instant;

/// Shares of the full rate are counted in millionths.
pub(super) const FULL_SHARE: u64 = 1_000_000;

/// The slowest pace: enough answers keep coming to notice that the provider has recovered.
const MIN_SHARE: u64 = FULL_SHARE / 64;

/// The ceiling on the share rises from nothing to all in this time, and is kept as the time it took to get there.
const RISE_NANOS: u64 = 60_000_000_000;

/// A point on [`Pace::drift`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark(i64);

/// Follows the provider's level: what it was when the provider looked, moved on by our share of the refill and our
/// own takings since.
///
/// The full rate is used while more than a reserve remains, and less in proportion below. Processes that share a
/// quota see the same level and so settle on equal shares, knowing nothing of each other; a process alone keeps
/// the full rate, for at that rate the level holds. Where answers take too long for that to steer, refusals do:
/// each lowers a ceiling on the share, which then rises slowly (additive increase, multiplicative decrease, as in
/// TCP).
#[derive(Debug)]
pub(super) struct Pace {
    /// Micro-tokens; `None` until the provider tells.
    level: Option<i64>,
    /// Most that ever remained, micro-tokens, and at least a second of the quota: tells a provider that grants a
    /// minute's quota at once from one that grants a second's.
    peak: i64,
    /// How far we have moved the level since the beginning. Wraps; only differences mean anything.
    drift: i64,
    ceiling: u64,
    now: Instant,
}

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { level: None, peak: 0, drift: 0, ceiling: RISE_NANOS, now }
    }

    /// Micro-tokens that our rate `earned` since the last call.
    pub(super) fn pass(&mut self, now: Instant, earned: i64) {
        let elapsed = now.as_nanos().saturating_sub(self.now.as_nanos());
        self.now = self.now.max(now);
        self.ceiling = self.ceiling.saturating_add(elapsed).min(RISE_NANOS);
        self.take(earned.saturating_neg());
    }

    /// Micro-tokens taken, or given back if negative.
    pub(super) fn take(&mut self, amount: i64) {
        self.drift = self.drift.wrapping_sub(amount);
        if let Some(level) = &mut self.level {
            *level = level.saturating_sub(amount).min(self.peak);
        }
    }

    pub(super) const fn mark(&self) -> Mark {
        Mark(self.drift)
    }

    /// Micro-tokens that the level has moved since `mark`.
    pub(super) const fn drift_since(&self, mark: Mark) -> i64 {
        self.drift.wrapping_sub(mark.0)
    }

    /// `remaining` micro-tokens were left when the request that was sent at `mark` reached the provider, which grants
    /// `second` in a second.
    pub(super) fn announce(&mut self, remaining: i64, second: i64, mark: Mark) {
        // A provider that never announces more than nothing announces nothing.
        if self.peak > 0 || remaining > 0 {
            // Whoever comes when others have drained it sees little, but it does not grant little.
            self.peak = self.peak.max(remaining).max(second);
            self.level = Some(remaining.saturating_add(self.drift_since(mark)).min(self.peak));
        }
    }

    /// The provider refused a request because of its quota.
    pub(super) fn refused(&mut self) {
        if self.is_told() {
            self.ceiling = self.ceiling / 10 * 7;
        }
    }

    pub(super) fn forget(&mut self) {
        self.level = None;
        self.peak = 0;
        self.ceiling = RISE_NANOS;
    }

    pub(super) const fn is_told(&self) -> bool {
        self.level.is_some()
    }

    /// The `wanted` reserve, but no more than half of what the provider ever had, and at least a token.
    pub(super) fn reserve(&self, wanted: i64) -> i64 {
        wanted.min(self.peak / 2).max(MICRO)
    }

    /// The share of the full rate to use. `None`: nothing is known.
    pub(super) fn share(&self, wanted_reserve: i64) -> Option<u64> {
        let (level, reserve) = (self.level?, self.reserve(wanted_reserve));
        let ceiling = self.ceiling / (RISE_NANOS / FULL_SHARE);
        if level >= reserve {
            return Some(ceiling.max(MIN_SHARE));
        }
        let proportional = i128::from(level.max(0)) * i128::from(FULL_SHARE) / i128::from(reserve);
        Some(u64::try_from(proportional).unwrap_or(0).min(ceiling).max(MIN_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: i64 = 100 * MICRO;

    fn told(remaining: i64) -> Pace {
        let mut pace = Pace::new(Instant::ZERO);
        pace.announce(1_000 * MICRO, 0, pace.mark());
        pace.announce(remaining * MICRO, 0, pace.mark());
        pace
    }

    #[test]
    fn full_above_the_reserve_and_in_proportion_below() {
        let share = |remaining| told(remaining).share(RESERVE);
        assert_eq!(
            [1_000, 100, 50, 2, 0].map(share),
            [1_000_000, 1_000_000, 500_000, 20_000, 15_625].map(Some)
        );
        assert_eq!(Pace::new(Instant::ZERO).share(RESERVE), None);
    }

    #[test]
    fn own_takings_and_our_part_of_the_refill_move_the_level() {
        let mut pace = Pace::new(Instant::ZERO);
        let sent = pace.mark();
        pace.take(60 * MICRO);
        // The answer tells of the time before these 60 were taken.
        pace.announce(100 * MICRO, 0, sent);
        assert_eq!(pace.share(RESERVE), Some(800_000), "40 of a reserve of 50");
        pace.pass(Instant::from_nanos(5_000_000_000), 5 * MICRO);
        assert_eq!(pace.share(RESERVE), Some(900_000));
        pace.take(-60 * MICRO);
        assert_eq!(pace.share(RESERVE), Some(1_000_000));
    }

    #[test]
    fn a_provider_that_grants_little_at_once_is_left_half_of_it() {
        let mut pace = Pace::new(Instant::ZERO);
        pace.announce(10 * MICRO, 0, pace.mark());
        assert_eq!(pace.reserve(RESERVE), 5 * MICRO);
    }

    #[test]
    fn whoever_comes_when_others_have_drained_it_goes_slowly() {
        let mut pace = Pace::new(Instant::ZERO);
        pace.announce(MICRO, 20 * MICRO, pace.mark());
        assert_eq!(pace.share(RESERVE), Some(100_000), "1 of a reserve of 10");
        pace.take(-30 * MICRO);
        assert_eq!(pace.share(RESERVE), Some(1_000_000), "a second of it may have come back");
    }

    #[test]
    fn refusals_lower_the_ceiling_and_time_raises_it() {
        let mut pace = told(1_000);
        pace.refused();
        pace.refused();
        assert_eq!(pace.share(RESERVE), Some(490_000));
        pace.pass(Instant::from_nanos(6_000_000_000), 0);
        assert_eq!(pace.share(RESERVE), Some(590_000));
        pace.pass(Instant::FAR_FUTURE, 0);
        assert_eq!(pace.share(RESERVE), Some(1_000_000));
    }

    #[test]
    fn nothing_ever_remaining_is_no_announcement() {
        let mut pace = Pace::new(Instant::ZERO);
        pace.announce(0, 100 * MICRO, pace.mark());
        assert_eq!(pace.share(RESERVE), None);
    }
}
