//! A snapshot as Prometheus text, format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{self, Write};

use super::metric::{Kind, Metric};
use super::registry::Value;
use super::snapshot::{Sample, Snapshot};

/// Of an HTTP answer with this text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Snapshot {
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let mut current = None;
        for sample in &self.samples {
            if current != Some(sample.metric) {
                current = Some(sample.metric);
                header(&mut text, sample.metric);
            }
            // Writing to a string cannot fail.
            let _ = lines(&mut text, sample);
        }
        text
    }
}

fn header(text: &mut String, metric: Metric) {
    let row = metric.describe();
    let kind = match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let _ = write!(text, "# HELP {0} {1}\n# TYPE {0} {kind}\n", row.name, row.help);
}

fn lines(text: &mut String, sample: &Sample) -> fmt::Result {
    let labels = Labels { sample, bound: None };
    let name = sample.metric.describe().name;
    match &sample.value {
        Value::Count(count) => writeln!(text, "{name}{labels} {count}"),
        Value::Money(pico_usd) => writeln!(text, "{name}{labels} {}", Decimal(*pico_usd, 12)),
        Value::Number(number) if number.is_infinite() => {
            writeln!(text, "{name}{labels} {}", if *number > 0.0 { "+Inf" } else { "-Inf" })
        }
        Value::Number(number) => writeln!(text, "{name}{labels} {number}"),
        Value::Histogram(histogram) => {
            let bucket = |bound| Labels { sample, bound: Some(bound) };
            for (bound, count) in histogram.buckets() {
                writeln!(text, "{name}_bucket{} {count}", bucket(Bound::Nanos(bound.as_nanos())))?;
            }
            let count = histogram.count();
            writeln!(text, "{name}_bucket{} {count}", bucket(Bound::Infinite))?;
            writeln!(text, "{name}_sum{labels} {}", Decimal(histogram.sum().as_nanos(), 9))?;
            writeln!(text, "{name}_count{labels} {count}")
        }
    }
}

#[derive(Clone, Copy)]
enum Bound {
    Nanos(u128),
    Infinite,
}

struct Labels<'a> {
    sample: &'a Sample,
    /// Of the bucket, as label `le`.
    bound: Option<Bound>,
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.sample.metric.describe().labels;
        let mut separator = '{';
        for (label, value) in names.iter().zip(&self.sample.labels) {
            write!(f, "{separator}{}=\"", label.name())?;
            for character in value.chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    _ => f.write_char(character)?,
                }
            }
            f.write_char('"')?;
            separator = ',';
        }
        match self.bound {
            Some(Bound::Nanos(nanos)) => write!(f, "{separator}le=\"{}\"}}", Decimal(nanos, 9)),
            Some(Bound::Infinite) => write!(f, "{separator}le=\"+Inf\"}}"),
            None if separator == ',' => f.write_char('}'),
            None => Ok(()),
        }
    }
}

/// A whole number of units, of which ten to the power of the second make one: exact, without zeros at the end.
pub(super) struct Decimal(pub(super) u128, pub(super) u32);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mut units, mut digits) = *self;
        while digits > 0 && units.is_multiple_of(10) {
            units /= 10;
            digits -= 1;
        }
        let one = 10_u128.pow(digits);
        write!(f, "{}", units / one)?;
        if digits > 0 {
            write!(f, ".{:0width$}", units % one, width = digits as usize)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        let money = |pico| Decimal(pico, 12).to_string();
        assert_eq!(money(0), "0");
        assert_eq!(money(1), "0.000000000001");
        assert_eq!(money(144_000_000), "0.000144");
        assert_eq!(money(10_000_000_000_000), "10");
        assert_eq!(money(u128::MAX), "340282366920938463463374607.431768211455");
        assert_eq!(Decimal(81_920_000_000, 9).to_string(), "81.92");
    }

    #[test]
    fn text_of_each_kind() {
        let sample = |metric, labels: &[&str], value| Sample {
            metric,
            labels: labels.iter().map(ToString::to_string).collect(),
            value,
        };
        let snapshot = Snapshot {
            samples: vec![
                sample(Metric::Cost, &[], Value::Money(144_000_000)),
                sample(Metric::Calls, &["a\"\\b\nc", "ok"], Value::Count(3)),
                sample(Metric::RetryBudgetBalance, &["x"], Value::Number(f64::INFINITY)),
                sample(Metric::RetryBudgetBalance, &["y"], Value::Number(2.5)),
            ],
            latency: super::super::LatencySummary::default(),
        };
        assert_eq!(
            snapshot.to_prometheus(),
            "# HELP cost_usd_total Cost of all calls in US dollars.\n\
             # TYPE cost_usd_total counter\n\
             cost_usd_total 0.000144\n\
             # HELP tidegate_calls_total Logical calls, by how they ended.\n\
             # TYPE tidegate_calls_total counter\n\
             tidegate_calls_total{model=\"a\\\"\\\\b\\nc\",outcome=\"ok\"} 3\n\
             # HELP tidegate_retry_budget_balance Retries that may be taken at once.\n\
             # TYPE tidegate_retry_budget_balance gauge\n\
             tidegate_retry_budget_balance{scope=\"x\"} +Inf\n\
             tidegate_retry_budget_balance{scope=\"y\"} 2.5\n"
        );
    }
}
