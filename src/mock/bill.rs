//! Usage figures and what a provider would bill for them.

use std::collections::BTreeMap;

use globset::{Glob, GlobMatcher};
use serde::Serialize;
use serde_json::{Value, json};

use super::fields::{Fields, refuse};
use crate::error::ConfigError;

/// Tokens of one answer. Cached and cache-write tokens are part of the prompt, reasoning tokens of the
/// completion, as `OpenAI` counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(clippy::struct_field_names, reason = "the names that the wire has for them")]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) cache_write_tokens: u64,
    pub(super) reasoning_tokens: u64,
}

impl Usage {
    /// Reads figures; those not given are `base`'s.
    pub(super) fn parse(fields: &mut Fields, base: Self) -> Result<Self, ConfigError> {
        // Bodies repeat one word per token: the bound keeps them in memory.
        const MOST: u64 = 10_000_000;
        let usage = Self {
            prompt_tokens: fields.count("prompt_tokens", 0, MOST)?.unwrap_or(base.prompt_tokens),
            completion_tokens: fields.count("completion_tokens", 0, MOST)?.unwrap_or(base.completion_tokens),
            cached_tokens: fields.count("cached_tokens", 0, MOST)?.unwrap_or(base.cached_tokens),
            cache_write_tokens: fields
                .count("cache_write_tokens", 0, MOST)?
                .unwrap_or(base.cache_write_tokens),
            reasoning_tokens: fields.count("reasoning_tokens", 0, MOST)?.unwrap_or(base.reasoning_tokens),
        };
        let part_of = |name: &str, part: u64, whole: u64, rule: &str| {
            if part <= whole { Ok(()) } else { Err(ConfigError::new(fields.path(name), part, rule)) }
        };
        part_of(
            "cached_tokens",
            usage.cached_tokens + usage.cache_write_tokens,
            usage.prompt_tokens,
            "cached_tokens and cache_write_tokens together must not be more than prompt_tokens",
        )?;
        part_of(
            "reasoning_tokens",
            usage.reasoning_tokens,
            usage.completion_tokens,
            "must not be more than completion_tokens",
        )?;
        Ok(usage)
    }

    /// The figures that a scripted body states, in the shape of either API.
    pub(super) fn stated_in(body: &Value) -> Option<Self> {
        let usage = body.get("usage").filter(|usage| usage.is_object())?;
        let number = |names: [&str; 2]| names.iter().find_map(|name| usage.get(name)?.as_u64());
        let detail = |groups: [&str; 2], name: &str| {
            groups.iter().find_map(|group| usage.get(group)?.get(name)?.as_u64()).unwrap_or(0)
        };
        let input = ["prompt_tokens_details", "input_tokens_details"];
        Some(Self {
            prompt_tokens: number(["prompt_tokens", "input_tokens"])?,
            completion_tokens: number(["completion_tokens", "output_tokens"]).unwrap_or(0),
            cached_tokens: detail(input, "cached_tokens"),
            cache_write_tokens: detail(input, "cache_write_tokens"),
            reasoning_tokens: detail(
                ["completion_tokens_details", "output_tokens_details"],
                "reasoning_tokens",
            ),
        })
    }

    pub(super) fn total(&self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }

    /// As `usage` of chat completions.
    pub(super) fn chat(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total(),
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        })
    }

    /// As `usage` of the Responses API.
    pub(super) fn responses(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
            },
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.total(),
        })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens += other.cached_tokens;
        self.cache_write_tokens += other.cache_write_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

/// Pico-dollars per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Price {
    input: u64,
    cached_input: u64,
    cache_write: u64,
    output: u64,
}

/// Prices by pattern of the model's name; the longest pattern that matches counts.
#[derive(Debug, Default)]
pub(super) struct Prices(Vec<(GlobMatcher, Price)>);

impl Prices {
    /// `{"gpt-4.1*": {"input": "2.00", "cached_input": "0.50", "output": "8.00"}}`, USD per million tokens.
    pub(super) fn parse(fields: Fields) -> Result<Self, ConfigError> {
        let mut by_length = BTreeMap::new();
        let prefix = fields.path("");
        for (pattern, value) in fields.into_entries() {
            let path = format!("{prefix}{pattern}");
            let glob = Glob::new(&pattern)
                .map_err(|error| ConfigError::new(&path, &pattern, format!("must be a pattern: {error}")))?;
            let mut entry = Fields::new(&path, value)?;
            let input = rate(&mut entry, "input")?.unwrap_or(0);
            let price = Price {
                input,
                cached_input: rate(&mut entry, "cached_input")?.unwrap_or(input),
                cache_write: rate(&mut entry, "cache_write")?.unwrap_or(input),
                output: rate(&mut entry, "output")?.unwrap_or(0),
            };
            entry.finish()?;
            by_length.insert((std::cmp::Reverse(pattern.len()), pattern), (glob.compile_matcher(), price));
        }
        Ok(Self(by_length.into_values().collect()))
    }

    /// Pico-dollars (1e-12 USD); `None` for a model without a price.
    pub(super) fn pico_usd(&self, model: &str, usage: &Usage) -> Option<u64> {
        let (_, price) = self.0.iter().find(|(pattern, _)| pattern.is_match(model))?;
        let uncached =
            usage.prompt_tokens.saturating_sub(usage.cached_tokens).saturating_sub(usage.cache_write_tokens);
        let parts = [
            (uncached, price.input),
            (usage.cached_tokens, price.cached_input),
            (usage.cache_write_tokens, price.cache_write),
            (usage.completion_tokens, price.output),
        ];
        Some(parts.iter().fold(0u64, |sum, (tokens, rate)| sum.saturating_add(tokens.saturating_mul(*rate))))
    }
}

/// USD per million tokens is 1,000,000 pico-dollars per token, so six decimals are exact.
fn rate(fields: &mut Fields, name: &'static str) -> Result<Option<u64>, ConfigError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    Some(format!("{whole}{decimals:0<6}"))
        .filter(|_| !whole.is_empty() && whole.len() <= 9 && decimals.len() <= 6)
        .filter(|_| digits(whole) && digits(decimals))
        .and_then(|number| number.parse().ok())
        .map(Some)
        .ok_or_else(|| {
            refuse(fields.path(name), &value, "must be USD per million tokens with at most 6 decimals")
        })
}

/// Pico-dollars as decimal USD.
pub(super) fn usd(pico: u64) -> String {
    format!("{}.{:012}", pico / 1_000_000_000_000, pico % 1_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(value: Value) -> Result<Prices, ConfigError> {
        Prices::parse(Fields::new("prices", value).unwrap())
    }

    #[test]
    fn bills_disjoint_parts_to_the_pico_dollar() {
        let prices = prices(json!({
            "gpt-4*": {"input": "9", "output": "9"},
            "gpt-4.1*": {"input": "2.00", "cached_input": 0.5, "output": "8.000001"},
        }))
        .unwrap();
        let usage = Usage { prompt_tokens: 10, completion_tokens: 3, cached_tokens: 4, ..Usage::default() };
        let pico = 6 * 2_000_000 + 4 * 500_000 + 3 * 8_000_001;
        assert_eq!(prices.pico_usd("gpt-4.1-mini", &usage), Some(pico));
        assert_eq!(prices.pico_usd("other", &usage), None);
        assert_eq!(usd(pico), "0.000038000003");
    }

    #[test]
    fn refuses_prices_it_cannot_hold_exactly() {
        for wrong in ["0.0000001", "-1", "", ".", "1e3", "1.2.3"] {
            let error = prices(json!({"m": {"input": wrong}})).unwrap_err();
            assert_eq!(error.field, "prices.m.input", "{wrong}");
        }
    }

    #[test]
    fn reads_the_usage_that_a_body_states() {
        let usage = Usage {
            prompt_tokens: 9,
            completion_tokens: 4,
            cached_tokens: 2,
            cache_write_tokens: 1,
            reasoning_tokens: 3,
        };
        assert_eq!(Usage::stated_in(&json!({"usage": usage.chat()})), Some(usage));
        assert_eq!(Usage::stated_in(&json!({"usage": usage.responses()})), Some(usage));
        assert_eq!(Usage::stated_in(&json!({"usage": null})), None);
    }
}
