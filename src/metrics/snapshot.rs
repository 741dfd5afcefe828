//! Everything counted, at one moment, as numbers.

use super::LatencySummary;
use super::metric::Metric;
use super::registry::{Registry, Value};

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub metric: Metric,
    /// Values in the order of the metric's labels.
    pub labels: Vec<String>,
    pub value: Value,
}

/// A snapshot renders as text by [`Snapshot::to_prometheus`].
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// In the order of the table, then of the label values.
    pub samples: Vec<Sample>,
    /// Recent calls.
    pub latency: LatencySummary,
}

impl Snapshot {
    pub(super) fn new(registry: &Registry, latency: LatencySummary) -> Self {
        let mut samples: Vec<Sample> = registry
            .series()
            .map(|(metric, labels, value)| Sample { metric, labels, value: value.clone() })
            .collect();
        samples.sort_by(|a, b| (a.metric, &a.labels).cmp(&(b.metric, &b.labels)));
        Self { samples, latency }
    }

    /// The series with these label values.
    pub fn value(&self, metric: Metric, labels: &[&str]) -> Option<&Value> {
        self.series(metric).find(|sample| sample.labels == labels).map(|sample| &sample.value)
    }

    /// Sum over all series of a counter that counts, and the number of durations of a histogram.
    pub fn count(&self, metric: Metric) -> u64 {
        self.series(metric).fold(0, |total, sample| match &sample.value {
            Value::Count(count) => total.saturating_add(*count),
            Value::Histogram(histogram) => total.saturating_add(histogram.count()),
            Value::Money(_) | Value::Number(_) => total,
        })
    }

    /// Sum over all series of a metric of money, in pico-dollars.
    pub fn pico_usd(&self, metric: Metric) -> u128 {
        self.series(metric).fold(0, |total, sample| match sample.value {
            Value::Money(pico_usd) => total.saturating_add(pico_usd),
            _ => total,
        })
    }

    fn series(&self, metric: Metric) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.metric == metric)
    }
}
