//! What the server reads from a request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderMap, Method, Version, request};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The API that a path belongs to. Prefixes do not matter: `/v1`, `/openai/v1`, `/openai/deployments/x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Chat,
    Responses,
    Embeddings,
    Models,
    /// One model of the list, named by the path's last segment.
    Model,
    Unknown,
}

impl Route {
    fn of(path: &str) -> Self {
        let mut segments = path.rsplit('/');
        let (last, before) = (segments.next().unwrap_or(""), segments.next().unwrap_or(""));
        match (before, last) {
            ("chat", "completions") => Self::Chat,
            (_, "responses") => Self::Responses,
            (_, "embeddings") => Self::Embeddings,
            (_, "models") => Self::Models,
            ("models", _) => Self::Model,
            _ => Self::Unknown,
        }
    }

    /// The method that the API answers.
    pub(super) fn method(self) -> Option<Method> {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings => Some(Method::POST),
            Self::Models | Self::Model => Some(Method::GET),
            Self::Unknown => None,
        }
    }
}

/// The parts of a JSON body that matter to an answer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) model: Option<Arc<str>>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// `n`, 1 to 128.
    pub(super) choices: u64,
    pub(super) max_tokens: Option<u64>,
    /// Length of `messages` or `input` as JSON.
    pub(super) prompt_bytes: u64,
    pub(super) base64: bool,
    pub(super) dimensions: Option<usize>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Asked {
    fn read(body: &[u8]) -> Result<Self, String> {
        let fields: Fields<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        Ok(Self {
            model: fields.model.map(Arc::from),
            stream: fields.stream.unwrap_or(false),
            include_usage: fields.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            choices: fields.n.unwrap_or(1).clamp(1, 128),
            max_tokens: fields.max_completion_tokens.or(fields.max_tokens).or(fields.max_output_tokens),
            prompt_bytes: fields.messages.or(fields.input).map_or(0, |prompt| prompt.get().len() as u64),
            base64: fields.encoding_format.as_deref() == Some("base64"),
            dimensions: fields.dimensions,
        })
    }

    /// Four bytes to the token: what a provider counts before it has counted.
    pub(super) fn prompt_estimate(&self) -> u64 {
        self.prompt_bytes.div_ceil(4)
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) uri: http::Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) route: Route,
    /// Why the body is no JSON that the API takes, if it is none.
    pub(super) asked: Result<Asked, String>,
    /// The client wants the connection kept.
    pub(super) keep_alive: bool,
    pub(super) connection: u64,
    /// Requests of this connection so far, this one included.
    pub(super) on_connection: u64,
}

impl Call {
    pub(super) fn new(parts: request::Parts, body: Bytes, connection: u64, on_connection: u64) -> Self {
        let route = Route::of(parts.uri.path());
        let mut asked = if body.is_empty() && route.method() != Some(Method::POST) {
            Ok(Asked { choices: 1, ..Asked::default() })
        } else {
            Asked::read(&body)
        };
        if let Ok(asked) = &mut asked
            && asked.model.is_none()
        {
            asked.model = deployment(parts.uri.path()).map(Arc::from);
        }
        let asks = |word: &str| {
            parts
                .headers
                .get(CONNECTION)
                .and_then(|value| value.to_str().ok())
                .is_some_and(|value| value.to_ascii_lowercase().contains(word))
        };
        let keep_alive = if parts.version == Version::HTTP_11 { !asks("close") } else { asks("keep-alive") };
        Self {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
            route,
            asked,
            keep_alive,
            connection,
            on_connection,
        }
    }

    pub(super) fn model(&self) -> Option<&Arc<str>> {
        self.asked.as_ref().ok()?.model.as_ref()
    }

    /// Path and query for the ledger; a query that may hold a credential is left out.
    pub(super) fn shown_path(&self) -> String {
        match self.uri.query() {
            Some(query) if ["key", "token", "sig"].iter().any(|word| query.contains(word)) => {
                format!("{}?***", self.uri.path())
            }
            Some(query) => format!("{}?{query}", self.uri.path()),
            None => self.uri.path().to_owned(),
        }
    }
}

/// Azure names the model in the path.
fn deployment(path: &str) -> Option<&str> {
    let mut segments = path.split('/');
    segments.find(|segment| *segment == "deployments")?;
    segments.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, uri: &str, body: &'static str) -> Call {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        Call::new(parts, body.into(), 1, 1)
    }

    #[test]
    fn routes_by_the_end_of_the_path() {
        assert_eq!(Route::of("/v1/chat/completions"), Route::Chat);
        assert_eq!(Route::of("/openai/deployments/d/embeddings"), Route::Embeddings);
        assert_eq!(Route::of("/v1/models/gpt"), Route::Model);
        assert_eq!(Route::of("/v1/completions"), Route::Unknown);
    }

    #[test]
    fn a_deployment_stands_for_a_missing_model() {
        let uri = "/openai/deployments/mine/chat/completions?api-version=1";
        assert_eq!(call("POST", uri, "{}").model().unwrap().as_ref(), "mine");
        assert_eq!(call("POST", uri, r#"{"model":"other"}"#).model().unwrap().as_ref(), "other");
    }

    #[test]
    fn reads_what_matters_and_ignores_the_rest() {
        let body = r#"{"x":[1],"model":"m","stream":true,"stream_options":{"include_usage":true},"n":3,
            "messages":[{"role":"user"}],"max_tokens":9}"#;
        let asked = call("POST", "/v1/chat/completions", body).asked.unwrap();
        assert!(asked.stream && asked.include_usage);
        assert_eq!((asked.choices, asked.max_tokens, asked.prompt_bytes), (3, Some(9), 17));
        assert!(call("POST", "/v1/chat/completions", "{oops").asked.is_err());
        assert!(call("POST", "/v1/chat/completions", "").asked.is_err());
        assert!(call("GET", "/v1/models", "").asked.is_ok());
    }

    #[test]
    fn a_query_with_a_key_is_not_shown() {
        assert_eq!(call("GET", "/v1/models?api-version=2", "").shown_path(), "/v1/models?api-version=2");
        assert_eq!(call("GET", "/v1/models?key=abc", "").shown_path(), "/v1/models?***");
    }
}
