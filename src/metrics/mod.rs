//! Counts calls for almost nothing, and tells the counts as numbers and as Prometheus text.
//!
//! One mutex is held for the few map look-ups of one event; nothing is allocated once a set of label values
//! has been seen. Reading copies the state under the mutex and renders outside it. However many names callers
//! invent, the number of series stays within [`LabelLimits`].

mod exposition;
mod histogram;
mod labels;
mod latency;
mod metric;
mod plain;
mod record;
mod registry;
mod snapshot;

use std::time::Duration;

use crate::lock::Mutex;

pub use exposition::CONTENT_TYPE;
pub use histogram::Histogram;
pub use labels::{LabelLimits, MAX_VALUE_BYTES, OTHER};
pub use latency::{LatencySummary, MINIMUM_SAMPLES};
pub use metric::{Description, Kind, Label, Metric, Unit};
pub use record::{CallRecord, Cost, Direction, Exemplar, Gauge, IdempotencyOutcome, OK, TokenCount};
pub use registry::Value;
pub use snapshot::{Sample, Snapshot};

use crate::clock::Instant;
use crate::error::{ConfigError, Reason};
use latency::LatencyWindow;
use registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsOptions {
    pub labels: LabelLimits,
    /// How far back percentiles of latency look. Default 5 minutes.
    pub latency_window: Duration,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self { labels: LabelLimits::default(), latency_window: Duration::from_secs(300) }
    }
}

impl MetricsOptions {
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.labels.validate()?;
        let window = self.latency_window;
        if window < Duration::from_secs(1) {
            let rule = "must be at least 1 second";
            return Err(ConfigError::new("metrics.latency_window", window.as_secs_f64(), rule));
        }
        Ok(())
    }
}

/// Everything that is counted. Shared by all threads.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
struct State {
    registry: Registry,
    latency: LatencyWindow,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(MetricsOptions::default())
    }
}

impl Metrics {
    pub fn new(options: MetricsOptions) -> Self {
        let registry = Registry::new(options.labels);
        let latency = LatencyWindow::new(options.latency_window);
        Self { state: Mutex::new(State { registry, latency }) }
    }

    /// Keeps a label value from being folded, whatever names come before it. For values that the user
    /// configured: models with a price or a limit, tools that are registered.
    pub fn know(&self, label: Label, value: &str) {
        self.state.lock().registry.know(label, value);
    }

    /// A logical call has ended.
    pub fn call(&self, call: &CallRecord<'_>, now: Instant) {
        let mut state = self.state.lock();
        call.count(&mut state.registry);
        // A call that was never sent, or that the caller gave up, says nothing about the provider.
        if call.attempts > 0 && call.outcome != Reason::Cancelled.as_str() {
            state.latency.record(call.duration, now);
        }
    }

    /// A request that was put on the wire has ended. `outcome` is [`OK`] or a class of failure.
    pub fn attempt(&self, model: &str, outcome: &str) {
        self.count(Metric::Attempts, [model, outcome]);
    }

    /// An attempt after the first is about to be sent.
    pub fn retry(&self, reason: &str) {
        self.count(Metric::Retries, [reason]);
    }

    pub fn tool_call(&self, tool: &str, status: &str) {
        self.count(Metric::ToolCalls, [tool, status]);
    }

    pub fn idempotency(&self, outcome: IdempotencyOutcome) {
        let registry = &mut self.state.lock().registry;
        let label = registry.intern(Label::Outcome, outcome.as_str());
        registry.count(Metric::Idempotency, [label], 1);
        if outcome.is_suppression() {
            registry.count(Metric::IdempotencySuppressed, [], 1);
        }
    }

    pub fn breaker_opened(&self) {
        self.count(Metric::BreakerOpened, []);
    }

    pub fn breaker_rejected(&self) {
        self.count(Metric::BreakerRejections, []);
    }

    /// Results came for a state that the breaker has left.
    pub fn breaker_late(&self, results: u64) {
        self.state.lock().registry.count(Metric::BreakerLate, [], results);
    }

    /// An attempt was admitted after `wait` in the queue, zero included.
    pub fn admitted(&self, wait: Duration) {
        self.state.lock().registry.observe(Metric::AdmissionWait, [], wait, None);
    }

    pub fn admission_refused(&self, reason: &str) {
        self.count(Metric::AdmissionRefused, [reason]);
    }

    /// A layer around the gate has made a failed request again.
    pub fn stacked(&self) {
        self.count(Metric::StackedRetries, []);
    }

    pub fn degraded(&self, kind: &str) {
        self.count(Metric::Degraded, [kind]);
    }

    /// Everything counted so far, and the state that `gauges` give. Gauges with equal labels are added up.
    pub fn snapshot(&self, now: Instant, gauges: &[Gauge<'_>]) -> Snapshot {
        let State { mut registry, latency } = self.state.lock().clone();
        for gauge in gauges {
            gauge.set(&mut registry);
        }
        let latency = latency.summary(now);
        if let Some(p95) = latency.p95 {
            registry.gauge(Metric::LatencyP95, [], p95.as_secs_f64() * 1000.0);
        }
        Snapshot::new(&registry, latency)
    }

    /// Durations in the window of the percentiles and how often they came, ascending; each is within 1.6 %. From
    /// these the percentile over several processes can be told.
    pub fn latency_counts(&self, now: Instant) -> Vec<(Duration, u32)> {
        self.state.lock().latency.clone().counts(now)
    }

    fn count<const N: usize>(&self, metric: Metric, values: [&str; N]) {
        let registry = &mut self.state.lock().registry;
        let labels = registry.intern_all(metric, values);
        registry.count(metric, labels, 1);
    }
}
