//! One dimension of a provider's quota, requests or tokens: its bucket, and what the provider announces.

use std::time::Duration;

use super::QuotaSnapshot;
use super::bucket::{Bucket, MICRO};
use super::pace::{FULL_SHARE, Mark, Pace};
use crate::clock::Instant;
use crate::config::{Limits, Start};

/// Larger quotas and costs are treated as this; keeps every product within its integer.
pub(super) const MAX_TOKENS: u64 = 100_000_000_000;

const MINUTE: Duration = Duration::from_secs(60);

/// Micro-tokens.
pub(super) fn micro(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(MICRO)
}

/// How a limit becomes a rate and a burst; a user's policy for one dimension.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    given: Option<u64>,
    learn: bool,
    /// Share of the quota that is used, in millionths.
    used: u64,
    /// Microseconds of the rate.
    burst: u64,
    strict_minute: bool,
    start: Start,
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn millionths(value: f64) -> u64 {
    (value * 1e6).round() as u64
}

impl Shape {
    pub(super) fn of_requests(limits: &Limits) -> Self {
        Self::new(limits, limits.rpm, limits.burst_seconds)
    }

    pub(super) fn of_tokens(limits: &Limits) -> Self {
        Self::new(limits, limits.tpm, limits.tpm_burst_seconds)
    }

    fn new(limits: &Limits, given: Option<u64>, burst_seconds: f64) -> Self {
        Self {
            given,
            learn: limits.learn && given.is_none(),
            used: millionths(1.0 - limits.headroom).clamp(1, FULL_SHARE),
            burst: millionths(burst_seconds),
            strict_minute: limits.strict_minute,
            start: limits.start,
        }
    }

    /// Micro-tokens.
    fn capacity(&self, limit: u64) -> i64 {
        let tokens = (u128::from(limit) * u128::from(self.burst)).div_ceil(60 * u128::from(FULL_SHARE));
        i64::try_from(tokens.max(1)).unwrap_or(i64::MAX).saturating_mul(MICRO)
    }

    /// Micro-tokens per minute, of which `used` millionths of the quota are used.
    fn rate(&self, limit: u64, used: u64) -> u64 {
        let rate = limit.saturating_mul(used);
        if !self.strict_minute {
            return rate.max(1);
        }
        // The burst is part of the minute. Where it is all of it, one token less a millionth keeps two grants
        // of whole tokens more than a minute apart.
        let beyond_burst = micro(limit).saturating_sub(self.capacity(limit));
        rate.min(u64::try_from(beyond_burst.max(MICRO - 1)).unwrap_or(u64::MAX)).max(1)
    }

    /// Micro-tokens that are to remain at the provider: the headroom, at least one second of the quota.
    fn reserve(&self, limit: u64) -> i64 {
        let headroom = limit.saturating_mul(FULL_SHARE - self.used);
        i64::try_from(headroom).unwrap_or(i64::MAX).max(micro(limit) / 60)
    }
}

#[derive(Debug)]
pub(super) struct Quota {
    shape: Shape,
    /// Tokens per minute that the provider grants, from the user or from the provider, whichever is less.
    limit: Option<u64>,
    bucket: Option<Bucket>,
    pace: Pace,
    /// The whole of the quota, micro-tokens per minute.
    full_rate: u64,
    /// What is to remain at the provider, micro-tokens.
    reserve: i64,
    last_grant: Option<Instant>,
}

impl Quota {
    pub(super) fn new(shape: Shape, now: Instant) -> Self {
        let mut quota = Self {
            shape,
            limit: None,
            bucket: None,
            pace: Pace::new(now),
            full_rate: 0,
            reserve: 0,
            last_grant: None,
        };
        quota.adopt(quota.shape.given, now, i64::MAX);
        quota
    }

    /// Another policy. What was learned is kept where the policy still learns.
    pub(super) fn reshape(&mut self, shape: Shape, now: Instant) {
        self.refill(now);
        let learned = self.limit.filter(|_| shape.learn && self.shape.learn);
        if learned.is_none() {
            self.pace.forget();
        }
        self.shape = shape;
        self.adopt(self.shape.given.or(learned), now, i64::MAX);
        self.follow_pace();
    }

    /// `level` is what a new bucket may hold at most.
    fn adopt(&mut self, limit: Option<u64>, now: Instant, level: i64) {
        self.limit = limit.map(|limit| limit.clamp(1, MAX_TOKENS));
        let Some(limit) = self.limit else {
            self.bucket = None;
            return;
        };
        let (rate, capacity) = (self.shape.rate(limit, self.shape.used), self.shape.capacity(limit));
        self.full_rate = self.shape.rate(limit, FULL_SHARE);
        self.reserve = self.shape.reserve(limit);
        if let Some(bucket) = &mut self.bucket {
            bucket.reshape(rate, capacity);
            return;
        }
        let level = match self.shape.start {
            Start::Full => level,
            Start::Empty => 0,
        };
        self.bucket = Some(Bucket::new(rate, capacity, level, now));
    }

    pub(super) const fn learns(&self) -> bool {
        self.shape.learn
    }

    /// Takes in what the answer to the request that was granted at `mark` announced; `newest` if no answer to a
    /// later request came before.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        limit: Option<u64>,
        remaining: Option<u64>,
        mark: Mark,
        newest: bool,
    ) {
        self.refill(now);
        let remaining = remaining.map(|tokens| micro(tokens.min(MAX_TOKENS)));
        if let Some(limit) = limit.filter(|&limit| limit > 0) {
            self.learn_limit(now, limit.min(MAX_TOKENS), remaining, mark);
        }
        let (Some(remaining), Some(bucket)) = (remaining, &mut self.bucket) else { return };
        bucket.lower_to(remaining);
        if self.shape.learn && newest {
            let second = self.limit.map_or(0, micro) / 60;
            self.pace.announce(remaining, second, mark);
            self.follow_pace();
        }
    }

    fn learn_limit(&mut self, now: Instant, limit: u64, remaining: Option<i64>, mark: Mark) {
        if let Some(given) = self.shape.given {
            self.limit = Some(given.min(limit));
            return;
        }
        if !self.shape.learn || self.limit == Some(limit) {
            return;
        }
        // Of what remains the requests sent since have had their part, and other processes learn at the same
        // moment: together they must not take all of it.
        let part = remaining.unwrap_or(i64::MAX) / 8;
        let level = part.min(self.shape.capacity(limit)).saturating_add(self.pace.drift_since(mark).min(0));
        self.adopt(Some(limit), now, level.max(0));
    }

    /// Adds what time has earned.
    pub(super) fn refill(&mut self, now: Instant) {
        self.earn(now, false);
    }

    /// As [`Self::refill`], in a pause that the provider has asked for. Others who share a learned quota wait for its
    /// end too: what it has earned must not go out at once by all of them.
    pub(super) fn pause(&mut self, now: Instant) {
        self.earn(now, self.shape.learn);
    }

    fn earn(&mut self, now: Instant, spent: bool) {
        let Some(bucket) = &mut self.bucket else { return };
        let before = bucket.level();
        let earned = bucket.refill(now);
        if spent {
            bucket.lower_to(before.max(MICRO));
        }
        if self.shape.learn {
            self.pace.pass(now, earned);
            self.follow_pace();
        }
    }

    fn follow_pace(&mut self) {
        let (Some(share), Some(bucket)) = (self.pace.share(self.reserve), &mut self.bucket) else { return };
        bucket.set_rate(if share == FULL_SHARE {
            self.full_rate
        } else {
            let rate = u128::from(self.full_rate) * u128::from(share) / u128::from(FULL_SHARE);
            u64::try_from(rate).unwrap_or(u64::MAX)
        });
    }

    /// The provider refused a request because of its quota.
    pub(super) fn refused(&mut self) {
        self.pace.refused();
        self.follow_pace();
    }

    /// A request of `cost` micro-tokens may enter now, where now is the last refill.
    pub(super) fn is_ready(&self, now: Instant, cost: i64) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| {
            bucket.level() >= cost.min(bucket.capacity()) && self.quiet_until(bucket, cost) <= now
        })
    }

    /// When to look again whether a request of `cost` micro-tokens may enter. A slowed rate is looked at eight
    /// times while it recovers.
    pub(super) fn wake_at(&self, cost: i64) -> Instant {
        let Some(bucket) = &self.bucket else { return Instant::ZERO };
        let ready = bucket.reaches(cost.min(bucket.capacity()).into(), None);
        if !self.pace.is_told() || bucket.rate() >= self.full_rate || ready <= bucket.last() {
            return ready.max(self.quiet_until(bucket, cost));
        }
        let reserve = u128::from(self.pace.reserve(self.reserve).unsigned_abs());
        let step = reserve * MINUTE.as_nanos() / u128::from(self.full_rate) / 8;
        ready.min(bucket.last() + Duration::from_nanos(u64::try_from(step).unwrap_or(u64::MAX)))
    }

    /// Under `strict_minute` a request larger than the burst needs a minute without others before it; its debt
    /// keeps the minute after it.
    fn quiet_until(&self, bucket: &Bucket, cost: i64) -> Instant {
        match self.last_grant {
            Some(last) if self.shape.strict_minute && cost > bucket.capacity() => {
                last + MINUTE + Duration::from_nanos(1)
            }
            _ => Instant::ZERO,
        }
    }

    /// Lower bound of when `cost` micro-tokens may enter after `ahead` have, with `refund` expected from requests in
    /// flight.
    pub(super) fn eta(&self, ahead: i128, cost: i64, refund: i128) -> Instant {
        let Some(bucket) = &self.bucket else { return Instant::ZERO };
        let entry = i128::from(cost.min(bucket.capacity()));
        let rate = self.pace.is_told().then_some(self.full_rate);
        bucket
            .reaches(entry.saturating_add(ahead).saturating_sub(refund), rate)
            .max(self.quiet_until(bucket, cost))
    }

    /// Takes what a request reserves, and tells where the quota stood after that.
    pub(super) fn take(&mut self, now: Instant, amount: i64) -> Mark {
        self.last_grant = Some(now);
        self.correct(amount);
        self.pace.mark()
    }

    /// Takes what a request used beyond its reservation, or gives back what it did not, for a negative `amount`.
    pub(super) fn correct(&mut self, amount: i64) {
        self.pace.take(amount);
        if let Some(bucket) = &mut self.bucket {
            bucket.take(amount);
        }
    }

    pub(super) const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Tokens that may be taken at once without a debt.
    pub(super) fn burst(&self) -> Option<u64> {
        self.bucket.as_ref().map(|bucket| (bucket.capacity() / MICRO).unsigned_abs())
    }

    pub(super) fn snapshot(&self, now: Instant) -> Option<QuotaSnapshot> {
        let (Some(bucket), Some(limit)) = (&self.bucket, self.limit) else { return None };
        let mut bucket = bucket.clone();
        bucket.refill(now);
        let tokens = |micro: i64| micro as f64 / MICRO as f64;
        Some(QuotaSnapshot {
            limit,
            rate: bucket.rate() as f64 / MICRO as f64,
            capacity: tokens(bucket.capacity()),
            level: tokens(bucket.level()),
        })
    }
}
