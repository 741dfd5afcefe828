//! Incremental decoder of Server-Sent Events: bytes in, events out, no I/O.
//!
//! Follows the WHATWG rules (<https://html.spec.whatwg.org/multipage/server-sent-events.html>) with one deliberate difference: an
//! event that the end of the body leaves without its blank line is delivered, because providers close right
//! after the last data line and that event holds the usage.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use bytes::{Buf, Bytes};
use memchr::{memchr, memchr2};

/// Default limit on the bytes of one event: what a whole answer may have. Pictures come as one event.
pub const DEFAULT_LIMIT: usize = 64 * 1024 * 1024;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerSentEvent {
    /// Type of the event; `None` stands for the default type, `message`.
    pub event: Option<String>,
    /// The data lines joined by `\n`. Always valid UTF-8: what was not is replaced by U+FFFD. A slice of the
    /// network chunk where the event has one data line and lies within one chunk.
    pub data: Bytes,
    /// The last id the stream has named, in this event or an earlier one.
    pub id: Option<String>,
    /// Wait before a reconnect, where this event names one.
    pub retry: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event of the stream is larger than the limit of {limit} bytes")]
    TooLarge { limit: usize },
}

/// Push chunks as they arrive and pull events until there is none; at the end of the body call
/// [`Decoder::finish`] and pull once more.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// Chunks not yet read; the front one has lost what was.
    input: VecDeque<Bytes>,
    /// Head of a line whose end is in a later chunk.
    line: Vec<u8>,
    /// The last line ended in CR: an LF that comes next belongs to it.
    after_cr: bool,
    first_line: bool,
    phase: Phase,
    comments: u64,
    event: String,
    data: Data,
    id: Option<String>,
    retry: Option<Duration>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl Decoder {
    /// `limit` bounds the bytes held for one event, the field name of the line being read included.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            input: VecDeque::new(),
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            phase: Phase::Open,
            comments: 0,
            event: String::new(),
            data: Data::Absent,
            id: None,
            retry: None,
        }
    }

    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() && self.phase == Phase::Open {
            self.input.push_back(chunk);
        }
    }

    /// The body has ended: what is left is a last line and a last event. An event that was cut before any of
    /// its data is dropped.
    pub fn finish(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ended;
        }
    }

    /// Bytes that were pushed and lie behind the last event returned.
    pub(crate) fn unread(&self) -> usize {
        self.input.iter().map(Bytes::len).sum()
    }

    /// Comment lines seen so far. Servers send them to keep a connection alive; they make no event.
    pub fn comments(&self) -> u64 {
        self.comments
    }

    /// The next complete event; `None` if more input is needed, or after [`Decoder::finish`] if there is no
    /// more. An error is final and returned again by each later call.
    pub fn next_event(&mut self) -> Result<Option<ServerSentEvent>, SseError> {
        while let Some(line) = self.next_line()? {
            if !line.is_empty() {
                self.field(line);
            } else if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        if self.phase == Phase::Ended && self.data.len() > 0 {
            return Ok(self.dispatch());
        }
        Ok(None)
    }

    fn next_line(&mut self) -> Result<Option<Bytes>, SseError> {
        if self.phase == Phase::Failed {
            return Err(SseError::TooLarge { limit: self.limit });
        }
        while let Some(chunk) = self.input.front_mut() {
            if mem::take(&mut self.after_cr) && chunk.first() == Some(&b'\n') {
                chunk.advance(1);
            }
            let end = memchr2(b'\n', b'\r', chunk);
            let held = self.event.len() + self.data.len() + self.line.len();
            if held + end.unwrap_or(chunk.len()) > self.limit {
                return Err(self.fail());
            }
            let Some(end) = end else {
                self.line.extend_from_slice(chunk);
                self.input.pop_front();
                continue;
            };
            let tail = chunk.split_to(end);
            self.after_cr = chunk.first() == Some(&b'\r');
            chunk.advance(1);
            if chunk.is_empty() {
                self.input.pop_front();
            }
            return Ok(Some(self.complete_line(tail)));
        }
        if self.phase == Phase::Ended && !self.line.is_empty() {
            return Ok(Some(self.complete_line(Bytes::new())));
        }
        Ok(None)
    }

    fn complete_line(&mut self, tail: Bytes) -> Bytes {
        let mut line = if self.line.is_empty() {
            tail
        } else {
            self.line.extend_from_slice(&tail);
            Bytes::from(mem::take(&mut self.line))
        };
        if mem::take(&mut self.first_line) && line.starts_with(BOM) {
            line.advance(BOM.len());
        }
        line
    }

    fn field(&mut self, mut line: Bytes) {
        let name = match memchr(b':', &line) {
            Some(0) => {
                self.comments += 1;
                return;
            }
            Some(colon) => {
                let name = line.split_to(colon);
                line.advance(if line.get(1) == Some(&b' ') { 2 } else { 1 });
                name
            }
            None => mem::take(&mut line),
        };
        match name.as_ref() {
            b"data" => self.data.append(line),
            b"event" => self.event = text(&line),
            b"id" if memchr(0, &line).is_none() => self.id = Some(text(&line)),
            b"retry" if line.iter().all(u8::is_ascii_digit) => {
                self.retry = text(&line).parse().ok().map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    /// Ends the event; it is none if it had no data.
    fn dispatch(&mut self) -> Option<ServerSentEvent> {
        let event = mem::take(&mut self.event);
        let retry = self.retry.take();
        let data = mem::take(&mut self.data).into_bytes()?;
        Some(ServerSentEvent {
            event: (!event.is_empty()).then_some(event),
            data: valid_utf8(data),
            id: self.id.clone(),
            retry,
        })
    }

    fn fail(&mut self) -> SseError {
        let limit = self.limit;
        *self = Self { phase: Phase::Failed, comments: self.comments, ..Self::new(limit) };
        SseError::TooLarge { limit }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Ended,
    Failed,
}

/// Data of the event being read: one line stays a slice of its chunk.
#[derive(Debug, Default)]
enum Data {
    #[default]
    Absent,
    Line(Bytes),
    Lines(Vec<u8>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Line(line) => line.len(),
            Self::Lines(lines) => lines.len(),
        }
    }

    fn append(&mut self, line: Bytes) {
        let mut lines = match mem::take(self) {
            Self::Absent => {
                *self = Self::Line(line);
                return;
            }
            Self::Line(first) => Vec::from(first),
            Self::Lines(lines) => lines,
        };
        lines.push(b'\n');
        lines.extend_from_slice(&line);
        *self = Self::Lines(lines);
    }

    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::Absent => None,
            Self::Line(line) => Some(line),
            Self::Lines(lines) => Some(Bytes::from(lines)),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn valid_utf8(bytes: Bytes) -> Bytes {
    if std::str::from_utf8(&bytes).is_ok() { bytes } else { Bytes::from(text(&bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_with(limit: usize, chunks: &[&[u8]]) -> (Vec<ServerSentEvent>, Option<SseError>, Decoder) {
        let mut decoder = Decoder::new(limit);
        let mut events = Vec::new();
        for round in 0..=chunks.len() {
            match chunks.get(round) {
                Some(chunk) => decoder.push(Bytes::copy_from_slice(chunk)),
                None => decoder.finish(),
            }
            loop {
                match decoder.next_event() {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(error) => return (events, Some(error), decoder),
                }
            }
        }
        (events, None, decoder)
    }

    fn decode(body: &str) -> Vec<ServerSentEvent> {
        let (events, error, _) = decode_with(DEFAULT_LIMIT, &[body.as_bytes()]);
        assert_eq!(error, None);
        events
    }

    fn data(body: &str) -> Vec<Bytes> {
        decode(body).into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn fields_of_an_event() {
        let events = decode("event: delta\nid: 7\nretry: 3000\nfoo: bar\ndata: x\n\ndata: y\n\n");
        assert_eq!(
            events,
            [
                ServerSentEvent {
                    event: Some("delta".into()),
                    data: "x".into(),
                    id: Some("7".into()),
                    retry: Some(Duration::from_secs(3)),
                },
                ServerSentEvent { event: None, data: "y".into(), id: Some("7".into()), retry: None },
            ]
        );
    }

    #[test]
    fn any_line_end_and_one_blank_removed() {
        assert_eq!(data("data:a\r\ndata:  b\rdata\n\rdata: c\n\n"), ["a\n b\n", "c"]);
    }

    #[test]
    fn an_event_ends_without_waiting_for_the_byte_after_cr() {
        let mut decoder = Decoder::default();
        decoder.push(Bytes::from_static(b"data: x\r\r"));
        assert_eq!(decoder.next_event().unwrap().unwrap().data, "x");
        decoder.push(Bytes::from_static(b"\ndata: y\r\n"));
        assert_eq!(decoder.next_event(), Ok(None));
        decoder.push(Bytes::from_static(b"\r\n"));
        assert_eq!(decoder.next_event().unwrap().unwrap().data, "y");
    }

    #[test]
    fn events_without_data_are_none_and_leave_no_trace() {
        assert_eq!(
            decode("event: ping\nretry: 1\n\ndata: x\n\n"),
            [ServerSentEvent { data: "x".into(), ..Default::default() }]
        );
        assert_eq!(data("data\n\n"), [""]);
    }

    #[test]
    fn ids_with_nul_and_retries_that_are_no_number_are_ignored() {
        let events = decode("id: 1\nid: 2\0\nretry: 5\nretry: 1x\nretry:\ndata: x\n\nid\ndata: y\n\n");
        assert_eq!(events[0].id.as_deref(), Some("1"));
        assert_eq!(events[0].retry, Some(Duration::from_millis(5)));
        assert_eq!(events[1].id.as_deref(), Some(""));
    }

    #[test]
    fn only_a_leading_bom_is_skipped() {
        assert_eq!(data("\u{feff}data: x\n\n"), ["x"]);
        assert_eq!(data("\n\u{feff}data: x\n\n"), [""; 0]);
        assert_eq!(data("\u{feff}\u{feff}data: x\n\n"), [""; 0]);
    }

    #[test]
    fn the_end_of_the_body_ends_the_last_event() {
        for end in ["", "\n", "\r", "\r\n", "\n\n"] {
            assert_eq!(data(&format!("data: x\n\ndata: y{end}")), ["x", "y"], "{end:?}");
        }
        for cut in ["d", "data", "data:", "data: ", "event: z\n", ": comment"] {
            assert_eq!(data(&format!("data: x\n\n{cut}")), ["x"], "{cut:?}");
        }
    }

    #[test]
    fn comments_are_counted() {
        let (events, _, decoder) = decode_with(DEFAULT_LIMIT, &[b": a\n\ndata: x\n:\n: b\ndata: y\n\n:end"]);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].data, "x\ny");
        assert_eq!(decoder.comments(), 4);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let (events, _, _) =
            decode_with(DEFAULT_LIMIT, &[b"data: a\xff\xe4\xbd\n", b"data: \xe4\xbd\xa0\n\n"]);
        assert_eq!(events[0].data, "a\u{fffd}\u{fffd}\n你");
    }

    #[test]
    fn an_event_within_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: one\n\n");
        let mut decoder = Decoder::default();
        decoder.push(chunk.clone());
        let event = decoder.next_event().unwrap().unwrap();
        assert_eq!(event.data.as_ptr(), chunk.slice(6..).as_ptr());
    }

    #[test]
    fn the_limit_holds_whatever_the_chunks() {
        let body = b"data: fits\n\ndata: 12\ndata: 4\n\ndata: 1234\ndata: 6\n\n";
        for size in 1..=body.len() {
            let chunks: Vec<&[u8]> = body.chunks(size).collect();
            let (events, error, mut decoder) = decode_with(10, &chunks);
            assert_eq!(events.len(), 2, "chunks of {size}");
            let error = error.expect("the third event is too large");
            assert_eq!(error.to_string(), "an event of the stream is larger than the limit of 10 bytes");
            decoder.push(Bytes::from_static(b"data: x\n\n"));
            assert_eq!(decoder.next_event(), Err(error));
        }
    }

    #[test]
    fn a_line_without_end_holds_no_more_than_the_limit() {
        let mut decoder = Decoder::new(1000);
        for _ in 0..10_000 {
            decoder.push(Bytes::from_static(&[b'x'; 300]));
            let _ = decoder.next_event();
        }
        assert!(decoder.line.capacity() + decoder.input.len() <= 1000);
        assert!(decoder.next_event().is_err());
    }

    #[test]
    fn comments_do_not_count_towards_the_limit() {
        let body = ": keep-alive\n".repeat(1000) + "data: x\n\n";
        let (events, error, _) = decode_with(20, &[body.as_bytes()]);
        assert_eq!((events.len(), error), (1, None));
    }
}
