//! The registry as a whole: against a naive model, by its text, under floods of names and threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::clock::Instant;
use tidegate::metrics::{
    CallRecord, Cost, Direction, Gauge, IdempotencyOutcome, Kind, Label, LabelLimits, Metric, Metrics,
    MetricsOptions, OK, OTHER, Snapshot, TokenCount, Unit, Value,
};

const NOW: Instant = Instant::from_nanos(3_600_000_000_000);
const TOKENS: &[TokenCount] = &[
    TokenCount { direction: Direction::Input, kind: "text", tokens: 12 },
    TokenCount { direction: Direction::Output, kind: "text", tokens: 5 },
    TokenCount { direction: Direction::Output, kind: "reasoning", tokens: 0 },
];

fn call<'a>(model: &'a str, outcome: &'a str) -> CallRecord<'a> {
    CallRecord {
        model,
        route: "",
        outcome,
        attempts: 1,
        duration: Duration::from_millis(100),
        time_to_first_chunk: Some(Duration::from_millis(10)),
        tokens: TOKENS,
        cost: Some(Cost { reported: 4_800_000, estimated: 0 }),
        unpriced: false,
        usage_missing: false,
        exemplar: None,
    }
}

/// Labels by name, and the value as it is printed.
type Series = BTreeMap<BTreeMap<String, String>, String>;

/// A strict reader of the text format: each rule that a scraper may rely on is a panic here. Returns the
/// series by the name on their line.
fn parse(text: &str) -> BTreeMap<String, Series> {
    let mut families = BTreeSet::new();
    let mut family = (String::new(), String::new());
    let mut parsed: BTreeMap<String, Series> = BTreeMap::new();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is not ended");
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        assert!(!line.contains(char::is_control), "control character in {line:?}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help text");
            assert!(!words.is_empty());
            assert!(families.insert(name.to_owned()), "{name} is not in one piece");
            let kind =
                lines.next().expect("a type").strip_prefix(&format!("# TYPE {name} ")).expect("a type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert!(lines.peek().is_some_and(|next| next.starts_with(name)), "{name} is empty");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let (name, labels, value) = parse_sample(line);
        let suffixes: &[&str] = if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.iter().any(|suffix| name == format!("{}{suffix}", family.0)), "{line} is misplaced");
        let number: f64 = value.parse().expect("a number");
        assert!(family.1 == "gauge" || number >= 0.0, "{line}");
        let earlier = parsed.entry(name).or_default().insert(labels, value);
        assert_eq!(earlier, None, "{line} stands twice");
    }
    check_histograms(&parsed);
    parsed
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, String) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = line.find(|c| !is_name(c)).expect("something after the name");
    let (name, mut rest) = line.split_at(end);
    assert!(!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inner.split_once("=\"").expect("a label");
            assert!(!label.is_empty() && label.chars().all(is_name), "{line}");
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("an end of the value") {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().expect("an escape").1 {
                        'n' => '\n',
                        same @ ('"' | '\\') => same,
                        other => panic!("escape {other} in {line}"),
                    }),
                    (_, other) => value.push(other),
                }
            };
            assert!(value.len() <= 128, "{line}");
            assert_eq!(labels.insert(label.to_owned(), value), None, "{label} stands twice in {line}");
            inner = &after[end + 1..];
            if let Some(after) = inner.strip_prefix('}') {
                rest = after;
                break;
            }
            inner = inner.strip_prefix(',').expect("a comma");
        }
    }
    let value = rest.strip_prefix(' ').expect("one blank before the value");
    assert!(!value.contains(' '), "{line}");
    (name.to_owned(), labels, value.to_owned())
}

fn check_histograms(parsed: &BTreeMap<String, Series>) {
    for (name, series) in parsed {
        let Some(base) = name.strip_suffix("_bucket") else { continue };
        let mut histograms: BTreeMap<BTreeMap<String, String>, Vec<(f64, u64)>> = BTreeMap::new();
        for (labels, value) in series {
            let mut labels = labels.clone();
            let bound = labels.remove("le").expect("a bound").parse().expect("a number");
            histograms.entry(labels).or_default().push((bound, value.parse().expect("a count")));
        }
        for (labels, mut buckets) in histograms {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by_key(|bucket| bucket.1), "{name} {labels:?} is not cumulative");
            let last = buckets.last().expect("a bucket");
            assert!(last.0.is_infinite());
            assert_eq!(parsed[&format!("{base}_count")][&labels], last.1.to_string());
            assert!(parsed[&format!("{base}_sum")].contains_key(&labels));
        }
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn count(snapshot: &Snapshot, metric: Metric, labels: &[&str]) -> u64 {
    match snapshot.value(metric, labels) {
        Some(Value::Count(count)) => *count,
        other => panic!("{metric:?} {labels:?} is {other:?}"),
    }
}

#[test]
fn the_six_names_and_labels() {
    let row = |metric: Metric| {
        let row = metric.describe();
        (row.name, row.labels.iter().map(|label| label.name()).collect::<Vec<_>>())
    };
    assert_eq!(row(Metric::ToolCalls), ("tool_call_total", vec!["tool", "status"]));
    assert_eq!(row(Metric::Retries), ("retry_total", vec!["reason"]));
    assert_eq!(row(Metric::IdempotencySuppressed), ("idempotency_suppressed_total", vec![]));
    assert_eq!(row(Metric::BreakerOpened), ("breaker_open_total", vec![]));
    assert_eq!(row(Metric::LatencyP95), ("llm_latency_ms_p95", vec![]));
    assert_eq!(row(Metric::Cost), ("cost_usd_total", vec![]));
    for metric in &Metric::ALL[6..] {
        assert!(metric.describe().name.starts_with("tidegate_"));
    }
}

#[test]
fn what_is_recorded_can_be_read() {
    let metrics = Metrics::default();
    metrics.tool_call("charge", "ok");
    metrics.retry("server_error");
    metrics.retry("server_error");
    for outcome in [
        IdempotencyOutcome::Executed,
        IdempotencyOutcome::Replay,
        IdempotencyOutcome::Joined,
        IdempotencyOutcome::Mismatch,
    ] {
        metrics.idempotency(outcome);
    }
    metrics.breaker_opened();
    metrics.breaker_rejected();
    metrics.breaker_late(1);
    metrics.admitted(Duration::from_millis(2));
    metrics.admission_refused("admission_deadline");
    metrics.degraded("last_good");
    metrics.attempt("m", "server_error");
    metrics.attempt("m", OK);
    metrics.call(&CallRecord { route: "r", ..call("m", OK) }, NOW);
    metrics.call(&CallRecord { cost: None, unpriced: true, usage_missing: true, ..call("n", OK) }, NOW);
    metrics.call(
        &CallRecord { cost: Some(Cost { reported: 0, estimated: 1 }), ..call("m", "interrupted") },
        NOW,
    );
    let gauges = [
        Gauge::InFlight(2),
        Gauge::InFlight(3),
        Gauge::AdmissionQueued(7),
        Gauge::BreakerState { scope: "host/m", state: "open" },
        Gauge::RetryBudgetBalance { scope: "host/m", balance: 2.5 },
        Gauge::Spend { cap: "daily", pico_usd: 1_500_000_000_000, limit_pico_usd: 2_000_000_000_000 },
    ];
    let parsed = parse(&metrics.snapshot(NOW, &gauges).to_prometheus());
    for (name, pairs, value) in [
        ("tool_call_total", &[("tool", "charge"), ("status", "ok")][..], "1"),
        ("retry_total", &[("reason", "server_error")], "2"),
        ("idempotency_suppressed_total", &[], "2"),
        ("tidegate_idempotency_total", &[("outcome", "mismatch")], "1"),
        ("breaker_open_total", &[], "1"),
        ("cost_usd_total", &[], "0.000004800001"),
        ("tidegate_calls_total", &[("model", "m"), ("outcome", "ok")], "1"),
        ("tidegate_calls_total", &[("model", "m"), ("outcome", "interrupted")], "1"),
        ("tidegate_attempts_total", &[("model", "m"), ("outcome", "server_error")], "1"),
        ("tidegate_tokens_total", &[("model", "m"), ("direction", "input"), ("kind", "text")], "24"),
        ("tidegate_tokens_total", &[("model", "m"), ("direction", "output"), ("kind", "text")], "10"),
        ("tidegate_cost_usd_total", &[("model", "m"), ("route", "r"), ("estimated", "false")], "0.0000048"),
        (
            "tidegate_cost_usd_total",
            &[("model", "m"), ("route", ""), ("estimated", "true")],
            "0.000000000001",
        ),
        ("tidegate_calls_unpriced_total", &[("model", "n")], "1"),
        ("tidegate_answers_without_usage_total", &[("model", "n")], "1"),
        ("tidegate_request_duration_seconds_sum", &[("model", "m"), ("outcome", "ok")], "0.1"),
        (
            "tidegate_request_duration_seconds_bucket",
            &[("model", "m"), ("outcome", "ok"), ("le", "0.08")],
            "0",
        ),
        (
            "tidegate_request_duration_seconds_bucket",
            &[("model", "m"), ("outcome", "ok"), ("le", "0.16")],
            "1",
        ),
        ("tidegate_time_to_first_chunk_seconds_bucket", &[("model", "m"), ("le", "0.01")], "2"),
        ("tidegate_admission_wait_seconds_count", &[], "1"),
        ("tidegate_admission_refused_total", &[("reason", "admission_deadline")], "1"),
        ("tidegate_breaker_rejections_total", &[], "1"),
        ("tidegate_breaker_late_total", &[], "1"),
        ("tidegate_degraded_total", &[("kind", "last_good")], "1"),
        ("tidegate_in_flight", &[], "5"),
        ("tidegate_admission_queued", &[], "7"),
        ("tidegate_breaker_state", &[("scope", "host/m"), ("state", "open")], "1"),
        ("tidegate_breaker_state", &[("scope", "host/m"), ("state", "closed")], "0"),
        ("tidegate_retry_budget_balance", &[("scope", "host/m")], "2.5"),
        ("tidegate_spend_usd", &[("cap", "daily")], "1.5"),
        ("tidegate_spend_limit_usd", &[("cap", "daily")], "2"),
    ] {
        assert_eq!(parsed[name][&labels(pairs)], value, "{name}{pairs:?}");
    }
    assert!(!parsed.contains_key("llm_latency_ms_p95"), "three samples have no percentile");
    let again = parse(&metrics.snapshot(NOW, &[]).to_prometheus());
    assert!(!again.contains_key("tidegate_in_flight"), "a gauge lives for one reading");
}

#[test]
fn counters_without_labels_are_there_from_the_start() {
    let snapshot = Metrics::default().snapshot(NOW, &[]);
    let parsed = parse(&snapshot.to_prometheus());
    for name in ["idempotency_suppressed_total", "breaker_open_total", "cost_usd_total"] {
        assert_eq!(parsed[name][&labels(&[])], "0");
    }
    assert_eq!(snapshot.latency.p95, None);
}

#[test]
fn the_p95_is_of_recent_calls_that_were_sent_and_not_given_up() {
    let metrics = Metrics::default();
    for millis in 1..=100 {
        metrics.call(&CallRecord { duration: Duration::from_millis(millis), ..call("m", OK) }, NOW);
        let refused = CallRecord { attempts: 0, duration: Duration::ZERO, ..call("m", "breaker_open") };
        metrics.call(&refused, NOW);
        metrics.call(&CallRecord { duration: Duration::from_secs(60), ..call("m", "cancelled") }, NOW);
    }
    let snapshot = metrics.snapshot(NOW, &[]);
    assert_eq!(snapshot.latency.count, 100);
    let Some(Value::Number(p95)) = snapshot.value(Metric::LatencyP95, &[]) else { panic!("no p95") };
    assert!((p95 - 95.0).abs() <= 95.0 / 64.0, "{p95}");
    let later = NOW + Duration::from_secs(300);
    assert_eq!(metrics.snapshot(later, &[]).value(Metric::LatencyP95, &[]), None);
}

/// The generators of the field case on label cardinality.
fn name(rng: &mut SmallRng, generator: usize) -> String {
    let letters: String = (0..12).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect();
    match generator {
        0 => letters,
        1 => format!("{letters}{}", "é".repeat(100)),
        2 => format!("{letters}\n\"\\\0🌍{letters}"),
        _ => format!("no such model (request id req_{letters})"),
    }
}

#[test]
fn random_names_fold_and_known_models_keep_theirs() {
    const CALLS: u64 = 10_000;
    let metrics = Metrics::default();
    for model in ["gpt-a", "gpt-b"] {
        metrics.know(Label::Model, model);
    }
    let mut rng = SmallRng::seed_from_u64(101);
    for number in 0..CALLS {
        let generator = usize::try_from(number % 4).unwrap();
        let model = name(&mut rng, generator);
        let route = name(&mut rng, generator);
        metrics.call(&CallRecord { route: &route, ..call(&model, "non_retryable") }, NOW);
        metrics.tool_call(&model, &route);
        metrics.retry(&route);
        metrics.call(&call(if number % 2 == 0 { "gpt-a" } else { "gpt-b" }, OK), NOW);
    }
    let snapshot = metrics.snapshot(NOW, &[]);
    assert_eq!(count(&snapshot, Metric::Calls, &["gpt-a", OK]), CALLS / 2);
    assert_eq!(count(&snapshot, Metric::Calls, &["gpt-b", OK]), CALLS / 2);
    assert_eq!(count(&snapshot, Metric::Calls, &[OTHER, "non_retryable"]), CALLS - 40);
    assert_eq!(snapshot.count(Metric::Calls), 2 * CALLS, "folding loses nothing");
    assert_eq!(snapshot.count(Metric::ToolCalls), CALLS);
    assert_eq!(snapshot.count(Metric::RequestDuration), 2 * CALLS);
    assert_eq!(snapshot.pico_usd(Metric::CostByModel), snapshot.pico_usd(Metric::Cost));

    let limits = LabelLimits::default();
    for metric in Metric::ALL {
        let series = snapshot.samples.iter().filter(|sample| sample.metric == *metric).count();
        let words = 101;
        assert!(series <= limits.sets + words, "{metric:?} has {series} series");
    }
    let durations = snapshot.samples.iter().filter(|sample| sample.metric == Metric::RequestDuration);
    assert!(durations.count() <= limits.histogram_values + 1 + 2);
    parse(&snapshot.to_prometheus());
}

#[test]
fn a_million_names_do_not_grow_the_text() {
    let metrics = Metrics::default();
    for number in 0..1_000_000 {
        let model = format!("model-{number}");
        metrics.attempt(&model, OK);
        if number < 10_000 {
            metrics.call(&call(&model, OK), NOW);
        }
    }
    let text = metrics.snapshot(NOW, &[]).to_prometheus();
    assert!(text.len() < 100_000, "{} bytes", text.len());
    let parsed = parse(&text);
    assert_eq!(
        parsed["tidegate_calls_total"][&labels(&[("model", OTHER), ("outcome", OK)])],
        (10_000 - 40).to_string()
    );
}

/// What a caller may name freely, over all of a gate's metrics at once.
#[test]
fn a_million_models_and_tags_with_every_outcome_stay_below_100_kb() {
    // Without optimisation a tenth of them takes as long.
    const CALLS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let metrics = Metrics::default();
    let mut rng = SmallRng::seed_from_u64(1);
    for number in 0..CALLS {
        let (model, route) = (format!("vendor/model-{number}"), format!("tenant-{number}"));
        let outcome = ["ok", "rate_limit", "server_error", "cancelled"][rng.random_range(0..4)];
        let unpriced = number % 2 == 0;
        let cost = (!unpriced).then_some(Cost { reported: number.into(), estimated: (number % 3).into() });
        metrics.call(
            &CallRecord {
                route: &route,
                cost,
                unpriced,
                usage_missing: number % 5 == 0,
                ..call(&model, outcome)
            },
            NOW,
        );
        metrics.attempt(&model, outcome);
        if number % 10 == 0 {
            metrics.tool_call(&format!("tool-{number}"), outcome);
        }
    }
    let scopes: Vec<String> =
        (0..1024).map(|number| format!("https://api.openai.com vendor/model-{number}")).collect();
    let gauges: Vec<Gauge<'_>> = scopes
        .iter()
        .flat_map(|scope| {
            [
                Gauge::BreakerState { scope, state: "closed" },
                Gauge::RetryBudgetBalance { scope, balance: 2.5 },
            ]
        })
        .collect();
    let text = metrics.snapshot(NOW, &gauges).to_prometheus();
    assert!(text.len() < 100_000, "{} bytes", text.len());
    let parsed = parse(&text);
    let total: u64 = parsed["tidegate_calls_total"].values().map(|count| count.parse::<u64>().unwrap()).sum();
    assert_eq!(total, CALLS, "what is folded is still counted");
}

#[test]
fn many_threads_lose_nothing() {
    const THREADS: u64 = 64;
    const CALLS: u64 = 500;
    let metrics = Metrics::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let metrics = &metrics;
            scope.spawn(move || {
                let model = format!("model-{}", thread % 8);
                for number in 0..CALLS {
                    metrics.attempt(&model, OK);
                    metrics.call(&call(&model, OK), NOW);
                    metrics.tool_call("t", if number % 2 == 0 { "ok" } else { "error" });
                    if number % 100 == 0 {
                        parse(&metrics.snapshot(NOW, &[Gauge::InFlight(1)]).to_prometheus());
                    }
                }
            });
        }
    });
    let snapshot = metrics.snapshot(NOW, &[]);
    assert_eq!(snapshot.count(Metric::Calls), THREADS * CALLS);
    assert_eq!(snapshot.count(Metric::Attempts), THREADS * CALLS);
    assert_eq!(snapshot.count(Metric::RequestDuration), THREADS * CALLS);
    assert_eq!(count(&snapshot, Metric::ToolCalls, &["t", "error"]), THREADS * CALLS / 2);
    assert_eq!(count(&snapshot, Metric::Tokens, &["model-3", "input", "text"]), THREADS / 8 * CALLS * 12);
    assert_eq!(snapshot.pico_usd(Metric::Cost), u128::from(THREADS * CALLS) * 4_800_000);
    assert_eq!(snapshot.latency.count, THREADS * CALLS);
}

#[derive(Debug, Clone)]
enum Event {
    Tool(u8, u8),
    Retry(u8),
    Call { model: u8, route: u8, ok: bool, pico_usd: u64, millis: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u8..9, 0_u8..3).prop_map(|(tool, status)| Event::Tool(tool, status)),
        (0_u8..4).prop_map(Event::Retry),
        (0_u8..9, 0_u8..3, any::<bool>(), any::<u64>(), 0_u64..200_000).prop_map(
            |(model, route, ok, pico_usd, millis)| Event::Call { model, route, ok, pico_usd, millis }
        ),
    ]
}

/// The first values keep their name; the others share one.
struct NaiveLabel {
    kept: Vec<String>,
    limit: usize,
}

impl NaiveLabel {
    fn name(&mut self, value: String) -> String {
        if self.kept.contains(&value) {
            return value;
        }
        if self.kept.len() == self.limit {
            return OTHER.to_owned();
        }
        self.kept.push(value.clone());
        value
    }
}

proptest! {
    #[test]
    fn equals_a_naive_model(events in prop::collection::vec(event(), 0..200)) {
        const LIMIT: usize = 5;
        let metrics = Metrics::new(MetricsOptions {
            labels: LabelLimits { values: LIMIT, histogram_values: 2, sets: 1000, histogram_sets: 1000 },
            ..MetricsOptions::default()
        });
        let mut models = NaiveLabel { kept: Vec::new(), limit: LIMIT };
        let mut tools = NaiveLabel { kept: Vec::new(), limit: LIMIT };
        let mut counts: BTreeMap<(&str, Vec<String>), u64> = BTreeMap::new();
        let mut money: BTreeMap<Vec<String>, u128> = BTreeMap::new();
        let mut durations: BTreeMap<Vec<String>, Vec<u64>> = BTreeMap::new();
        for event in events {
            match event {
                Event::Tool(tool, status) => {
                    metrics.tool_call(&format!("t{tool}"), &format!("s{status}"));
                    let labels = vec![tools.name(format!("t{tool}")), format!("s{status}")];
                    *counts.entry(("tool_call_total", labels)).or_default() += 1;
                }
                Event::Retry(reason) => {
                    metrics.retry(&format!("r{reason}"));
                    *counts.entry(("retry_total", vec![format!("r{reason}")])).or_default() += 1;
                }
                Event::Call { model, route, ok, pico_usd, millis } => {
                    let (model, route) = (format!("m{model}"), format!("r{route}"));
                    let outcome = if ok { OK } else { "attempts" };
                    let record = CallRecord {
                        route: &route,
                        cost: Some(if ok { Cost { reported: pico_usd.into(), estimated: 0 } } else { Cost { reported: 0, estimated: pico_usd.into() } }),
                        duration: Duration::from_millis(millis),
                        ..call(&model, outcome)
                    };
                    metrics.call(&record, NOW);
                    let model = models.name(model);
                    *counts
                        .entry(("tidegate_calls_total", vec![model.clone(), outcome.to_owned()]))
                        .or_default() += 1;
                    *money.entry(vec![model.clone(), route, (!ok).to_string()]).or_default() +=
                        u128::from(pico_usd);
                    let own = models.kept.iter().take(2).any(|kept| *kept == model);
                    let model = if own { model } else { OTHER.to_owned() };
                    durations.entry(vec![model, outcome.to_owned()]).or_default().push(millis);
                }
            }
        }

        let snapshot = metrics.snapshot(NOW, &[]);
        let mut seen_counts = BTreeMap::new();
        let mut seen_money = BTreeMap::new();
        for sample in &snapshot.samples {
            let row = sample.metric.describe();
            match &sample.value {
                // Some are there before they have counted anything.
                Value::Count(count) if *count > 0 && !row.labels.is_empty() && row.unit != Unit::Tokens => {
                    seen_counts.insert((row.name, sample.labels.clone()), *count);
                }
                Value::Money(pico_usd) if !row.labels.is_empty() => {
                    seen_money.insert(sample.labels.clone(), *pico_usd);
                }
                Value::Histogram(histogram) if sample.metric == Metric::RequestDuration => {
                    let expected = durations.remove(&sample.labels).unwrap_or_default();
                    prop_assert_eq!(histogram.count(), expected.len() as u64);
                    prop_assert_eq!(histogram.sum(), Duration::from_millis(expected.iter().sum()));
                    for (bound, count) in histogram.buckets() {
                        let within = expected.iter().filter(|m| Duration::from_millis(**m) <= bound);
                        prop_assert_eq!(count, within.count() as u64);
                    }
                }
                _ => {}
            }
            prop_assert!(matches!(
                (row.kind, &sample.value),
                (Kind::Counter, Value::Count(_) | Value::Money(_))
                    | (Kind::Gauge, Value::Number(_))
                    | (Kind::Histogram(_), Value::Histogram(_))
            ));
        }
        prop_assert_eq!(seen_counts, counts);
        prop_assert_eq!(snapshot.pico_usd(Metric::Cost), money.values().sum::<u128>());
        prop_assert_eq!(seen_money, money);
        prop_assert!(durations.is_empty());
        parse(&snapshot.to_prometheus());
    }
}
