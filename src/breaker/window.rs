//! The last outcomes of a closed breaker, and whether they say that it should open.

use std::time::Duration;

use crate::clock::Instant;
use crate::config::BreakerPolicy;

const BUCKETS: usize = 10;
const PARTS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    total: u32,
    failures: u32,
}

/// Outcomes and failures among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub total: u64,
    pub failures: u64,
}

/// Ten buckets over the window, judged each time one of them is completed. Outcomes are stamped when they
/// arrive: calls may well be longer than the window, and dropping those by their start would hide exactly the
/// failures that take long.
#[derive(Debug)]
pub(super) struct Window {
    width: u64,
    minimum_calls: u64,
    /// Integer, so that exactly the threshold is a hit.
    threshold_ppm: u64,
    hits_needed: u32,
    /// The bucket being filled is the first one.
    buckets: [Bucket; BUCKETS],
    bucket_end: Instant,
    recent: Recent,
    hits: u32,
}

impl Window {
    pub(super) fn new(policy: &BreakerPolicy, now: Instant) -> Self {
        let nanos = u64::try_from(policy.window.as_nanos()).unwrap_or(u64::MAX);
        let width = (nanos / BUCKETS as u64).max(1);
        Self {
            width,
            minimum_calls: u64::from(policy.minimum_calls.max(1)),
            threshold_ppm: parts_per_million(policy.failure_rate_threshold),
            hits_needed: policy.consecutive_hits.max(1),
            buckets: [Bucket::default(); BUCKETS],
            bucket_end: now + Duration::from_nanos(width),
            recent: Recent::new(policy.recency),
            hits: 0,
        }
    }

    pub(super) fn add(&mut self, failure: bool) {
        let [current, ..] = &mut self.buckets;
        current.total = current.total.saturating_add(1);
        current.failures = current.failures.saturating_add(u32::from(failure));
        self.recent.add(failure);
    }

    /// Moves on to `now`. True if the window was hit often enough in a row to open the breaker.
    ///
    /// A boundary that passed unseen is judged on what was in the window then, so that the verdict does not
    /// depend on whether a call happened to look. After a pause in which all buckets would have emptied
    /// nothing is judged: outcomes that old say nothing about the upstream of now.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        if now < self.bucket_end {
            return false;
        }
        let late = now.as_nanos().saturating_sub(self.bucket_end.as_nanos());
        let passed = (late / self.width).saturating_add(1);
        self.bucket_end = self.bucket_end + Duration::from_nanos(passed.saturating_mul(self.width));
        if passed > BUCKETS as u64 {
            self.clear();
            return false;
        }
        for _ in 0..passed {
            self.hits = if self.is_hit() { self.hits.saturating_add(1) } else { 0 };
            if self.hits >= self.hits_needed {
                return true;
            }
            self.buckets.rotate_right(1);
            let [current, ..] = &mut self.buckets;
            *current = Bucket::default();
        }
        false
    }

    pub(super) fn clear(&mut self) {
        self.buckets = [Bucket::default(); BUCKETS];
        self.recent.clear();
        self.hits = 0;
    }

    /// What is in the window at `now`, the bucket being filled included.
    pub(super) fn counts(&self, now: Instant) -> Counts {
        let passed = if now < self.bucket_end {
            0
        } else {
            (now.as_nanos().saturating_sub(self.bucket_end.as_nanos()) / self.width).saturating_add(1)
        };
        sum(self.buckets.iter().take(BUCKETS.saturating_sub(usize::try_from(passed).unwrap_or(BUCKETS))))
    }

    fn is_hit(&self) -> bool {
        let counts = sum(self.buckets.iter());
        counts.total >= self.minimum_calls
            && reaches(counts, self.threshold_ppm)
            && self.recent.counts().is_none_or(|recent| reaches(recent, self.threshold_ppm))
    }
}

/// The latest outcomes regardless of time. A trailing window is still full of failures after the upstream has
/// recovered; the latest outcomes are not.
#[derive(Debug)]
struct Recent {
    /// Slots not yet used hold `false`.
    ring: Box<[bool]>,
    next: usize,
    len: usize,
    failures: u64,
}

impl Recent {
    fn new(size: u32) -> Self {
        let ring = vec![false; usize::try_from(size).unwrap_or(0)].into_boxed_slice();
        Self { ring, next: 0, len: 0, failures: 0 }
    }

    fn add(&mut self, failure: bool) {
        // A ring of size 0 has no slot: the condition is off.
        let Some(slot) = self.ring.get_mut(self.next) else { return };
        if std::mem::replace(slot, failure) {
            self.failures = self.failures.saturating_sub(1);
        }
        self.failures = self.failures.saturating_add(u64::from(failure));
        self.next = if self.next + 1 == self.ring.len() { 0 } else { self.next + 1 };
        self.len = self.ring.len().min(self.len + 1);
    }

    fn clear(&mut self) {
        self.ring.fill(false);
        (self.next, self.len, self.failures) = (0, 0, 0);
    }

    /// `None` where the condition is off.
    fn counts(&self) -> Option<Counts> {
        (!self.ring.is_empty()).then_some(Counts { total: self.len as u64, failures: self.failures })
    }
}

fn sum<'a>(buckets: impl Iterator<Item = &'a Bucket>) -> Counts {
    buckets.fold(Counts::default(), |sum, bucket| Counts {
        total: sum.total + u64::from(bucket.total),
        failures: sum.failures + u64::from(bucket.failures),
    })
}

fn reaches(counts: Counts, threshold_ppm: u64) -> bool {
    counts.failures.saturating_mul(PARTS) >= counts.total.saturating_mul(threshold_ppm)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=1 just before; a float cast saturates"
)]
fn parts_per_million(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * PARTS as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_forgets_the_oldest() {
        let mut recent = Recent::new(3);
        for failure in [true, true, false, false] {
            recent.add(failure);
        }
        assert_eq!(recent.counts(), Some(Counts { total: 3, failures: 1 }));
        recent.add(false);
        assert_eq!(recent.counts(), Some(Counts { total: 3, failures: 0 }));
        recent.add(true);
        recent.clear();
        recent.add(false);
        assert_eq!(recent.counts(), Some(Counts { total: 1, failures: 0 }));
    }

    #[test]
    fn recent_of_size_zero_is_off() {
        let mut recent = Recent::new(0);
        recent.add(true);
        assert_eq!(recent.counts(), None);
    }

    #[test]
    fn thresholds_are_exact() {
        let reaches = |failures, total, share| reaches(Counts { total, failures }, parts_per_million(share));
        assert!(reaches(1, 4, 0.25));
        assert!(!reaches(249, 1000, 0.25));
        assert!(reaches(1, 3, 1.0 / 3.0));
        assert!(!reaches(99, 100, 1.0));
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let near_end = Instant::from_nanos(u64::MAX - 5);
        let mut window = Window::new(&BreakerPolicy::default(), near_end);
        window.add(true);
        assert!(!window.advance(Instant::FAR_FUTURE));
        assert!(!window.advance(Instant::FAR_FUTURE));
        let mut window = Window::new(&BreakerPolicy::default(), Instant::ZERO);
        window.add(true);
        assert!(!window.advance(Instant::FAR_FUTURE));
        assert_eq!(window.counts(Instant::FAR_FUTURE), Counts::default());
    }

    #[test]
    fn counts_expire_without_traffic() {
        let mut window = Window::new(&BreakerPolicy::default(), Instant::ZERO);
        window.add(true);
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(window.counts(at(29)), Counts { total: 1, failures: 1 });
        assert_eq!(window.counts(at(30)), Counts::default());
    }
}
