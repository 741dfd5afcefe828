//! A gate seen from outside: its counters and the state of each scope, as data or as Prometheus' text.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::breaker::{OpenReason, State};
use crate::clock::{self, Instant};
use crate::config::{SpendCap, SpendWindow};
use crate::engine::Engine;
use crate::metrics::{self, Gauge, Metric};
use crate::money::Pico;
use crate::scope::Scope;
use crate::spend::{Moment, SpendLedger, Standing};

impl Engine {
    /// One JSON object. Times are seconds but for `latency_ms`, money is a decimal string of US dollars; what is
    /// not known is null.
    pub fn snapshot(&self, now: Instant) -> String {
        let counted = self.metrics().snapshot(now, &[]);
        let latency = &counted.latency;
        let ms = |latency: Option<Duration>| latency.map(|latency| latency.as_secs_f64() * 1000.0);
        let scopes: Vec<Value> = self.scopes().iter().map(|scope| scope_state(scope, now)).collect();
        json!({
            "calls": counted.count(Metric::Calls),
            "attempts": counted.count(Metric::Attempts),
            "retries": counted.count(Metric::Retries),
            "tokens": tokens(&counted),
            "cost_usd": Pico::new(counted.pico_usd(Metric::Cost)).to_string(),
            "calls_unpriced": counted.count(Metric::CallsUnpriced),
            "answers_without_usage": counted.count(Metric::AnswersWithoutUsage),
            "breaker_opened": counted.count(Metric::BreakerOpened),
            "latency_ms": {
                "count": latency.count,
                "min": ms(latency.min),
                "p50": ms(latency.p50),
                "p95": ms(latency.p95),
                "p99": ms(latency.p99),
                "max": ms(latency.max),
            },
            "scopes": scopes,
            "spend": self.spend().map_or_else(Vec::new, |ledger| standings(ledger, now)),
            "log_failed": self.log_failed(),
        })
        .to_string()
    }

    /// Prometheus' text format, version 0.0.4.
    pub fn metrics_text(&self, now: Instant) -> String {
        self.counted(now).to_prometheus()
    }

    /// The same as one JSON object: `families`, and `latencies`, pairs of milliseconds and how often they came in
    /// the window of the percentiles.
    pub fn metrics_plain(&self, now: Instant) -> String {
        let counts = self.metrics().latency_counts(now);
        let latencies: Vec<(f64, u32)> =
            counts.into_iter().map(|(latency, count)| (latency.as_secs_f64() * 1000.0, count)).collect();
        json!({ "families": self.counted(now).to_plain(), "latencies": latencies }).to_string()
    }

    /// What calls used and cost, as a JSON array of [`crate::account::Row`].
    pub fn usage(&self) -> String {
        serde_json::to_string(&self.account().rows()).unwrap_or_default()
    }

    fn counted(&self, now: Instant) -> metrics::Snapshot {
        let live: Vec<Live> = self.scopes().iter().map(|scope| Live::of(scope, now)).collect();
        // There are none before the first call, and yet nothing is in flight.
        let mut gauges = vec![Gauge::InFlight(0), Gauge::AdmissionQueued(0)];
        gauges.extend(live.iter().flat_map(Live::gauges));
        let caps = self.spend().map(|ledger| ledger.snapshot(Moment { now, wall: clock::wall() }));
        let caps: Vec<(String, Standing)> = caps
            .unwrap_or_default()
            .into_iter()
            .map(|standing| (cap_name(&standing.cap), standing))
            .collect();
        gauges.extend(caps.iter().map(|(cap, standing)| Gauge::Spend {
            cap,
            pico_usd: standing.spent.saturating_add(standing.reserved).get(),
            limit_pico_usd: standing.cap.limit.get(),
        }));
        self.metrics().snapshot(now, &gauges)
    }
}

fn tokens(counted: &metrics::Snapshot) -> Value {
    let mut directions = Map::new();
    for sample in counted.samples.iter().filter(|sample| sample.metric == Metric::Tokens) {
        let (Some(direction), metrics::Value::Count(count)) = (sample.labels.get(1), &sample.value) else {
            continue;
        };
        let total = directions.get(direction).and_then(Value::as_u64).unwrap_or_default();
        directions.insert(direction.clone(), (total + count).into());
    }
    directions.into()
}

fn scope_state(scope: &Scope, now: Instant) -> Value {
    let admission = scope.admission(now);
    let seconds = |duration: Duration| duration.as_secs_f64();
    let breaker = scope.breaker.as_ref().map(|breaker| {
        let breaker = breaker.lock().snapshot(now);
        json!({
            "state": breaker.state.as_str(),
            "reason": breaker.reason.map(OpenReason::as_str),
            "next_probe_s": breaker.next_probe_in.map(seconds),
            "calls_in_window": breaker.window.total,
            "failures_in_window": breaker.window.failures,
            "opened": breaker.opened_total,
            "late": breaker.late_total,
        })
    });
    let budget = scope.budget.as_ref().map(|budget| {
        let budget = budget.lock().snapshot(now);
        json!({ "balance": budget.balance, "capacity": budget.capacity })
    });
    let quota = |quota: Option<crate::admission::QuotaSnapshot>| {
        quota.map(|quota| {
            json!({
                "limit": quota.limit,
                "rate_per_minute": quota.rate,
                "level": quota.level,
                "capacity": quota.capacity,
            })
        })
    };
    json!({
        "origin": *scope.key.origin,
        "model": *scope.key.model,
        "in_flight": admission.in_flight,
        "queued": admission.queued,
        "longest_wait_s": seconds(admission.longest_wait),
        "blocked_s": admission.blocked_until.map(|until| seconds(until.since(now))),
        "requests": quota(admission.requests),
        "tokens": quota(admission.tokens),
        "breaker": breaker,
        "retry_budget": budget,
    })
}

fn standings(ledger: &SpendLedger, now: Instant) -> Vec<Value> {
    let standing = |standing: Standing| {
        json!({
            "limit_usd": standing.cap.limit,
            "window": standing.cap.window.to_string(),
            "tag": standing.cap.tag,
            "spent_usd": standing.spent,
            "reserved_usd": standing.reserved,
            "unpriced_calls": standing.unpriced,
            "resets_in_s": standing.resets_in.map(|wait| wait.as_secs_f64()),
        })
    };
    ledger.snapshot(Moment { now, wall: clock::wall() }).into_iter().map(standing).collect()
}

/// `day`, `total` or `60s`; `day route=summarise` for a cap on calls with a tag.
fn cap_name(cap: &SpendCap) -> String {
    let window = match cap.window {
        SpendWindow::Total => String::from("total"),
        SpendWindow::Day => String::from("day"),
        SpendWindow::Every(window) => format!("{}s", window.as_secs_f64()),
    };
    cap.tag.as_ref().map_or_else(|| window.clone(), |tag| format!("{window} {tag}"))
}

/// The live state of one scope that a scrape shows.
struct Live {
    name: Arc<str>,
    in_flight: u64,
    queued: u64,
    breaker: Option<State>,
    balance: Option<f64>,
}

impl Live {
    fn of(scope: &Scope, now: Instant) -> Self {
        let admission = scope.admission(now);
        Self {
            name: scope.name().into(),
            in_flight: admission.in_flight as u64,
            queued: admission.queued as u64,
            breaker: scope.breaker.as_ref().map(|breaker| breaker.lock().snapshot(now).state),
            balance: scope.budget.as_ref().map(|budget| budget.lock().snapshot(now).balance),
        }
    }

    fn gauges(&self) -> impl Iterator<Item = Gauge<'_>> {
        let breaker =
            self.breaker.map(|state| Gauge::BreakerState { scope: &self.name, state: state.as_str() });
        let balance = self.balance.map(|balance| Gauge::RetryBudgetBalance { scope: &self.name, balance });
        [Some(Gauge::InFlight(self.in_flight)), Some(Gauge::AdmissionQueued(self.queued)), breaker, balance]
            .into_iter()
            .flatten()
    }
}
