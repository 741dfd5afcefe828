//! What calls used and cost, by hour, model and tags: the answer to "who spent it?".
//!
//! Metrics fold what callers name into few series and forget when it was; here each combination of tags has a row
//! of its own per hour, and only a flood of names is folded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::Mutex;
use serde::{Serialize, Serializer};

use crate::event::Tags;
use crate::metrics::OTHER;
use crate::money::Pico;

const HOUR: u64 = 3600;

/// Bounds on what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Rows of one hour. Beyond, tags are folded; beyond that by a tenth, models are.
    pub per_hour: usize,
    /// Rows in all. Beyond, the oldest hours are let go.
    pub rows: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { per_hour: 1000, rows: 20_000 }
    }
}

/// Sums over calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sums {
    pub calls: u64,
    /// Of the calls, those that ended without an answer.
    pub failed: u64,
    pub attempts: u64,
    pub prompt_tokens: u64,
    /// Part of the prompt tokens.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Part of the completion tokens.
    pub reasoning_tokens: u64,
    pub cost_usd: Pico,
    /// Part of the cost that rests on an estimate.
    pub estimated_usd: Pico,
    /// Calls with something to bill and no price for it.
    pub unpriced: u64,
}

impl Sums {
    fn add(&mut self, more: &Self) {
        for (sum, count) in [
            (&mut self.calls, more.calls),
            (&mut self.failed, more.failed),
            (&mut self.attempts, more.attempts),
            (&mut self.prompt_tokens, more.prompt_tokens),
            (&mut self.cached_tokens, more.cached_tokens),
            (&mut self.completion_tokens, more.completion_tokens),
            (&mut self.reasoning_tokens, more.reasoning_tokens),
            (&mut self.unpriced, more.unpriced),
        ] {
            *sum = sum.saturating_add(count);
        }
        self.cost_usd = self.cost_usd.saturating_add(more.cost_usd);
        self.estimated_usd = self.estimated_usd.saturating_add(more.estimated_usd);
    }
}

/// The tags of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tagging {
    Tags(Arc<Tags>),
    /// Of many calls whose tags were too many to keep apart. Written as null.
    Folded,
}

impl Serialize for Tagging {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tags(tags) => tags.serialize(serializer),
            Self::Folded => serializer.serialize_none(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Start of the hour, Unix time in seconds.
    pub hour: u64,
    pub model: Arc<str>,
    pub tags: Tagging,
    #[serde(flatten)]
    pub sums: Sums,
}

type Hour = HashMap<(Arc<str>, Tagging), Sums>;

/// Shared by all threads.
#[derive(Debug)]
pub struct Account {
    kept: Kept,
    untagged: Arc<Tags>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    hours: BTreeMap<u64, Hour>,
    rows: usize,
}

impl Default for Account {
    fn default() -> Self {
        Self::new(Kept::default())
    }
}

impl Account {
    pub fn new(kept: Kept) -> Self {
        Self { kept, untagged: Arc::default(), state: Mutex::default() }
    }

    /// A call has ended at `wall`.
    pub fn add(&self, wall: SystemTime, model: &Arc<str>, tags: Option<&Arc<Tags>>, sums: &Sums) {
        let now = wall.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let tags = Tagging::Tags(Arc::clone(tags.unwrap_or(&self.untagged)));
        let state = &mut *self.state.lock();
        let hour = state.hours.entry(now - now % HOUR).or_default();
        let key = self.key(hour, Arc::clone(model), tags);
        let before = hour.len();
        hour.entry(key).or_default().add(sums);
        state.rows += hour.len() - before;
        while state.rows > self.kept.rows
            && state.hours.len() > 1
            && let Some((_, oldest)) = state.hours.pop_first()
        {
            state.rows -= oldest.len();
        }
    }

    /// Everything that is kept, in the order of hours, models and tags.
    pub fn rows(&self) -> Vec<Row> {
        let hours = self.state.lock().hours.clone();
        let mut rows: Vec<Row> = hours
            .into_iter()
            .flat_map(|(hour, rows)| {
                rows.into_iter().map(move |((model, tags), sums)| Row { hour, model, tags, sums })
            })
            .collect();
        rows.sort_by(|a, b| (a.hour, &a.model, &a.tags).cmp(&(b.hour, &b.model, &b.tags)));
        rows
    }

    fn key(&self, hour: &Hour, model: Arc<str>, tags: Tagging) -> (Arc<str>, Tagging) {
        /// Longer names are no models.
        const LONGEST: usize = 256;
        let key = (if model.len() > LONGEST { OTHER.into() } else { model }, tags);
        if hour.len() < self.kept.per_hour || hour.contains_key(&key) {
            return key;
        }
        let key = (key.0, Tagging::Folded);
        if hour.len() < self.kept.per_hour + self.kept.per_hour.div_ceil(10) || hour.contains_key(&key) {
            return key;
        }
        (OTHER.into(), Tagging::Folded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(hours * HOUR + 7)
    }

    fn tags(route: &str) -> Arc<Tags> {
        Arc::new([(String::from("route"), route.to_owned())].into())
    }

    fn one() -> Sums {
        Sums { calls: 1, attempts: 2, cost_usd: Pico::new(3), ..Sums::default() }
    }

    #[test]
    fn calls_are_summed_by_hour_model_and_tags() {
        let account = Account::default();
        let (a, b) = ("a".into(), "b".into());
        account.add(at(5), &a, Some(&tags("x")), &one());
        account.add(at(5), &a, Some(&tags("x")), &one());
        account.add(at(5), &a, None, &one());
        account.add(at(5), &b, Some(&tags("x")), &one());
        account.add(at(6), &a, Some(&tags("x")), &one());
        let rows: Vec<_> = account
            .rows()
            .into_iter()
            .map(|row| (row.hour / HOUR, row.model, row.tags, row.sums.calls))
            .collect();
        let x = || Tagging::Tags(tags("x"));
        let none = Tagging::Tags(Arc::default());
        assert_eq!(rows, [(5, a.clone(), none, 1), (5, a.clone(), x(), 2), (5, b, x(), 1), (6, a, x(), 1)]);
    }

    #[test]
    fn a_row_is_told_flat() {
        let row = Row { hour: 7200, model: "m".into(), tags: Tagging::Folded, sums: one() };
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["hour"], 7200);
        assert_eq!(json["tags"], serde_json::Value::Null);
        assert_eq!(json["attempts"], 2);
        assert_eq!(json["cost_usd"], "0.000000000003");
    }

    #[test]
    fn a_flood_of_tags_leaves_models_apart_and_one_of_models_still_counts() {
        let account = Account::new(Kept { per_hour: 10, rows: 1000 });
        for number in 0..1000_u32 {
            account.add(at(1), &"m".into(), Some(&tags(&number.to_string())), &one());
        }
        for number in 0..1000_u32 {
            account.add(at(1), &number.to_string().into(), None, &one());
        }
        let rows = account.rows();
        assert_eq!(rows.len(), 12);
        assert_eq!(rows.iter().map(|row| row.sums.calls).sum::<u64>(), 2000);
        let of_m: u64 = rows.iter().filter(|row| &*row.model == "m").map(|row| row.sums.calls).sum();
        assert_eq!(of_m, 1000);
    }

    proptest! {
        #[test]
        fn what_is_kept_stays_within_its_bounds_and_the_last_hour_is_whole(
            calls in prop::collection::vec((0_u64..6, 0_u8..20, 0_u8..20), 1..300)
        ) {
            let mut calls = calls;
            calls.sort_by_key(|call| call.0);
            let account = Account::new(Kept { per_hour: 20, rows: 50 });
            for (hour, model, route) in &calls {
                account.add(at(*hour), &model.to_string().into(), Some(&tags(&route.to_string())), &one());
            }
            let rows = account.rows();
            prop_assert!(rows.len() <= 50);
            let last = calls.last().unwrap().0;
            for hour in rows.iter().map(|row| row.hour / HOUR) {
                let expected = calls.iter().filter(|call| call.0 == hour).count() as u64;
                let told: u64 =
                    rows.iter().filter(|row| row.hour / HOUR == hour).map(|row| row.sums.calls).sum();
                prop_assert_eq!(told, expected);
            }
            prop_assert!(rows.iter().any(|row| row.hour / HOUR == last));
        }
    }
}
