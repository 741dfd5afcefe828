//! An answer that is handed on while it comes, and its receipt: whatever ends it, its place, its tokens, its
//! outcome and its bill are settled once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::attempt::{Stopped, paused, piece};
use super::begin::{Began, Flow, broken, pull};
use super::bill::Bill;
use super::order::{CallInfo, Order, StreamEndRule};
use super::read::announced;
use super::report::{Times, Told, close, info};
use crate::call::{Ended, Step, StreamEnd};
use crate::classify::{self, Verdict};
use crate::clock::{self, Instant};
use crate::error::{CallError, Cause, TransportError};
use crate::stream::Item;
use crate::transport::Body;

/// How a stream ended.
#[derive(Debug)]
pub struct StreamOver {
    pub result: Result<(), Box<CallError>>,
    pub info: CallInfo,
    /// The text of the first choice, as far as it came.
    pub text: String,
}

/// An answer under way. Dropping it stops it.
pub struct Stream {
    status: u16,
    headers: HeaderMap,
    flow: Flow,
    body: Option<Box<dyn Body>>,
    ready: Vec<Item>,
    told: Told,
    /// Tokens that the call reserved.
    reserved: u64,
    deadline: Instant,
    /// Longest gap between two events.
    idle: Option<Duration>,
    end_rule: StreamEndRule,
    times: Times,
    partial: CallInfo,
    over: Option<Arc<StreamOver>>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("status", &self.status)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(mut told: Told, order: &Order, began: Began, reserved: u64, deadline: Instant) -> Self {
        let Began { status, headers, flow, body, items, first_byte, content_at, sent_at } = began;
        let first_chunk = Some(content_at.since(told.call.started()));
        told.call.began(clock::now(), &announced(&headers), content_at.since(sent_at));
        let times = Times { first_byte: Some(first_byte), first_chunk };
        let partial = info(&told, &Bill::default(), times, clock::now());
        Self {
            status,
            headers,
            flow,
            body,
            ready: items,
            told,
            reserved,
            deadline,
            idle: order.timeouts.idle.or(order.timeouts.attempt),
            end_rule: order.stream_end,
            times,
            partial,
            over: None,
        }
    }

    pub const fn status(&self) -> u16 {
        self.status
    }

    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// How the call went until its first content.
    pub const fn partial(&self) -> &CallInfo {
        &self.partial
    }

    /// When the call's total timeout ends it.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How it ended, once it has.
    pub const fn over(&self) -> Option<&Arc<StreamOver>> {
        self.over.as_ref()
    }

    /// Waits until something has come and appends it to `items`; false once the stream is over. A gap counts
    /// from this call: a caller that was slow to come back does not make the server late.
    pub async fn read(&mut self, items: &mut Vec<Item>) -> bool {
        items.append(&mut self.ready);
        let mut quiet_since = clock::now();
        while self.over.is_none() {
            if self.body.is_none() || self.flow.reader().is_some_and(|reader| reader.observer().is_over()) {
                self.ended();
                break;
            }
            if !items.is_empty() {
                return true;
            }
            match self.receive(items, quiet_since).await {
                Ok(true) => quiet_since = clock::now(),
                Ok(false) => {}
                Err(Stopped::OutOfTime) => self.conclude(StreamEnd::Deadline),
                Err(Stopped::Error(error)) => self.failed(error),
            }
        }
        false
    }

    /// Takes the next chunk of the body; whether it brought an event.
    async fn receive(&mut self, items: &mut Vec<Item>, quiet_since: Instant) -> Result<bool, Stopped> {
        let Some(body) = &mut self.body else { return Ok(false) };
        let due = self.idle.map_or(Instant::FAR_FUTURE, |idle| quiet_since + idle);
        let chunk = match piece(body, self.deadline.min(due), None).await {
            Err(Stopped::OutOfTime) if due < self.deadline => return Err(paused(self.idle).into()),
            other => other?,
        };
        let Some(chunk) = chunk else {
            self.body = None;
            return match self.flow.reader_mut() {
                Some(reader) => {
                    reader.finish();
                    Ok(pull(reader, items)? > 0)
                }
                None => Ok(false),
            };
        };
        match &mut self.flow {
            Flow::Events(reader) => {
                reader.push(chunk);
                Ok(pull(reader, items)? > 0)
            }
            Flow::Bytes => {
                items.push(Item { event: None, data: chunk });
                Ok(true)
            }
        }
    }

    /// A piece of a body that the caller receives, decompressed; `None` is its end.
    pub fn feed(&mut self, piece: Option<Bytes>) {
        if self.over.is_some() {
            return;
        }
        let ended = piece.is_none();
        if let Some(reader) = self.flow.reader_mut() {
            match piece {
                Some(piece) => reader.push(piece),
                None => reader.finish(),
            }
            // The caller has them already.
            if let Err(error) = pull(reader, &mut Vec::new()) {
                return self.failed(error);
            }
        }
        if ended || self.flow.reader().is_some_and(|reader| reader.observer().is_over()) {
            self.ended();
        }
    }

    /// The body that the caller receives broke off.
    pub fn broke_off(&mut self, error: TransportError) {
        if self.over.is_none() {
            self.failed(error);
        }
    }

    /// The caller found the deadline past.
    pub fn cut(&mut self) {
        if self.over.is_none() {
            self.conclude(StreamEnd::Deadline);
        }
    }

    /// The caller wants no more of it.
    pub fn cancel(&mut self) {
        if self.over.is_none() {
            self.conclude(StreamEnd::Cancelled);
        }
        self.body = None;
    }

    /// Reads what is left of a body whose last event has come, so that its connection can serve another request.
    /// Gives up soon.
    pub async fn drain(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let Some(mut body) = self.body.take() else { return };
        if self.over.as_ref().is_some_and(|over| over.result.is_ok()) {
            let rest = async { while let Ok(Some(_)) = body.chunk().await {} };
            clock::until(clock::now() + PATIENCE, rest).await;
        }
    }

    /// The body, or the last event of it, has come.
    fn ended(&mut self) {
        let Some(reader) = self.flow.reader() else { return self.conclude(StreamEnd::Complete) };
        let seen = reader.observer();
        if let Some(data) = seen.error().cloned() {
            return self.gave_up(data);
        }
        let complete = seen.is_complete();
        let known = !seen.tells_its_end();
        let origin = &self.told.teller.origin;
        let habits = self.told.teller.engine.habits();
        let excused = match self.end_rule {
            StreamEndRule::Learned => habits.never_ends(origin),
            StreamEndRule::Required => false,
            StreamEndRule::Optional => true,
        };
        if !known {
            habits.closed(origin, complete);
        }
        if complete || known || excused {
            self.conclude(StreamEnd::Complete);
        } else {
            self.failed(broken("the stream ended without saying that it was complete"));
        }
    }

    /// The server sent an error in place of the rest.
    fn gave_up(&mut self, body: Bytes) {
        let verdict = classify::error(self.status, &self.headers, &body, clock::wall());
        let cause = Cause::Answer {
            class: verdict.class,
            status: verdict.status,
            headers: self.headers.clone(),
            body,
            message: verdict.message.clone(),
            code: verdict.code.clone(),
        };
        self.interrupted(verdict, cause);
    }

    fn failed(&mut self, error: TransportError) {
        // All that matters has come: what is lost is a word of farewell.
        if self.flow.reader().is_some_and(|reader| reader.observer().is_complete()) {
            return self.conclude(StreamEnd::Complete);
        }
        self.interrupted(classify::failure(&error), Cause::Transport(error));
    }

    fn interrupted(&mut self, verdict: Verdict, cause: Cause) {
        self.conclude(StreamEnd::Interrupted { verdict, cause });
    }

    fn conclude(&mut self, how: StreamEnd) {
        let complete = matches!(how, StreamEnd::Complete);
        let (bill, text) = match &mut self.flow {
            Flow::Events(reader) => {
                let bill = self.told.asked.bill(&self.told.teller.engine, reader.observer(), complete);
                (bill, reader.observer_mut().take_text())
            }
            Flow::Bytes => (Bill::default(), String::new()),
        };
        let ended = Ended {
            how,
            settlement: bill.settlement(self.reserved),
            cost: bill.cost,
            status: self.status,
            request_id: classify::request_id(&self.headers),
        };
        let result = match self.told.call.ended(clock::now(), ended) {
            Step::Done(result) => result,
            _ => Ok(()),
        };
        if !complete {
            self.body = None;
        }
        let info = close(&mut self.told, result.as_ref().err().map(AsRef::as_ref), bill, self.times);
        self.over = Some(Arc::new(StreamOver { result, info, text }));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel();
    }
}
