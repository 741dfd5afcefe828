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

/// Tokens of one answer.
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
