//! The two public price tables, read from the text of their numbers so that no float comes between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::PriceBook;
use super::rates::{PRICE_DECIMALS, Prices, Rates, Rule};
use crate::error::ConfigError;
use crate::money::scaled;
use crate::timestamp;

fn unreadable(error: &serde_json::Error) -> ConfigError {
    ConfigError::new("prices", error, "must be a price table in its published form")
}

/// A price in dollars; `shift` is the power of ten from the table's unit to ours. These tables are floats, so
/// the noise in their last digits is rounded away.
fn amount(json: &str, shift: i32) -> Option<u128> {
    scaled(json.trim_matches('"'), PRICE_DECIMALS + shift).ok().map(|amount| amount.units)
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

pub(super) fn litellm(json: &str) -> Result<PriceBook, ConfigError> {
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
        let Some(price) = amount(value.get(), 6) else { continue };
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
        rule.standard.base.web_search = fee.and_then(|fee| amount(fee.get(), 3));
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

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Clause {
    Equals(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Regex(String),
    Or(Vec<Self>),
    And(Vec<Self>),
}

impl Clause {
    fn accepts(&self, name: &str) -> bool {
        match self {
            Self::Equals(text) => name == text,
            Self::StartsWith(text) => name.starts_with(text.as_str()),
            Self::EndsWith(text) => name.ends_with(text.as_str()),
            Self::Contains(text) => name.contains(text.as_str()),
            Self::Regex(text) => glob_of(text).is_some_and(|glob| {
                globset::Glob::new(&glob).is_ok_and(|glob| glob.compile_matcher().is_match(name))
            }),
            Self::Or(clauses) => clauses.iter().any(|clause| clause.accepts(name)),
            Self::And(clauses) => clauses.iter().all(|clause| clause.accepts(name)),
        }
    }

    /// The globs that match the same names. A conjunction, and a regular expression beyond [`glob_of`], match
    /// none: unpriced rather than wrong.
    fn globs(&self, into: &mut Vec<String>) {
        match self {
            Self::Equals(text) => into.push(globset::escape(text)),
            Self::StartsWith(text) => into.push(format!("{}*", globset::escape(text))),
            Self::EndsWith(text) => into.push(format!("*{}", globset::escape(text))),
            Self::Contains(text) => into.push(format!("*{}*", globset::escape(text))),
            Self::Regex(text) => into.extend(glob_of(text)),
            Self::Or(clauses) => clauses.iter().for_each(|clause| clause.globs(into)),
            Self::And(_) => {}
        }
    }
}

/// An anchored regular expression of literals, classes and counted digits as a glob:
/// `^acme-1-\d{4}$` is `acme-1-[0-9][0-9][0-9][0-9]`.
fn glob_of(regex: &str) -> Option<String> {
    let mut rest = regex.strip_prefix('^')?;
    let mut glob = String::new();
    while let Some(letter) = rest.chars().next() {
        rest = rest.get(letter.len_utf8()..)?;
        match letter {
            '$' if rest.is_empty() => return Some(glob),
            '\\' => {
                let escaped = rest.chars().next()?;
                rest = rest.get(escaped.len_utf8()..)?;
                if escaped == 'd' {
                    let counted = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                    let (count, after) = match counted {
                        Some((count, after)) => {
                            (count.parse::<usize>().ok().filter(|count| *count <= 32)?, after)
                        }
                        None => (1, rest),
                    };
                    rest = after;
                    glob.push_str(&"[0-9]".repeat(count));
                } else if escaped.is_alphanumeric() {
                    return None;
                } else {
                    glob.push_str(&globset::escape(&escaped.to_string()));
                }
            }
            '[' => {
                let (class, after) = rest.split_once(']')?;
                if class.is_empty()
                    || !class.chars().all(|letter| letter.is_alphanumeric() || "-@".contains(letter))
                {
                    return None;
                }
                rest = after;
                glob.push('[');
                glob.push_str(class);
                glob.push(']');
            }
            letter if letter.is_alphanumeric() || "-_/:@ ".contains(letter) => glob.push(letter),
            _ => return None,
        }
        if rest.starts_with(['*', '+', '?', '{']) {
            return None;
        }
    }
    glob.push('*');
    Some(glob)
}

pub(super) fn genai_prices(json: &str, provider: Option<&str>) -> Result<PriceBook, ConfigError> {
    let providers: Vec<Provider<'_>> = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    let mut book = PriceBook::default();
    let mut by_maker = BTreeSet::new();
    for seller in providers.iter().filter(|seller| provider.is_none_or(|id| id == seller.id)) {
        for model in &seller.models {
            let Some(rules) = genai_rules(model) else { continue };
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
    Ok(book)
}

/// One rule per day on which a price changes; `None` if the prices depend on more than the day.
fn genai_rules(model: &Model<'_>) -> Option<Vec<Rule>> {
    let json = model.prices.get();
    let base: Vec<Dated<'_>> = if json.starts_with('[') {
        serde_json::from_str(json).ok()?
    } else {
        vec![Dated { prices: serde_json::from_str(json).ok()?, constraint: None }]
    };
    let base =
        base.iter().map(|dated| Some((start(dated.constraint.as_ref())?, genai_rates(&dated.prices)?)));
    let base: Vec<_> = base.collect::<Option<_>>()?;
    let variants = model.price_variants.iter().filter_map(|variant| {
        Some((start(variant.constraint.as_ref())?, genai_tier(&variant.when)?, genai_rates(&variant.prices)?))
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

fn genai_tier(when: &BTreeMap<String, String>) -> Option<String> {
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
fn genai_rates(fields: &Fields<'_>) -> Option<Rates> {
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
                    Some(amount(step.price.get(), 0)?);
            }
            amount(tiered.base.get(), 0)?
        } else {
            amount(json, 0)?
        };
        *rates.base.field(field)? = Some(base);
    }
    Some(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn litellm_keys() {
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
    fn litellm_leaves_out_what_it_cannot_state() {
        let book = litellm(
            r#"{"sample_spec": {"input_cost_per_token": 1}, "night": {"input_cost_per_token": 1, "off_peak_pricing": {}},
                "image": {"output_cost_per_image": 1}, "x[1]": {"input_cost_per_token": 2.1999999999999998e-06}, "odd": 7}"#,
        )
        .unwrap();
        assert_eq!(book.len(), 1);
        assert_eq!(book.exact["x[1]"][0].standard.base.input, Some(2_200_000_000_000));
    }

    #[test]
    fn regular_expressions_as_globs() {
        for (regex, glob) in [
            (r"^acme-1\.5-\d{2}-\d$", Some("acme-1.5-[0-9][0-9]-[0-9]")),
            ("^o[134]", Some("o[134]*")),
            (r"^a[-@]\d{1}$", Some("a[-@][0-9]")),
            (r"^a\[fast=true\]$", None),
            (r"^a\[x\]$", Some("a[[]x[]]")),
            ("a", None),
            ("^(a|b)$", None),
            ("^a+$", None),
            (r"^\d+$", None),
            (r"^\w$", None),
            (r"^a\d{999999999}$", None),
        ] {
            assert_eq!(glob_of(regex).as_deref(), glob, "{regex}");
        }
    }

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
        let all = genai_prices(table, None).unwrap();
        assert_eq!(
            (input(&all, "m-1"), input(&all, "only")),
            (Some(1_000_000_000_000), Some(8_000_000_000_000))
        );
        assert_eq!((input(&all, "m-night"), input(&all, "m-fee")), (None, None));
        assert_eq!(input(&genai_prices(table, Some("other")).unwrap(), "only"), Some(7_000_000_000_000));
        assert_eq!(genai_prices(table, Some("nobody")).unwrap().len(), 0);
    }
}
