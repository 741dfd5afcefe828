//! The text of a whole answer, where nobody counted its tokens.

use serde::de::{MapAccess, SeqAccess};

use super::estimate;
use crate::json::{self, Lenient, Present, lenient_object, seed};

/// Tokens that a model has written in an answer of any provider's shape; `None` if the answer is not a model's.
pub fn written(body: &[u8]) -> Option<u64> {
    let answer: Answer = json::read(body).ok()?;
    let texts = [&answer.choices, &answer.output, &answer.content];
    let is_a_models = answer.data.0 || texts.iter().any(|text| text.given);
    is_a_models.then(|| texts.iter().map(|text| text.tokens).sum())
}

lenient_object! {
    struct Answer {
        choices: Text = "choices",
        // Responses
        output: Text = "output",
        // Anthropic
        content: Text = "content",
        data: Embeddings = "data",
    }
}

/// Text at any depth, under the names that text has.
#[derive(Debug, Default)]
struct Text {
    given: bool,
    tokens: u64,
}

impl<'de> Lenient<'de> for Text {
    fn text(text: &str) -> Self {
        Self { given: true, tokens: estimate::tokens(text) }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut whole = Self { given: true, tokens: 0 };
        while let Some(part) = list.next_element_seed(seed::<Self>())? {
            whole.tokens += part.tokens;
        }
        Ok(whole)
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Self, A::Error> {
        let part = Part::object(object)?;
        // Some gateways give reasoning under both of its names.
        let reasoning = part.reasoning.tokens.max(part.reasoning_content.tokens);
        let texts = [
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
            part.name,
            part.arguments,
        ];
        Ok(Self { given: true, tokens: texts.iter().map(|text| text.tokens).sum::<u64>() + reasoning })
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
        tool_calls: Text = "tool_calls",
        function_call: Text = "function_call",
        function: Text = "function",
        name: Text = "name",
        arguments: Text = "arguments",
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
            (r#"{"choices":[{"message":{"audio":{"data":"UklG","transcript":"hi"}}}]}"#, 1),
            (
                r#"{"id":"r","output":[{"type":"reasoning","summary":[{"text":"so"}]},{"content":[{"type":"output_text","text":"hi"}]}]}"#,
                2,
            ),
            (
                r#"{"type":"message","content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"hi"}]}"#,
                2,
            ),
            (r#"{"choices":[{"message":{"content":""}}]}"#, 0),
            (r#"{"object":"list","data":[{"object":"embedding","embedding":[0.5]}]}"#, 0),
        ] {
            assert_eq!(written(body.as_bytes()), Some(tokens), "{body}");
        }
    }

    #[test]
    fn what_no_model_wrote_has_no_tokens() {
        for body in [
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
