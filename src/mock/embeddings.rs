//! Embeddings: equal texts have equal vectors, of length close to 1.

use std::hash::{DefaultHasher, Hasher};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Value, json};

use super::answer::Answer;
use super::bill::Usage;
use super::reply::{Draft, refusal};

/// Vectors of more dimensions than any model's are refused.
const MOST_DIMENSIONS: usize = 16_384;

pub(super) fn answer(draft: &Draft<'_>, body: &[u8], dimensions: usize) -> Answer {
    let dimensions = draft.asked.dimensions.unwrap_or(dimensions);
    if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
        return refusal("invalid_request", "dimensions must be between 1 and 16384.");
    }
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let inputs: Vec<&Value> = match request.get("input") {
        Some(text @ Value::String(_)) => vec![text],
        // A list of token numbers is one input, a list of texts or of such lists is many.
        Some(list @ Value::Array(items)) if items.first().is_some_and(Value::is_number) => vec![list],
        Some(Value::Array(items)) if !items.is_empty() => items.iter().collect(),
        _ => return refusal("invalid_request", "input must be a string, or a list that is not empty."),
    };
    let data: Vec<Value> = inputs
        .into_iter()
        .enumerate()
        .map(|(index, input)| {
            let vector = vector(input, dimensions);
            let embedding = if draft.asked.base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            } else {
                Value::from(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let tokens = draft.usage.prompt_tokens;
    let body = json!({
        "object": "list", "data": data, "model": draft.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    let mut answer = Answer::json(StatusCode::OK, body.to_string());
    answer.usage = Usage { prompt_tokens: tokens, ..Usage::default() };
    answer
}

fn vector(input: &Value, dimensions: usize) -> Vec<f32> {
    let mut hasher = DefaultHasher::new();
    hasher.write(input.to_string().as_bytes());
    let mut state = hasher.finish() | 1;
    // Numbers even between -1 and 1 have a mean square of a third.
    let scale = (3.0 / dimensions as f32).sqrt();
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).unwrap_or_default()) / 32_768.0 - 1.0
    };
    (0..dimensions).map(|_| next() * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_depend_on_the_text_alone_and_have_length_one() {
        let of = |text: &str| vector(&Value::from(text), 1536);
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
        let length: f32 = of("a").iter().map(|number| number * number).sum();
        assert!((length - 1.0).abs() < 0.1, "{length}");
    }
}
