//! The price table of genai-prices, version 2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::PriceBook;
use super::clause::Clause;
use super::rates::{Rates, Rule, rounded_price, unreadable};
use crate::error::ConfigError;
use crate::timestamp;

type Fields<'a> = BTreeMap<String, &'a RawValue>;

#[derive(Deserialize)]
struct Provider<'a> {
    id: String,
    #[serde(default)]
    model_match: Option<Clause>,
    #[serde(borrow)]
    models: Vec<Model<'a>>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    r#match: Option<Clause>,
    #[serde(borrow)]
    prices: &'a RawValue,
    #[serde(borrow, default)]
    price_variants: Vec<Variant<'a>>,
}

#[derive(Deserialize)]
struct Variant<'a> {
    when: BTreeMap<String, String>,
    #[serde(borrow)]
    prices: Fields<'a>,
    #[serde(default)]
    constraint: Option<Constraint>,
}

#[derive(Deserialize)]
struct Dated<'a> {
    #[serde(borrow)]
    prices: Fields<'a>,
    #[serde(default)]
    constraint: Option<Constraint>,
}

#[derive(Deserialize)]
struct Constraint {
    #[serde(default)]
    start_date: Option<String>,
}

pub(super) fn read(json: &str, provider: Option<&str>) -> Result<PriceBook, ConfigError> {
    let providers: Vec<Provider<'_>> = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    let mut book = PriceBook::default();
    let mut by_maker = BTreeSet::new();
    for seller in providers.iter().filter(|seller| provider.is_none_or(|id| id == seller.id)) {
        for model in &seller.models {
            let Some(rules) = rules_of(model) else { continue };
            let mut globs = Vec::new();
            if let Some(clause) = &model.r#match {
                clause.globs(&mut globs);
            }
            for glob in globs {
                let name = glob.replace(['*', '[', ']'], "");
                let made = seller.model_match.as_ref().is_some_and(|clause| clause.accepts(&name));
                let known =
                    book.exact.contains_key(&glob) || book.patterns.iter().any(|old| old.text == glob);
                if known && (!made || by_maker.contains(&glob)) {
                    continue;
                }
                book.patterns.retain(|old| old.text != glob);
                if made {
                    by_maker.insert(glob.clone());
                }
                book.insert(&glob, rules.clone())?;
            }
        }
    }
    book.sort();
    Ok(book)
}

/// One rule per day on which a price changes; `None` if the prices depend on more than the day.
fn rules_of(model: &Model<'_>) -> Option<Vec<Rule>> {
    let json = model.prices.get();
    let base: Vec<Dated<'_>> = if json.starts_with('[') {
        serde_json::from_str(json).ok()?
    } else {
        vec![Dated { prices: serde_json::from_str(json).ok()?, constraint: None }]
    };
    let base = base.iter().map(|dated| Some((start(dated.constraint.as_ref())?, rates_of(&dated.prices)?)));
    let base: Vec<_> = base.collect::<Option<_>>()?;
    let variants = model.price_variants.iter().filter_map(|variant| {
        Some((start(variant.constraint.as_ref())?, tier_of(&variant.when)?, rates_of(&variant.prices)?))
    });
    let variants: Vec<_> = variants.collect();
    let days: BTreeSet<Option<SystemTime>> =
        base.iter().map(|(day, _)| *day).chain(variants.iter().map(|(day, ..)| *day)).collect();
    let rules = days.into_iter().filter_map(|from| {
        // Of those that have begun the latest counts; of two that begin together, the later in the table.
        let standard = base.iter().filter(|(day, _)| *day <= from).max_by_key(|(day, _)| *day)?.1.clone();
        let mut tiers: Vec<_> = variants.iter().filter(|(day, ..)| *day <= from).collect();
        tiers.sort_by_key(|(day, ..)| *day);
        let tiers = tiers.into_iter().map(|(_, tier, rates)| (tier.clone(), rates.clone())).collect();
        Some(Rule { from, standard, tiers })
    });
    Some(rules.collect())
}

/// `None` for a constraint of another kind (a time of day) or an impossible date.
#[allow(clippy::option_option, reason = "the inner one is the start, which may be always")]
fn start(constraint: Option<&Constraint>) -> Option<Option<SystemTime>> {
    match constraint {
        None => Some(None),
        Some(constraint) => timestamp::date(constraint.start_date.as_deref()?).map(Some),
    }
}

fn tier_of(when: &BTreeMap<String, String>) -> Option<String> {
    let mut conditions = when.iter();
    let (dimension, value) = conditions.next().filter(|_| when.len() == 1)?;
    match (dimension.as_str(), value.as_str()) {
        ("service_tier", "default") => None,
        ("service_tier", tier) | ("processing", tier @ "batch") => Some(tier.to_owned()),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Tiered<'a> {
    #[serde(borrow)]
    base: &'a RawValue,
    #[serde(borrow, default)]
    tiers: Vec<TierStep<'a>>,
}

#[derive(Deserialize)]
struct TierStep<'a> {
    start: u64,
    #[serde(borrow)]
    price: &'a RawValue,
}

/// `None` if a price cannot be stated per token.
fn rates_of(fields: &Fields<'_>) -> Option<Rates> {
    let mut rates = Rates::default();
    for (name, value) in fields {
        let field = match name.as_str() {
            "input_mtok" => "input",
            "cache_read_mtok" => "cached_input",
            "cache_write_mtok" => "cache_write",
            "cache_write_5m_mtok" => "cache_write_5m",
            "cache_write_1h_mtok" => "cache_write_1h",
            "output_mtok" => "output",
            "output_reasoning_mtok" => "reasoning",
            "input_audio_mtok" => "input_audio",
            "output_audio_mtok" => "output_audio",
            "input_image_mtok" => "input_image",
            "output_image_mtok" => "output_image",
            "web_searches_kcount" => "web_search",
            "requests_kcount" => return None,
            _ => continue,
        };
        let json = value.get();
        if json == "null" {
            continue;
        }
        let base = if json.starts_with('{') {
            let tiered: Tiered<'_> = serde_json::from_str(json).ok()?;
            for step in &tiered.tiers {
                *rates.above.entry(step.start).or_default().field(field)? =
                    Some(rounded_price(step.price.get(), 0)?);
            }
            rounded_price(tiered.base.get(), 0)?
        } else {
            rounded_price(json, 0)?
        };
        *rates.base.field(field)? = Some(base);
    }
    Some(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_makers_price_counts() {
        let table = r#"[
            {"id": "reseller", "models": [{"match": {"equals": "m-1"}, "prices": {"input_mtok": 9}},
                                          {"match": {"equals": "only"}, "prices": {"input_mtok": 8}}]},
            {"id": "maker", "model_match": {"starts_with": "m-"}, "models": [
                {"match": {"equals": "m-1"}, "prices": {"input_mtok": 1}},
                {"match": {"equals": "m-night"}, "prices": [{"prices": {"input_mtok": 1}, "constraint": {"start_time": "16:30:00Z"}}]},
                {"match": {"equals": "m-fee"}, "prices": {"input_mtok": 1, "requests_kcount": 5}}]},
            {"id": "other", "models": [{"match": {"equals": "only"}, "prices": {"input_mtok": 7}}]}]"#;
        let input = |book: &PriceBook, model: &str| book.rules(model)?.first()?.standard.base.input;
        let all = read(table, None).unwrap();
        assert_eq!(
            (input(&all, "m-1"), input(&all, "only")),
            (Some(1_000_000_000_000), Some(8_000_000_000_000))
        );
        assert_eq!((input(&all, "m-night"), input(&all, "m-fee")), (None, None));
        assert_eq!(input(&read(table, Some("other")).unwrap(), "only"), Some(7_000_000_000_000));
        assert_eq!(read(table, Some("nobody")).unwrap().len(), 0);
    }
}
