//! The prices of one model, and the sum over the parts of a usage.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use serde_json::value::RawValue;

use crate::error::ConfigError;
use crate::money::{NotAnAmount, Pico, scaled};
use crate::timestamp;
use crate::usage::Usage;

/// Prices that count from a day on.
#[derive(Debug, Clone, Default)]
pub(super) struct Rule {
    pub(super) from: Option<SystemTime>,
    pub(super) standard: Rates,
    pub(super) tiers: HashMap<String, Rates>,
}

/// The prices of one tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    pub(super) base: Prices,
    /// By the number of input tokens that must be exceeded.
    pub(super) above: BTreeMap<u64, Prices>,
}

/// Decimals of a price in dollars that are kept: a price is whole pico-dollars per million tokens.
const PRICE_DECIMALS: i32 = 12;
const TOKENS: u128 = 1_000_000;

macro_rules! prices {
    ($($field:ident),*) => {
        /// Pico-dollars per million tokens; of searches, per thousand.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(super) struct Prices {
            $(pub(super) $field: Option<u128>,)*
        }

        impl Prices {
            const FIELDS: &str = concat!($(stringify!($field), ", ",)* "tiers, above, from");

            pub(super) fn field(&mut self, name: &str) -> Option<&mut Option<u128>> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            fn overlay(self, over: &Self) -> Self {
                Self { $($field: over.$field.or(self.$field),)* }
            }
        }
    };
}
prices!(
    input,
    cached_input,
    cache_write,
    cache_write_5m,
    cache_write_30m,
    cache_write_1h,
    cache_write_12h,
    input_audio,
    input_image,
    output,
    reasoning,
    output_audio,
    output_image,
    web_search
);

impl Rates {
    pub(super) fn web_search(&self) -> Option<u128> {
        self.base.web_search
    }

    /// `search_fee` serves where this tier names none: a search costs the same in every tier.
    pub(super) fn cost(&self, usage: &Usage, search_fee: Option<u128>) -> Option<Pico> {
        // A cliff: the threshold that is exceeded sets the price of every token.
        let exceeded = self.above.range(..usage.input).map(|(_, prices)| prices);
        let prices = exceeded.fold(self.base, Prices::overlay);
        let cache_write = prices.cache_write.or(prices.input);
        let tokens = [
            (usage.uncached(), prices.input),
            (usage.cache_read, prices.cached_input.or(prices.input)),
            (usage.cache_write_other(), cache_write),
            (usage.cache_write_5m, prices.cache_write_5m.or(cache_write)),
            (usage.cache_write_30m, prices.cache_write_30m.or(cache_write)),
            (usage.cache_write_1h, prices.cache_write_1h.or(cache_write)),
            (usage.cache_write_12h, prices.cache_write_12h.or(cache_write)),
            (usage.input_audio, prices.input_audio.or(prices.input)),
            (usage.input_image, prices.input_image.or(prices.input)),
            (usage.visible_output(), prices.output),
            (usage.reasoning, prices.reasoning.or(prices.output)),
            (usage.output_audio, prices.output_audio.or(prices.output)),
            (usage.output_image, prices.output_image.or(prices.output)),
        ];
        // A fee per thousand is one per million times a thousand.
        let searches = (usage.web_searches.saturating_mul(1000), prices.web_search.or(search_fee));
        let mut sum = 0u128;
        for (count, price) in tokens.into_iter().chain([searches]).filter(|(count, _)| *count > 0) {
            sum = sum.checked_add(u128::from(count).checked_mul(price?)?)?;
        }
        Some(Pico::new(sum.checked_add(TOKENS / 2)? / TOKENS))
    }
}

type Object<'a> = BTreeMap<String, &'a RawValue>;

fn object<'a>(json: &'a str, path: &str) -> Result<Object<'a>, ConfigError> {
    let shown = json.get(..60).unwrap_or(json);
    serde_json::from_str(json).map_err(|_| ConfigError::new(path, shown, "must be an object of prices"))
}

/// One object of prices, or a list of them with different starts; in order of their start.
pub(super) fn parse_rules(json: &str, path: &str) -> Result<Vec<Rule>, ConfigError> {
    let listed: Vec<&RawValue> =
        if json.starts_with('[') { serde_json::from_str(json).unwrap_or_default() } else { Vec::new() };
    let mut rules = if listed.is_empty() {
        vec![parse_rule(json, path)?]
    } else {
        listed.into_iter().map(|rule| parse_rule(rule.get(), path)).collect::<Result<_, _>>()?
    };
    rules.sort_by_key(|rule| rule.from);
    Ok(rules)
}

fn parse_rule(json: &str, path: &str) -> Result<Rule, ConfigError> {
    let mut fields = object(json, path)?;
    if fields.is_empty() {
        return Err(ConfigError::new(path, json, "must hold at least one price"));
    }
    let mut rule = Rule::default();
    if let Some(from) = fields.remove("from") {
        let day = timestamp::date(from.get().trim_matches('"'));
        let wrong = || ConfigError::new(format!("{path}.from"), from, "must be a day as \"2026-08-21\"");
        rule.from = Some(day.ok_or_else(wrong)?);
    }
    if let Some(tiers) = fields.remove("tiers") {
        for (name, tier) in object(tiers.get(), &format!("{path}.tiers"))? {
            let path = format!("{path}.tiers[{name:?}]");
            rule.tiers.insert(name, parse_rates(object(tier.get(), &path)?, &path)?);
        }
    }
    rule.standard = parse_rates(fields, path)?;
    Ok(rule)
}

fn parse_rates(mut fields: Object<'_>, path: &str) -> Result<Rates, ConfigError> {
    let mut rates = Rates::default();
    if let Some(above) = fields.remove("above") {
        for (threshold, prices) in object(above.get(), &format!("{path}.above"))? {
            let path = format!("{path}.above[{threshold:?}]");
            let tokens = threshold.parse().map_err(|_| {
                ConfigError::new(path.as_str(), &threshold, "must be a number of input tokens")
            })?;
            rates.above.insert(tokens, parse_prices(object(prices.get(), &path)?, &path)?);
        }
    }
    rates.base = parse_prices(fields, path)?;
    Ok(rates)
}

fn parse_prices(fields: Object<'_>, path: &str) -> Result<Prices, ConfigError> {
    let mut prices = Prices::default();
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        let Some(field) = prices.field(&name) else {
            return Err(ConfigError::new(path, value, format!("is not one of {}", Prices::FIELDS)));
        };
        *field = match value.get() {
            "null" => None,
            text => Some(price(text, path)?),
        };
    }
    Ok(prices)
}

fn price(json: &str, path: String) -> Result<u128, ConfigError> {
    let text = json.trim_matches('"');
    let rule = match scaled(text, PRICE_DECIMALS) {
        Ok(amount) if amount.exact => return Ok(amount.units),
        Ok(_) => "must have at most 12 decimals",
        Err(NotAnAmount::NotANumber) => "must be a decimal number of US dollars",
        Err(NotAnAmount::Negative) => "must be 0 or more",
        Err(NotAnAmount::TooLarge) => "is too large for a price",
    };
    Err(ConfigError::new(path, text, rule))
}

/// A price of a public table in dollars; `shift` is the power of ten from its unit to ours. Those tables are
/// floats, so the noise in their last digits is rounded away.
pub(super) fn rounded_price(json: &str, shift: i32) -> Option<u128> {
    scaled(json.trim_matches('"'), PRICE_DECIMALS + shift).ok().map(|amount| amount.units)
}

pub(super) fn unreadable(error: &serde_json::Error) -> ConfigError {
    ConfigError::new("prices", error, "must be a price table in its published form")
}
