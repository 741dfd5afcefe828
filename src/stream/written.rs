//! The text of a whole answer, where nobody counted its tokens.

use serde::de::{MapAccess, SeqAccess};

use super::estimate;
use crate::json::{self, Lenient, Name, Present, lenient_object, seed};
use crate::request::without_surrogates;

/// Tokens that a model has written in an answer of `OpenAI`'s or Anthropic's shape; `None` if the answer is not a
/// model's, is not ready, or holds what is no text.
pub fn written(body: &[u8]) -> Option<u64> {
    let read = |body: &[u8]| json::read::<Answer<'_>>(body).ok().map(|answer| answer.tokens());
    read(body).or_else(|| read(without_surrogates(body).as_bytes()))?
}

lenient_object! {
    struct Answer<'a> {
        choices: Text = "choices",
        // Responses
        output: Text = "output",
        status: json::Text<'a> = "status",
        // Anthropic
        content: Text = "content",
        data: Embeddings = "data",
    }
}

impl Answer<'_> {
    fn tokens(&self) -> Option<u64> {
        let texts = [&self.choices, &self.output, &self.content];
        let is_a_models = self.data.0 || texts.iter().any(|text| text.given);
        let is_ready = !self.status.is("queued") && !self.status.is("in_progress");
        let is_text = !texts.iter().any(|text| text.holds_other);
        (is_a_models && is_ready && is_text).then(|| texts.iter().map(|text| text.tokens).sum())
    }
}

/// Text at any depth, under the names that text has.
#[derive(Debug, Default)]
struct Text {
    given: bool,
    tokens: u64,
    /// Pictures or sound, which are billed by other rules.
    holds_other: bool,
}

impl Text {
    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.holds_other |= other.holds_other;
    }
}

impl<'de> Lenient<'de> for Text {
    fn text(text: &str) -> Self {
        Self { given: true, tokens: estimate::tokens(text), holds_other: false }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut whole = Self { given: true, ..Self::default() };
        while let Some(part) = list.next_element_seed(seed::<Self>())? {
            whole.add(&part);
        }
        Ok(whole)
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Self, A::Error> {
        let part = Part::object(object)?;
        let values = part.input.0 + part.arguments.0;
        // Some gateways give reasoning under both of its names.
        let reasoning = part.reasoning.tokens.max(part.reasoning_content.tokens);
        let holds_other = part.data.0 || part.result.0;
        let mut whole = Self { given: true, tokens: values + reasoning, holds_other };
        for text in [
            part.message,
            part.content,
            part.text,
            part.refusal,
            part.summary,
            part.thinking,
            part.audio,
            part.transcript,
            part.tool_calls,
            part.function_call,
            part.function,
            part.custom,
            part.name,
            part.code,
        ] {
            whole.add(&text);
        }
        Ok(whole)
    }
}

lenient_object! {
    struct Part {
        message: Text = "message",
        content: Text = "content",
        text: Text = "text",
        refusal: Text = "refusal",
        reasoning: Text = "reasoning",
        reasoning_content: Text = "reasoning_content",
        summary: Text = "summary",
        thinking: Text = "thinking",
        audio: Text = "audio",
        transcript: Text = "transcript",
        // of sound
        data: Present = "data",
        // of a picture
        result: Present = "result",
        tool_calls: Text = "tool_calls",
        function_call: Text = "function_call",
        function: Text = "function",
        custom: Text = "custom",
        name: Text = "name",
        arguments: Value = "arguments",
        input: Value = "input",
        code: Text = "code",
    }
}

/// Tokens of any value, the names in it included: what a tool is called with.
#[derive(Debug, Default)]
struct Value(u64);

impl<'de> Lenient<'de> for Value {
    fn boolean(_: bool) -> Self {
        Self(1)
    }

    fn unsigned(number: u64) -> Self {
        Self::text(&number.to_string())
    }

    fn float(number: f64) -> Self {
        Self::text(&number.to_string())
    }

    fn text(text: &str) -> Self {
        Self(estimate::tokens(text))
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut whole = Self::default();
        while let Some(part) = list.next_element_seed(seed::<Self>())? {
            whole.0 += part.0;
        }
        Ok(whole)
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut whole = Self::default();
        while let Some(name) = object.next_key_seed(Name(estimate::tokens))? {
            whole.0 += name + object.next_value_seed(seed::<Self>())?.0;
        }
        Ok(whole)
    }
}

/// Whether there are any. Nothing is written for them.
#[derive(Debug, Default)]
struct Embeddings(bool);

impl<'de> Lenient<'de> for Embeddings {
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut found = Self::default();
        while let Some(one) = list.next_element_seed(seed::<Embedding>())? {
            found.0 |= one.embedding.0;
        }
        Ok(found)
    }
}

lenient_object! {
    struct Embedding {
        embedding: Present = "embedding",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_each_shape() {
        for (body, tokens) in [
            (
                r#"{"choices":[{"message":{"role":"assistant","content":"one two"},"finish_reason":"stop"}]}"#,
                2,
            ),
            (r#"{"choices":[{"text":"one"},{"text":"two"}]}"#, 2),
            (r#"{"choices":[{"message":{"content":[{"type":"text","text":"one two"}]}}]}"#, 2),
            (
                r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#,
                2,
            ),
            (r#"{"choices":[{"message":{"content":"a","reasoning":"so","reasoning_content":"so"}}]}"#, 2),
            (
                r#"{"id":"r","output":[{"type":"reasoning","summary":[{"text":"so"}]},{"content":[{"type":"output_text","text":"hi"}]}]}"#,
                2,
            ),
            (
                r#"{"type":"message","content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"hi"}]}"#,
                2,
            ),
            (
                r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":["one",2,true]}}}]}}]}"#,
                5,
            ),
            (
                r#"{"choices":[{"message":{"tool_calls":[{"type":"custom","custom":{"name":"f","input":"a b"}}]}}]}"#,
                3,
            ),
            (
                r#"{"output":[{"type":"custom_tool_call","name":"f","input":"a b"},{"name":"g","arguments":"one"}]}"#,
                5,
            ),
            (r#"{"output":[{"type":"code_interpreter_call","code":"one two","outputs":null}]}"#, 2),
            (r#"{"content":[{"type":"tool_use","id":"t","name":"f","input":{"a":{"b":"one two"}}}]}"#, 5),
            (r#"{"status":"completed","output":[{"content":[{"text":"hi"}]}]}"#, 1),
            (r#"{"choices":[{"message":{"content":"\ud83d one"}}]}"#, 2),
            (r#"{"choices":[{"message":{"content":""}}]}"#, 0),
            (r#"{"object":"list","data":[{"object":"embedding","embedding":[0.5]}]}"#, 0),
        ] {
            assert_eq!(written(body.as_bytes()), Some(tokens), "{body}");
        }
    }

    #[test]
    fn what_no_model_wrote_or_is_no_text_is_not_counted() {
        for body in [
            r#"{"status":"queued","output":[]}"#,
            r#"{"status":"in_progress","output":[]}"#,
            r#"{"choices":[{"message":{"audio":{"data":"UklG","transcript":"hi"}}}]}"#,
            r#"{"output":[{"type":"image_generation_call","result":"iVBOR"}]}"#,
            "",
            "{",
            "[]",
            "{}",
            r#"{"data":[{"url":"u"}]}"#,
            r#"{"results":[{"flagged":false}]}"#,
            r#"{"text":"hi"}"#,
        ] {
            assert_eq!(written(body.as_bytes()), None, "{body}");
        }
    }
}
