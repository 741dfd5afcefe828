//! What counting and logging cost: everything that one streamed call records, by label sets that are known and by
//! names that are always new; the lines of its log; and one reading.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate::account::{Account, Sums};
use tidegate::clock::Instant;
use tidegate::event::{Digest, Event, Facts, Kind, SCHEMA, SpanId, Tags, TraceId};
use tidegate::log_file::LogFile;
use tidegate::metrics::{CallRecord, Cost, Direction, Exemplar, Gauge, Metrics, OK, TokenCount};
use tidegate::money::Pico;

const TOKENS: &[TokenCount] = &[
    TokenCount { direction: Direction::Input, kind: "text", tokens: 86 },
    TokenCount { direction: Direction::Input, kind: "cached", tokens: 1920 },
    TokenCount { direction: Direction::Output, kind: "text", tokens: 108 },
    TokenCount { direction: Direction::Output, kind: "reasoning", tokens: 192 },
];

fn trace_id() -> TraceId {
    TraceId::parse("0123456789abcdef0123456789abcdef").expect("32 hex digits")
}

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
            cost: Some(Cost { reported: 144_000_000, estimated: 0 }),
            unpriced: false,
            usage_missing: false,
            exemplar: Some(Exemplar { trace_id: trace_id(), ts: 1.5 }),
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

fn account(c: &mut Criterion) {
    let account = Account::default();
    let tags: Tags = [("route", "summarise"), ("tenant", "acme")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let (model, tags, wall) = (Arc::from("gpt-4.1-mini-2025-04-14"), Arc::new(tags), SystemTime::UNIX_EPOCH);
    let sums = Sums { calls: 1, attempts: 1, prompt_tokens: 2006, completion_tokens: 300, ..Sums::default() };
    c.bench_function("usage of one call with two tags", |b| {
        b.iter(|| account.add(wall, black_box(&model), Some(&tags), &sums));
    });
}

fn log(c: &mut Criterion) {
    let path = std::env::temp_dir().join(format!("tidegate-bench-{}.jsonl", std::process::id()));
    let log = LogFile::open(&path, None).expect("a file in the temporary folder");
    let event = |kind, facts| Event {
        schema: SCHEMA,
        ts: 1_796_026_753.926_612_9,
        event: kind,
        gate: Digest(1),
        trace_id: trace_id(),
        span_id: SpanId::parse("0123456789abcdef").expect("16 hex digits"),
        parent_span_id: None,
        origin: "https://api.openai.com".into(),
        model: "gpt-4.1-mini-2025-04-14".into(),
        facts,
        tags: None,
    };
    let attempt = Facts {
        attempt: Some(1),
        outcome: Some("success"),
        status: Some(200),
        request_id: Some(String::from("req_0123456789abcdef0123456789abcdef")),
        latency_s: Some(1.234_567_891),
        ..Facts::default()
    };
    let call = Facts {
        attempts: Some(1),
        outcome: Some(OK),
        latency_s: Some(1.234_667_891),
        first_byte_s: Some(0.321_987_654),
        queue_s: Some(0.000_003_21),
        prompt_tokens: Some(2006),
        cached_tokens: Some(1920),
        completion_tokens: Some(300),
        reasoning_tokens: Some(192),
        usage: Some("reported"),
        cost_usd: Some(Pico::new(144_000_000)),
        ..Facts::default()
    };
    let events = [event(Kind::Attempt, attempt), event(Kind::Call, call)];
    c.bench_function("the two lines of one call", |b| {
        b.iter(|| {
            for event in &events {
                log.write(black_box(event)).expect("room on the disk");
            }
        });
    });
    drop(log);
    std::fs::remove_file(path).expect("the file is there");
}

criterion_group!(benches, metrics, account, log);
criterion_main!(benches);
