//! Label values as small numbers, and the bounds that keep their number small.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::metric::Label;
use crate::error::ConfigError;

/// The value into which those beyond a limit are folded.
pub const OTHER: &str = "other";
/// Longest label value in bytes; longer ones are cut at a character.
pub const MAX_VALUE_BYTES: usize = 128;

/// Distinct values of a label that callers do not name.
const WORDS: usize = 100;

/// Bounds on the number of series, because callers may name anything a model or a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelLimits {
    /// Distinct values of one label; known ones do not count. Default 40.
    pub values: usize,
    /// The same in histograms, whose series take 17 lines each. Default 6.
    pub histogram_values: usize,
    /// Combinations of values in one metric. Default 120.
    pub sets: usize,
    /// The same in histograms. Default 12.
    pub histogram_sets: usize,
}

impl Default for LabelLimits {
    fn default() -> Self {
        Self { values: 40, histogram_values: 6, sets: 120, histogram_sets: 12 }
    }
}

impl LabelLimits {
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("metrics.values", self.values),
            ("metrics.histogram_values", self.histogram_values),
            ("metrics.sets", self.sets),
            ("metrics.histogram_sets", self.histogram_sets),
        ] {
            if !(1..=10_000).contains(&value) {
                return Err(ConfigError::new(field, value, "must be between 1 and 10,000"));
            }
        }
        Ok(())
    }
}

/// A value of one label; without meaning apart from its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LabelId(pub(super) u16);

impl LabelId {
    pub(super) const OTHER: Self = Self(0);
}

/// Every value seen, per label.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    limits: LabelLimits,
    tables: [Table; Label::COUNT],
}

impl Labels {
    pub(super) fn new(limits: LabelLimits) -> Self {
        Self { limits, tables: std::array::from_fn(|_| Table::new()) }
    }

    /// Allocates only for a value that is new and within the limit.
    pub(super) fn intern(&mut self, label: Label, value: &str) -> LabelId {
        let Some(table) = self.tables.get_mut(label as usize) else { return LabelId::OTHER };
        if let Some(id) = table.ids.get(value) {
            return *id;
        }
        let name = clean(value);
        if let Some(id) = table.ids.get(name.as_ref()) {
            return *id;
        }
        // The project's own words are few, and each means something.
        let limit = if label.is_free() { self.limits.values } else { WORDS };
        if table.unknown >= limit {
            return LabelId::OTHER;
        }
        table.unknown += 1;
        table.insert(name, table.unknown <= self.limits.histogram_values)
    }

    /// Gives `value` a place of its own whatever comes before it.
    pub(super) fn know(&mut self, label: Label, value: &str) {
        let Some(table) = self.tables.get_mut(label as usize) else { return };
        let name = clean(value);
        match table.ids.get(name.as_ref()).and_then(|id| table.values.get_mut(usize::from(id.0))) {
            Some(known) => known.in_histograms = true,
            None => {
                table.insert(name, true);
            }
        }
    }

    pub(super) fn name(&self, label: Label, id: LabelId) -> &str {
        self.value(label, id).map_or(OTHER, |value| &value.name)
    }

    pub(super) fn in_histograms(&self, label: Label, id: LabelId) -> bool {
        self.value(label, id).is_some_and(|value| value.in_histograms)
    }

    fn value(&self, label: Label, id: LabelId) -> Option<&Value> {
        self.tables.get(label as usize)?.values.get(usize::from(id.0))
    }
}

#[derive(Debug, Clone)]
struct Value {
    name: Box<str>,
    in_histograms: bool,
}

#[derive(Debug, Clone)]
struct Table {
    ids: HashMap<Box<str>, LabelId, FastHash>,
    /// By id; the first is [`OTHER`].
    values: Vec<Value>,
    unknown: usize,
}

impl Table {
    fn new() -> Self {
        let mut table = Self { ids: HashMap::default(), values: Vec::new(), unknown: 0 };
        table.insert(Cow::Borrowed(OTHER), true);
        table
    }

    fn insert(&mut self, name: Cow<'_, str>, in_histograms: bool) -> LabelId {
        let Ok(id) = u16::try_from(self.values.len()).map(LabelId) else { return LabelId::OTHER };
        let name = Box::<str>::from(name);
        self.ids.insert(name.clone(), id);
        self.values.push(Value { name, in_histograms });
        id
    }
}

/// A value that is safe to show: short, and without control characters.
fn clean(value: &str) -> Cow<'_, str> {
    let value = cut(value);
    if !value.contains(char::is_control) {
        return Cow::Borrowed(value);
    }
    let shown = value.replace(char::is_control, "\u{fffd}");
    Cow::Owned(cut(&shown).to_owned())
}

fn cut(value: &str) -> &str {
    if value.len() <= MAX_VALUE_BYTES {
        return value;
    }
    (0..=MAX_VALUE_BYTES).rev().find_map(|end| value.get(..end)).unwrap_or_default()
}

/// A hash of a few nanoseconds. Nobody can slow it down by choosing keys: a table holds no more than its
/// limit, and the other keys are numbers given here.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct FastHasher(u64);

pub(super) type FastHash = BuildHasherDefault<FastHasher>;

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.write_u64(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: usize) -> Labels {
        Labels::new(LabelLimits { values, histogram_values: 1, sets: 10, histogram_sets: 10 })
    }

    fn name(labels: &mut Labels, value: &str) -> String {
        let id = labels.intern(Label::Model, value);
        labels.name(Label::Model, id).to_owned()
    }

    #[test]
    fn values_beyond_the_limit_fold_and_known_ones_never_do() {
        let mut labels = labels(2);
        labels.know(Label::Model, "gpt-a");
        let seen: Vec<_> =
            ["x", "y", "z", "x", "gpt-a"].iter().map(|value| name(&mut labels, value)).collect();
        assert_eq!(seen, ["x", "y", OTHER, "x", "gpt-a"]);
        labels.know(Label::Model, "z");
        assert_eq!(name(&mut labels, "z"), "z");
        assert_eq!(name(&mut labels, OTHER), OTHER);
        let tool = labels.intern(Label::Tool, "t");
        assert_eq!(labels.name(Label::Tool, tool), "t", "each label has its own limit");
    }

    #[test]
    fn histograms_keep_fewer() {
        let mut labels = labels(3);
        labels.know(Label::Model, "known");
        let kept = ["x", "y", "known"].map(|value| {
            let id = labels.intern(Label::Model, value);
            labels.in_histograms(Label::Model, id)
        });
        assert_eq!(kept, [true, false, true]);
        labels.know(Label::Model, "y");
        let id = labels.intern(Label::Model, "y");
        assert!(labels.in_histograms(Label::Model, id));
    }

    #[test]
    fn values_are_cut_at_a_character_and_shown_without_control_characters() {
        let long = format!("{}é{}", "a".repeat(127), "b".repeat(100));
        assert_eq!(clean(&long), "a".repeat(127));
        assert_eq!(clean(&"c".repeat(128)).len(), 128);
        assert_eq!(clean("a\nb\0\u{85}é"), "a\u{fffd}b\u{fffd}\u{fffd}é");
        assert_eq!(clean(&"\0".repeat(200)).len(), 126);
        assert_eq!(clean(""), "");
        assert_eq!(clean(&"🌍".repeat(33)).len(), 128);
    }

    #[test]
    fn a_value_and_its_shown_form_are_one() {
        let mut labels = labels(10);
        let first = labels.intern(Label::Model, "a\n");
        assert_eq!(labels.intern(Label::Model, "a\n"), first);
        assert_eq!(labels.intern(Label::Model, "a\u{fffd}"), first);
    }

    #[test]
    fn limits_are_validated() {
        assert_eq!(LabelLimits::default().validate(), Ok(()));
        let error = LabelLimits { sets: 0, ..LabelLimits::default() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "metrics.sets = 0: must be between 1 and 10,000");
        assert!(LabelLimits { values: 10_001, ..LabelLimits::default() }.validate().is_err());
    }
}
