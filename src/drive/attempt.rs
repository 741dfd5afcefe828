//! One attempt: a request, its bounds in time, and the whole of its answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::order::Order;
use crate::clock::{self, Instant};
use crate::engine::{Engine, Upstream};
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::Request;

/// How an attempt ended.
pub(super) enum Attempt {
    Answered(Answer),
    Failed(TransportError),
    /// The call's deadline came first.
    Cut,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) first_byte: Duration,
}

pub(super) async fn attempt(
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
