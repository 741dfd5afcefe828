//! `usage` as providers write it.

use super::Usage;
use crate::json::{Count, Lenient, Raw, lenient_object};
use crate::money::Pico;

/// xAI states costs in ticks, 10^10 to the dollar (docs.x.ai, cost tracking).
const PICO_PER_TICK: u128 = 100;

lenient_object! {
    /// Every field that any known provider sends, read in one pass. Deserialise this where a `usage` value
    /// stands inside a larger one, then [`Reported::normalise`] it.
    pub struct Reported<'a> {
        prompt_tokens: Count = "prompt_tokens",
        completion_tokens: Count = "completion_tokens",
        total_tokens: Count = "total_tokens",
        input_tokens: Count = "input_tokens",
        output_tokens: Count = "output_tokens",
        prompt_details: InputDetails = "prompt_tokens_details",
        input_details: InputDetails = "input_tokens_details",
        completion_details: OutputDetails = "completion_tokens_details",
        output_details: OutputDetails = "output_tokens_details",
        // DeepSeek
        cache_hit: Count = "prompt_cache_hit_tokens",
        // Anthropic
        cache_read_input: Count = "cache_read_input_tokens",
        cache_creation_input: Count = "cache_creation_input_tokens",
        cache_creation: CacheCreation = "cache_creation",
        server_tools: ServerToolUse = "server_tool_use",
        // Perplexity
        citation_tokens: Count = "citation_tokens",
        reasoning_tokens: Count = "reasoning_tokens",
        search_queries: Count = "num_search_queries",
        // OpenRouter: a number; Perplexity: an object
        cost: Raw<'a> = "cost",
        // xAI
        cost_ticks: Count = "cost_in_usd_ticks",
    }
}

lenient_object! {
    struct InputDetails {
        cached: Count = "cached_tokens",
        cache_write: Count = "cache_write_tokens",
        cache_write_ttl: CacheWriteTtl = "cache_write_tokens_details",
        audio: Count = "audio_tokens",
        image: Count = "image_tokens",
    }
}

lenient_object! {
    struct CacheWriteTtl {
        half_hour: Count = "ttl_30m_tokens",
        half_day: Count = "ttl_12h_tokens",
    }
}

lenient_object! {
    struct OutputDetails {
        reasoning: Count = "reasoning_tokens",
        audio: Count = "audio_tokens",
        image: Count = "image_tokens",
    }
}

lenient_object! {
    struct CacheCreation {
        five_minutes: Count = "ephemeral_5m_input_tokens",
        hour: Count = "ephemeral_1h_input_tokens",
    }
}

lenient_object! {
    struct ServerToolUse {
        web_searches: Count = "web_search_requests",
    }
}

lenient_object! {
    struct StatedCost<'a> {
        total: Raw<'a> = "total_cost",
    }
}

lenient_object! {
    /// `tool_usage`, which stands beside `usage` in an answer of the Responses API.
    pub struct ToolUsage {
        web_search: WebSearch = "web_search",
    }
}

lenient_object! {
    struct WebSearch {
        requests: Count = "num_requests",
    }
}

impl ToolUsage {
    pub fn web_searches(&self) -> u64 {
        self.web_search.requests.or_zero()
    }
}

impl Reported<'_> {
    /// The totals and their parts; `None` if neither a count nor a cost is there. A total alone does not say
    /// what was input, so it counts as nothing.
    pub fn normalise(&self) -> Option<Usage> {
        let stated_cost = self.stated_cost();
        let input = self.prompt_tokens.0.or(self.input_tokens.0);
        let output = self.completion_tokens.0.or(self.output_tokens.0);
        if input.is_none() && output.is_none() && stated_cost.is_none() {
            return None;
        }
        let mut usage = Usage {
            input: input.unwrap_or(0),
            output: output.unwrap_or(0),
            reasoning: self.reasoning(),
            output_audio: self.output_detail(|details| details.audio),
            output_image: self.output_detail(|details| details.image),
            input_audio: self.input_detail(|details| details.audio),
            input_image: self.input_detail(|details| details.image),
            web_searches: self.search_queries.or_zero().max(self.server_tools.web_searches.or_zero()),
            stated_cost,
            ..Usage::default()
        };
        self.caches(&mut usage);
        self.extra_output(&mut usage);
        Some(usage.clamp())
    }

    fn caches(&self, usage: &mut Usage) {
        usage.cache_write_5m = self.cache_creation.five_minutes.or_zero();
        usage.cache_write_1h = self.cache_creation.hour.or_zero();
        usage.cache_write_30m = self.input_detail(|details| details.cache_write_ttl.half_hour);
        usage.cache_write_12h = self.input_detail(|details| details.cache_write_ttl.half_day);
        let by_ttl =
            [usage.cache_write_5m, usage.cache_write_30m, usage.cache_write_1h, usage.cache_write_12h]
                .into_iter()
                .fold(0, u64::saturating_add);
        usage.cache_read = self
            .input_detail(|details| details.cached)
            .max(self.cache_hit.or_zero())
            .max(self.cache_read_input.or_zero());
        usage.cache_write = self
            .input_detail(|details| details.cache_write)
            .max(self.cache_creation_input.or_zero())
            .max(by_ttl);
        // Anthropic's own API counts cached input beside `input_tokens`; whoever says `prompt_tokens` has
        // added it already.
        let beside = self.cache_read_input.0.is_some() || self.cache_creation_input.0.is_some();
        if self.prompt_tokens.0.is_none() && beside {
            usage.input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
        }
    }

    /// Output that `completion_tokens` leaves out.
    fn extra_output(&self, usage: &mut Usage) {
        if self.citation_tokens.0.is_some() || self.search_queries.0.is_some() {
            usage.output = usage
                .output
                .saturating_add(self.citation_tokens.or_zero())
                .saturating_add(self.reasoning_tokens.or_zero());
            return;
        }
        // xAI and some gateways to Gemini leave reasoning out of the completion; only the total shows it.
        let gap = self.total_tokens.or_zero().saturating_sub(usage.total());
        if gap > 0 {
            usage.output = usage.output.saturating_add(gap);
            if usage.reasoning == 0 {
                usage.reasoning = gap;
            }
        }
    }

    fn reasoning(&self) -> u64 {
        self.output_detail(|details| details.reasoning).max(self.reasoning_tokens.or_zero())
    }

    fn input_detail(&self, count: impl Fn(&InputDetails) -> Count) -> u64 {
        count(&self.prompt_details).0.or(count(&self.input_details).0).unwrap_or(0)
    }

    fn output_detail(&self, count: impl Fn(&OutputDetails) -> Count) -> u64 {
        count(&self.completion_details).0.or(count(&self.output_details).0).unwrap_or(0)
    }

    fn stated_cost(&self) -> Option<Pico> {
        if let Some(ticks) = self.cost_ticks.0 {
            return Some(Pico::new(u128::from(ticks) * PICO_PER_TICK));
        }
        let cost = self.cost.0?;
        let number = if cost.starts_with('{') {
            crate::json::read::<StatedCost<'_>>(cost.as_bytes()).ok()?.total.0?
        } else {
            cost
        };
        Pico::from_dollars(number.trim_matches('"'))
    }
}

/// So that a `usage` can be a field of any struct that serde derives.
impl<'de: 'a, 'a> serde::Deserialize<'de> for Reported<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <Self as Lenient<'de>>::read(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(json: &str) -> Option<Usage> {
        Usage::from_json(json)
    }

    #[test]
    fn nothing_usable_is_unknown() {
        for json in [
            "null",
            "{}",
            "[]",
            "\"n/a\"",
            r#"{"prompt_tokens":null,"completion_tokens":null,"total_tokens":null}"#,
            r#"{"total_tokens":17}"#,
            r#"{"type":"duration","seconds":12}"#,
        ] {
            assert_eq!(usage(json), None, "{json}");
        }
    }

    #[test]
    fn anthropic_counts_caches_beside_the_input() {
        let native = usage(r#"{"input_tokens":50,"cache_read_input_tokens":7,"output_tokens":3}"#).unwrap();
        assert_eq!((native.input, native.cache_read, native.uncached()), (57, 7, 50));
        let converted = usage(r#"{"prompt_tokens":57,"cache_read_input_tokens":7}"#).unwrap();
        assert_eq!((converted.input, converted.uncached()), (57, 50));
    }

    #[test]
    fn a_missing_completion_is_read_from_the_total() {
        let vllm = usage(r#"{"prompt_tokens":5,"completion_tokens":null,"total_tokens":12}"#).unwrap();
        assert_eq!((vllm.input, vllm.output), (5, 7));
    }

    #[test]
    fn costs_that_providers_state() {
        let stated = |json| usage(json).and_then(|usage| usage.stated_cost).map(|cost| cost.to_string());
        assert_eq!(stated(r#"{"prompt_tokens":1,"cost":0.95}"#).as_deref(), Some("0.95"));
        assert_eq!(stated(r#"{"prompt_tokens":1,"cost":"1e-7"}"#).as_deref(), Some("0.0000001"));
        assert_eq!(stated(r#"{"cost":{"total_cost":0.0123}}"#).as_deref(), Some("0.0123"));
        assert_eq!(
            stated(r#"{"prompt_tokens":1,"cost_in_usd_ticks":37756000}"#).as_deref(),
            Some("0.0037756")
        );
        for json in [
            r#"{"prompt_tokens":1,"cost":null}"#,
            r#"{"prompt_tokens":1,"cost":-1}"#,
            r#"{"prompt_tokens":1,"cost":{}}"#,
        ] {
            assert_eq!(stated(json), None, "{json}");
        }
    }

    #[test]
    fn parts_larger_than_their_total_are_cut() {
        let broken = usage(
            r#"{"prompt_tokens":10,"completion_tokens":2,
                "prompt_tokens_details":{"cached_tokens":8,"audio_tokens":9},
                "completion_tokens_details":{"reasoning_tokens":5}}"#,
        )
        .unwrap();
        assert_eq!((broken.cache_read, broken.input_audio, broken.reasoning), (8, 2, 2));
    }

    fn count() -> impl Strategy<Value = String> {
        prop_oneof![
            (0u64..5000).prop_map(|count| count.to_string()),
            any::<u64>().prop_map(|count| count.to_string()),
            Just("null".to_owned()),
            Just("\"12\"".to_owned()),
            Just("{}".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn parts_never_exceed_their_totals(counts in proptest::collection::vec(count(), 16)) {
            let field = |name: &str, at: usize| format!("\"{name}\":{}", counts[at]);
            let details = |at: usize| format!(
                "{{{},{},{},{}}}", field("cached_tokens", at), field("audio_tokens", at + 1),
                field("image_tokens", at + 2), field("reasoning_tokens", at + 3));
            let json = format!(
                "{{{},{},{},{},{},{},{},\"prompt_tokens_details\":{},\"completion_tokens_details\":{}}}",
                field("prompt_tokens", 0), field("completion_tokens", 1), field("total_tokens", 2),
                field("input_tokens", 3), field("cache_read_input_tokens", 4),
                field("cache_creation_input_tokens", 5), field("citation_tokens", 6), details(7), details(11));
            if let Some(usage) = usage(&json) {
                let sum = |parts: &[u64]| parts.iter().map(|part| u128::from(*part)).sum::<u128>();
                prop_assert!(sum(&[usage.cache_read, usage.cache_write, usage.input_audio, usage.input_image]) <= u128::from(usage.input));
                prop_assert!(sum(&[usage.reasoning, usage.output_audio, usage.output_image]) <= u128::from(usage.output));
                prop_assert!(sum(&[usage.cache_write_5m, usage.cache_write_30m, usage.cache_write_1h, usage.cache_write_12h]) <= u128::from(usage.cache_write));
                prop_assert_eq!(sum(&[usage.uncached(), usage.cache_read, usage.cache_write, usage.input_audio, usage.input_image]), u128::from(usage.input));
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = usage(&text);
        }
    }
}
