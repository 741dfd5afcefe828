//! What an error body says, whichever of the many envelopes it comes in.

use std::time::Duration;

use serde_json::{Map, Value};

use super::duration::parse_duration;
use super::excerpt;

/// The statements of an error body. Everything is optional: the body may be a proxy's HTML, or nothing.
#[allow(clippy::struct_excessive_bools, reason = "each is a mark of its own that an envelope may bear")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// For people; empty if the body says nothing.
    pub message: String,
    /// Numbers are kept as text: `"429"`.
    pub code: Option<String>,
    pub error_type: Option<String>,
    pub param: Option<String>,
    /// `code` was a JSON number (OpenRouter, Gemini, vLLM) and not text (Azure).
    pub(crate) numeric_code: bool,
    /// Google's `status`, as `RESOURCE_EXHAUSTED`.
    pub(crate) status_name: Option<String>,
    /// Google's `RetryInfo`.
    pub(crate) retry_delay: Option<Duration>,
    /// Google's `QuotaFailure` and `ErrorInfo`, Azure's `innererror`, Anthropic's `details`.
    pub(crate) inner_codes: Vec<String>,
    /// OpenRouter's `metadata`.
    pub(crate) limit_source: Option<String>,
    pub(crate) metadata_type: Option<String>,
    pub(crate) from_upstream: bool,
    pub(crate) flagged: bool,
    /// OpenRouter puts the headers of a refused request into the body.
    pub(crate) headers: Vec<(String, String)>,
    /// `{"type": "error", "error": …}`, as Anthropic writes it.
    pub(crate) tagged: bool,
    /// Azure API Management's flat body.
    pub(crate) gateway: bool,
    /// The error stands inside a choice: the model's provider failed, not the endpoint.
    pub(crate) in_choice: bool,
}

impl ErrorBody {
    /// Never fails: what is not JSON becomes a short plain text, bytes that are not UTF-8 are replaced.
    pub fn parse(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        match serde_json::from_str::<Value>(text.trim()) {
            Ok(value) => Self::from_value(&value).unwrap_or_else(|| Self::plain(&text)),
            Err(_) => Self::plain(&text),
        }
    }

    fn plain(text: &str) -> Self {
        Self { message: excerpt::of(text), ..Self::default() }
    }

    fn from_value(value: &Value) -> Option<Self> {
        let outer = match value {
            Value::Array(items) => return Self::from_value(items.first()?),
            Value::String(message) => return Some(Self::plain(message)),
            Value::Object(outer) => outer,
            _ => return None,
        };
        let mut read = Self::from_object(outer)?;
        if let Some(rewrapped) = embedded(&read.message) {
            read.unwrap_message(rewrapped);
        }
        read.message = excerpt::cap(&read.message, excerpt::MESSAGE_BYTES);
        Some(read)
    }

    fn from_object(outer: &Map<String, Value>) -> Option<Self> {
        if let Some(read) = choice_error(outer) {
            return Some(read);
        }
        let nested = outer.get("response").and_then(|response| response.get("error"));
        match outer.get("error").filter(|error| !error.is_null()).or(nested) {
            Some(Value::Object(error)) => {
                let tagged = text_of(outer.get("type")).as_deref() == Some("error");
                return Some(Self { tagged, ..Self::from_inner(error) });
            }
            Some(Value::String(message)) => {
                return Some(Self { message: message.clone(), ..Self::default() });
            }
            _ => {}
        }
        if let Some(status) = outer.get("statusCode") {
            let message = text_of(outer.get("message")).unwrap_or_default();
            return Some(Self { message, code: text_of(Some(status)), gateway: true, ..Self::default() });
        }
        if let Some(detail) = outer.get("detail") {
            return Some(Self { message: detail_message(detail), ..Self::default() });
        }
        if outer.contains_key("message") || outer.contains_key("code") {
            return Some(Self::from_inner(outer));
        }
        None
    }

    fn from_inner(error: &Map<String, Value>) -> Self {
        let field = |name: &str| text_of(error.get(name));
        let mut read = Self {
            message: field("message").unwrap_or_default(),
            code: field("code"),
            error_type: field("type"),
            param: field("param"),
            numeric_code: error.get("code").is_some_and(Value::is_number),
            status_name: field("status")
                .filter(|status| status.bytes().any(|byte| byte.is_ascii_alphabetic())),
            ..Self::default()
        };
        for (holder, name) in [("innererror", "code"), ("details", "error_code")] {
            read.inner_codes.extend(error.get(holder).and_then(|inner| text_of(inner.get(name))));
        }
        if let Some(details) = error.get("details").and_then(Value::as_array) {
            for detail in details {
                read.google_detail(detail);
            }
        }
        if let Some(metadata) = error.get("metadata") {
            read.metadata(metadata);
        }
        read
    }

    fn google_detail(&mut self, detail: &Value) {
        self.retry_delay = self.retry_delay.or_else(|| parse_duration(detail.get("retryDelay")?.as_str()?));
        self.inner_codes.extend(text_of(detail.get("reason")));
        let violations = detail.get("violations").and_then(Value::as_array);
        for violation in violations.into_iter().flatten() {
            self.inner_codes.extend(text_of(violation.get("quotaId")));
        }
    }

    fn metadata(&mut self, metadata: &Value) {
        self.limit_source = text_of(metadata.get("limit_source"));
        self.metadata_type = text_of(metadata.get("error_type"));
        self.from_upstream = metadata.get("provider_name").is_some() || self.metadata_type.is_some();
        self.flagged =
            metadata.get("reasons").and_then(Value::as_array).is_some_and(|reasons| !reasons.is_empty());
        let headers = metadata.get("headers").and_then(Value::as_object);
        for (name, value) in headers.into_iter().flatten() {
            self.headers.extend(text_of(Some(value)).map(|value| (name.clone(), value)));
        }
    }

    /// Gateways that put a whole error into `message` keep the useful part there.
    fn unwrap_message(&mut self, inner: Self) {
        self.message = inner.message;
        self.code = self.code.take().or(inner.code);
        self.error_type = self.error_type.take().or(inner.error_type);
        self.param = self.param.take().or(inner.param);
        self.status_name = self.status_name.take().or(inner.status_name);
        self.retry_delay = self.retry_delay.or(inner.retry_delay);
        self.inner_codes.extend(inner.inner_codes);
    }
}

fn choice_error(outer: &Map<String, Value>) -> Option<ErrorBody> {
    // Only where the answer itself is no error: `choices` may stand beside a top-level one.
    if outer.get("error").is_some_and(|error| !error.is_null()) {
        return None;
    }
    outer.get("choices")?.as_array()?.iter().find_map(|choice| {
        let read = match choice.get("error") {
            Some(Value::Object(error)) => ErrorBody::from_inner(error),
            Some(Value::String(message)) => ErrorBody { message: message.clone(), ..ErrorBody::default() },
            _ if text_of(choice.get("finish_reason")).as_deref() == Some("error") => ErrorBody {
                message: "the answer ended with finish_reason \"error\"".to_owned(),
                ..ErrorBody::default()
            },
            _ => return None,
        };
        Some(ErrorBody { in_choice: true, ..read })
    })
}

fn embedded(message: &str) -> Option<ErrorBody> {
    let message = message.trim_start();
    if !message.starts_with(['{', '[']) {
        return None;
    }
    let value = serde_json::from_str::<Value>(message).ok()?;
    let object = value.as_object().or_else(|| value.get(0)?.as_object())?;
    ErrorBody::from_object(object).filter(|inner| !inner.message.is_empty())
}

/// `{"detail": "…"}` or FastAPI's list of what is wrong where.
fn detail_message(detail: &Value) -> String {
    let first = detail.get(0).unwrap_or(detail);
    let text =
        text_of(first.get("msg")).or_else(|| text_of(first.get("message"))).or_else(|| text_of(Some(first)));
    let place = first
        .get("loc")
        .and_then(Value::as_array)
        .map(|parts| parts.iter().filter_map(|part| text_of(Some(part))).collect::<Vec<_>>().join("."));
    match (place, text) {
        (Some(place), Some(text)) if !place.is_empty() => format!("{place}: {text}"),
        (_, Some(text)) => text,
        _ => excerpt::of(&detail.to_string()),
    }
}

fn text_of(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(body: &str) -> ErrorBody {
        ErrorBody::parse(body.as_bytes())
    }

    #[test]
    fn envelopes() {
        for (body, message, code) in [
            (r#"{"error":{"message":"m","code":400}}"#, "m", Some("400")),
            (r#"[{"error":{"message":"m","code":"x"}}]"#, "m", Some("x")),
            (r#"{"error":"m"}"#, "m", None),
            (r#"{"object":"error","message":"m","code":7}"#, "m", Some("7")),
            (r#"{"statusCode":403,"message":"m"}"#, "m", Some("403")),
            (r#"{"detail":"m"}"#, "m", None),
            (r#"{"detail":[{"loc":["body","n"],"msg":"m"}]}"#, "body.n: m", None),
            (r#"{"type":"response.failed","response":{"error":{"code":"c","message":"m"}}}"#, "m", Some("c")),
            (r#"{"choices":[{"error":{"code":502,"message":"m"}}]}"#, "m", Some("502")),
            (r#"{"error":null,"message":"m"}"#, "m", None),
            (r#""m""#, "m", None),
            ("plain m", "plain m", None),
            (r#"["nope"]"#, "nope", None),
            ("", "", None),
            ("null", "null", None),
        ] {
            let read = parse(body);
            assert_eq!((read.message.as_str(), read.code.as_deref()), (message, code), "{body}");
        }
    }

    #[test]
    fn an_error_inside_the_message_is_unwrapped_once() {
        let inner = r#"[{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"3s"}]}}]"#;
        let read = parse(&serde_json::json!({"error": {"code": "500", "message": inner}}).to_string());
        assert_eq!(read.message, "slow");
        assert_eq!(read.code.as_deref(), Some("500"));
        assert_eq!(read.retry_delay, Some(Duration::from_secs(3)));
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        assert_eq!(
            ErrorBody::parse(b"{\"error\":{\"message\":\"bad \xff byte\"}}").message,
            "bad \u{fffd} byte"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ErrorBody::parse(&bytes);
        }

        #[test]
        fn no_json_panics(inner in "[\\[\\]{}\":,a-e0-9 ]{0,60}") {
            let _ = parse(&format!("{{\"error\":{inner}}}"));
            let _ = parse(&serde_json::json!({"error": {"message": inner}}).to_string());
        }
    }
}
