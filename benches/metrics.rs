//! What counting costs: everything that one streamed call records, by label sets that are known and by names
//! that are always new, and one reading.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate::clock::Instant;
use tidegate::metrics::{CallRecord, Cost, Direction, Gauge, Metrics, OK, TokenCount};

const TOKENS: &[TokenCount] = &[
    TokenCount { direction: Direction::Input, kind: "text", tokens: 86 },
    TokenCount { direction: Direction::Input, kind: "cached", tokens: 1920 },
    TokenCount { direction: Direction::Output, kind: "text", tokens: 108 },
    TokenCount { direction: Direction::Output, kind: "reasoning", tokens: 192 },
];

fn record_call(metrics: &Metrics, model: &str, now: Instant) {
    metrics.admitted(Duration::from_micros(3));
    metrics.attempt(model, OK);
    metrics.call(
        &CallRecord {
            model,
            route: "summarise",
            outcome: OK,
            attempts: 1,
            duration: Duration::from_millis(1234),
            time_to_first_chunk: Some(Duration::from_millis(321)),
            tokens: TOKENS,
            cost: Cost::Priced { pico_usd: 144_000_000, estimated: false },
            usage_missing: false,
            exemplar: None,
        },
        now,
    );
}

fn metrics(c: &mut Criterion) {
    let now = Instant::from_nanos(3_600_000_000_000);
    let mut group = c.benchmark_group("metrics");

    let known = Metrics::default();
    group.bench_function("one streamed call", |b| {
        b.iter(|| record_call(&known, black_box("gpt-4.1-mini-2025-04-14"), now));
    });

    let flooded = Metrics::default();
    for number in 0..1000 {
        record_call(&flooded, &format!("model-{number}"), now);
    }
    group.bench_function("one streamed call, model folded", |b| {
        b.iter(|| record_call(&flooded, black_box("not-seen-before"), now));
    });

    let gauges = [Gauge::InFlight(3), Gauge::BreakerState { scope: "api.openai.com/gpt", state: "closed" }];
    group.bench_function("text of 20 models", |b| {
        let few = Metrics::default();
        for number in 0..20 {
            record_call(&few, &format!("model-{number}"), now);
        }
        b.iter(|| few.snapshot(now, black_box(&gauges)).to_prometheus());
    });
    group.finish();
}

criterion_group!(benches, metrics);
criterion_main!(benches);
