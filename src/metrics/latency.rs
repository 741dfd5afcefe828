//! Percentiles of recent latencies: a ring of histograms, one per part of the window, merged when read.

use std::time::Duration;

use crate::clock::Instant;

/// Fewer than this say nothing about a percentile.
pub const MINIMUM_SAMPLES: u64 = 20;

const PARTS: usize = 10;
/// Each power of two is split in 32, so an estimate is off by at most 1/64.
const SUB_BITS: u32 = 5;
const SUB: u64 = 1 << SUB_BITS;
/// In microseconds: 71 minutes. Longer latencies count as this long in percentiles.
const LARGEST: u64 = (1 << 32) - 1;
const BUCKETS: usize = 896;

/// What the window holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencySummary {
    pub count: u64,
    /// Sum, shortest and longest are exact.
    pub sum: Duration,
    pub min: Option<Duration>,
    pub max: Option<Duration>,
    /// Percentiles are within 1.6 % (and 1 µs), and `None` below [`MINIMUM_SAMPLES`].
    pub p50: Option<Duration>,
    pub p95: Option<Duration>,
    pub p99: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct LatencyWindow {
    part: u64,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    /// Number of the stretch of time that the histogram holds.
    epoch: u64,
    histogram: LogLinear,
}

impl LatencyWindow {
    /// A sample counts for at most `window`, and for at least nine tenths of it.
    pub(super) fn new(window: Duration) -> Self {
        let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Self {
            part: (nanos / PARTS as u64).max(1),
            parts: vec![Part { epoch: 0, histogram: LogLinear::new() }; PARTS],
        }
    }

    pub(super) fn record(&mut self, latency: Duration, now: Instant) {
        let epoch = self.epoch(now);
        let place = usize::try_from(epoch % PARTS as u64).unwrap_or(0);
        let Some(part) = self.parts.get_mut(place) else { return };
        // Another thread may have been here with a later `now`; what is older than the window is dropped.
        if part.epoch > epoch {
            return;
        }
        if part.epoch < epoch {
            part.epoch = epoch;
            part.histogram.clear();
        }
        part.histogram.record(latency);
    }

    pub(super) fn summary(&self, now: Instant) -> LatencySummary {
        self.merged(now).summary()
    }

    /// Durations and how often each came, ascending.
    pub(super) fn counts(&self, now: Instant) -> Vec<(Duration, u32)> {
        let merged = self.merged(now);
        let seen = merged.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        seen.map(|(place, count)| {
            (Duration::from_micros(middle(place)).clamp(merged.min, merged.max), *count)
        })
        .collect()
    }

    fn merged(&self, now: Instant) -> LogLinear {
        let epoch = self.epoch(now);
        let mut merged = LogLinear::new();
        for part in &self.parts {
            if part.epoch.saturating_add(PARTS as u64) > epoch {
                merged.merge(&part.histogram);
            }
        }
        merged
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.as_nanos() / self.part
    }
}

/// Counts per bucket, whose width is in proportion to its value.
#[derive(Debug, Clone)]
struct LogLinear {
    counts: Vec<u32>,
    count: u64,
    sum: Duration,
    min: Duration,
    max: Duration,
}

impl LogLinear {
    fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum: Duration::ZERO,
            min: Duration::MAX,
            max: Duration::ZERO,
        }
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.count = 0;
        self.sum = Duration::ZERO;
        self.min = Duration::MAX;
        self.max = Duration::ZERO;
    }

    fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LARGEST).min(LARGEST);
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count = count.saturating_add(1);
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(latency);
        self.min = self.min.min(latency);
        self.max = self.max.max(latency);
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn summary(&self) -> LatencySummary {
        let any = self.count > 0;
        LatencySummary {
            count: self.count,
            sum: self.sum,
            min: any.then_some(self.min),
            max: any.then_some(self.max),
            p50: self.percentile(50),
            p95: self.percentile(95),
            p99: self.percentile(99),
        }
    }

    /// By nearest rank: the smallest sample that `percent` of the samples do not exceed.
    fn percentile(&self, percent: u64) -> Option<Duration> {
        if self.count < MINIMUM_SAMPLES {
            return None;
        }
        let rank = self.count.saturating_mul(percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        })?;
        Some(Duration::from_micros(middle(bucket)).clamp(self.min, self.max))
    }
}

/// Values below 64 have a bucket each; above, the position is the exponent and the six leading bits.
fn bucket(micros: u64) -> usize {
    let shift = micros.max(SUB).ilog2() - SUB_BITS;
    usize::try_from(u64::from(shift) * SUB + (micros >> shift)).unwrap_or(BUCKETS)
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / SUB).saturating_sub(1);
    let low = (bucket - shift * SUB) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn millis(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(LARGEST), BUCKETS - 1);
        assert!((0..100_000).all(|value| matches!(bucket(value + 1) - bucket(value), 0 | 1)));
        for value in (0..100_000).chain((0..=LARGEST).step_by(1_000_003)) {
            let middle = middle(bucket(value));
            assert!(middle.abs_diff(value) * 64 <= value, "{value} is read as {middle}");
        }
    }

    #[test]
    fn too_few_samples_have_no_percentile() {
        let mut window = LatencyWindow::new(WINDOW);
        assert_eq!(window.summary(at(0)), LatencySummary::default());
        for sample in 1..20 {
            window.record(millis(sample), at(0));
        }
        let summary = window.summary(at(0));
        assert_eq!((summary.count, summary.p50, summary.p95), (19, None, None));
        assert_eq!((summary.min, summary.max), (Some(millis(1)), Some(millis(19))));
        assert_eq!(summary.sum, millis(190));
        window.record(millis(20), at(0));
        assert!(window.summary(at(0)).p95.is_some());
    }

    #[test]
    fn samples_leave_the_window() {
        let mut window = LatencyWindow::new(WINDOW);
        for second in 0..600 {
            window.record(millis(second), at(second));
        }
        let summary = window.summary(at(599));
        assert_eq!((summary.count, summary.min), (300, Some(millis(300))));
        assert_eq!(window.summary(at(869)).count, 30, "the last part stays for nine tenths of the window");
        assert_eq!(window.summary(at(870)).count, 0);
        assert_eq!(window.summary(Instant::FAR_FUTURE).count, 0);
    }

    #[test]
    fn a_now_from_before_is_counted_in_its_own_time_or_not_at_all() {
        let mut window = LatencyWindow::new(WINDOW);
        window.record(millis(1), at(1000));
        window.record(millis(2), at(970));
        window.record(millis(3), at(700));
        assert_eq!(window.summary(at(1000)).count, 2);
        assert_eq!(window.summary(at(970)).count, 2, "a reader that is behind sees what there is");
    }

    proptest! {
        #[test]
        fn equals_sorting(
            samples in prop::collection::vec((0_u64..3_600_000_000, 0_u64..900), 0..200),
            later in 0_u64..400,
        ) {
            let mut samples = samples;
            samples.sort_by_key(|(_, second)| *second);
            let mut window = LatencyWindow::new(WINDOW);
            for (micros, second) in &samples {
                window.record(Duration::from_micros(*micros), at(*second));
            }
            let now = samples.last().map_or(0, |(_, second)| *second) + later;
            let mut kept: Vec<Duration> = samples
                .iter()
                .filter(|(_, second)| second / 30 + 10 > now / 30)
                .map(|(micros, _)| Duration::from_micros(*micros))
                .collect();
            kept.sort_unstable();

            let summary = window.summary(at(now));
            prop_assert_eq!(summary.count, kept.len() as u64);
            prop_assert_eq!(summary.sum, kept.iter().sum());
            prop_assert_eq!(summary.min, kept.first().copied());
            prop_assert_eq!(summary.max, kept.last().copied());
            for (percent, got) in [(50, summary.p50), (95, summary.p95), (99, summary.p99)] {
                if kept.len() < 20 {
                    prop_assert_eq!(got, None);
                    continue;
                }
                let exact = kept[(kept.len() * percent).div_ceil(100) - 1];
                let got = got.unwrap();
                let allowed = exact / 64 + Duration::from_micros(1);
                prop_assert!(got.abs_diff(exact) <= allowed, "p{}: {:?} for {:?}", percent, got, exact);
            }
        }
    }
}
