//! What an answer used, in one shape for all providers.
//!
//! Providers disagree on what contains what: cached tokens are part of the input for most but not for
//! Anthropic, reasoning tokens are part of the output for most but not for xAI and Perplexity. Here
//! `input` and `output` are always the totals and every other count is a part of one of them; the parts of a
//! total are disjoint.

mod reported;

pub use reported::{Reported, ToolUsage};

use serde::{Deserialize, Serialize};

use crate::money::Pico;

/// Tokens of one answer, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub input: u64,
    /// Part of `input` that was read from a cache.
    pub cache_read: u64,
    /// Part of `input` that was written to a cache, whatever the time to live.
    pub cache_write: u64,
    /// Parts of `cache_write` whose time to live is stated.
    pub cache_write_5m: u64,
    pub cache_write_30m: u64,
    pub cache_write_1h: u64,
    pub cache_write_12h: u64,
    /// Part of `input` that is sound.
    pub input_audio: u64,
    /// Part of `input` that is images.
    pub input_image: u64,
    /// All generated tokens, reasoning included.
    pub output: u64,
    /// Part of `output` that the caller does not see.
    pub reasoning: u64,
    /// Part of `output` that is sound.
    pub output_audio: u64,
    /// Part of `output` that is images.
    pub output_image: u64,
    /// Searches the provider ran and bills by number.
    pub web_searches: u64,
    /// What the provider says it charged.
    pub stated_cost: Option<Pico>,
}

impl Usage {
    /// Reads a `usage` object; `None` if it holds no count and no cost.
    pub fn from_json(json: &str) -> Option<Self> {
        crate::json::read::<Reported<'_>>(json.as_bytes()).ok()?.normalise()
    }

    pub const fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// What two answers used together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |part: fn(&Self) -> u64| part(self).saturating_add(part(other));
        Self {
            input: sum(|usage| usage.input),
            cache_read: sum(|usage| usage.cache_read),
            cache_write: sum(|usage| usage.cache_write),
            cache_write_5m: sum(|usage| usage.cache_write_5m),
            cache_write_30m: sum(|usage| usage.cache_write_30m),
            cache_write_1h: sum(|usage| usage.cache_write_1h),
            cache_write_12h: sum(|usage| usage.cache_write_12h),
            input_audio: sum(|usage| usage.input_audio),
            input_image: sum(|usage| usage.input_image),
            output: sum(|usage| usage.output),
            reasoning: sum(|usage| usage.reasoning),
            output_audio: sum(|usage| usage.output_audio),
            output_image: sum(|usage| usage.output_image),
            web_searches: sum(|usage| usage.web_searches),
            // Of one of them it is no sum.
            stated_cost: self.stated_cost.zip(other.stated_cost).map(|(one, two)| one.saturating_add(two)),
        }
    }

    /// Plain text input: `input` without cached, audio and image parts.
    pub const fn uncached(&self) -> u64 {
        self.input
            .saturating_sub(self.cache_read)
            .saturating_sub(self.cache_write)
            .saturating_sub(self.input_audio)
            .saturating_sub(self.input_image)
    }

    /// Plain text output: `output` without reasoning, audio and image parts.
    pub const fn visible_output(&self) -> u64 {
        self.output
            .saturating_sub(self.reasoning)
            .saturating_sub(self.output_audio)
            .saturating_sub(self.output_image)
    }

    /// Part of `cache_write` whose time to live is not stated.
    pub const fn cache_write_other(&self) -> u64 {
        self.cache_write
            .saturating_sub(self.cache_write_5m)
            .saturating_sub(self.cache_write_30m)
            .saturating_sub(self.cache_write_1h)
            .saturating_sub(self.cache_write_12h)
    }

    /// Cuts parts that a confused server made larger than their total.
    fn clamp(mut self) -> Self {
        cut(
            self.input,
            [&mut self.cache_read, &mut self.cache_write, &mut self.input_audio, &mut self.input_image],
        );
        cut(
            self.cache_write,
            [
                &mut self.cache_write_5m,
                &mut self.cache_write_30m,
                &mut self.cache_write_1h,
                &mut self.cache_write_12h,
            ],
        );
        cut(self.output, [&mut self.reasoning, &mut self.output_audio, &mut self.output_image]);
        self
    }
}

fn cut<const N: usize>(total: u64, parts: [&mut u64; N]) {
    let mut left = total;
    for part in parts {
        *part = left.min(*part);
        left -= *part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_every_part() {
        let one = Usage {
            input: 1,
            cache_read: 2,
            cache_write: 3,
            cache_write_5m: 4,
            cache_write_30m: 5,
            cache_write_1h: 6,
            cache_write_12h: 7,
            input_audio: 8,
            input_image: 9,
            output: 10,
            reasoning: 11,
            output_audio: 12,
            output_image: 13,
            web_searches: 14,
            stated_cost: None,
        };
        assert_eq!(one.plus(&Usage::default()), one);
        let parts = |usage: &Usage| {
            let serde_json::Value::Object(parts) = serde_json::to_value(usage).unwrap() else { panic!() };
            parts.into_iter().filter_map(|(name, count)| Some((name, count.as_u64()?))).collect::<Vec<_>>()
        };
        let (single, double) = (parts(&one), parts(&one.plus(&one)));
        assert_eq!(single.len(), 14);
        assert_eq!(double, single.into_iter().map(|(name, count)| (name, 2 * count)).collect::<Vec<_>>());
        let cost = |cost: Option<u128>| Usage { stated_cost: cost.map(Pico::new), ..one };
        assert_eq!(cost(Some(1)).plus(&cost(Some(2))).stated_cost, Some(Pico::new(3)));
        assert_eq!(cost(Some(1)).plus(&cost(None)).stated_cost, None);
    }
}
