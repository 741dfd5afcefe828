//! What the gates must know of a request before it is sent, in one pass over its JSON.

use serde::de::{MapAccess, SeqAccess};

use crate::json::{self, Count, Flag, Lenient, Name, Present, Text, lenient_object, seed};

/// Tokens set aside for one image, sound or file. Their bytes say nothing about their tokens; 1,000 is near a
/// large image of most models (OpenAI vision guide: 765 to 1,105 for a high-detail square).
pub const TOKENS_PER_MEDIA_PART: u64 = 1_000;

/// Bytes of text per token where nothing is calibrated yet.
pub const DEFAULT_BYTES_PER_TOKEN: f64 = 4.0;

/// A number in a prompt is a token id, or short text: about one token.
const BYTES_PER_NUMBER: u64 = 4;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestFacts {
    pub model: Option<String>,
    /// Most tokens the answer may have: the largest declared limit times the number of choices.
    pub output_limit: Option<u64>,
    /// Choices asked for, at least 1.
    pub n: u64,
    pub stream: bool,
    /// `stream_options.include_usage`; `None` if it is not given.
    pub include_usage: Option<bool>,
    pub service_tier: Option<String>,
    /// UTF-8 bytes of text that becomes prompt tokens: messages, input, instructions, tools, schemas.
    pub prompt_bytes: u64,
    /// Tokens set aside for images, sound and files.
    pub media_tokens: u64,
    /// The server acts on the world (MCP tools) or goes on without us (`background`), so that a request whose
    /// outcome is unknown must not be repeated.
    pub replay_unsafe: bool,
}

impl RequestFacts {
    /// Reads a JSON body; `None` if it is not a JSON object.
    pub fn read(body: &[u8]) -> Option<Self> {
        if body.trim_ascii_start().first() != Some(&b'{') {
            return None;
        }
        let facts = |body: &[u8]| json::read::<Body<'_>>(body).ok().map(Body::facts);
        // Half a surrogate pair is legal JSON and no legal text; the server decides on it, so it is only
        // weighed here.
        facts(body).or_else(|| facts(without_surrogates(body).as_bytes()))
    }

    /// Tokens of the prompt, text and media.
    pub fn prompt_tokens(&self, bytes_per_token: f64) -> u64 {
        estimate(self.prompt_bytes, bytes_per_token).saturating_add(self.media_tokens)
    }
}

/// Tokens that `prompt_bytes` of text make, rounded up: at least 1 for any text.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "both operands are positive; `as` saturates"
)]
pub fn estimate(prompt_bytes: u64, bytes_per_token: f64) -> u64 {
    let sane = bytes_per_token.is_finite() && bytes_per_token > 0.0;
    let divisor = if sane { bytes_per_token } else { DEFAULT_BYTES_PER_TOKEN };
    (prompt_bytes as f64 / divisor).ceil() as u64
}

/// Text in which half a surrogate pair is replaced: it is legal JSON and no legal text.
pub(crate) fn without_surrogates(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        clean.push_str(before);
        let hex = escape.get(2..6).filter(|_| escape.starts_with("\\u"));
        let surrogate = hex
            .and_then(|hex| u16::from_str_radix(hex, 16).ok())
            .is_some_and(|unit| (0xD800..=0xDFFF).contains(&unit));
        // The backslash and what it escapes, so that an escaped backslash does not start an escape.
        let length = if surrogate { 6 } else { 1 + escape.chars().nth(1).map_or(0, char::len_utf8) };
        let (taken, after) = escape.split_at(length);
        clean.push_str(if surrogate { "\\ufffd" } else { taken });
        rest = after;
    }
    clean.push_str(rest);
    clean
}

lenient_object! {
    struct Body<'a> {
        model: Text<'a> = "model",
        max_tokens: Count = "max_tokens",
        max_completion_tokens: Count = "max_completion_tokens",
        max_output_tokens: Count = "max_output_tokens",
        n: Count = "n",
        best_of: Count = "best_of",
        stream: Flag = "stream",
        stream_options: StreamOptions = "stream_options",
        service_tier: Text<'a> = "service_tier",
        background: Flag = "background",
        messages: Weight = "messages",
        input: Weight = "input",
        prompt: Weight = "prompt",
        instructions: Weight = "instructions",
        system: Weight = "system",
        tools: Tools = "tools",
        functions: Schema = "functions",
        response_format: Schema = "response_format",
        text: Schema = "text",
    }
}

lenient_object! {
    struct StreamOptions {
        include_usage: Flag = "include_usage",
    }
}

impl Body<'_> {
    fn facts(self) -> RequestFacts {
        let texts = [&self.messages, &self.input, &self.prompt, &self.instructions, &self.system];
        let schemas = [&self.tools.schema, &self.functions, &self.response_format, &self.text];
        let bytes = texts.iter().map(|text| text.bytes).chain(schemas.iter().map(|schema| schema.0));
        let prompt_bytes = bytes.fold(0, u64::saturating_add);
        let media = texts.iter().map(|text| text.media).fold(0, u64::saturating_add);
        let n = self.n.or_zero().max(1);
        let declared = [self.max_tokens.0, self.max_completion_tokens.0, self.max_output_tokens.0];
        let generated = n.max(self.best_of.or_zero());
        RequestFacts {
            output_limit: declared.into_iter().flatten().max().map(|limit| limit.saturating_mul(generated)),
            n,
            stream: self.stream.0.unwrap_or(false),
            include_usage: self.stream_options.include_usage.0,
            prompt_bytes,
            media_tokens: media.saturating_mul(TOKENS_PER_MEDIA_PART),
            replay_unsafe: self.background.0.unwrap_or(false) || self.tools.acts,
            model: self.model.into_string(),
            service_tier: self.service_tier.into_string(),
        }
    }
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// The text in a prompt, and its parts that are not text.
#[derive(Debug, Default, Clone, Copy)]
struct Weight {
    bytes: u64,
    media: u64,
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.media = self.media.saturating_add(other.media);
    }
}

impl<'de> Lenient<'de> for Weight {
    fn unsigned(_: u64) -> Self {
        Self { bytes: BYTES_PER_NUMBER, media: 0 }
    }

    fn float(_: f64) -> Self {
        Self { bytes: BYTES_PER_NUMBER, media: 0 }
    }

    fn text(text: &str) -> Self {
        let parameters = text.strip_prefix("data:").and_then(|rest| rest.split_once(','));
        if parameters.is_some_and(|(parameters, _)| parameters.ends_with(";base64")) {
            return Self { bytes: 0, media: 1 };
        }
        Self { bytes: length(text), media: 0 }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut total = Self::default();
        while let Some(item) = list.next_element_seed(seed::<Self>())? {
            total.add(item);
        }
        Ok(total)
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut total = Self::default();
        let mut media = false;
        while let Some(is_media) = object.next_key_seed(Name(holds_media))? {
            if is_media {
                // A part may name its payload twice (`file_data` and `file_id`); it is one part.
                media |= object.next_value_seed(seed::<Present>())?.0;
            } else {
                total.add(object.next_value_seed(seed::<Self>())?);
            }
        }
        total.media = total.media.saturating_add(u64::from(media));
        Ok(total)
    }
}

/// Fields of a content part that hold an image, sound or file, or point to one.
fn holds_media(name: &str) -> bool {
    matches!(
        name,
        "image_url"
            | "input_audio"
            | "file"
            | "file_data"
            | "file_id"
            | "file_url"
            | "video_url"
            | "audio"
            | "source"
    )
}

/// A definition that the model reads whole: names count as well as values.
#[derive(Debug, Default, Clone, Copy)]
struct Schema(u64);

impl<'de> Lenient<'de> for Schema {
    fn boolean(_: bool) -> Self {
        Self(BYTES_PER_NUMBER)
    }

    fn unsigned(_: u64) -> Self {
        Self(BYTES_PER_NUMBER)
    }

    fn float(_: f64) -> Self {
        Self(BYTES_PER_NUMBER)
    }

    fn text(text: &str) -> Self {
        Self(length(text))
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut total = 0u64;
        while let Some(item) = list.next_element_seed(seed::<Self>())? {
            total = total.saturating_add(item.0);
        }
        Ok(Self(total))
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut total = 0u64;
        while let Some(name) = object.next_key_seed(Name(length))? {
            total = total.saturating_add(name).saturating_add(object.next_value_seed(seed::<Self>())?.0);
        }
        Ok(Self(total))
    }
}

#[derive(Debug, Default)]
struct Tools {
    schema: Schema,
    /// One of them acts on the server's side, out of our sight.
    acts: bool,
}

impl<'de> Lenient<'de> for Tools {
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut total = Self::default();
        while let Some(tool) = list.next_element_seed(seed::<Tool>())? {
            total.schema.0 = total.schema.0.saturating_add(tool.bytes);
            total.acts |= tool.acts;
        }
        Ok(total)
    }
}

#[derive(Debug, Default)]
struct Tool {
    bytes: u64,
    acts: bool,
}

impl<'de> Lenient<'de> for Tool {
    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut tool = Self::default();
        let name = |name: &str| (length(name), name == "type");
        while let Some((bytes, is_type)) = object.next_key_seed(Name(name))? {
            tool.bytes = tool.bytes.saturating_add(bytes);
            if is_type {
                let kind: Text<'de> = object.next_value_seed(seed())?;
                tool.acts |= kind.is("mcp");
                tool.bytes = tool.bytes.saturating_add(kind.0.as_deref().map_or(0, length));
            } else {
                tool.bytes = tool.bytes.saturating_add(object.next_value_seed(seed::<Schema>())?.0);
            }
        }
        Ok(tool)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(json: &str) -> RequestFacts {
        RequestFacts::read(json.as_bytes()).unwrap()
    }

    #[test]
    fn options() {
        let read = facts(
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":false},
                "service_tier":"flex","n":2,"max_tokens":5}"#,
        );
        let want = RequestFacts {
            model: Some("m".to_owned()),
            output_limit: Some(10),
            n: 2,
            stream: true,
            include_usage: Some(false),
            service_tier: Some("flex".to_owned()),
            ..RequestFacts::default()
        };
        assert_eq!(read, want);
        assert_eq!(facts("{}"), RequestFacts { n: 1, ..RequestFacts::default() });
        for body in ["", "[]", "null", "--boundary\r\n", "{\"model\":"] {
            assert_eq!(RequestFacts::read(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn text_counts_and_structure_does_not() {
        assert_eq!(facts(r#"{"messages":[{"role":"user","content":"12345678"}]}"#).prompt_bytes, 12);
        assert_eq!(facts(r#"{"input":"1234","instructions":"12"}"#).prompt_bytes, 6);
        assert_eq!(facts(r#"{"input":[[1,2,3]]}"#).prompt_bytes, 12);
        assert_eq!(facts(r#"{"user":"ignored","metadata":{"a":"b"}}"#).prompt_bytes, 0);
    }

    #[test]
    fn a_part_is_one_part_however_it_names_its_payload() {
        let read = facts(
            r#"{"input":[{"role":"user","content":[
                {"type":"input_file","file_data":"data:application/pdf;base64,AAAA","file_id":"f"},
                {"type":"input_image","image_url":null}]}]}"#,
        );
        assert_eq!(read.media_tokens, TOKENS_PER_MEDIA_PART);
    }

    #[test]
    fn tools_count_with_their_names_and_may_act() {
        let read = facts(r#"{"tools":[{"type":"function","function":{"name":"f"}}]}"#);
        assert_eq!(read.prompt_bytes, 25);
        assert!(!read.replay_unsafe);
        assert!(facts(r#"{"tools":[{"type":"function"},{"server_url":"x","type":"mcp"}]}"#).replay_unsafe);
        assert!(facts(r#"{"background":true}"#).replay_unsafe);
        assert!(!facts(r#"{"tools":[{"type":"function","function":{"type":"mcp"}}]}"#).replay_unsafe);
    }

    #[test]
    fn half_a_surrogate_pair_is_weighed_all_the_same() {
        let read = facts(r#"{"model":"m","messages":[{"content":"\\ud800 \ud83d\" \uDE00"}],"stream":true}"#);
        assert!(read.stream && read.model.as_deref() == Some("m"));
        assert_eq!(read.prompt_bytes, 6 + 1 + 3 + 1 + 1 + 3);
    }

    #[test]
    fn any_text_is_at_least_a_token() {
        assert_eq!(estimate(0, 4.0), 0);
        assert_eq!(estimate(1, 4.0), 1);
        assert_eq!(estimate(9, 4.0), 3);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(estimate(8, wrong), 2);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
            let _ = RequestFacts::read(&bytes);
            let _ = RequestFacts::read(format!("{{{text}").as_bytes());
            let _ = without_surrogates(text.as_bytes());
        }

        #[test]
        fn text_is_weighed_by_its_utf8_length(text in any::<String>()) {
            prop_assume!(!text.starts_with("data:"));
            let body = serde_json::json!({"input": text}).to_string();
            prop_assert_eq!(RequestFacts::read(body.as_bytes()).unwrap().prompt_bytes, length(&text));
        }
    }
}
