//! What is told and counted of a call, and its receipt at the end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::bill::{Asked, Bill};
use super::order::{CallInfo, Order, Outcome, Reply, UsageSource};
use super::read::Read;
use crate::account::Sums;
use crate::breaker::OpenReason;
use crate::call::Call;
use crate::clock::{self, Instant};
use crate::engine::{Engine, Upstream};
use crate::error::{CallError, Reason, TransportError};
use crate::event::{self, Digest, Event, FUNCTION, Facts, Kind, Level, Listener, SpanId, Tags, TraceId};
use crate::metrics::{self, CallRecord, Direction, Exemplar, TokenCount};
use crate::usage::Usage;

/// What is the same for every event of a call.
pub(super) struct Teller {
    pub(super) engine: Arc<Engine>,
    pub(super) origin: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) tags: Option<Arc<Tags>>,
    pub(super) identity: Identity,
    pub(super) notice: Option<Arc<str>>,
    pub(super) listener: Option<Arc<dyn Listener>>,
    /// Its call is counted by whoever makes it: a function under a key is counted with what became of the key.
    pub(super) counted_elsewhere: bool,
}

/// What tells in a log that two calls made the same request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Identity {
    fingerprint: Option<Digest>,
    idempotency_key: Option<Digest>,
}

impl Identity {
    pub(super) fn of(engine: &Engine, order: &Order) -> Self {
        let key = order.headers.get("idempotency-key");
        Self {
            fingerprint: Some(order.digest(engine)),
            idempotency_key: key.map(|key| engine.digest(key.as_bytes())),
        }
    }
}

impl Teller {
    pub(super) fn new(
        engine: &Arc<Engine>,
        upstream: &Upstream,
        model: &Arc<str>,
        order: &Order,
        listener: Option<Arc<dyn Listener>>,
    ) -> Self {
        let heard = engine.log_file().is_some()
            || listener.as_ref().is_some_and(|listener| listener.wants(Level::Info));
        Self {
            engine: Arc::clone(engine),
            origin: Arc::clone(&upstream.origin),
            model: Arc::clone(model),
            trace_id: order.trace_id.unwrap_or_else(|| engine.draw_trace_id()),
            span_id: order.span_id.unwrap_or_else(|| engine.draw_span_id()),
            parent: order.parent,
            tags: order.tags.clone(),
            identity: if heard { Identity::of(engine, order) } else { Identity::default() },
            notice: order.notice.clone(),
            listener,
            counted_elsewhere: false,
        }
    }

    /// Whether the attempts are a function of the caller's, and no requests.
    pub(super) fn is_function(&self) -> bool {
        *self.origin == *FUNCTION
    }

    pub(super) fn tell(&self, kind: Kind, facts: Facts) {
        let metrics = self.engine.metrics();
        match kind {
            Kind::Attempt if self.is_function() => {}
            Kind::Attempt => metrics.attempt(&self.model, facts.outcome.unwrap_or_default()),
            Kind::Retry => metrics.retry(facts.reason.unwrap_or_default()),
            Kind::Breaker if facts.reason == Some(OpenReason::FailureRate.as_str()) => {
                metrics.breaker_opened();
            }
            // A failed probe opens nothing that was not; the others are counted with more than the record holds.
            Kind::Breaker | Kind::Wait | Kind::Call | Kind::Tool => {}
            Kind::Stacked => metrics.stacked(),
            Kind::Degraded => metrics.degraded(facts.outcome.unwrap_or_default()),
        }
        // One warning is enough: it is about the program, not about the call.
        let level = match kind {
            Kind::Stacked if self.engine.warned_of_stacking() => Level::Debug,
            _ => facts.level(kind),
        };
        let listener = self.listener.as_deref().filter(|listener| listener.wants(level));
        if listener.is_none() && self.engine.log_file().is_none() {
            return;
        }
        let event = Event {
            schema: event::SCHEMA,
            ts: event::unix_seconds(clock::wall()),
            event: kind,
            gate: self.engine.id(),
            trace_id: self.trace_id,
            span_id: self.span_id,
            parent_span_id: self.parent,
            origin: Arc::clone(&self.origin),
            model: Arc::clone(&self.model),
            facts,
            tags: self.tags.clone(),
        };
        self.engine.write_log(&event);
        if let Some(listener) = listener {
            listener.hear(level, &event);
        }
    }
}

/// A call that is told of at its end, also where the caller leaves: what was sent may be billed.
pub(super) struct Told {
    pub(super) teller: Teller,
    pub(super) call: Call,
    pub(super) asked: Asked,
    /// What attempts used that failed.
    failed: Option<Bill>,
    concluded: bool,
}

impl Told {
    pub(super) fn new(teller: Teller, call: Call, asked: Asked) -> Self {
        Self { teller, call, asked, failed: None, concluded: false }
    }

    /// An attempt has failed whose answer tells what it used.
    pub(super) fn failed_with(&mut self, bill: Bill) {
        if bill.usage.is_some() {
            self.failed = Some(match self.failed.take() {
                Some(earlier) => bill.after(&earlier, true),
                None => bill,
            });
        }
    }

    /// An attempt has failed without an answer.
    pub(super) fn failed_by(&mut self, error: &TransportError) {
        if error.kind.left_at_work() {
            self.failed_with(self.asked.estimate(&self.teller.engine));
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.concluded {
            let now = clock::now();
            self.call.abandon(now);
            let error = CallError::cancelled(self.call.attempts(), now.since(self.call.started()));
            conclude(self, Err(Box::new(error)), None);
        }
    }
}

/// The end of a call whose answer, if any, came in one piece.
pub(super) fn conclude(told: &mut Told, result: Result<(), Box<CallError>>, got: Option<Read>) -> Outcome {
    let (bill, first_byte, reply) = match got {
        Some(read) => (read.bill, Some(read.first_byte), Some(read.reply)),
        None => (None, None, None),
    };
    let bill = match bill {
        Some(bill) => bill,
        None if told.call.left_in_flight() => told.asked.estimate(&told.teller.engine),
        None => Bill::default(),
    };
    let times = Times { first_byte, first_chunk: None };
    let info = close(told, result.as_ref().err().map(AsRef::as_ref), bill, times);
    let result = match (result, reply) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(reply)) => Ok(reply),
        // Its caller has the result.
        (Ok(()), None) if told.teller.is_function() => {
            Ok(Reply { status: 200, headers: HeaderMap::new(), body: Bytes::new() })
        }
        // `Done(Ok)` follows an answer; there is none to return without one.
        (Ok(()), None) => Err(Box::new(CallError::closed(info.attempts, info.latency))),
    };
    Outcome { result, info }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) first_byte: Option<Duration>,
    pub(super) first_chunk: Option<Duration>,
}

/// Tells and counts a call, once.
pub(super) fn close(told: &mut Told, error: Option<&CallError>, mut bill: Bill, times: Times) -> CallInfo {
    told.concluded = true;
    let usage_missing =
        error.is_none() && bill.source != UsageSource::Reported && !told.teller.model.is_empty();
    if let Some(failed) = told.failed.take() {
        bill = bill.after(&failed, error.is_some());
    }
    let served = bill.served.take();
    let now = clock::now();
    let info = info(told, &bill, times, now);
    let Told { teller, call, .. } = told;
    for (kind, facts) in call.take_events() {
        teller.tell(kind, facts);
    }
    teller.engine.metrics().breaker_late(call.take_late());
    count(teller, &info, error, &bill, usage_missing, now);
    let mut facts = call_facts(&info, error, teller.identity);
    facts.response_model = served.filter(|served| **served != *info.model);
    teller.tell(Kind::Call, facts);
    info
}

/// How a call has gone until `now`.
pub(super) fn info(told: &Told, bill: &Bill, times: Times, now: Instant) -> CallInfo {
    let Told { teller, call, .. } = told;
    CallInfo {
        trace_id: teller.trace_id,
        model: Arc::clone(&teller.model),
        attempts: call.attempts(),
        retries: call.retries().to_vec(),
        usage_source: bill.source,
        usage: bill.usage,
        cost: bill.cost,
        queue: call.queue_time(),
        latency: now.since(call.started()),
        first_byte: times.first_byte,
        first_chunk: times.first_chunk,
        notice: teller.notice.clone(),
    }
}

fn count(
    teller: &Teller,
    info: &CallInfo,
    error: Option<&CallError>,
    bill: &Bill,
    usage_missing: bool,
    now: Instant,
) {
    let metrics = teller.engine.metrics();
    let wall = clock::wall();
    match error.map(|error| error.reason) {
        Some(Reason::BreakerOpen) if info.attempts == 0 => metrics.breaker_rejected(),
        Some(reason @ (Reason::AdmissionDeadline | Reason::RequestTooLarge)) if info.attempts == 0 => {
            metrics.admission_refused(reason.as_str());
        }
        _ => metrics.admitted(info.queue),
    }
    if teller.is_function() {
        if !teller.counted_elsewhere {
            metrics.tool_call(&teller.model, if error.is_none() { "ok" } else { "failed" });
        }
        return;
    }
    let usage = info.usage.as_ref();
    let cost = bill.cost.map(|cost| {
        let reported = cost.saturating_sub(bill.estimated).get();
        metrics::Cost { reported, estimated: bill.estimated.get() }
    });
    let tokens = token_counts(&usage.copied().unwrap_or_default());
    metrics.call(
        &CallRecord {
            model: &teller.model,
            route: teller.tags.as_ref().and_then(|tags| tags.get("route")).map_or("", String::as_str),
            outcome: error.map_or("ok", |error| error.kind()),
            attempts: info.attempts,
            duration: info.latency,
            time_to_first_chunk: info.first_chunk,
            tokens: &tokens,
            cost,
            unpriced: bill.unpriced,
            usage_missing,
            exemplar: Some(Exemplar { trace_id: teller.trace_id, ts: event::unix_seconds(wall) }),
        },
        now,
    );
    let usage = usage.copied().unwrap_or_default();
    let sums = Sums {
        calls: 1,
        failed: error.is_some().into(),
        attempts: info.attempts.into(),
        prompt_tokens: usage.input,
        cached_tokens: usage.cache_read,
        completion_tokens: usage.output,
        reasoning_tokens: usage.reasoning,
        cost_usd: info.cost.unwrap_or_default(),
        estimated_usd: bill.estimated,
        unpriced: bill.unpriced.into(),
    };
    teller.engine.account().add(wall, &teller.model, teller.tags.as_ref(), &sums);
}

/// Kinds that do not overlap.
fn token_counts(usage: &Usage) -> [TokenCount; 9] {
    let count = |direction, kind, tokens| TokenCount { direction, kind, tokens };
    [
        count(Direction::Input, "text", usage.uncached()),
        count(Direction::Input, "cached", usage.cache_read),
        count(Direction::Input, "cache_write", usage.cache_write),
        count(Direction::Input, "audio", usage.input_audio),
        count(Direction::Input, "image", usage.input_image),
        count(Direction::Output, "text", usage.visible_output()),
        count(Direction::Output, "reasoning", usage.reasoning),
        count(Direction::Output, "audio", usage.output_audio),
        count(Direction::Output, "image", usage.output_image),
    ]
}

fn call_facts(info: &CallInfo, error: Option<&CallError>, identity: Identity) -> Facts {
    let usage = info.usage.as_ref();
    Facts {
        attempts: Some(info.attempts),
        outcome: Some(error.map_or("ok", |error| error.kind())),
        reason: error.map(|error| error.reason.as_str()),
        status: error.and_then(CallError::status),
        latency_s: Some(info.latency.as_secs_f64()),
        first_byte_s: info.first_byte.map(|first_byte| first_byte.as_secs_f64()),
        queue_s: Some(info.queue.as_secs_f64()),
        retry_after_s: error.and_then(|error| error.retry_after).map(|wait| wait.as_secs_f64()),
        prompt_tokens: usage.map(|usage| usage.input),
        cached_tokens: usage.map(|usage| usage.cache_read),
        completion_tokens: usage.map(|usage| usage.output),
        reasoning_tokens: usage.map(|usage| usage.reasoning),
        usage: (error.is_none() || usage.is_some()).then(|| info.usage_source.as_str()),
        cost_usd: info.cost,
        fingerprint: identity.fingerprint,
        idempotency_key: identity.idempotency_key,
        ..Facts::default()
    }
}
