//! What the doctor says of one point.

use serde::Serialize;
use serde_json::{Map, Value};

use super::record::Trace;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Problem,
    /// The log does not hold what is needed to tell.
    NotEnoughData,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub title: &'static str,
    pub verdict: Verdict,
    /// One sentence.
    pub summary: String,
    /// Figures and lists by name.
    pub evidence: Map<String, Value>,
    /// Calls to look up.
    pub trace_ids: Vec<String>,
    /// What to do; empty where nothing is to be done.
    pub advice: &'static str,
}

impl Finding {
    pub(super) fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            verdict: Verdict::NotEnoughData,
            summary: String::new(),
            evidence: Map::new(),
            trace_ids: Vec::new(),
            advice: "",
        }
    }

    #[must_use]
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.insert(name.to_owned(), value.into());
        self
    }

    #[must_use]
    pub(super) fn traces(mut self, traces: impl IntoIterator<Item = Trace>) -> Self {
        let known = traces.into_iter().filter(|trace| *trace != Trace::default());
        self.trace_ids.extend(known.map(|trace| trace.to_string()));
        self
    }

    #[must_use]
    pub(super) fn says(mut self, verdict: Verdict, summary: String, advice: &'static str) -> Self {
        self.verdict = verdict;
        self.summary = summary;
        self.advice = advice;
        self
    }
}

/// A share as evidence: four digits are more than any log supports.
pub(super) fn rounded(value: f64) -> Value {
    serde_json::Number::from_f64((value * 1e4).round() / 1e4).map_or(Value::Null, Value::Number)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
