//! Reads JSON objects strictly: each field by its type, unknown ones refused by name.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::config::seconds;
use crate::error::ConfigError;

type Read<T> = Result<Option<T>, ConfigError>;

/// An object being read. A field that is `null` counts as absent.
pub(super) struct Fields {
    path: String,
    map: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    /// `path` is the dotted place of the object in the whole, `""` for the whole itself.
    pub(super) fn new(path: impl Into<String>, value: Value) -> Result<Self, ConfigError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map, known: Vec::new() }),
            other => Err(refuse(if path.is_empty() { "config" } else { &path }, &other, "must be an object")),
        }
    }

    /// Dotted path of a field of this object.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field as it is, `null` included.
    pub(super) fn any(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.map.remove(name)
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.any(name).filter(|value| !value.is_null())
    }

    fn read<T>(&mut self, name: &'static str, rule: &str, as_type: impl Fn(&Value) -> Option<T>) -> Read<T> {
        let Some(value) = self.take(name) else { return Ok(None) };
        as_type(&value).map(Some).ok_or_else(|| refuse(self.path(name), &value, rule))
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Read<bool> {
        self.read(name, "must be true or false", Value::as_bool)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Read<String> {
        self.read(name, "must be a string", |value| value.as_str().map(str::to_owned))
    }

    /// A whole number of at least `least` and at most `most`.
    pub(super) fn count(&mut self, name: &'static str, least: u64, most: u64) -> Read<u64> {
        let rule = if most == u64::MAX {
            format!("must be a whole number, {least} or more")
        } else {
            format!("must be a whole number from {least} to {most}")
        };
        self.read(name, &rule, |value| value.as_u64().filter(|count| (least..=most).contains(count)))
    }

    pub(super) fn share(&mut self, name: &'static str) -> Read<f64> {
        self.read(name, "must be a number from 0 to 1", |value| {
            value.as_f64().filter(|share| (0.0..=1.0).contains(share))
        })
    }

    pub(super) fn seconds(&mut self, name: &'static str) -> Read<Duration> {
        const RULE: &str = "must be a finite number of seconds, 0 or more";
        self.read(name, RULE, |value| seconds(name, value.as_f64()?).ok())
    }

    pub(super) fn millis(&mut self, name: &'static str) -> Read<Duration> {
        const RULE: &str = "must be a finite number of milliseconds, 0 or more";
        self.read(name, RULE, |value| seconds(name, value.as_f64()? / 1000.0).ok())
    }

    /// Two numbers `[low, high]` read by `as_type`, or one that stands for both.
    pub(super) fn range<T: PartialOrd + Clone>(
        &mut self,
        name: &'static str,
        rule: &str,
        as_type: impl Fn(&Value) -> Option<T>,
    ) -> Read<(T, T)> {
        self.read(name, rule, |value| match value.as_array().map(Vec::as_slice) {
            Some([low, high]) => Some((as_type(low)?, as_type(high)?)).filter(|(low, high)| low <= high),
            Some(_) => None,
            None => as_type(value).map(|only| (only.clone(), only)),
        })
    }

    pub(super) fn list(&mut self, name: &'static str) -> Read<Vec<Value>> {
        self.read(name, "must be a list", |value| value.as_array().cloned())
    }

    pub(super) fn texts(&mut self, name: &'static str) -> Read<Vec<String>> {
        self.read(name, "must be a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    pub(super) fn object(&mut self, name: &'static str) -> Read<Fields> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::new(path, value)).transpose()
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Read<T> {
        let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.read(name, &format!("must be one of {}", list.join(", ")), |value| {
            let word = value.as_str()?;
            words.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
        })
    }

    /// The remaining fields of an object whose keys are the user's own (headers, model names).
    pub(super) fn into_entries(self) -> impl Iterator<Item = (String, Value)> {
        self.map.into_iter()
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        match self.map.iter().next() {
            None => Ok(()),
            Some((name, value)) => Err(refuse(
                self.path(name),
                value,
                &format!("is not a field here; the fields are {}", self.known.join(", ")),
            )),
        }
    }
}

/// An error about a JSON value, long ones shortened.
pub(super) fn refuse(field: impl Into<String>, value: &Value, rule: &str) -> ConfigError {
    const SHOWN: usize = 80;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    ConfigError::new(field, text, rule)
}

/// Parses a text that must be JSON.
pub(super) fn json(field: &str, text: &str) -> Result<Value, ConfigError> {
    serde_json::from_str(text)
        .map_err(|error| ConfigError::new(field, "(text)", format!("must be JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_path_value_and_rule() {
        let mut fields = Fields::new("quota", json!({"rpm": -3, "tmp": 1})).unwrap();
        let error = fields.count("rpm", 1, u64::MAX).unwrap_err();
        assert_eq!(error.to_string(), "quota.rpm = -3: must be a whole number, 1 or more");
        let error = fields.finish().unwrap_err();
        assert_eq!(error.to_string(), "quota.tmp = 1: is not a field here; the fields are rpm");
    }

    #[test]
    fn a_range_may_be_one_number_but_never_reversed() {
        let mut fields = Fields::new("", json!({"a": 2, "b": [1, 3], "c": [3, 1]})).unwrap();
        assert_eq!(fields.range("a", "", Value::as_u64).unwrap(), Some((2, 2)));
        assert_eq!(fields.range("b", "", Value::as_u64).unwrap(), Some((1, 3)));
        assert!(fields.range("c", "", Value::as_u64).is_err());
    }

    #[test]
    fn infinite_seconds_are_refused_and_null_is_absent() {
        let mut fields = Fields::new("", json!({"a": -0.1, "b": null})).unwrap();
        assert!(fields.seconds("a").is_err());
        assert_eq!(fields.seconds("b").unwrap(), None);
    }
}
