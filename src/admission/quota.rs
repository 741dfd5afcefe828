//! One dimension of a provider's quota, requests or tokens: its bucket, and what the provider announces.

use std::time::Duration;

use super::QuotaSnapshot;
use super::bucket::{Bucket, MICRO};
use crate::clock::Instant;
use crate::config::{Limits, Start};

/// Larger quotas and costs are treated as this; keeps every product within its integer.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000_000;

const PER_MILLION: u64 = 1_000_000;
const MINUTE: Duration = Duration::from_mins(1);

/// Shares of the full rate are counted in 1,024ths.
const FULL_SHARE: i128 = 1024;
/// The slowest pace; keeps enough answers coming to notice that the provider has recovered.
const MIN_SHARE: i128 = 16;

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
            used: millionths(1.0 - limits.headroom).clamp(1, PER_MILLION),
            burst: millionths(burst_seconds),
            strict_minute: limits.strict_minute,
            start: limits.start,
        }
    }

    /// Micro-tokens.
    fn capacity(&self, limit: u64) -> i128 {
        let tokens = (u128::from(limit) * u128::from(self.burst)).div_ceil(60 * u128::from(PER_MILLION));
        i128::try_from(tokens.max(1)).unwrap_or(i128::MAX).saturating_mul(MICRO)
    }

    /// Micro-tokens per minute, of which `used` millionths of the quota are used.
    fn rate(&self, limit: u64, used: u64) -> u64 {
        let rate = limit.saturating_mul(used);
        if !self.strict_minute {
            return rate.max(1);
        }
        // The burst is part of the minute. Where it is all of it, one token less a millionth keeps two grants
        // of whole tokens more than a minute apart.
        let beyond_burst = i128::from(limit) * MICRO - self.capacity(limit);
        rate.min(u64::try_from(beyond_burst.max(MICRO - 1)).unwrap_or(u64::MAX)).max(1)
    }

    /// Micro-tokens that are to remain at the provider: the headroom, at least one second of the quota, but no
    /// more than half of what a provider that grants less than a minute at once ever has. At least one token.
    fn reserve(&self, limit: u64, peak: i128) -> i128 {
        let headroom = i128::from(limit) * i128::from(PER_MILLION - self.used);
        headroom.max(i128::from(limit) * MICRO / 60).min(peak / 2).max(MICRO)
    }
}

/// A point on [`Quota::drift`], kept with a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark(i128);

/// The provider's own level as an answer told it.
#[derive(Debug, Clone)]
struct Announcement {
    /// Micro-tokens.
    remaining: i128,
    /// Where [`Quota::drift`] stood when the request was sent, which is about when the provider looked.
    mark: Mark,
}

#[derive(Debug)]
pub(super) struct Quota {
    shape: Shape,
    /// Tokens per minute that the provider grants, from the user or from the provider, whichever is less.
    limit: Option<u64>,
    bucket: Option<Bucket>,
    announcement: Option<Announcement>,
    /// Most that was ever announced as remaining, micro-tokens: tells a provider that grants a minute's quota at
    /// once from one that grants a second's.
    peak: i128,
    /// How far our share of the refill and our own takings have moved the provider's level since the beginning.
    drift: i128,
    /// Share of the full rate that we dare to use, in 1,024ths of [`FULL_SHARE`].
    ceiling: i128,
    refilled: Instant,
    last_grant: Option<Instant>,
}

impl Quota {
    pub(super) fn new(shape: Shape, now: Instant) -> Self {
        let mut quota = Self {
            shape,
            limit: None,
            bucket: None,
            announcement: None,
            peak: 0,
            drift: 0,
            ceiling: FULL_SHARE * FULL_SHARE,
            refilled: now,
            last_grant: None,
        };
        quota.adopt(quota.shape.given, now, None);
        quota
    }

    /// Another policy. What was learned is kept where the policy still learns.
    pub(super) fn reshape(&mut self, shape: Shape, now: Instant) {
        self.refill(now);
        let limit = shape.given.or(self.limit.filter(|_| shape.learn && self.shape.learn));
        let changed = shape.given.is_some();
        self.shape = shape;
        if changed {
            self.announcement = None;
        }
        self.adopt(limit, now, None);
    }

    fn adopt(&mut self, limit: Option<u64>, now: Instant, level: Option<i128>) {
        self.limit = limit.map(|limit| limit.clamp(1, MAX_TOKENS));
        let Some(limit) = self.limit else {
            self.bucket = None;
            return;
        };
        let (rate, capacity) = (self.shape.rate(limit, self.shape.used), self.shape.capacity(limit));
        match &mut self.bucket {
            Some(bucket) => bucket.reshape(rate, capacity),
            None => {
                let start = match self.shape.start {
                    Start::Full => level.unwrap_or(capacity),
                    Start::Empty => 0,
                };
                self.bucket = Some(Bucket::new(rate, capacity, start, now));
            }
        }
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
        let remaining = remaining.map(|tokens| i128::from(tokens.min(MAX_TOKENS)) * MICRO);
        if let Some(limit) = limit.filter(|&limit| limit > 0) {
            self.learn_limit(now, limit.min(MAX_TOKENS), remaining, mark);
        }
        let (Some(remaining), Some(bucket)) = (remaining, &mut self.bucket) else { return };
        bucket.lower_to(remaining);
        self.peak = self.peak.max(remaining);
        // A provider that never announces more than nothing announces nothing.
        if self.shape.learn && newest && self.peak > 0 {
            self.announcement = Some(Announcement { remaining, mark });
            self.pace();
        }
    }

    fn learn_limit(&mut self, now: Instant, limit: u64, remaining: Option<i128>, mark: Mark) {
        if let Some(given) = self.shape.given {
            self.limit = Some(given.min(limit));
            return;
        }
        if !self.shape.learn || self.limit == Some(limit) {
            return;
        }
        // Other processes learn at the same moment: together they must not take all that remains.
        let quarter = remaining.map_or(i128::MAX, |remaining| remaining / 4);
        let level =
            self.shape.capacity(limit).min(quarter).saturating_add((self.drift - mark.0).min(0)).max(0);
        self.peak = self.peak.min(i128::from(limit) * MICRO);
        self.adopt(Some(limit), now, Some(level));
    }

    /// Adds what time has earned.
    pub(super) fn refill(&mut self, now: Instant) {
        let Some(bucket) = &mut self.bucket else { return };
        bucket.refill(now);
        if self.announcement.is_some() {
            let elapsed = i128::try_from(now.since(self.refilled).min(MINUTE).as_nanos()).unwrap_or(0);
            let minute = 60_000_000_000;
            self.drift += elapsed * i128::from(bucket.rate()) / minute;
            self.ceiling =
                (self.ceiling + elapsed * FULL_SHARE * FULL_SHARE / minute).min(FULL_SHARE * FULL_SHARE);
            self.refilled = self.refilled.max(now);
            self.pace();
        }
    }

    /// Sets the rate by what remains at the provider: all of it while more than the reserve is left, then in
    /// proportion. Processes that share a quota see the same level and so settle on equal shares of the rate
    /// without knowing of each other; a process alone keeps the full rate, for at that rate the level holds.
    fn pace(&mut self) {
        let (Some(limit), Some(seen), Some(bucket)) = (self.limit, &self.announcement, &mut self.bucket)
        else {
            return;
        };
        let full = self.shape.rate(limit, PER_MILLION);
        let level = seen.remaining.saturating_add(self.drift - seen.mark.0).min(self.peak);
        let share = level.saturating_mul(FULL_SHARE) / self.shape.reserve(limit, self.peak);
        let share = share.min(self.ceiling / FULL_SHARE).clamp(MIN_SHARE, FULL_SHARE);
        bucket.set_rate(u64::try_from(i128::from(full) * share / FULL_SHARE).unwrap_or(full));
    }

    pub(super) fn exhausted(&mut self) {
        if self.announcement.is_some() {
            self.ceiling = (self.ceiling * 7 / 10).max(MIN_SHARE * FULL_SHARE);
            self.pace();
        }
    }

    /// A request of `cost` micro-tokens may enter now, where now is the last refill.
    pub(super) fn is_ready(&self, now: Instant, cost: i128) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| {
            bucket.level() >= cost.min(bucket.capacity()) && self.quiet_until(bucket, cost) <= now
        })
    }

    /// When to look again whether a request of `cost` micro-tokens may enter. A slowed rate is looked at eight
    /// times while it recovers.
    pub(super) fn wake_at(&self, cost: i128) -> Instant {
        let (Some(bucket), Some(limit)) = (&self.bucket, self.limit) else { return Instant::ZERO };
        let ready = bucket.reaches(cost.min(bucket.capacity()), None);
        let full = self.shape.rate(limit, PER_MILLION);
        if self.announcement.is_none() || ready <= bucket.last() || bucket.rate() >= full {
            return ready.max(self.quiet_until(bucket, cost));
        }
        let recovery =
            self.shape.reserve(limit, self.peak).unsigned_abs() * MINUTE.as_nanos() / u128::from(full);
        let step = Duration::from_nanos(u64::try_from(recovery / 8).unwrap_or(u64::MAX));
        ready.min(bucket.last() + step)
    }

    /// Under `strict_minute` a request larger than the burst needs a minute without others before it; its debt
    /// keeps the minute after it.
    fn quiet_until(&self, bucket: &Bucket, cost: i128) -> Instant {
        match self.last_grant {
            Some(last) if self.shape.strict_minute && cost > bucket.capacity() => last + MINUTE,
            _ => Instant::ZERO,
        }
    }

    /// Lower bound of when `cost` micro-tokens may enter after `ahead` have, with `refund` expected from requests in
    /// flight.
    pub(super) fn eta(&self, ahead: i128, cost: i128, refund: i128) -> Instant {
        let (Some(bucket), Some(limit)) = (&self.bucket, self.limit) else { return Instant::ZERO };
        let needed = cost.min(bucket.capacity()).saturating_add(ahead).saturating_sub(refund);
        let rate = self.announcement.is_some().then(|| self.shape.rate(limit, PER_MILLION));
        bucket.reaches(needed, rate).max(self.quiet_until(bucket, cost))
    }

    /// Takes what a request reserves, and tells where the quota stood after that.
    pub(super) fn take(&mut self, now: Instant, amount: i128) -> Mark {
        self.last_grant = Some(now);
        self.correct(amount);
        Mark(self.drift)
    }

    /// Takes what a request used beyond its reservation, or gives back what it did not, for a negative `amount`.
    pub(super) fn correct(&mut self, amount: i128) {
        self.drift = self.drift.saturating_sub(amount);
        if let Some(bucket) = &mut self.bucket {
            bucket.take(amount);
        }
    }

    pub(super) const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Tokens that may be taken at once without a debt.
    pub(super) fn burst(&self) -> Option<u64> {
        self.bucket.as_ref().map(|bucket| u64::try_from(bucket.capacity() / MICRO).unwrap_or(u64::MAX))
    }

    pub(super) fn snapshot(&self, now: Instant) -> Option<QuotaSnapshot> {
        let (Some(bucket), Some(limit)) = (&self.bucket, self.limit) else { return None };
        let mut bucket = bucket.clone();
        bucket.refill(now);
        let tokens = |micro: i128| micro as f64 / MICRO as f64;
        Some(QuotaSnapshot {
            limit,
            rate: tokens(bucket.rate().into()),
            capacity: tokens(bucket.capacity()),
            level: tokens(bucket.level()),
        })
    }
}
