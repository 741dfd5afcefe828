//! A snapshot as plain data, from which other forms of exposition are made: every family, with and without
//! samples, in the words of the table.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::exposition::Decimal;
use super::histogram::Histogram;
use super::metric::{Kind, Metric, Unit};
use super::registry::Value;
use super::snapshot::{Sample, Snapshot};

impl Snapshot {
    /// `[{name, kind, unit, help, labels, samples: [[values of the labels, value]]}]`. Counts are numbers, money is
    /// decimal text, a histogram is `{count, sum, buckets: [[bound, count so far, exemplar]]}` whose exemplar is
    /// null or `[trace id, duration in seconds, Unix time]`.
    pub fn to_plain(&self) -> Json {
        let families = Metric::ALL.iter().map(|metric| {
            let row = metric.describe();
            let of_family = self.samples.iter().filter(|sample| sample.metric == *metric);
            json!({
                "name": row.name,
                "kind": match row.kind {
                    Kind::Counter => "counter",
                    Kind::Gauge => "gauge",
                    Kind::Histogram(_) => "histogram",
                },
                "unit": match row.unit {
                    Unit::None => "",
                    Unit::Tokens => "tokens",
                    Unit::Usd => "usd",
                    Unit::Seconds => "seconds",
                    Unit::Milliseconds => "milliseconds",
                },
                "help": row.help,
                "labels": row.labels.iter().map(|label| label.name()).collect::<Vec<_>>(),
                "samples": of_family.map(sample).collect::<Vec<_>>(),
            })
        });
        Json::Array(families.collect())
    }
}

fn sample(sample: &Sample) -> Json {
    let value = match &sample.value {
        Value::Count(count) => json!(count),
        Value::Money(pico_usd) => json!(Decimal(*pico_usd, 12).to_string()),
        Value::Number(number) => json!(number),
        Value::Histogram(histogram) => buckets(histogram),
    };
    json!([sample.labels, value])
}

fn buckets(histogram: &Histogram) -> Json {
    let bounds = histogram
        .buckets()
        .map(|(bound, count)| (seconds(bound), count))
        .chain(std::iter::once((String::from("+Inf"), histogram.count())));
    let buckets = bounds.zip(histogram.exemplars()).map(|((bound, count), exemplar)| {
        let exemplar =
            exemplar.map(|(duration, seen)| json!([seen.trace_id, duration.as_secs_f64(), seen.ts]));
        json!([bound, count, exemplar])
    });
    json!({
        "count": histogram.count(),
        "sum": seconds(histogram.sum()),
        "buckets": buckets.collect::<Vec<_>>(),
    })
}

fn seconds(duration: Duration) -> String {
    Decimal(duration.as_nanos(), 9).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TraceId;
    use crate::metrics::record::Exemplar;
    use crate::metrics::{CallRecord, Cost, LatencySummary, Metrics};

    #[test]
    fn every_family_is_told_with_its_samples() {
        let trace_id = TraceId::parse(&"a".repeat(32)).unwrap();
        let metrics = Metrics::default();
        let record = CallRecord {
            model: "m",
            route: "r",
            outcome: "ok",
            attempts: 1,
            duration: Duration::from_millis(15),
            time_to_first_chunk: None,
            tokens: &[],
            cost: Some(Cost { reported: 144_000_000, estimated: 0 }),
            unpriced: false,
            usage_missing: false,
            exemplar: Some(Exemplar { trace_id, ts: 2.5 }),
        };
        metrics.call(&record, crate::clock::Instant::ZERO);
        let plain = metrics.snapshot(crate::clock::Instant::ZERO, &[]).to_plain();
        let families = plain.as_array().unwrap();
        assert_eq!(families.len(), Metric::ALL.len());
        let family = |name: &str| families.iter().find(|family| family["name"] == name).unwrap();
        assert_eq!(family("cost_usd_total")["samples"], json!([[[], "0.000144"]]));
        assert_eq!(family("tidegate_calls_total")["samples"], json!([[["m", "ok"], 1]]));
        assert_eq!(family("tidegate_in_flight")["samples"], json!([]));
        let duration = &family("tidegate_request_duration_seconds")["samples"][0];
        assert_eq!(duration[0], json!(["m", "ok"]));
        assert_eq!(duration[1]["sum"], "0.015");
        assert_eq!(duration[1]["buckets"][0], json!(["0.01", 0, null]));
        assert_eq!(duration[1]["buckets"][1], json!(["0.02", 1, ["a".repeat(32), 0.015, 2.5]]));
        assert_eq!(duration[1]["buckets"][14], json!(["+Inf", 1, null]));
        let empty = Snapshot { samples: Vec::new(), latency: LatencySummary::default() }.to_plain();
        assert_eq!(empty.as_array().unwrap().len(), Metric::ALL.len());
    }
}
