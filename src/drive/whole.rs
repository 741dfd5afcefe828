//! A stream that its caller wants in one piece. Nobody has seen a part of it before its end, so that whatever goes
//! wrong in it is a failure like any other, and may be tried again.

use bytes::Bytes;
use http::HeaderMap;

use super::begin::{EVENT_STREAM, content_type};
use crate::classify::{self, Class, Scope, Verdict};
use crate::clock;
use crate::engine::Engine;
use crate::sse;
use crate::stream::{Form, Reader};

/// What a body of events says; `None` if the body is something else.
pub(super) fn events(
    engine: &Engine,
    scope: &crate::scope::Scope,
    status: u16,
    headers: &HeaderMap,
    body: &Bytes,
) -> Option<(Verdict, Box<Reader>)> {
    if !(200..300).contains(&status) || content_type(headers) != EVENT_STREAM {
        return None;
    }
    let mut reader = Box::new(Reader::new(Form::Events, sse::DEFAULT_LIMIT, false));
    reader.push(body.clone());
    reader.finish();
    let failed = |class, message: String| Verdict::plain(status, class, Scope::Endpoint, message);
    if let Err(error) = reader.pull(&mut Vec::new()) {
        return Some((failed(Class::Malformed, error.to_string()), reader));
    }
    let seen = reader.observer();
    let (origin, habits) = (&scope.key.origin, engine.habits());
    let closed_well = seen.is_complete() || !seen.tells_its_end() || habits.never_ends(origin);
    if seen.tells_its_end() && seen.error().is_none() {
        habits.closed(origin, seen.is_complete());
    }
    let verdict = match seen.error() {
        Some(error) => classify::error(status, headers, error, clock::wall()),
        None if body.is_empty() => failed(Class::Empty, "the stream has no events".to_owned()),
        None if closed_well => Verdict::success(status),
        None => failed(Class::Connection, "the stream ended without saying that it was complete".to_owned()),
    };
    Some((verdict, reader))
}
