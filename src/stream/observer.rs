//! What the events of a stream say, added up.

use bytes::Bytes;
use serde_json::json;

use super::chunk::{Choice, Chunk, Holder, of};
use super::estimate;
use crate::classify::Reading;
use crate::json;
use crate::request::without_surrogates;
use crate::sse::ServerSentEvent;
use crate::usage::{Reported, Usage};

/// What one event is to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing of the answer yet: roles, ids, signs of life.
    Prelude,
    /// A part of the answer, or the word that it is finished.
    Content,
    /// Only figures: no choice, and the usage.
    Figures,
    /// The server gave up.
    Error,
    /// `[DONE]`.
    Done,
    /// No JSON.
    Opaque,
}

/// The languages whose end is known. A stream in another one is complete when it closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Chat,
    Responses,
    Messages,
}

#[derive(Debug, Default)]
pub struct Observer {
    language: Option<Language>,
    content: bool,
    text: String,
    tokens: u64,
    reading: Reading,
    /// Choices that have begun, and that have finished, one bit each.
    begun: u128,
    finished: u128,
    ended: bool,
    error: Option<Bytes>,
}

impl Observer {
    pub fn observe(&mut self, event: &ServerSentEvent) -> Seen {
        let data = event.data.trim_ascii();
        if data == b"[DONE]" {
            self.ended = true;
            return Seen::Done;
        }
        if data.is_empty() {
            return Seen::Prelude;
        }
        let name = event.event.as_deref().unwrap_or_default();
        if let Ok(chunk) = json::read::<Chunk<'_>>(data) {
            return self.read(&chunk, name, &event.data);
        }
        let repaired = without_surrogates(data);
        match json::read::<Chunk<'_>>(repaired.as_bytes()) {
            Ok(chunk) => self.read(&chunk, name, &event.data),
            Err(_) => Seen::Opaque,
        }
    }

    /// A part of the answer that cannot be read, or a word of an unknown language.
    pub(super) fn opaque_content(&mut self) {
        self.content = true;
    }

    /// The answer has begun.
    pub const fn has_content(&self) -> bool {
        self.content
    }

    /// The server has said that the answer is whole: by an event for it, or for each choice of it.
    pub const fn is_complete(&self) -> bool {
        self.ended || self.begun != 0 && self.begun == self.finished
    }

    /// The last event has come. What follows a finished choice may still be the usage.
    pub const fn is_over(&self) -> bool {
        self.ended || self.error.is_some()
    }

    /// Whether streams like this one tell their end.
    pub const fn tells_its_end(&self) -> bool {
        self.language.is_some()
    }

    /// The data of the event that was an error, as an error's body.
    pub fn error(&self) -> Option<&Bytes> {
        self.error.as_ref()
    }

    /// The first choice's text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Tokens in what has come so far, estimated from it.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The last usage that was stated, and who answered.
    pub const fn reading(&self) -> &Reading {
        &self.reading
    }

    fn read(&mut self, chunk: &Chunk<'_>, name: &str, data: &Bytes) -> Seen {
        let kind = chunk.kind.0.as_deref().unwrap_or(name);
        self.facts(chunk);
        if let Some(error) = error(chunk, kind, name, data) {
            self.error = Some(error);
            return Seen::Error;
        }
        if chunk.choices.given {
            self.language = Some(Language::Chat);
            return self.choices(chunk);
        }
        if kind.starts_with("response.") {
            self.language = Some(Language::Responses);
            return self.response(kind, chunk);
        }
        match kind {
            "message_start" | "content_block_start" | "content_block_stop" => {
                self.language = Some(Language::Messages);
                Seen::Prelude
            }
            "content_block_delta" => self.content(chunk.delta.parts.visible(), chunk.delta.parts.tokens()),
            "message_stop" => self.end(),
            "ping" | "keepalive" | "heartbeat" => Seen::Prelude,
            // `message_delta` too, which holds the reason why the answer stops.
            _ => self.content("", 0),
        }
    }

    fn choices(&mut self, chunk: &Chunk<'_>) -> Seen {
        let mut content = false;
        for choice in &chunk.choices.list {
            content |= self.choice(choice);
        }
        if content {
            Seen::Content
        } else if chunk.choices.list.is_empty() && chunk.usage.normalise().is_some() {
            Seen::Figures
        } else {
            Seen::Prelude
        }
    }

    fn choice(&mut self, choice: &Choice<'_>) -> bool {
        let index = choice.index.or_zero();
        // More than 127 choices are not told apart.
        let bit = 1u128 << index.min(127);
        self.begun |= bit;
        let finished = choice.finish_reason.0.is_some();
        if finished {
            self.finished |= bit;
        }
        let parts = &choice.delta.parts;
        let visible = Some(of(&choice.text)).filter(|text| !text.is_empty()).unwrap_or(parts.visible());
        if index == 0 {
            self.text.push_str(visible);
        }
        self.tokens += parts.tokens() + estimate::tokens(of(&choice.text));
        let content = finished || parts.is_content() || !visible.is_empty();
        self.content |= content;
        content
    }

    fn response(&mut self, kind: &str, chunk: &Chunk<'_>) -> Seen {
        match kind {
            "response.created"
            | "response.queued"
            | "response.in_progress"
            | "response.output_item.added"
            | "response.content_part.added"
            | "response.reasoning_summary_part.added" => Seen::Prelude,
            "response.completed" | "response.incomplete" | "response.cancelled" => self.end(),
            "response.output_text.delta" | "response.refusal.delta" => {
                let text = of(&chunk.delta.plain);
                self.content(text, estimate::tokens(text))
            }
            "response.audio.delta" => self.content("", 0),
            _ => self.content("", estimate::tokens(of(&chunk.delta.plain))),
        }
    }

    fn content(&mut self, visible: &str, tokens: u64) -> Seen {
        self.content = true;
        self.text.push_str(visible);
        self.tokens += tokens;
        Seen::Content
    }

    fn end(&mut self) -> Seen {
        self.ended = true;
        self.content("", 0)
    }

    /// Usage is cumulative: the last one counts.
    fn facts(&mut self, chunk: &Chunk<'_>) {
        for usage in [&chunk.usage, &chunk.groq.usage] {
            self.usage(usage, 0);
        }
        for Holder { usage, tool_usage, model, service_tier } in [&chunk.response, &chunk.message] {
            self.usage(usage, tool_usage.web_searches());
            set(&mut self.reading.model, of(model));
            set(&mut self.reading.service_tier, of(service_tier));
        }
        set(&mut self.reading.model, of(&chunk.model));
        set(&mut self.reading.service_tier, of(&chunk.service_tier));
    }

    fn usage(&mut self, stated: &Reported<'_>, searches: u64) {
        let Some(mut usage) = stated.normalise() else { return };
        usage.web_searches = usage.web_searches.max(searches);
        // Anthropic states the input at the start and only the output at the end.
        if let Some(earlier) = self.reading.usage
            && usage.input == 0
        {
            usage = Usage {
                output: usage.output,
                reasoning: usage.reasoning,
                output_audio: usage.output_audio,
                output_image: usage.output_image,
                web_searches: usage.web_searches.max(earlier.web_searches),
                stated_cost: usage.stated_cost.or(earlier.stated_cost),
                ..earlier
            };
        }
        self.reading.usage = Some(usage);
    }
}

fn set(known: &mut Option<String>, said: &str) {
    if !said.is_empty() && known.as_deref() != Some(said) {
        *known = Some(said.to_owned());
    }
}

/// The body of the error that the event is, if it is one.
fn error(chunk: &Chunk<'_>, kind: &str, name: &str, data: &Bytes) -> Option<Bytes> {
    if let Some(message) = &chunk.groq.error.0 {
        return Some(json!({"error": {"message": message}}).to_string().into());
    }
    let failed = |choice: &Choice<'_>| choice.error.0 || choice.finish_reason.is("error");
    let is_error = chunk.error.0
        || chunk.object.is("error")
        || name == "error"
        || matches!(kind, "error" | "response.failed")
        || chunk.choices.list.iter().any(failed);
    is_error.then(|| data.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(data: &str) -> ServerSentEvent {
        ServerSentEvent { data: Bytes::copy_from_slice(data.as_bytes()), ..ServerSentEvent::default() }
    }

    fn seen(events: &[&str]) -> (Vec<Seen>, Observer) {
        let mut observer = Observer::default();
        (events.iter().map(|data| observer.observe(&event(data))).collect(), observer)
    }

    #[test]
    fn chat() {
        let (kinds, observer) = seen(&[
            r#"{"choices":[],"prompt_filter_results":[{}]}"#,
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#,
            "[DONE]",
        ]);
        assert_eq!(
            kinds,
            [Seen::Prelude, Seen::Prelude, Seen::Content, Seen::Content, Seen::Figures, Seen::Done]
        );
        assert_eq!((observer.text(), observer.tokens()), ("Hi", 1));
        assert_eq!(observer.reading().usage.map(|usage| usage.total()), Some(10));
        assert!(observer.is_complete() && observer.is_over());
    }

    #[test]
    fn every_choice_must_finish() {
        let (_, mut observer) = seen(&[
            r#"{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}"#,
            r#"{"choices":[{"index":1,"finish_reason":"stop"}]}"#,
        ]);
        assert!(!observer.is_complete());
        observer.observe(&event(r#"{"choices":[{"index":0,"finish_reason":"length"}]}"#));
        assert!(observer.is_complete() && !observer.is_over());
        assert_eq!((observer.text(), observer.tokens()), ("a", 2));
    }

    #[test]
    fn tool_calls_reasoning_and_parts_are_content() {
        for (delta, tokens) in [
            (r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}"#, 1),
            (r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a"}}]}"#, 2),
            (r#"{"reasoning_content":" so"}"#, 1),
            (r#"{"reasoning":" so","reasoning_content":" so"}"#, 1),
            (r#"{"content":[{"type":"text","text":"a b"}]}"#, 2),
            (r#"{"audio":{"data":"UklG"}}"#, 0),
            (r#"{"content":"\ud83d"}"#, 1),
        ] {
            let (kinds, observer) = seen(&[&format!("{{\"choices\":[{{\"delta\":{delta}}}]}}")]);
            assert_eq!((kinds[0], observer.tokens()), (Seen::Content, tokens), "{delta}");
        }
    }

    #[test]
    fn anthropic_states_its_usage_in_two_parts() {
        let (kinds, observer) = seen(&[
            r#"{"type":"message_start","message":{"model":"c","usage":{"input_tokens":25,"output_tokens":1}}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#,
            r#"{"type":"message_stop"}"#,
        ]);
        assert_eq!(kinds[..3], [Seen::Prelude, Seen::Prelude, Seen::Content]);
        let usage = observer.reading().usage.unwrap();
        assert_eq!((usage.input, usage.output, observer.text()), (25, 15, "Hi"));
        assert!(observer.is_over() && observer.reading().model.as_deref() == Some("c"));
    }

    #[test]
    fn an_unknown_language_is_content_and_closes_when_it_ends() {
        let (kinds, observer) = seen(&[r#"{"type":"transcript.text.delta","delta":"a"}"#]);
        assert_eq!(kinds, [Seen::Content]);
        assert!(!observer.tells_its_end() && !observer.is_over());
        assert_eq!(seen(&["hello"]).0, [Seen::Opaque]);
    }

    proptest! {
        #[test]
        fn no_data_panics(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let event = ServerSentEvent { data: data.into(), ..ServerSentEvent::default() };
            Observer::default().observe(&event);
        }
    }
}
