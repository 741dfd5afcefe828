//! One base URL with its credential, its pool and its defaults.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::Engine;
use crate::config::Timeouts;
use crate::error::ConfigError;
use crate::lock::Mutex;
use crate::transport::{Transport, TransportOptions, redirect};

/// How to reach one base URL.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    pub base_url: String,
    pub api_key: Option<String>,
    /// Sent with every request; these win over what tidegate sets itself.
    pub headers: Vec<(String, String)>,
    /// `None` takes the gate's.
    pub timeouts: Option<Timeouts>,
    /// `None` takes the gate's.
    pub max_attempts: Option<u32>,
    pub transport: TransportOptions,
}

/// A base URL with its credential, its pool and its defaults.
pub struct Upstream {
    pub origin: Arc<str>,
    pub base: Url,
    pub headers: Arc<HeaderMap>,
    pub credential: u64,
    pub transport: Arc<dyn Transport>,
    pub timeouts: Timeouts,
    pub max_attempts: u32,
    /// Parsed URLs by path: a client calls few paths, many times.
    paths: Mutex<HashMap<Box<str>, Url>>,
}

/// Paths remembered by an upstream; a caller that puts ids into its paths must not fill memory.
const PATHS: usize = 64;

/// Headers hold the key, so they are not shown.
impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Upstream {
    pub fn new(engine: &Engine, config: UpstreamConfig) -> Result<Self, ConfigError> {
        let base = base_url(&config.base_url)?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &config.api_key {
            headers.insert(AUTHORIZATION, bearer(key)?);
        }
        for (name, value) in &config.headers {
            let (name, value) = header(name, value)?;
            headers.insert(name, value);
        }
        let timeouts = config.timeouts.unwrap_or_else(|| engine.timeouts.clone());
        timeouts.validate()?;
        let max_attempts = config.max_attempts.unwrap_or(engine.retry.max_attempts);
        if max_attempts == 0 {
            return Err(ConfigError::new("max_attempts", 0, "must be 1 or more"));
        }
        let transport =
            engine.transport(TransportOptions { connect_timeout: timeouts.connect, ..config.transport })?;
        Ok(Self {
            origin: redirect::origin(&base).into(),
            credential: engine.hasher.hash_one(config.api_key.as_deref().unwrap_or_default()),
            base,
            headers: Arc::new(headers),
            transport,
            timeouts,
            max_attempts,
            paths: Mutex::default(),
        })
    }

    /// Where a request goes that was made elsewhere, complete with its credential.
    pub fn of_request(
        engine: &Engine,
        url: &Url,
        headers: &HeaderMap,
        timeouts: Timeouts,
        max_attempts: u32,
        transport: TransportOptions,
    ) -> Result<Self, ConfigError> {
        const CREDENTIALS: [&str; 4] = ["authorization", "api-key", "x-api-key", "x-goog-api-key"];
        let key =
            CREDENTIALS.iter().find_map(|name| headers.get(*name)).map_or(&b""[..], |value| value.as_bytes());
        // The same key is the same credential, whichever client sends it.
        let key = String::from_utf8_lossy(key.strip_prefix(b"Bearer ").unwrap_or(key));
        Ok(Self {
            origin: redirect::origin(url).into(),
            credential: engine.hasher.hash_one(key.as_ref()),
            base: url.clone(),
            headers: Arc::default(),
            transport: engine.transport(transport)?,
            timeouts,
            max_attempts,
            paths: Mutex::default(),
        })
    }

    /// The URL of `path` below the base URL, with `query` pairs appended.
    pub fn url(&self, path: &str, query: &[(String, String)]) -> Result<Url, ConfigError> {
        if query.is_empty()
            && let Some(url) = self.paths.lock().get(path)
        {
            return Ok(url.clone());
        }
        let mut url = self.join(path)?;
        if query.is_empty() {
            let mut paths = self.paths.lock();
            if paths.len() < PATHS {
                paths.insert(path.into(), url.clone());
            }
        } else {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn join(&self, path: &str) -> Result<Url, ConfigError> {
        const RULE: &str = "must be a path below the base URL, such as /chat/completions";
        let mut url = self.base.clone();
        let (path, own_query) =
            path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        // URL parsers resolve `..` and its escaped forms, which would leave the base URL with its credential.
        let climbs =
            path.to_ascii_lowercase().replace("%2e", ".").split(['/', '\\']).any(|part| part == "..");
        if climbs || path.contains("://") || path.contains('#') {
            return Err(ConfigError::new("path", path, RULE));
        }
        let joined = format!("{}/{}", self.base.path().trim_end_matches('/'), path.trim_start_matches('/'));
        url.set_path(&joined);
        if own_query.is_some() {
            url.set_query(own_query);
        }
        Ok(url)
    }
}

fn base_url(text: &str) -> Result<Url, ConfigError> {
    const RULE: &str = "must be an absolute URL with a host, such as https://api.openai.com/v1";
    // A password before the host and a query may be secrets; neither is shown.
    let shown = text.rsplit('@').next().and_then(|rest| rest.split(['?', '#']).next()).unwrap_or_default();
    let url =
        Url::parse(text).map_err(|error| ConfigError::new("base_url", shown, format!("{RULE} ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ConfigError::new("base_url", shown, "must start with http:// or https://"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(ConfigError::new("base_url", shown, RULE));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ConfigError::new("base_url", shown, "must not hold a user name or password"));
    }
    Ok(url)
}

fn bearer(key: &str) -> Result<HeaderValue, ConfigError> {
    if key.is_empty() {
        return Err(ConfigError::new("api_key", "''", "must not be empty"));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        ConfigError::new(
            "api_key",
            "***",
            "must be printable ASCII without line breaks; was it read from a file with its newline?",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A header from outside. Its value may be a secret and is never shown.
pub fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), ConfigError> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| ConfigError::new("headers", format!("{name:?}"), "must be a valid header name"))?;
    let value = HeaderValue::from_str(value).map_err(|_| {
        ConfigError::new(format!("headers[{name:?}]"), "***", "must be printable without line breaks")
    })?;
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::GateConfig;

    fn upstream() -> Upstream {
        let engine = Engine::new(GateConfig::default()).unwrap();
        let config = UpstreamConfig {
            base_url: String::from("http://a.test/v1"),
            api_key: None,
            headers: Vec::new(),
            timeouts: None,
            max_attempts: None,
            transport: TransportOptions::default(),
        };
        Upstream::new(&engine, config).unwrap()
    }

    #[test]
    fn a_path_stays_below_the_base_url() {
        let upstream = upstream();
        for path in
            ["/../b", "a/../../b", "/%2e%2E/b", "/.%2e/b", "/a/..", "\\..\\b", "http://b.test/", "/a#b"]
        {
            assert_eq!(upstream.url(path, &[]).unwrap_err().field, "path", "{path}");
        }
        for (path, full) in [("/a/b", "/v1/a/b"), ("a..b", "/v1/a..b"), ("/a?b=..", "/v1/a?b=..")] {
            let url = upstream.url(path, &[]).unwrap();
            assert_eq!(url.as_str(), format!("http://a.test{full}"));
        }
    }
}
