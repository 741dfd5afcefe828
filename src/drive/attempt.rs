//! One attempt: a request, its bounds in time, and the whole of its answer, or the start of one that streams.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use super::begin::{Began, begin, flow};
use super::order::Order;
use crate::classify::Verdict;
use crate::clock::{self, Instant};
use crate::engine::{Engine, Upstream};
use crate::error::{TransportError, TransportErrorKind};
use crate::stream::{Reader, names_stream_options};
use crate::transport::{Body, Request, Response};

/// How an attempt ended.
#[allow(clippy::large_enum_variant, reason = "the common one is made once an attempt, without allocating")]
pub(super) enum Attempt {
    Answered(Answer),
    /// It streams, and its first content has come.
    Began(Box<Began>),
    Failed(TransportError),
    /// The call's deadline came first.
    Cut,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) first_byte: Duration,
    /// A stream that failed before its first content, and of what.
    pub(super) stream: Option<(Verdict, Box<Reader>)>,
    /// What came of that stream, for a caller that reads such streams itself.
    pub(super) prelude: Bytes,
}

/// What is sent, and where.
#[derive(Clone, Copy)]
pub(super) struct Outgoing<'a> {
    pub(super) engine: &'a Engine,
    pub(super) upstream: &'a Upstream,
    pub(super) order: &'a Order,
    /// The body with the usage asked for, where a stream's caller did not ask.
    pub(super) with_usage: Option<&'a Bytes>,
}

/// The request has gone out at `sent_at` and must be answered by `limit`.
#[derive(Clone, Copy)]
pub(super) struct Under {
    pub(super) sent_at: Instant,
    pub(super) limit: Instant,
}

pub(super) async fn attempt(
    outgoing: Outgoing<'_>,
    number: u32,
    until: Instant,
    answers: &AtomicBool,
) -> Attempt {
    let order = outgoing.order;
    let limit = order.timeouts.attempt.map_or(Instant::FAR_FUTURE, |attempt| clock::now() + attempt);
    let exchange = exchange(outgoing, number, limit.min(until), answers);
    match exchange.await {
        Ok(Exchanged::Answer(answer)) => Attempt::Answered(answer),
        Ok(Exchanged::Stream(began)) => Attempt::Began(began),
        Err(Stopped::Error(error)) => Attempt::Failed(error),
        Err(Stopped::OutOfTime) if clock::now() >= until => Attempt::Cut,
        Err(Stopped::OutOfTime) => Attempt::Failed(timeout(
            TransportErrorKind::AttemptTimeout,
            "the attempt was not answered in full within",
            order.timeouts.attempt,
        )),
    }
}

#[allow(clippy::large_enum_variant, reason = "the common one is made once an attempt, without allocating")]
pub(super) enum Exchanged {
    Answer(Answer),
    Stream(Box<Began>),
}

pub(super) enum Stopped {
    Error(TransportError),
    OutOfTime,
}

impl From<TransportError> for Stopped {
    fn from(error: TransportError) -> Self {
        Self::Error(error)
    }
}

async fn exchange(
    outgoing: Outgoing<'_>,
    number: u32,
    limit: Instant,
    answers: &AtomicBool,
) -> Result<Exchanged, Stopped> {
    let Outgoing { engine, upstream, order, with_usage } = outgoing;
    let with_usage = with_usage.filter(|_| !engine.habits().refuses_usage(&upstream.origin));
    let under = Under { sent_at: clock::now(), limit };
    let response = send(upstream, order, number, with_usage, under).await?;
    if let Some(flow) = flow(order, response.status, &response.headers, with_usage.is_some()) {
        return Box::pin(begin(response, flow, order, under, answers)).await;
    }
    answers.store(true, Ordering::Relaxed);
    let answer = collect(engine, order, response, under).await?;
    if with_usage.is_some() && matches!(answer.status, 400 | 422) && names_stream_options(&answer.body) {
        // What was added is refused there: neither the caller's fault nor a reason to count a retry.
        engine.habits().refused_usage(&upstream.origin);
        return Box::pin(exchange(outgoing, number, limit, answers)).await;
    }
    Ok(Exchanged::Answer(answer))
}

async fn send(
    upstream: &Upstream,
    order: &Order,
    number: u32,
    with_usage: Option<&Bytes>,
    under: Under,
) -> Result<Response, Stopped> {
    let first_byte = order.timeouts.first_byte;
    let request = request(order, number, with_usage);
    let response = within(under.limit, first_byte, upstream.transport.send(request)).await;
    response.map_err(|late| late.unwrap_or_else(|| no_first_byte(first_byte).into()))?.map_err(Stopped::from)
}

async fn collect(
    engine: &Engine,
    order: &Order,
    response: Response,
    under: Under,
) -> Result<Answer, Stopped> {
    let first_byte = clock::now().since(under.sent_at);
    let Response { status, headers, mut body } = response;
    let idle = order.timeouts.idle;
    let mut whole = Collected::default();
    while let Some(chunk) = piece(&mut body, under.limit, idle).await? {
        whole.push(chunk, engine.max_response_bytes())?;
    }
    Ok(Answer { status, headers, body: whole.into_bytes(), first_byte, stream: None, prelude: Bytes::new() })
}

/// The next piece of a body, in time.
pub(super) async fn piece(
    body: &mut Box<dyn Body>,
    limit: Instant,
    idle: Option<Duration>,
) -> Result<Option<Bytes>, Stopped> {
    let chunk = within(limit, idle, body.chunk()).await;
    chunk.map_err(|late| late.unwrap_or_else(|| paused(idle).into()))?.map_err(Stopped::from)
}

pub(super) fn no_first_byte(patience: Option<Duration>) -> TransportError {
    timeout(TransportErrorKind::FirstByteTimeout, "no answer began within", patience)
}

pub(super) fn paused(idle: Option<Duration>) -> TransportError {
    timeout(TransportErrorKind::IdleTimeout, "the answer paused for more than", idle)
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

fn request<'a>(order: &'a Order, number: u32, with_usage: Option<&Bytes>) -> Request<'a> {
    let mut headers = Cow::Borrowed(&*order.headers);
    if with_usage.is_some() && headers.contains_key(CONTENT_LENGTH) {
        // It is that of the body which its maker knows.
        headers.to_mut().remove(CONTENT_LENGTH);
    }
    Request {
        method: &order.method,
        url: Cow::Borrowed(&order.url),
        headers,
        retry_count: order.numbered.then(|| number - 1),
        body: with_usage.unwrap_or(&order.body).clone(),
        foreign: order.foreign,
    }
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
