//! Every series by its metric and labels.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::histogram::Histogram;
use super::labels::{FastHash, LabelId, LabelLimits, Labels};
use super::metric::{Kind, Label, Metric, Unit};
use super::record::{Exemplar, IdempotencyOutcome};
use crate::classify::Class;

/// What a series holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Count(u64),
    /// Pico-dollars.
    Money(u128),
    Number(f64),
    Histogram(Box<Histogram>),
}

impl Value {
    fn zero(metric: Metric) -> Self {
        let row = metric.describe();
        match (row.kind, row.unit) {
            (Kind::Histogram(bounds), _) => Self::Histogram(Box::new(Histogram::new(bounds))),
            (_, Unit::Usd) => Self::Money(0),
            (Kind::Counter, _) => Self::Count(0),
            (Kind::Gauge, _) => Self::Number(0.0),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SeriesKey {
    metric: Metric,
    /// In the order of the metric's labels; what it has not is [`LabelId::OTHER`].
    labels: [LabelId; 3],
}

impl Hash for SeriesKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let words = self.labels.iter().fold(self.metric as u64, |word, id| word << 16 | u64::from(id.0));
        state.write_u64(words);
    }
}

#[derive(Debug, Clone)]
pub(super) struct Registry {
    labels: Labels,
    max_sets: usize,
    max_histogram_sets: usize,
    /// Series per metric.
    sets: [usize; Metric::COUNT],
    series: HashMap<SeriesKey, Value, FastHash>,
}

impl Registry {
    pub(super) fn new(limits: LabelLimits) -> Self {
        let mut registry = Self {
            max_sets: limits.sets,
            max_histogram_sets: limits.histogram_sets,
            labels: Labels::new(limits),
            sets: [0; Metric::COUNT],
            series: HashMap::default(),
        };
        // A counter that is missing until its first event hides that event from `increase()`.
        for metric in Metric::ALL {
            let row = metric.describe();
            if row.labels.is_empty() && row.kind != Kind::Gauge {
                registry.update(*metric, [], |_| {});
            }
        }
        for class in Class::REPEATABLE {
            let reason = registry.intern(Label::Reason, class.as_str());
            registry.count(Metric::Retries, [reason], 0);
        }
        for outcome in IdempotencyOutcome::ALL {
            let outcome = registry.intern(Label::Outcome, outcome.as_str());
            registry.count(Metric::Idempotency, [outcome], 0);
        }
        registry
    }

    pub(super) fn know(&mut self, label: Label, value: &str) {
        self.labels.know(label, value);
    }

    pub(super) fn intern(&mut self, label: Label, value: &str) -> LabelId {
        self.labels.intern(label, value)
    }

    /// Values in the order of the metric's labels.
    pub(super) fn intern_all<const N: usize>(&mut self, metric: Metric, values: [&str; N]) -> [LabelId; N] {
        let mut labels = metric.describe().labels.iter();
        values.map(|value| labels.next().map_or(LabelId::OTHER, |label| self.labels.intern(*label, value)))
    }

    pub(super) fn count<const N: usize>(&mut self, metric: Metric, labels: [LabelId; N], by: u64) {
        self.update(metric, labels, |value| {
            if let Value::Count(total) = value {
                *total = total.saturating_add(by);
            }
        });
    }

    pub(super) fn charge<const N: usize>(&mut self, metric: Metric, labels: [LabelId; N], pico_usd: u128) {
        self.update(metric, labels, |value| {
            if let Value::Money(total) = value {
                *total = total.saturating_add(pico_usd);
            }
        });
    }

    pub(super) fn gauge<const N: usize>(&mut self, metric: Metric, labels: [LabelId; N], number: f64) {
        self.update(metric, labels, |value| {
            if let Value::Number(total) = value {
                *total += number;
            }
        });
    }

    pub(super) fn observe<const N: usize>(
        &mut self,
        metric: Metric,
        mut labels: [LabelId; N],
        duration: Duration,
        exemplar: Option<Exemplar>,
    ) {
        for (label, id) in metric.describe().labels.iter().zip(&mut labels) {
            if label.is_free() && !self.labels.in_histograms(*label, *id) {
                *id = LabelId::OTHER;
            }
        }
        self.update(metric, labels, |value| {
            if let Value::Histogram(histogram) = value {
                histogram.observe(duration, exemplar);
            }
        });
    }

    fn update<const N: usize>(
        &mut self,
        metric: Metric,
        labels: [LabelId; N],
        change: impl FnOnce(&mut Value),
    ) {
        let mut given = labels.into_iter();
        let mut key =
            SeriesKey { metric, labels: std::array::from_fn(|_| given.next().unwrap_or(LabelId::OTHER)) };
        if let Some(value) = self.series.get_mut(&key) {
            change(value);
            return;
        }
        let sets = self.sets.get_mut(metric as usize);
        let histogram = matches!(metric.describe().kind, Kind::Histogram(_));
        let most = if histogram { self.max_histogram_sets } else { self.max_sets };
        if sets.as_ref().is_some_and(|sets| **sets >= most) {
            for (label, id) in metric.describe().labels.iter().zip(&mut key.labels) {
                if label.is_free() {
                    *id = LabelId::OTHER;
                }
            }
        } else if let Some(sets) = sets {
            *sets += 1;
        }
        change(self.series.entry(key).or_insert_with(|| Value::zero(metric)));
    }

    /// Every series: metric, values of its labels, value.
    pub(super) fn series(&self) -> impl Iterator<Item = (Metric, Vec<String>, &Value)> {
        self.series.iter().map(|(key, value)| {
            let labels = key.metric.describe().labels.iter().zip(key.labels);
            let names = labels.map(|(label, id)| self.labels.name(*label, id).to_owned()).collect();
            (key.metric, names, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_beyond_the_limit_fold_only_what_callers_name() {
        let mut registry = Registry::new(LabelLimits { sets: 2, ..LabelLimits::default() });
        let estimated = registry.intern(Label::Estimated, "true");
        for (model, route) in [("a", "x"), ("a", "y"), ("a", "z"), ("b", "x"), ("a", "x")] {
            let model = registry.intern(Label::Model, model);
            let route = registry.intern(Label::Route, route);
            registry.charge(Metric::CostByModel, [model, route, estimated], 1);
        }
        let mut series: Vec<_> = registry
            .series()
            .filter(|(metric, ..)| *metric == Metric::CostByModel)
            .map(|(_, labels, value)| (labels.join(" "), value.clone()))
            .collect();
        series.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [("a x true", 2), ("a y true", 1), ("other other true", 2)];
        assert_eq!(series, expected.map(|(labels, pico)| (labels.to_owned(), Value::Money(pico))));
    }
}
