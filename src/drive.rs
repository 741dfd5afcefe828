//! Feeds `call.rs` with sockets and timers: one HTTP call from its order to its outcome.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::admission::{Announced, Charge, Settlement};
use crate::call::{Answered, Call, Plan, RetryMade, Step};
use crate::classify::{self, Class, Period, Quota, QuotaFacts, Reading, Verdict};
use crate::clock::{self, Instant};
use crate::config::Timeouts;
use crate::engine::{Engine, Upstream};
use crate::error::{CallError, Cause, Reason, TransportError, TransportErrorKind};
use crate::event::{self, Event, Facts, Kind, Listener, Tags, TraceId};
use crate::metrics::{self, CallRecord, Direction, TokenCount};
use crate::money::Pico;
use crate::request::RequestFacts;
use crate::scope::Scope;
use crate::transport::Request;
use crate::usage::Usage;

/// What the caller asks for.
#[derive(Debug, Clone)]
pub struct Order {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub timeouts: Timeouts,
    pub max_attempts: u32,
    pub tags: Option<Arc<Tags>>,
    /// `None` draws one.
    pub trace_id: Option<TraceId>,
}

/// An answer that is a success.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Where the figures of a bill come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UsageSource {
    Reported,
    Unknown,
}

impl UsageSource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Unknown => "unknown",
        }
    }
}

/// How the call went; present for successes and failures alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallInfo {
    pub trace_id: TraceId,
    pub model: Arc<str>,
    pub attempts: u32,
    pub retries: Vec<RetryMade>,
    pub usage: Option<Usage>,
    pub usage_source: UsageSource,
    /// `None` where the price is not known.
    pub cost: Option<Pico>,
    pub queue: Duration,
    pub latency: Duration,
    /// Of the attempt that was answered.
    pub first_byte: Option<Duration>,
    /// What to tell the user where the answer is a substitute for the one that was asked for.
    pub notice: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Reply, Box<CallError>>,
    pub info: CallInfo,
}

/// What is the same for every event of a call.
struct Teller<'a> {
    engine: &'a Engine,
    origin: Arc<str>,
    model: Arc<str>,
    trace_id: TraceId,
    tags: Option<Arc<Tags>>,
    listener: Option<&'a dyn Listener>,
}

impl Teller<'_> {
    fn tell(&self, kind: Kind, facts: Facts) {
        let metrics = self.engine.metrics();
        match kind {
            Kind::Attempt => metrics.attempt(&self.model, facts.outcome.unwrap_or_default()),
            Kind::Retry => metrics.retry(facts.reason.unwrap_or_default()),
            Kind::Breaker => metrics.breaker_opened(),
            // Counted with figures that the record does not hold.
            Kind::Wait | Kind::Call => {}
        }
        if self.listener.is_none() && self.engine.log_file().is_none() {
            return;
        }
        let event = Event {
            schema: event::SCHEMA,
            ts: event::unix_seconds(clock::wall()),
            event: kind,
            trace_id: self.trace_id,
            origin: Arc::clone(&self.origin),
            model: Arc::clone(&self.model),
            facts,
            tags: self.tags.clone(),
        };
        self.engine.write_log(&event);
        if let Some(listener) = self.listener {
            listener.hear(&event);
        }
    }
}

/// Makes one call. Dropping the future stops it: the connection closes and everything held goes back.
pub async fn call(
    engine: &Engine,
    upstream: &Upstream,
    order: Order,
    listener: Option<&dyn Listener>,
) -> Outcome {
    let facts = RequestFacts::read(&order.body);
    let model: Arc<str> = facts.as_ref().and_then(|facts| facts.model.as_deref()).unwrap_or_default().into();
    let scope = engine.scope(upstream, &model, clock::now());
    let plan = plan(engine, &order, facts.as_ref(), &scope);
    let cost = plan.cost;
    let teller = Teller {
        engine,
        origin: Arc::clone(&upstream.origin),
        model: Arc::clone(&model),
        trace_id: order.trace_id.unwrap_or_else(|| engine.draw_trace_id()),
        tags: order.tags.clone(),
        listener,
    };
    let call = Call::new(plan, Arc::clone(&scope), clock::now());
    let mut told = Told { teller, call, concluded: false };
    let Told { teller, call, .. } = &mut told;
    let mut step = call.begin(clock::now());
    let mut got = None;
    let result = loop {
        for (kind, facts) in call.take_events() {
            teller.tell(kind, facts);
        }
        step = match step {
            Step::Admit { cost, limit } => match scope.admit(cost, limit).await {
                Ok(permit) => call.admitted(clock::now(), permit),
                Err(refusal) => call.refused(clock::now(), refusal),
            },
            Step::Send { number, until, slow_at } => {
                let begun = AtomicBool::new(false);
                let mut attempt = pin!(attempt(engine, upstream, &order, number, until, &begun));
                let ended = match clock::until(slow_at, &mut attempt).await {
                    Some(ended) => ended,
                    None => {
                        if !begun.load(Ordering::Relaxed) {
                            call.slow(clock::now());
                        }
                        attempt.await
                    }
                };
                match ended {
                    Attempt::Cut => call.cut(clock::now()),
                    Attempt::Failed(error) => engine.with_rng(|rng| call.failed(clock::now(), error, rng)),
                    Attempt::Answered(answer) => {
                        let (answered, read) = read(&scope, &order, facts.as_ref(), answer, cost);
                        got = Some(read);
                        engine.with_rng(|rng| call.answered(clock::now(), answered, rng))
                    }
                }
            }
            Step::Sleep { until } => {
                clock::sleep_until(until).await;
                call.slept(clock::now())
            }
            Step::Done(result) => break result,
        };
    };
    conclude(&mut told, result, got)
}

/// A request without a body that can be read costs a request, but no tokens.
fn plan(engine: &Engine, order: &Order, facts: Option<&RequestFacts>, scope: &Scope) -> Plan {
    let (mut cost, mut least_cost) = (0, 0);
    if let Some(facts) = facts {
        let sizes = scope.sizes.lock();
        let prompt = facts.prompt_tokens(sizes.bytes_per_token());
        let guess = || sizes.output().saturating_mul(facts.n);
        cost = prompt.saturating_add(facts.output_limit.unwrap_or_else(guess));
        least_cost = prompt.saturating_add(facts.output_limit.unwrap_or_default());
    }
    Plan {
        retry: engine.retry_policy(),
        max_attempts: order.max_attempts,
        total: order.timeouts.total,
        attempt_timeout: order.timeouts.attempt,
        cost,
        least_cost,
        replay_unsafe: facts.is_some_and(|facts| facts.replay_unsafe),
        stream: facts.is_some_and(|facts| facts.stream),
        on_open: engine.on_open(),
    }
}

enum Attempt {
    Answered(Answer),
    Failed(TransportError),
    /// The call's deadline came first.
    Cut,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    first_byte: Duration,
}

async fn attempt(
    engine: &Engine,
    upstream: &Upstream,
    order: &Order,
    number: u32,
    until: Instant,
    begun: &AtomicBool,
) -> Attempt {
    let limit = order.timeouts.attempt.map_or(Instant::FAR_FUTURE, |attempt| clock::now() + attempt);
    let exchange = exchange(engine, upstream, order, number, limit.min(until), begun);
    match exchange.await {
        Ok(answer) => Attempt::Answered(answer),
        Err(Stopped::Error(error)) => Attempt::Failed(error),
        Err(Stopped::OutOfTime) if clock::now() >= until => Attempt::Cut,
        Err(Stopped::OutOfTime) => Attempt::Failed(timeout(
            TransportErrorKind::AttemptTimeout,
            "the attempt was not answered in full within",
            order.timeouts.attempt,
        )),
    }
}

enum Stopped {
    Error(TransportError),
    OutOfTime,
}

impl From<TransportError> for Stopped {
    fn from(error: TransportError) -> Self {
        Self::Error(error)
    }
}

async fn exchange(
    engine: &Engine,
    upstream: &Upstream,
    order: &Order,
    number: u32,
    limit: Instant,
    begun: &AtomicBool,
) -> Result<Answer, Stopped> {
    let sent_at = clock::now();
    let request = request(order, number);
    let first_byte = order.timeouts.first_byte;
    let response = within(limit, first_byte, upstream.transport.send(request)).await.map_err(|late| {
        late.unwrap_or_else(|| {
            timeout(TransportErrorKind::FirstByteTimeout, "no answer began within", first_byte).into()
        })
    })??;
    begun.store(true, Ordering::Relaxed);
    let first_byte = clock::now().since(sent_at);
    let (status, headers, mut incoming) = (response.status, response.headers, response.body);
    let idle = order.timeouts.idle;
    let mut body = Collected::default();
    while let Some(chunk) = within(limit, idle, incoming.chunk()).await.map_err(|late| {
        late.unwrap_or_else(|| {
            timeout(TransportErrorKind::IdleTimeout, "the answer paused for more than", idle).into()
        })
    })?? {
        body.push(chunk, engine.max_response_bytes())?;
    }
    Ok(Answer { status, headers, body: body.into_bytes(), first_byte })
}

/// Runs `future` until `limit` and for at most `patience`. `Err(Some(OutOfTime))` is the limit, `Err(None)` the
/// patience.
async fn within<F: Future>(
    limit: Instant,
    patience: Option<Duration>,
    future: F,
) -> Result<F::Output, Option<Stopped>> {
    let end = patience.map_or(Instant::FAR_FUTURE, |patience| clock::now() + patience);
    match clock::until(limit.min(end), future).await {
        Some(output) => Ok(output),
        None if end < limit => Err(None),
        None => Err(Some(Stopped::OutOfTime)),
    }
}

fn timeout(kind: TransportErrorKind, what: &str, limit: Option<Duration>) -> TransportError {
    TransportError { kind, message: format!("{what} {:.3} s", limit.unwrap_or_default().as_secs_f64()) }
}

fn request(order: &Order, number: u32) -> Request {
    const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
    let mut headers = order.headers.clone();
    headers.insert(RETRY_COUNT, HeaderValue::from(number - 1));
    Request { method: order.method.clone(), url: order.url.clone(), headers, body: order.body.clone() }
}

/// A body in one piece; a body that came in one piece is not copied.
#[derive(Default)]
struct Collected {
    first: Bytes,
    rest: BytesMut,
}

impl Collected {
    fn push(&mut self, chunk: Bytes, limit: usize) -> Result<(), TransportError> {
        let length = self.first.len().max(self.rest.len()) + chunk.len();
        if length > limit {
            return Err(TransportError {
                kind: TransportErrorKind::Decode,
                message: format!("the decoded answer is larger than the limit of {limit} bytes"),
            });
        }
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = chunk;
        } else {
            if self.rest.is_empty() {
                self.rest.reserve(length);
                self.rest.extend_from_slice(&self.first);
            }
            self.rest.extend_from_slice(&chunk);
        }
        Ok(())
    }

    fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() { self.first } else { self.rest.freeze() }
    }
}

/// What an answer said, kept until the call is known to end with it.
struct Read {
    reply: Reply,
    reading: Option<Reading>,
    first_byte: Duration,
}

fn read(
    scope: &Scope,
    order: &Order,
    facts: Option<&RequestFacts>,
    answer: Answer,
    cost: u64,
) -> (Answered, Read) {
    let Answer { status, headers, body, first_byte } = answer;
    let wall = clock::wall();
    // These have no body to judge.
    let bare = matches!(order.method, Method::DELETE | Method::HEAD) && body.is_empty() && status < 300;
    let classify::Answer { verdict, mut reading } = if bare {
        classify::Answer { verdict: Verdict::success(status), reading: None }
    } else {
        classify::answer(status, &headers, &body, wall)
    };
    // A server that does not say which tier served has served the one that was asked for.
    if let Some(reading) = &mut reading
        && reading.service_tier.is_none()
    {
        reading.service_tier = facts.and_then(|facts| facts.service_tier.clone());
    }
    let usage = reading.as_ref().and_then(|reading| reading.usage.as_ref());
    let settlement = if let Some(usage) = usage {
        if let Some(facts) = facts {
            scope.sizes.lock().record(facts, usage);
        }
        Settlement::Used { tokens: usage.total() }
    } else if verdict.class == Class::Success {
        Settlement::Estimated { tokens: cost }
    } else {
        Settlement::Failed { charge: if status == 429 { Charge::Keep } else { Charge::Refund } }
    };
    let cause = if verdict.class == Class::Success {
        Cause::Local { message: String::new() }
    } else {
        Cause::Answer {
            class: verdict.class,
            status: verdict.status,
            headers: headers.clone(),
            body: body.clone(),
            message: verdict.message.clone(),
            code: verdict.code.clone(),
        }
    };
    let request_id = classify::request_id(&headers);
    let announced = announced(&QuotaFacts::from_headers(&headers, wall));
    let answered =
        Answered { verdict, cause, settlement, announced, status, request_id, first_byte: Some(first_byte) };
    (answered, Read { reply: Reply { status, headers, body }, reading, first_byte })
}

/// What the admission controller can use of an announcement: quotas per minute.
fn announced(facts: &QuotaFacts) -> Announced {
    let per_minute = |quota: &Quota| if quota.period == Some(Period::Minute) { quota.limit } else { None };
    Announced {
        limit_requests: per_minute(&facts.requests),
        limit_tokens: per_minute(&facts.tokens),
        remaining_requests: per_minute(&facts.requests).and(facts.requests.remaining),
        remaining_tokens: per_minute(&facts.tokens).and(facts.tokens.remaining),
    }
}

/// A call that is told of at its end, also where the caller leaves: what was sent may be billed.
struct Told<'a> {
    teller: Teller<'a>,
    call: Call,
    concluded: bool,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if !self.concluded {
            let now = clock::now();
            self.call.abandon(now);
            let error = CallError::cancelled(self.call.attempts(), now.since(self.call.started()));
            conclude(self, Err(Box::new(error)), None);
        }
    }
}

fn conclude(told: &mut Told<'_>, result: Result<(), Box<CallError>>, got: Option<Read>) -> Outcome {
    told.concluded = true;
    let Told { teller, call, .. } = told;
    let now = clock::now();
    let (reading, first_byte, reply) = match got {
        Some(read) => (read.reading, Some(read.first_byte), Some(read.reply)),
        None => (None, None, None),
    };
    let reading = reading.filter(|_| result.is_ok());
    let usage = reading.as_ref().and_then(|reading| reading.usage);
    let cost = usage.as_ref().and_then(|usage| {
        let served = reading.as_ref().and_then(|reading| reading.model.as_deref());
        let tier = reading.as_ref().and_then(|reading| reading.service_tier.as_deref());
        teller.engine.cost(&teller.model, served, tier, usage)
    });
    let info = CallInfo {
        trace_id: teller.trace_id,
        model: Arc::clone(&teller.model),
        attempts: call.attempts(),
        retries: call.take_retries(),
        usage_source: if usage.is_some() { UsageSource::Reported } else { UsageSource::Unknown },
        usage,
        cost,
        queue: call.queue_time(),
        latency: now.since(call.started()),
        first_byte,
        notice: None,
    };
    for (kind, facts) in call.take_events() {
        teller.tell(kind, facts);
    }
    count(teller, &info, &result, now);
    teller.tell(Kind::Call, call_facts(&info, &result));
    let result = match (result, reply) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(reply)) => Ok(reply),
        // `Done(Ok)` follows an answer; there is none to return without one.
        (Ok(()), None) => Err(Box::new(CallError::closed(info.attempts, info.latency))),
    };
    Outcome { result, info }
}

fn count(teller: &Teller<'_>, info: &CallInfo, result: &Result<(), Box<CallError>>, now: Instant) {
    let metrics = teller.engine.metrics();
    let error = result.as_ref().err();
    match error.map(|error| error.reason) {
        Some(Reason::BreakerOpen) if info.attempts == 0 => metrics.breaker_rejected(),
        Some(reason @ (Reason::AdmissionDeadline | Reason::RequestTooLarge)) if info.attempts == 0 => {
            metrics.admission_refused(reason.as_str());
        }
        _ => metrics.admitted(info.queue),
    }
    let usage = info.usage.as_ref();
    let cost = match (usage, info.cost) {
        (_, Some(cost)) => metrics::Cost::Priced { pico_usd: cost.get(), estimated: false },
        (Some(_), None) => metrics::Cost::Unpriced,
        (None, None) => metrics::Cost::Nothing,
    };
    let tokens = token_counts(&usage.copied().unwrap_or_default());
    metrics.call(
        &CallRecord {
            model: &teller.model,
            route: teller.tags.as_ref().and_then(|tags| tags.get("route")).map_or("", String::as_str),
            outcome: error.map_or("ok", |error| error.kind()),
            attempts: info.attempts,
            duration: info.latency,
            time_to_first_chunk: None,
            tokens: &tokens,
            cost,
            usage_missing: error.is_none() && usage.is_none() && !teller.model.is_empty(),
        },
        now,
    );
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

fn call_facts(info: &CallInfo, result: &Result<(), Box<CallError>>) -> Facts {
    let error = result.as_ref().err();
    let usage = info.usage.as_ref();
    Facts {
        attempts: Some(info.attempts),
        outcome: Some(error.map_or("ok", |error| error.kind())),
        reason: error.map(|error| error.reason.as_str()),
        status: error.and_then(|error| error.status()),
        latency_s: Some(info.latency.as_secs_f64()),
        first_byte_s: info.first_byte.map(|first_byte| first_byte.as_secs_f64()),
        queue_s: Some(info.queue.as_secs_f64()),
        retry_after_s: error.and_then(|error| error.retry_after).map(|wait| wait.as_secs_f64()),
        prompt_tokens: usage.map(|usage| usage.input),
        cached_tokens: usage.map(|usage| usage.cache_read),
        completion_tokens: usage.map(|usage| usage.output),
        reasoning_tokens: usage.map(|usage| usage.reasoning),
        usage: error.is_none().then(|| info.usage_source.as_str()),
        cost_usd: info.cost.map(|cost| cost.to_string()),
        ..Facts::default()
    }
}
