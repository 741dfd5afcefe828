//! What an answer costs.
//!
//! Prices are exact decimals per million tokens and costs whole pico-dollars, rounded once. What has no price
//! has no cost: never zero, never another tier's.

mod clause;
mod genai;
mod litellm;
mod rates;

use std::collections::HashMap;
use std::time::SystemTime;

use globset::{Glob, GlobMatcher};
use serde_json::value::RawValue;

use crate::error::ConfigError;
pub use crate::money::Pico;
use crate::usage::Usage;
use rates::{Rates, Rule, parse_rules};

/// Prices by model.
#[derive(Debug, Clone, Default)]
pub struct PriceBook {
    exact: HashMap<String, Vec<Rule>>,
    /// Most special first.
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// Characters that are no wildcard: the more, the more special.
    literal: usize,
    /// What a name must begin with: refuses most names without running the matcher.
    prefix: String,
    matcher: GlobMatcher,
    rules: Vec<Rule>,
}

const WILDCARDS: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

impl Pattern {
    fn matches(&self, model: &str) -> bool {
        model.starts_with(&self.prefix) && self.matcher.is_match(model)
    }
}

impl PriceBook {
    /// Reads `{"gpt-4.1*": {"input": "2.00", "cached_input": "0.50", "output": "8.00"}}`, in US dollars per
    /// million tokens (`web_search`: per thousand).
    ///
    /// Names are case-sensitive globs. Of several that match, the exact one counts, then the one with the
    /// longest literal. A price may be text or a number, with at most 12 decimals. Further fields of a model:
    ///
    /// - `tiers`: `{"flex": {…}}`, prices of a service tier, which replace all others;
    /// - `above`: `{"272000": {…}}`, prices of the whole request once its input exceeds so many tokens; what is
    ///   not given there stays as it is below;
    /// - `from`: `"2026-08-21"`, the day (UTC) from which all of these count.
    ///
    /// A model's value may be a list of such objects with different `from`.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let entries: HashMap<String, &RawValue> = serde_json::from_str(json)
            .map_err(|error| ConfigError::new("prices", error, "must be a JSON object of model patterns"))?;
        let mut book = Self::default();
        for (pattern, value) in entries {
            let rules = parse_rules(value.get(), &format!("prices[{pattern:?}]"))?;
            book.insert(&pattern, rules)?;
        }
        book.sort();
        Ok(book)
    }

    /// Reads litellm's `model_prices_and_context_window.json`. Models that are priced by time of day, or by
    /// something else than tokens, are left out: unpriced rather than wrong.
    pub fn from_litellm(json: &str) -> Result<Self, ConfigError> {
        litellm::read(json)
    }

    /// Reads `data.json` of genai-prices, version 2: of one provider (`"openai"`), or of all. A model that
    /// several providers sell is priced as its maker does, or else as the first of them.
    pub fn from_genai_prices(json: &str, provider: Option<&str>) -> Result<Self, ConfigError> {
        genai::read(json, provider)
    }

    /// Adds `other`'s models; where both know one, `other`'s counts.
    pub fn extend(&mut self, other: Self) {
        self.exact.extend(other.exact);
        let known = |pattern: &Pattern| !other.patterns.iter().any(|new| new.text == pattern.text);
        self.patterns.retain(known);
        self.patterns.extend(other.patterns);
        self.sort();
    }

    pub fn len(&self) -> usize {
        self.exact.len() + self.patterns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What `usage` of `model` costs; `None` if any part of it has no price.
    ///
    /// `service_tier` is the one that served, from the answer. A cost that the provider states is the cost.
    pub fn cost(
        &self,
        model: &str,
        service_tier: Option<&str>,
        usage: &Usage,
        wall_now: SystemTime,
    ) -> Option<Pico> {
        if usage.stated_cost.is_some() {
            return usage.stated_cost;
        }
        let started = |rule: &&Rule| rule.from.is_none_or(|from| from <= wall_now);
        // Rules are in order of their start; the latest that has started counts.
        let rule = self.rules(model)?.iter().rev().find(started)?;
        let rates: &Rates = match service_tier {
            None | Some("" | "default" | "standard" | "auto") => &rule.standard,
            Some(tier) => rule.tiers.get(tier)?,
        };
        rates.cost(usage, rule.standard.web_search())
    }

    fn rules(&self, model: &str) -> Option<&[Rule]> {
        let exact = self.exact.get(model);
        let matched = || self.patterns.iter().find(|pattern| pattern.matches(model));
        exact.or_else(|| matched().map(|pattern| &pattern.rules)).map(Vec::as_slice)
    }

    fn insert(&mut self, text: &str, rules: Vec<Rule>) -> Result<(), ConfigError> {
        let Some(wildcard) = text.find(WILDCARDS) else {
            self.exact.insert(text.to_owned(), rules);
            return Ok(());
        };
        let glob = Glob::new(text).map_err(|error| {
            ConfigError::new(format!("prices[{text:?}]"), text, format!("must be a glob: {error}"))
        })?;
        self.patterns.push(Pattern {
            text: text.to_owned(),
            literal: text.chars().filter(|letter| !WILDCARDS.contains(letter)).count(),
            prefix: text.get(..wildcard).unwrap_or("").to_owned(),
            matcher: glob.compile_matcher(),
            rules,
        });
        Ok(())
    }

    fn sort(&mut self) {
        self.patterns.sort_by(|a, b| b.literal.cmp(&a.literal).then_with(|| a.text.cmp(&b.text)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;
    use crate::timestamp::date;

    const NOW: SystemTime = UNIX_EPOCH;

    fn book(json: &str) -> PriceBook {
        PriceBook::from_json(json).unwrap()
    }

    fn tokens(input: u64, output: u64) -> Usage {
        Usage { input, output, ..Usage::default() }
    }

    fn cost(book: &PriceBook, model: &str, tier: Option<&str>, usage: &Usage) -> Option<String> {
        book.cost(model, tier, usage, NOW).map(|cost| cost.to_string())
    }

    #[test]
    fn the_check_value() {
        let book = book(r#"{"m": {"input": "0.15", "output": "0.60"}}"#);
        assert_eq!(cost(&book, "m", None, &tokens(360, 150)).as_deref(), Some("0.000144"));
    }

    #[test]
    fn the_most_special_pattern_counts() {
        let book = book(
            r#"{"*": {"input": "1"}, "gpt-*": {"input": 2}, "gpt-4.1*": {"input": 3}, "gpt-4.1": {"input": 4},
                "o[13]*": {"input": 5}}"#,
        );
        for (model, want) in [
            ("x", "1"),
            ("gpt-5", "2"),
            ("gpt-4.1-mini", "3"),
            ("gpt-4.1", "4"),
            ("o3-mini", "5"),
            ("GPT-5", "1"),
        ] {
            assert_eq!(cost(&book, model, None, &tokens(1_000_000, 0)).as_deref(), Some(want), "{model}");
        }
    }

    #[test]
    fn every_part_has_its_price_or_its_totals() {
        let usage = Usage {
            input: 1000,
            cache_read: 100,
            cache_write: 300,
            cache_write_5m: 100,
            cache_write_1h: 100,
            input_audio: 50,
            input_image: 50,
            output: 1000,
            reasoning: 400,
            output_audio: 100,
            web_searches: 2,
            ..Usage::default()
        };
        let all = r#"{"m": {"input": 1, "cached_input": "0.1", "cache_write": 2, "cache_write_1h": 3, "output": 10,
                     "reasoning": 5, "input_audio": 20, "output_audio": 30, "input_image": 7, "web_search": 10}}"#;
        // 500*1 + 100*0.1 + 200*2 + 100*3 + 50*20 + 50*7 + 500*10 + 400*5 + 100*30 = 12,560 and 2 searches
        assert_eq!(cost(&book(all), "m", None, &usage).as_deref(), Some("0.03256"));
        let totals = r#"{"m": {"input": 1, "output": 10, "web_search": 10}}"#;
        assert_eq!(cost(&book(totals), "m", None, &usage).as_deref(), Some("0.031"));
    }

    #[test]
    fn what_has_no_price_has_no_cost() {
        let book = book(
            r#"{"m": {"input": 1}, "free": {"input": 0, "output": 0}, "old": {"input": 1, "from": "2000-01-01"}}"#,
        );
        assert_eq!(cost(&book, "m", None, &tokens(10, 0)).as_deref(), Some("0.00001"));
        assert_eq!(cost(&book, "m", None, &tokens(10, 1)), None);
        assert_eq!(cost(&book, "m", None, &Usage { web_searches: 1, ..tokens(10, 0) }), None);
        assert_eq!(cost(&book, "unknown", None, &tokens(10, 0)), None);
        assert_eq!(cost(&book, "old", None, &tokens(10, 0)), None, "not yet in force");
        assert_eq!(cost(&book, "free", None, &tokens(10, 10)).as_deref(), Some("0"));
        let stated = Usage { stated_cost: Pico::from_dollars("0.95"), ..tokens(1, 1) };
        assert_eq!(cost(&book, "unknown", Some("flex"), &stated).as_deref(), Some("0.95"));
    }

    #[test]
    fn tiers_thresholds_and_dates() {
        let book = book(
            r#"{"m": [
                {"from": "2026-08-21", "input": 4, "output": 20},
                {"input": 5, "cached_input": "0.5", "output": 30, "above": {"200": {"input": 10}, "300": {"input": 20}},
                 "tiers": {"flex": {"input": 2, "output": 10, "above": {"200": {"input": 3}}}}}]}"#,
        );
        let at = |tier, input: u64, time| {
            book.cost("m", tier, &tokens(input * 1_000_000, 0), time).map(|cost| cost.to_string())
        };
        let later = date("2026-08-21").unwrap();
        assert_eq!(at(None, 1, NOW).as_deref(), Some("20"));
        assert_eq!(at(None, 1, later - Duration::from_secs(1)).as_deref(), Some("20"));
        assert_eq!(at(None, 1, later).as_deref(), Some("4"));
        assert_eq!(at(Some("flex"), 1, later), None);
        for (input, want) in [(200, "0.001"), (201, "0.00201"), (301, "0.00602")] {
            assert_eq!(cost(&book, "m", None, &tokens(input, 0)).as_deref(), Some(want), "{input}");
        }
        assert_eq!(cost(&book, "m", Some("flex"), &tokens(201, 0)).as_deref(), Some("0.000603"));
        let cached = Usage { cache_read: 1000, ..tokens(1000, 0) };
        assert_eq!(cost(&book, "m", None, &cached).as_deref(), Some("0.0005"), "above overlays");
        assert_eq!(cost(&book, "m", Some("flex"), &cached).as_deref(), Some("0.003"), "a tier does not");
        assert_eq!(cost(&book, "m", Some("priority"), &cached), None);
    }

    #[test]
    fn errors_name_the_field_and_the_rule() {
        for (json, field) in [
            (r#"{"gpt-4.1*": {"input": "-1"}}"#, r#"prices["gpt-4.1*"].input"#),
            (r#"{"m": {"input": "nan"}}"#, r#"prices["m"].input"#),
            (r#"{"m": {"input": 1e40}}"#, r#"prices["m"].input"#),
            (r#"{"m": {"input": "0.1234567890123"}}"#, r#"prices["m"].input"#),
            (r#"{"m": {"tiers": {"flex": {"output": true}}}}"#, r#"prices["m"].tiers["flex"].output"#),
            (r#"{"m": {"above": {"x": {}}}}"#, r#"prices["m"].above["x"]"#),
            (r#"{"m": {"from": "yesterday"}}"#, r#"prices["m"].from"#),
            (r#"{"m": {"inputs": 1}}"#, r#"prices["m"].inputs"#),
            (r#"{"m": {"tiers": {"flex": {"from": "2026-01-01"}}}}"#, r#"prices["m"].tiers["flex"].from"#),
            (r#"{"m": {}}"#, r#"prices["m"]"#),
            (r#"{"m": []}"#, r#"prices["m"]"#),
            (r#"{"m": 1}"#, r#"prices["m"]"#),
            (r#"{"m[": {"input": 1}}"#, r#"prices["m["]"#),
            ("[]", "prices"),
        ] {
            assert_eq!(PriceBook::from_json(json).unwrap_err().field, field, "{json}");
        }
    }

    #[test]
    fn own_prices_override_a_table() {
        let mut table = book(r#"{"m": {"input": 1}, "x*": {"input": 1}}"#);
        table.extend(book(r#"{"m": {"input": 2}, "x*": {"input": 3}}"#));
        assert_eq!(table.len(), 2);
        assert_eq!(cost(&table, "m", None, &tokens(1_000_000, 0)).as_deref(), Some("2"));
        assert_eq!(cost(&table, "xy", None, &tokens(1_000_000, 0)).as_deref(), Some("3"));
    }

    proptest! {
        #[test]
        fn costs_are_linear(
            price in 0u64..10_000_000, input in 0u64..1_000_000_000, output in 0u64..1_000_000_000, cached in 0u64..1_000_000,
        ) {
            let dollars = format!("{}.{:06}", price / 1_000_000, price % 1_000_000);
            let book = book(&format!("{{\"m\": {{\"input\": \"{dollars}\", \"output\": \"{dollars}\"}}}}"));
            let of = |usage: Usage| book.cost("m", None, &usage, NOW).unwrap().get();
            let whole = of(Usage { cache_read: cached.min(input), ..tokens(input, output) });
            // A price with 6 decimals per million is a whole number of pico-dollars per token.
            prop_assert_eq!(whole, u128::from(price) * u128::from(input + output));
            prop_assert_eq!(whole, of(tokens(input, 0)) + of(tokens(0, output)));
        }

        #[test]
        fn rounding_is_half_up_and_once(price in 1u64..1_000_000, input in 0u64..1_000_000) {
            let book = book(&format!("{{\"m\": {{\"input\": \"0.{price:012}\"}}}}"));
            let exact = u128::from(price) * u128::from(input);
            let got = book.cost("m", None, &tokens(input, 0), NOW).unwrap().get();
            prop_assert!(got * 1_000_000 <= exact + 500_000 && exact < got * 1_000_000 + 500_000);
        }

        #[test]
        fn no_text_panics(text in any::<String>(), pattern in "[a-z*?\\[\\]{},\\\\]{0,8}") {
            let _ = PriceBook::from_json(&text);
            let _ = PriceBook::from_litellm(&text);
            let _ = PriceBook::from_genai_prices(&text, None);
            let _ = PriceBook::from_json(&serde_json::json!({pattern: {"input": "1"}}).to_string());
        }
    }
}
