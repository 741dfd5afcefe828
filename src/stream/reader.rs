//! From the bytes of a body to what the caller gets of them.

use std::collections::VecDeque;

use bytes::Bytes;

use super::observer::{Observer, Seen};
use crate::sse::{Decoder, SseError};

/// What the caller wants of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Events, without the `[DONE]` that is none.
    Events,
    /// The bytes as they came, event by event.
    Bytes,
    /// The same with what the server says of a failure, for a caller that reads the events itself.
    AsItCame,
}

/// A piece of the answer: an event, or bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The event's name, where it has one.
    pub event: Option<String>,
    pub data: Bytes,
}

impl Item {
    pub fn len(&self) -> usize {
        self.data.len() + self.event.as_ref().map_or(0, String::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Push chunks as they arrive and pull items until nothing comes; at the end of the body call
/// [`Reader::finish`] and pull once more.
#[derive(Debug)]
pub struct Reader {
    form: Form,
    decoder: Decoder,
    observer: Observer,
    /// The usage was asked for on the caller's behalf: they do not expect the chunk that brings it.
    hide_figures: bool,
    /// What was pushed and is part of no item yet; for [`Form::Bytes`].
    raw: VecDeque<Bytes>,
    raw_bytes: usize,
    finished: bool,
}

impl Reader {
    /// `limit` bounds the bytes of one event.
    pub fn new(form: Form, limit: usize, hide_figures: bool) -> Self {
        Self {
            form,
            decoder: Decoder::new(limit),
            observer: Observer::default(),
            hide_figures,
            raw: VecDeque::new(),
            raw_bytes: 0,
            finished: false,
        }
    }

    pub fn push(&mut self, chunk: Bytes) {
        if self.form != Form::Events {
            self.raw_bytes += chunk.len();
            self.raw.push_back(chunk.clone());
        }
        self.decoder.push(chunk);
    }

    /// The body has ended.
    pub fn finish(&mut self) {
        self.finished = true;
        self.decoder.finish();
    }

    /// Appends what is complete to `items` and returns how many events it was. Nothing comes after the last
    /// event of the stream, nor is an error an item.
    pub fn pull(&mut self, items: &mut Vec<Item>) -> Result<usize, SseError> {
        let mut events = 0;
        while !self.observer.is_over() {
            let Some(event) = self.decoder.next_event()? else { break };
            events += 1;
            let seen = self.observer.observe(&event);
            // The end of the body cut it.
            let cut = seen == Seen::Opaque && self.finished;
            if seen == Seen::Opaque && !cut {
                self.observer.opaque_content();
            }
            let hidden = cut
                || seen == Seen::Error && self.form != Form::AsItCame
                || seen == Seen::Figures && self.hide_figures;
            match self.form {
                Form::Events if hidden || seen == Seen::Done => {}
                Form::Events => items.push(Item { event: event.event, data: event.data }),
                Form::Bytes | Form::AsItCame => self.release(hidden, items),
            }
        }
        Ok(events)
    }

    /// Of the bytes held, all that the decoder has read become an item, or go away.
    fn release(&mut self, hidden: bool, items: &mut Vec<Item>) {
        let mut read = self.raw_bytes.saturating_sub(self.decoder.unread());
        // The LF of a CR LF is read with the event after it, and belongs to the one before.
        if self.byte(read.checked_sub(1)) == Some(b'\r') && self.byte(Some(read)) == Some(b'\n') {
            read += 1;
        }
        self.raw_bytes -= read;
        while read > 0 {
            let Some(mut piece) = self.raw.pop_front() else { return };
            if piece.len() > read {
                let rest = piece.split_off(read);
                self.raw.push_front(rest);
            }
            read -= piece.len();
            if !hidden {
                items.push(Item { event: None, data: piece });
            }
        }
    }

    fn byte(&self, at: Option<usize>) -> Option<u8> {
        let mut at = at?;
        for piece in &self.raw {
            if let Some(byte) = piece.get(at) {
                return Some(*byte);
            }
            at -= piece.len();
        }
        None
    }

    pub const fn observer(&self) -> &Observer {
        &self.observer
    }

    pub const fn observer_mut(&mut self) -> &mut Observer {
        &mut self.observer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::DEFAULT_LIMIT;

    const BODY: &str = ": hi\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n\
                        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\r\n\r\ndata: [DONE]\r\n\r\n";

    fn read(form: Form, hide: bool, body: &str, size: usize) -> (Vec<Item>, Reader) {
        let mut reader = Reader::new(form, DEFAULT_LIMIT, hide);
        let mut items = Vec::new();
        for chunk in body.as_bytes().chunks(size) {
            reader.push(Bytes::copy_from_slice(chunk));
            reader.pull(&mut items).unwrap();
        }
        reader.finish();
        reader.pull(&mut items).unwrap();
        (items, reader)
    }

    fn joined(items: &[Item]) -> String {
        items.iter().map(|item| String::from_utf8_lossy(&item.data)).collect()
    }

    #[test]
    fn events_come_without_the_word_done() {
        for size in 1..BODY.len() {
            let (items, reader) = read(Form::Events, false, BODY, size);
            assert_eq!(items.len(), 2, "chunks of {size}");
            assert!(reader.observer().is_over());
        }
        assert_eq!(read(Form::Events, true, BODY, 7).0.len(), 1);
    }

    #[test]
    fn bytes_come_as_they_are() {
        assert_eq!(joined(&read(Form::Bytes, false, BODY, BODY.len()).0), BODY);
        for size in 1..BODY.len() {
            // An LF that comes later than the end does not matter.
            let text = joined(&read(Form::Bytes, false, BODY, size).0);
            assert!(text == BODY || text == BODY.trim_end_matches('\n'), "{text:?}");
        }
    }

    #[test]
    fn the_figures_that_nobody_asked_for_are_cut_out_of_the_bytes() {
        for size in 1..BODY.len() {
            let (items, reader) = read(Form::Bytes, true, BODY, size);
            let text = joined(&items);
            assert!(!text.contains("usage") && text.contains("\"a\"") && text.contains("[DONE]"), "{text:?}");
            assert_eq!(reader.observer().reading().usage.map(|usage| usage.input), Some(1));
        }
    }

    #[test]
    fn an_event_that_the_end_cut_is_not_given() {
        let body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"de";
        for form in [Form::Events, Form::Bytes] {
            let (items, reader) = read(form, false, body, 9);
            assert!(!joined(&items).contains("\"de\""));
            assert!(!reader.observer().is_complete() && reader.observer().has_content());
        }
    }

    #[test]
    fn an_error_is_no_item_and_nothing_follows_it() {
        let body = "data: {\"error\":{\"message\":\"m\"}}\n\ndata: [DONE]\n\n";
        for form in [Form::Events, Form::Bytes] {
            let (items, reader) = read(form, false, body, 5);
            assert_eq!(items, []);
            assert!(reader.observer().error().is_some() && !reader.observer().is_complete());
        }
    }
}
