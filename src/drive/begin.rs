//! A stream until its first content: up to there it can fail without anybody having seen a part of it, and may be
//! repeated like an answer that came in one piece.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::attempt::{Answer, Exchanged, Stopped, Under, no_first_byte, paused};
use super::order::{Deliver, Order};
use crate::classify::{self, Class, Retry, Verdict};
use crate::clock::{self, Instant};
use crate::error::{TransportError, TransportErrorKind};
use crate::sse;
use crate::stream::{Item, Reader};
use crate::transport::{Body, Response};

/// What the pieces of a body are.
pub(super) enum Flow {
    Events(Box<Reader>),
    /// Sound, files: nothing in them is read.
    Bytes,
}

/// An answer whose first content has come, or the end of one that has none.
pub(super) struct Began {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) flow: Flow,
    /// `None` once it has ended.
    pub(super) body: Option<Box<dyn Body>>,
    /// What came so far.
    pub(super) items: Vec<Item>,
    pub(super) first_byte: Duration,
    pub(super) sent_at: Instant,
    /// When the content came.
    pub(super) content_at: Instant,
}

/// Prelude held back at most; an answer that goes on so long without content has begun.
const LONGEST_PRELUDE: usize = 256 << 10;

pub(super) const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The type of a body without its parameters, in lower case.
pub(super) fn content_type(headers: &HeaderMap) -> Vec<u8> {
    let value = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase()
}

/// How a successful answer is handed on as it comes; `None` if it is to be collected first.
pub(super) fn flow(order: &Order, status: u16, headers: &HeaderMap, hide_figures: bool) -> Option<Flow> {
    let Deliver::Stream(form) = order.deliver else { return None };
    if !(200..300).contains(&status) {
        return None;
    }
    let kind = content_type(headers);
    if kind == EVENT_STREAM {
        if order.foreign && !has_known_events(order) {
            return Some(Flow::Bytes);
        }
        return Some(Flow::Events(Box::new(Reader::new(form, sse::DEFAULT_LIMIT, hide_figures))));
    }
    // A web page in place of an answer is a failure, and is read as one.
    let read =
        matches!(kind.as_slice(), b"" | b"application/json" | b"text/html") || kind.ends_with(b"+json");
    (!read).then_some(Flow::Bytes)
}

/// Whether it can be told of the events where the content begins. Those of other APIs are not held back for it.
fn has_known_events(order: &Order) -> bool {
    let path = order.url.path().trim_end_matches('/');
    ["/chat/completions", "/completions", "/responses", "/messages"].iter().any(|known| path.ends_with(known))
}

pub(super) async fn begin(
    response: Response,
    flow: Flow,
    order: &Order,
    under: Under,
    answers: &AtomicBool,
) -> Result<Exchanged, Stopped> {
    let Response { status, headers, body } = response;
    let first_byte = clock::now().since(under.sent_at);
    let mut began = Began {
        status,
        headers,
        flow,
        body: Some(body),
        items: Vec::new(),
        first_byte,
        sent_at: under.sent_at,
        content_at: under.sent_at,
    };
    let ready = match &mut began.flow {
        Flow::Bytes => first_piece(&mut began, order, under).await?,
        Flow::Events(_) => first_content(&mut began, order, under).await?,
    };
    began.content_at = clock::now();
    answers.store(true, Ordering::Relaxed);
    Ok(ready.map_or_else(|| Exchanged::Stream(Box::new(began)), Exchanged::Answer))
}

/// Until the first piece or the end.
async fn first_piece(began: &mut Began, order: &Order, under: Under) -> Result<Option<Answer>, Stopped> {
    let Some(body) = &mut began.body else { return Ok(None) };
    match super::attempt::piece(body, under.limit, order.timeouts.idle).await? {
        Some(data) => began.items.push(Item { event: None, data }),
        None => began.body = None,
    }
    Ok(None)
}

/// Until the first content, or the end of a stream without content. An answer means that it failed.
async fn first_content(began: &mut Began, order: &Order, under: Under) -> Result<Option<Answer>, Stopped> {
    let mut quiet_since = clock::now();
    let mut any_event = false;
    loop {
        let Began { flow: Flow::Events(reader), body: Some(body), items, .. } = began else {
            return Ok(None);
        };
        let (patience, late) = patience(order, under, quiet_since, any_event);
        let Some(chunk) = clock::until(patience.min(under.limit), body.chunk()).await else {
            return Err(if patience < under.limit { late().into() } else { Stopped::OutOfTime });
        };
        let chunk = chunk?;
        let ended = chunk.is_none();
        if let Some(chunk) = chunk {
            reader.push(chunk);
        } else {
            reader.finish();
        }
        if pull(reader, items)? > 0 {
            quiet_since = clock::now();
            any_event = true;
        }
        let seen = reader.observer();
        let (over, has_content, error) = (seen.is_over(), seen.has_content(), seen.error().cloned());
        // Content that came together with what ends it was content all the same: how the network cuts a stream
        // must not decide what becomes of it.
        if has_content || items.iter().map(Item::len).sum::<usize>() > LONGEST_PRELUDE {
            if ended {
                began.body = None;
            }
            return Ok(None);
        }
        if let Some(data) = error {
            let verdict = classify::error(began.status, &began.headers, &data, clock::wall());
            return Ok(Some(failed(began, verdict, data)));
        }
        if over && order.foreign {
            return Ok(None);
        }
        if over {
            let verdict = Verdict { retry: Retry::Once, ..empty(began.status, "the stream has no content") };
            return Ok(Some(failed(began, verdict, Bytes::new())));
        }
        if ended && !any_event {
            let verdict = empty(began.status, "the stream has no events");
            return Ok(Some(failed(began, verdict, Bytes::new())));
        }
        if ended && order.foreign {
            // To an SDK it is one that is complete.
            let verdict = empty(began.status, "the stream ended before its first content");
            return Ok(Some(failed(began, verdict, Bytes::new())));
        }
        if ended {
            return Err(broken("the stream ended before its first content").into());
        }
    }
}

/// When the next event is due, and what to say if it does not come. Signs of life are no events.
fn patience(
    order: &Order,
    under: Under,
    quiet_since: Instant,
    any_event: bool,
) -> (Instant, impl Fn() -> TransportError) {
    let (first_byte, idle) = (order.timeouts.first_byte, order.timeouts.idle);
    let by = |start: Instant, patience: Option<Duration>| {
        patience.map_or(Instant::FAR_FUTURE, |patience| start + patience)
    };
    let first_by = if any_event { Instant::FAR_FUTURE } else { by(under.sent_at, first_byte) };
    let next_by = by(quiet_since, idle);
    let late = move || if first_by < next_by { no_first_byte(first_byte) } else { paused(idle) };
    (first_by.min(next_by), late)
}

pub(super) fn pull(reader: &mut Reader, items: &mut Vec<Item>) -> Result<usize, TransportError> {
    reader
        .pull(items)
        .map_err(|error| TransportError { kind: TransportErrorKind::Decode, message: error.to_string() })
}

pub(super) fn broken(message: &str) -> TransportError {
    TransportError { kind: TransportErrorKind::Body, message: message.to_owned() }
}

fn empty(status: u16, message: &str) -> Verdict {
    Verdict::plain(status, Class::Empty, classify::Scope::Endpoint, message.to_owned())
}

fn failed(began: &mut Began, verdict: Verdict, body: Bytes) -> Answer {
    let Began { status, headers, first_byte, items, flow, .. } = began;
    let prelude = items.iter().flat_map(|item| item.data.iter().copied()).collect();
    let stream = match std::mem::replace(flow, Flow::Bytes) {
        Flow::Events(reader) => Some((verdict, reader)),
        Flow::Bytes => None,
    };
    Answer { prelude, status: *status, headers: headers.clone(), body, first_byte: *first_byte, stream }
}

impl Flow {
    pub(super) fn reader(&self) -> Option<&Reader> {
        match self {
            Self::Events(reader) => Some(reader),
            Self::Bytes => None,
        }
    }

    pub(super) fn reader_mut(&mut self) -> Option<&mut Reader> {
        match self {
            Self::Events(reader) => Some(reader),
            Self::Bytes => None,
        }
    }
}
