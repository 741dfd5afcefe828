//! litellm's price table, whose keys are sentences.

use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;

use super::PriceBook;
use super::rates::{Prices, Rule, rounded_price, unreadable};
use crate::error::ConfigError;

type Fields<'a> = BTreeMap<String, &'a RawValue>;

pub(super) fn read(json: &str) -> Result<PriceBook, ConfigError> {
    let table: HashMap<String, &RawValue> = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    let mut book = PriceBook::default();
    for (model, entry) in table {
        if model == "sample_spec" {
            continue;
        }
        let Ok(fields) = serde_json::from_str::<Fields<'_>>(entry.get()) else { continue };
        if let Some(rule) = litellm_rule(&fields) {
            // No glob: litellm's names stand for themselves, brackets and all.
            book.exact.insert(model, vec![rule]);
        }
    }
    Ok(book)
}

fn litellm_rule(fields: &Fields<'_>) -> Option<Rule> {
    if fields.contains_key("off_peak_pricing") || fields.contains_key("tiered_pricing") {
        return None;
    }
    let mut rule = Rule::default();
    for (key, value) in fields {
        let Some(place) = LitellmKey::parse(key) else { continue };
        // Per token there, per million here.
        let Some(price) = rounded_price(value.get(), 6) else { continue };
        let rates = match place.tier {
            None => &mut rule.standard,
            Some(tier) => rule.tiers.entry(tier.to_owned()).or_default(),
        };
        let prices = match place.above {
            None => &mut rates.base,
            Some(tokens) => rates.above.entry(tokens).or_default(),
        };
        if let Some(field) = prices.field(place.field) {
            *field = Some(price);
        }
    }
    if let Some(search) = fields.get("search_context_cost_per_query") {
        let sizes = serde_json::from_str::<Fields<'_>>(search.get()).unwrap_or_default();
        // The medium size is what a request gets that does not choose.
        let fee = ["medium", "low", "high"]
            .into_iter()
            .find_map(|size| sizes.get(&format!("search_context_size_{size}")));
        rule.standard.base.web_search = fee.and_then(|fee| rounded_price(fee.get(), 3));
    }
    (rule.standard.base != Prices { web_search: rule.standard.base.web_search, ..Prices::default() })
        .then_some(rule)
}

/// `{price}[_above_{1hr|12hr}][_above_{N}k_tokens][_{tier}]`
#[derive(Debug, PartialEq, Eq)]
struct LitellmKey<'a> {
    field: &'static str,
    above: Option<u64>,
    tier: Option<&'a str>,
}

impl<'a> LitellmKey<'a> {
    fn parse(key: &'a str) -> Option<Self> {
        const TIERS: [(&str, &str); 5] = [
            ("_batches", "batch"),
            ("_flex", "flex"),
            ("_priority", "priority"),
            ("_ultrafast", "ultrafast"),
            ("_balanced", "balanced"),
        ];
        let tiered = TIERS.into_iter().find_map(|(suffix, tier)| Some((key.strip_suffix(suffix)?, tier)));
        let (rest, tier) = tiered.map_or((key, None), |(rest, tier)| (rest, Some(tier)));
        let (name, above) = match rest.strip_suffix("k_tokens").and_then(|rest| rest.rsplit_once("_above_")) {
            Some((name, thousands)) => (name, Some(thousands.parse::<u64>().ok()?.checked_mul(1000)?)),
            None => (rest, None),
        };
        let field = match name {
            "input_cost_per_token" => "input",
            "output_cost_per_token" => "output",
            "cache_read_input_token_cost" => "cached_input",
            "cache_creation_input_token_cost" => "cache_write",
            "cache_creation_input_token_cost_above_1hr" => "cache_write_1h",
            "cache_creation_input_token_cost_above_12hr" => "cache_write_12h",
            "output_cost_per_reasoning_token" => "reasoning",
            "input_cost_per_audio_token" => "input_audio",
            "output_cost_per_audio_token" => "output_audio",
            "input_cost_per_image_token" => "input_image",
            "output_cost_per_image_token" => "output_image",
            _ => return None,
        };
        Some(Self { field, above, tier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let parse = |key| LitellmKey::parse(key).map(|key| (key.field, key.above, key.tier));
        assert_eq!(parse("input_cost_per_token"), Some(("input", None, None)));
        assert_eq!(
            parse("cache_creation_input_token_cost_above_12hr_above_272k_tokens_flex"),
            Some(("cache_write_12h", Some(272_000), Some("flex")))
        );
        assert_eq!(parse("output_cost_per_token_batches"), Some(("output", None, Some("batch"))));
        for key in [
            "input_cost_per_second",
            "input_cost_per_token_above_k_tokens",
            "mode",
            "input_cost_per_token_decisions",
        ] {
            assert_eq!(parse(key), None, "{key}");
        }
    }

    #[test]
    fn leaves_out_what_it_cannot_state() {
        let book = read(
            r#"{"sample_spec": {"input_cost_per_token": 1}, "night": {"input_cost_per_token": 1, "off_peak_pricing": {}},
                "image": {"output_cost_per_image": 1}, "x[1]": {"input_cost_per_token": 2.1999999999999998e-06}, "odd": 7}"#,
        )
        .unwrap();
        assert_eq!(book.len(), 1);
        assert_eq!(book.exact["x[1]"][0].standard.base.input, Some(2_200_000_000_000));
    }
}
