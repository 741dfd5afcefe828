//! Cumulative histogram of durations with fixed buckets, as Prometheus reads it.

use std::time::Duration;

use super::record::Exemplar;

#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Upper bounds in nanoseconds, ascending; the last bucket has none.
    bounds: &'static [u64],
    counts: Vec<u64>,
    /// The last call of each bucket, with its duration.
    exemplars: Vec<Option<(Duration, Exemplar)>>,
    sum: Duration,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        let buckets = bounds.len() + 1;
        Self { bounds, counts: vec![0; buckets], exemplars: vec![None; buckets], sum: Duration::ZERO }
    }

    pub(super) fn observe(&mut self, duration: Duration, exemplar: Option<Exemplar>) {
        let bucket = self.bounds.partition_point(|bound| u128::from(*bound) < duration.as_nanos());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        if let (Some(exemplar), Some(slot)) = (exemplar, self.exemplars.get_mut(bucket)) {
            *slot = Some((duration, exemplar));
        }
        self.sum = self.sum.saturating_add(duration);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Exact.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// A recent duration of each bucket, the last without a bound included.
    pub fn exemplars(&self) -> &[Option<(Duration, Exemplar)>] {
        &self.exemplars
    }

    /// Upper bound of each bucket but the last, and how many durations are not longer.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.bounds.iter().zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((Duration::from_nanos(*bound), *total))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_equal_to_a_bound_is_within_it() {
        let mut histogram = Histogram::new(&[10, 20]);
        for nanos in [0, 10, 11, 20, 21, 1000] {
            histogram.observe(Duration::from_nanos(nanos), None);
        }
        let buckets: Vec<_> = histogram.buckets().map(|(bound, count)| (bound.as_nanos(), count)).collect();
        assert_eq!(buckets, [(10, 2), (20, 4)]);
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum(), Duration::from_nanos(1062));
        histogram.observe(Duration::MAX, None);
        assert_eq!((histogram.count(), histogram.sum()), (7, Duration::MAX));
    }
}
