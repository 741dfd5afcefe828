//! One event's JSON, in any provider's shape, read in one pass.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess};

use super::estimate;
use crate::json::{Count, Lenient, Present, Text, lenient_object, seed};
use crate::usage::{Reported, ToolUsage};

lenient_object! {
    pub(super) struct Chunk<'a> {
        pub(super) object: Text<'a> = "object",
        pub(super) kind: Text<'a> = "type",
        pub(super) error: Present = "error",
        pub(super) choices: Choices<'a> = "choices",
        pub(super) usage: Reported<'a> = "usage",
        pub(super) groq: Groq<'a> = "x_groq",
        pub(super) model: Text<'a> = "model",
        pub(super) service_tier: Text<'a> = "service_tier",
        // Responses
        pub(super) response: Holder<'a> = "response",
        pub(super) delta: Delta<'a> = "delta",
        // Anthropic; elsewhere the text of an error
        pub(super) message: Holder<'a> = "message",
    }
}

lenient_object! {
    pub(super) struct Groq<'a> {
        pub(super) error: Text<'a> = "error",
        pub(super) usage: Reported<'a> = "usage",
    }
}

lenient_object! {
    /// What a whole answer inside an event says.
    pub(super) struct Holder<'a> {
        pub(super) usage: Reported<'a> = "usage",
        pub(super) tool_usage: ToolUsage = "tool_usage",
        pub(super) model: Text<'a> = "model",
        pub(super) service_tier: Text<'a> = "service_tier",
    }
}

#[derive(Debug, Default)]
pub(super) struct Choices<'a> {
    pub(super) given: bool,
    pub(super) list: Vec<Choice<'a>>,
}

impl<'de: 'a, 'a> Lenient<'de> for Choices<'a> {
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut choices = Self { given: true, list: Vec::new() };
        while let Some(choice) = list.next_element_seed(seed())? {
            choices.list.push(choice);
        }
        Ok(choices)
    }
}

lenient_object! {
    pub(super) struct Choice<'a> {
        pub(super) index: Count = "index",
        pub(super) delta: Delta<'a> = "delta",
        // of the older completions
        pub(super) text: Text<'a> = "text",
        pub(super) finish_reason: Text<'a> = "finish_reason",
        pub(super) error: Present = "error",
    }
}

/// What an event adds to the answer: a text, or an object of texts.
#[derive(Debug, Default)]
pub(super) struct Delta<'a> {
    pub(super) plain: Text<'a>,
    pub(super) parts: Parts<'a>,
}

impl<'de: 'a, 'a> Lenient<'de> for Delta<'a> {
    fn text(text: &str) -> Self {
        Self { plain: Text::text(text), parts: Parts::default() }
    }

    fn borrowed_text(text: &'de str) -> Self {
        Self { plain: Text::borrowed_text(text), parts: Parts::default() }
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Self, A::Error> {
        Ok(Self { plain: Text::default(), parts: Parts::object(object)? })
    }
}

lenient_object! {
    pub(super) struct Parts<'a> {
        content: Content<'a> = "content",
        refusal: Text<'a> = "refusal",
        reasoning_content: Text<'a> = "reasoning_content",
        reasoning: Text<'a> = "reasoning",
        tool_calls: ToolCalls = "tool_calls",
        function_call: Function = "function_call",
        audio: Audio<'a> = "audio",
        // Anthropic
        text: Text<'a> = "text",
        thinking: Text<'a> = "thinking",
        partial_json: Text<'a> = "partial_json",
    }
}

impl Parts<'_> {
    /// The text that a reader sees.
    pub(super) fn visible(&self) -> &str {
        let texts = [&self.content.0, &self.refusal, &self.text];
        texts.into_iter().map(of).find(|text| !text.is_empty()).unwrap_or_default()
    }

    pub(super) fn tokens(&self) -> u64 {
        let texts = [
            &self.content.0,
            &self.refusal,
            &self.reasoning_content,
            &self.reasoning,
            &self.audio.transcript,
            &self.text,
            &self.thinking,
            &self.partial_json,
        ];
        let mut tokens = self.tool_calls.0 + self.function_call.tokens();
        let mut earlier = "";
        for text in texts.into_iter().map(of) {
            // Some gateways send reasoning under both of its names.
            if text != earlier {
                tokens += estimate::tokens(text);
            }
            earlier = text;
        }
        tokens
    }

    /// Sound has no text to be counted.
    pub(super) fn is_content(&self) -> bool {
        self.audio.data.0 || self.tool_calls.1 || self.tokens() > 0
    }
}

pub(super) fn of<'t>(text: &'t Text<'_>) -> &'t str {
    text.0.as_deref().unwrap_or_default()
}

/// Text, or Mistral's list of parts.
#[derive(Debug, Default)]
struct Content<'a>(Text<'a>);

impl<'de: 'a, 'a> Lenient<'de> for Content<'a> {
    fn text(text: &str) -> Self {
        Self(Text::text(text))
    }

    fn borrowed_text(text: &'de str) -> Self {
        Self(Text::borrowed_text(text))
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut whole = String::new();
        while let Some(part) = list.next_element_seed(seed::<Part<'de>>())? {
            whole.push_str(of(&part.text));
        }
        Ok(Self(Text(Some(Cow::Owned(whole)))))
    }
}

lenient_object! {
    struct Part<'a> {
        text: Text<'a> = "text",
    }
}

/// Tokens of the calls' names and arguments, and whether there is a call.
#[derive(Debug, Default)]
struct ToolCalls(u64, bool);

impl<'de> Lenient<'de> for ToolCalls {
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut calls = Self::default();
        while let Some(call) = list.next_element_seed(seed::<ToolCall>())? {
            calls.0 += call.function.tokens();
            calls.1 = true;
        }
        Ok(calls)
    }
}

lenient_object! {
    struct ToolCall {
        function: Function = "function",
    }
}

lenient_object! {
    struct Function {
        name: Tokens = "name",
        arguments: Tokens = "arguments",
    }
}

impl Function {
    fn tokens(&self) -> u64 {
        self.name.0 + self.arguments.0
    }
}

/// The tokens of a text that nobody needs.
#[derive(Debug, Default)]
struct Tokens(u64);

impl Lenient<'_> for Tokens {
    fn text(text: &str) -> Self {
        Self(estimate::tokens(text))
    }
}

lenient_object! {
    struct Audio<'a> {
        data: Present = "data",
        transcript: Text<'a> = "transcript",
    }
}
