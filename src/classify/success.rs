//! Whether a 2xx is a success, and what it says. On the path of every call: one pass, no tree.

use std::borrow::Cow;

use http::HeaderMap;
use serde::de::SeqAccess;

use crate::json::{self, Flag, Lenient, Present, Text, lenient_object, seed};
use crate::usage::{Reported, ToolUsage, Usage};

/// What a body says beside its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// `None` if the server states nothing usable: unknown, not zero.
    pub usage: Option<Usage>,
    /// The model that answered.
    pub model: Option<String>,
    /// The tier that served, which is the one that is billed.
    pub service_tier: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Good,
    /// There is an error in it; the reading tells what it cost.
    Error,
    /// Well-formed, but without a choice.
    NoChoices,
    /// No byte, or only blanks.
    Blank,
    NotJson,
    Html,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Json,
    /// Nothing said: read as JSON.
    Unknown,
    Html,
    /// Sound, files, plain text, event streams.
    Other,
}

fn content(headers: &HeaderMap) -> Content {
    let Some(value) = headers.get(http::header::CONTENT_TYPE) else { return Content::Unknown };
    let value = value.as_bytes();
    let essence = value.split(|byte| *byte == b';').next().unwrap_or(value).trim_ascii();
    let suffix = essence.len().checked_sub(5).and_then(|at| essence.get(at..)).unwrap_or(b"");
    if essence.is_empty() {
        Content::Unknown
    } else if essence.eq_ignore_ascii_case(b"application/json") || suffix.eq_ignore_ascii_case(b"+json") {
        Content::Json
    } else if essence.eq_ignore_ascii_case(b"text/html") {
        Content::Html
    } else {
        Content::Other
    }
}

pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> (Finding, Option<Reading>) {
    match content(headers) {
        Content::Other => return (Finding::Good, None),
        Content::Html => return (Finding::Html, None),
        Content::Json | Content::Unknown => {}
    }
    if body.trim_ascii().is_empty() {
        return (Finding::Blank, None);
    }
    let Ok(body) = json::read::<Body<'_>>(body) else { return (Finding::NotJson, None) };
    let finding = body.finding();
    (finding, Some(body.reading()))
}

lenient_object! {
    struct Body<'a> {
        object: Text<'a> = "object",
        kind: Text<'a> = "type",
        error: Present = "error",
        choices: Choices = "choices",
        refusal: Present = "refusal",
        model: Text<'a> = "model",
        status: Text<'a> = "status",
        background: Flag = "background",
        service_tier: Text<'a> = "service_tier",
        usage: Reported<'a> = "usage",
        tool_usage: ToolUsage = "tool_usage",
    }
}

impl Body<'_> {
    fn finding(&self) -> Finding {
        if (self.error.0 && !self.is_resource())
            || self.object.is("error")
            || self.kind.is("error")
            || (self.object.is("response") && self.status.is("failed") && !self.is_resource())
            || self.choices.failed
        {
            return Finding::Error;
        }
        if self.choices.given && self.choices.count == 0 && !self.refusal.0 {
            Finding::NoChoices
        } else {
            Finding::Good
        }
    }

    /// A stored object (a job, a batch, a response made in the background) tells of its own past failure: the
    /// request that fetched it has succeeded.
    fn is_resource(&self) -> bool {
        let answers =
            ["error", "list", "response", "text_completion", "chat.completion", "chat.completion.chunk"];
        let stored = self.object.0.as_deref().is_some_and(|object| !answers.contains(&object));
        stored || self.background.0 == Some(true)
    }

    fn reading(self) -> Reading {
        let mut usage = self.usage.normalise();
        if let Some(usage) = &mut usage {
            usage.web_searches = usage.web_searches.max(self.tool_usage.web_searches());
        }
        let owned = |text: Text<'_>| text.0.filter(|text| !text.is_empty()).map(Cow::into_owned);
        Reading { usage, model: owned(self.model), service_tier: owned(self.service_tier) }
    }
}

#[derive(Debug, Default)]
struct Choices {
    given: bool,
    count: usize,
    failed: bool,
}

impl<'de> Lenient<'de> for Choices {
    fn null() -> Self {
        Self { given: true, ..Self::default() }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut choices = Self { given: true, ..Self::default() };
        while let Some(choice) = list.next_element_seed(seed::<Choice<'de>>())? {
            choices.count += 1;
            choices.failed |= choice.error.0 || choice.finish_reason.is("error");
        }
        Ok(choices)
    }
}

lenient_object! {
    struct Choice<'a> {
        finish_reason: Text<'a> = "finish_reason",
        error: Present = "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(body: &str) -> Finding {
        read(&HeaderMap::new(), body.as_bytes()).0
    }

    fn typed(content_type: &str, body: &[u8]) -> Finding {
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, content_type.parse().unwrap())]);
        read(&headers, body).0
    }

    #[test]
    fn content_types() {
        assert_eq!(typed("application/json; charset=utf-8", b"{"), Finding::NotJson);
        assert_eq!(typed("Application/Problem+JSON", b"{"), Finding::NotJson);
        assert_eq!(typed("text/html; charset=UTF-8", b"{}"), Finding::Html);
        for other in ["audio/mpeg", "text/plain", "application/jsonl", "text/event-stream", "json"] {
            assert_eq!(typed(other, b""), Finding::Good, "{other}");
        }
        assert_eq!(typed("application/json", b" \r\n\t"), Finding::Blank);
    }

    #[test]
    fn findings() {
        for good in [
            "{}",
            "[]",
            "\n\n {\"choices\":[{\"finish_reason\":\"stop\"}]}",
            r#"{"error":null,"choices":[{}]}"#,
            r#"{"error":{},"choices":[{}]}"#,
            r#"{"choices":[],"refusal":"no"}"#,
            r#"{"object":"response","status":"incomplete","error":null}"#,
            r#"{"object":"fine_tuning.job","status":"failed","error":{"code":"x"}}"#,
            r#"{"object":"response","status":"failed","background":true,"error":{"code":"x"}}"#,
            r#"{"object":"response.deleted","deleted":true}"#,
            "{\"choices\":[{\"message\":{\"content\":\"\\ud800\"}}]}",
        ] {
            assert_eq!(finding(good), Finding::Good, "{good}");
        }
        for error in [
            r#"{"error":{"code":502}}"#,
            r#"{"error":"died"}"#,
            r#"{"object":"error","message":"m"}"#,
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            r#"{"object":"response","status":"failed"}"#,
            r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"error"}]}"#,
            r#"{"choices":[{"error":{"code":1}}]}"#,
        ] {
            assert_eq!(finding(error), Finding::Error, "{error}");
        }
        assert_eq!(finding(r#"{"choices":[]}"#), Finding::NoChoices);
        assert_eq!(finding(r#"{"choices":null,"usage":{}}"#), Finding::NoChoices);
        assert_eq!(finding("{\"choices\":["), Finding::NotJson);
        assert_eq!(finding("{} {}"), Finding::NotJson);
    }

    #[test]
    fn searches_stand_beside_the_usage() {
        let (_, reading) = read(
            &HeaderMap::new(),
            br#"{"usage":{"input_tokens":1},"tool_usage":{"web_search":{"num_requests":2}},"model":"m","service_tier":null}"#,
        );
        let reading = reading.unwrap();
        assert_eq!(reading.usage.unwrap().web_searches, 2);
        assert_eq!((reading.model.as_deref(), reading.service_tier), (Some("m"), None));
    }

    #[test]
    fn a_strange_usage_does_not_spoil_the_answer() {
        for usage in [
            "null",
            "[]",
            "\"n/a\"",
            "{\"prompt_tokens\":{\"a\":[]}}",
            "{\"prompt_tokens\":1,\"prompt_tokens\":2}",
        ] {
            assert_eq!(
                finding(&format!("{{\"choices\":[{{}}],\"usage\":{usage}}}")),
                Finding::Good,
                "{usage}"
            );
        }
    }
}
