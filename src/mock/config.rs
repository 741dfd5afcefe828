//! The server's settings, read from JSON.

use std::time::Duration;

use http::HeaderName;
use serde_json::Value;

use super::bill::{Prices, Usage};
use super::chat;
use super::fields::{Fields, json};
use super::quota::QuotaConfig;
use super::reply::{Replies, default_text};
use super::script::Script;
use crate::config::seconds;
use crate::error::ConfigError;

/// What the ledger keeps.
#[derive(Debug, Default)]
pub(super) struct LedgerConfig {
    /// Entries, of requests and of connections alike. Default 10,000.
    pub(super) entries: usize,
    pub(super) record_bodies: bool,
    pub(super) record_headers: Vec<HeaderName>,
    /// `"*"` among the names.
    pub(super) record_all_headers: bool,
}

#[derive(Debug)]
pub(super) struct Config {
    /// Of everything random. Default 1.
    pub(super) seed: u64,
    /// Default 0: one that is free.
    pub(super) port: u16,
    /// Threads that serve. Default 1.
    pub(super) workers: usize,
    /// Requests with another key, or none, are answered 401. Default: any request is served.
    pub(super) api_key: Option<String>,
    /// Shortest and longest pause before an answer whose script names none. Default 0.
    pub(super) latency: (Duration, Duration),
    pub(super) replies: Replies,
    pub(super) quota: Option<QuotaConfig>,
    pub(super) prices: Prices,
    pub(super) ledger: LedgerConfig,
}

impl Config {
    /// The settings and the script they hold.
    pub(super) fn parse(text: &str) -> Result<(Self, Script), ConfigError> {
        let mut fields = Fields::new("", json("config", text)?)?;
        let seed = fields.count("seed", 0, u64::MAX)?.unwrap_or(1);
        let replies = replies(&mut fields)?;
        let script = fields.take("script").unwrap_or_else(|| Value::Array(Vec::new()));
        let script = Script::parse(script, replies.usage, seed)?;
        let config = Self {
            seed,
            port: fields.count("port", 0, 65_535)?.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
            workers: fields
                .count("workers", 1, 64)?
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(1),
            api_key: fields.text("api_key")?,
            latency: fields
                .range("latency_ms", "must be milliseconds, 0 or more, or [least, most]", |value| {
                    seconds("", value.as_f64()? / 1000.0).ok()
                })?
                .unwrap_or_default(),
            replies,
            quota: fields.object("quota")?.map(QuotaConfig::parse).transpose()?,
            prices: fields.object("prices")?.map(Prices::parse).transpose()?.unwrap_or_default(),
            ledger: ledger(&mut fields)?,
        };
        fields.finish()?;
        Ok((config, script))
    }
}

fn replies(fields: &mut Fields) -> Result<Replies, ConfigError> {
    let mut usage = Usage { prompt_tokens: 12, completion_tokens: 5, ..Usage::default() };
    let mut estimate_prompt = false;
    if let Some(mut given) = fields.object("usage")? {
        usage = Usage::parse(&mut given, usage)?;
        estimate_prompt = given.flag("estimate")?.unwrap_or(false);
        given.finish()?;
    }
    let text = fields.text("content")?;
    let said = text
        .clone()
        .unwrap_or_else(|| default_text(usage.completion_tokens.saturating_sub(usage.reasoning_tokens)));
    Ok(Replies {
        chat_tail: chat::tail(&said, &usage, 1),
        usage,
        estimate_prompt,
        text,
        chunk_delay: fields.millis("chunk_delay_ms")?.unwrap_or_default(),
        models: fields.texts("models")?.unwrap_or_default(),
        dimensions: fields
            .count("embedding_dimensions", 1, 16_384)?
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(1536),
    })
}

fn ledger(fields: &mut Fields) -> Result<LedgerConfig, ConfigError> {
    const DEFAULT_HEADERS: [&str; 4] =
        ["idempotency-key", "traceparent", "x-client-request-id", "x-stainless-retry-count"];
    let mut given = match fields.object("ledger")? {
        Some(given) => given,
        None => Fields::new("ledger", Value::Object(serde_json::Map::new()))?,
    };
    let entries = given.count("entries", 0, 10_000_000)?.unwrap_or(10_000);
    let names = given
        .texts("record_headers")?
        .unwrap_or_else(|| DEFAULT_HEADERS.iter().map(|name| (*name).to_owned()).collect());
    let mut config = LedgerConfig {
        entries: usize::try_from(entries).unwrap_or(usize::MAX),
        record_bodies: given.flag("record_bodies")?.unwrap_or(false),
        record_headers: Vec::new(),
        record_all_headers: false,
    };
    for name in names {
        if name == "*" {
            config.record_all_headers = true;
            continue;
        }
        let header = HeaderName::try_from(&name).map_err(|_| {
            ConfigError::new(given.path("record_headers"), name, "must be names of headers, or \"*\"")
        })?;
        config.record_headers.push(header);
    }
    given.finish()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_serve() {
        let (config, _) = Config::parse("{}").unwrap();
        assert_eq!(config.replies.usage.total(), 17);
        assert!(config.replies.chat_tail.contains("All systems work as expected"));
        assert_eq!(config.ledger.entries, 10_000);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let field = |text: &str| Config::parse(text).unwrap_err().field;
        assert_eq!(field("{"), "config");
        assert_eq!(field("[]"), "config");
        assert_eq!(field(r#"{"sead": 1}"#), "sead");
        assert_eq!(field(r#"{"port": 70000}"#), "port");
        assert_eq!(field(r#"{"latency_ms": [5, 1]}"#), "latency_ms");
        assert_eq!(field(r#"{"usage": {"reasoning_tokens": 6}}"#), "usage.reasoning_tokens");
        assert_eq!(field(r#"{"quota": {"style": "aws"}}"#), "quota.style");
        assert_eq!(field(r#"{"ledger": {"record_headers": ["a b"]}}"#), "ledger.record_headers");
        assert_eq!(field(r#"{"prices": {"m": {"in": 1}}}"#), "prices.m.in");
        assert_eq!(field(r#"{"script": {"rules": [{"respond": {"x": 1}}]}}"#), "script.rules[0].respond.x");
    }
}
