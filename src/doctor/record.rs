//! One line of the log, as the findings need it: copied out of the line, so that it can wait its turn in the merge.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

use crate::event::{self, FUNCTION};

/// A string of the log that recurs: an origin, a model, an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Name(u32);

/// Distinct strings that are kept. Names of models come from callers, who may invent them.
const MOST_NAMES: usize = 16_384;

/// Every [`Name`] and what it stands for. Beyond the bound all new strings share one name.
#[derive(Debug)]
pub(super) struct Names {
    by_text: HashMap<Box<str>, Name>,
    texts: Vec<Box<str>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { by_text: HashMap::new(), texts: vec!["".into(), "(other)".into()] }
    }
}

impl Names {
    fn intern(&mut self, text: &str) -> Name {
        if text.is_empty() {
            return Name(0);
        }
        if let Some(name) = self.by_text.get(text) {
            return *name;
        }
        let Some(name) = u32::try_from(self.texts.len()).ok().filter(|_| self.texts.len() < MOST_NAMES)
        else {
            return Name(1);
        };
        self.texts.push(text.into());
        self.by_text.insert(text.into(), Name(name));
        Name(name)
    }

    pub(super) fn text(&self, name: Name) -> &str {
        usize::try_from(name.0).ok().and_then(|index| self.texts.get(index)).map_or("", |text| text)
    }
}

/// Which breaker, queue and budget a record speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ScopeId {
    pub gate: u64,
    pub origin: Name,
    pub model: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    Attempt,
    Retry,
    Breaker,
    Call,
    Tool,
    /// A kind that no finding uses, or one that this version does not know.
    #[default]
    Other,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    pub kind: Kind,
    /// Unix time in seconds, at the end of what is told of.
    pub ts: f64,
    pub trace: Trace,
    pub scope: ScopeId,
    pub ok: bool,
    pub outcome: Name,
    pub reason: Reason,
    pub status: Option<u16>,
    pub attempt: u32,
    pub attempts: u32,
    pub latency: f64,
    pub delay: f64,
    pub retry_after: Option<f64>,
    /// Of a call: its request. Of a tool's run: its name and arguments.
    pub fingerprint: Option<u64>,
    pub key: Option<u64>,
    /// The call was made in a guarded function.
    pub nested: bool,
    pub tool: Name,
    pub run: Run,
    pub repeatable: bool,
}

impl Record {
    /// When what is told of began.
    pub(super) fn began(&self) -> f64 {
        self.ts - self.latency
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Trace(pub u128);

impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Why a call ended, where that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Reason {
    NonRetryable,
    Budget,
    Elapsed,
    #[default]
    Other,
}

/// What became of a tool's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Run {
    /// The effect was executed and its result stored.
    Executed,
    /// The effect was started and raised an error.
    Failed,
    /// Whether it took effect is not known.
    InDoubt,
    /// It was a duplicate: not executed.
    Suppressed,
    /// The same, and it was given what the first run gave.
    Replayed,
    /// An earlier run in doubt was settled.
    Resolved,
    #[default]
    Other,
}

/// Why a line is no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is not a record's JSON.
    Broken,
    /// It has the form of a later version.
    Newer,
}

/// A string that is only copied where it holds escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Line<'a> {
    schema: u32,
    ts: f64,
    #[serde(borrow)]
    event: Text<'a>,
    #[serde(borrow)]
    trace_id: Option<Text<'a>>,
    #[serde(borrow)]
    parent_span_id: Option<Text<'a>>,
    #[serde(borrow)]
    gate: Option<Text<'a>>,
    #[serde(borrow)]
    origin: Option<Text<'a>>,
    #[serde(borrow)]
    model: Option<Text<'a>>,
    #[serde(borrow)]
    outcome: Option<Text<'a>>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
    status: Option<u16>,
    attempt: Option<u32>,
    attempts: Option<u32>,
    latency_s: Option<f64>,
    delay_s: Option<f64>,
    retry_after_s: Option<f64>,
    #[serde(borrow)]
    fingerprint: Option<Text<'a>>,
    #[serde(borrow)]
    idempotency_key: Option<Text<'a>>,
    #[serde(borrow)]
    tool: Option<Text<'a>>,
    #[serde(borrow)]
    effect: Option<Text<'a>>,
}

/// Reads one line. `source` stands for the gate in records that name none; a time after `latest` is no time.
pub(super) fn read(line: &[u8], names: &mut Names, source: u64, latest: f64) -> Result<Record, Unread> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| Unread::Broken)?;
    if line.schema > event::SCHEMA {
        return Err(Unread::Newer);
    }
    if !(line.ts > 0.0 && line.ts <= latest) {
        return Err(Unread::Broken);
    }
    let outcome = line.outcome.as_ref().map_or("", |text| &text.0);
    let kind = match kind(&line.event.0) {
        // A function of the caller's is no request.
        Kind::Attempt | Kind::Call if line.origin.as_ref().is_some_and(|origin| origin.0 == FUNCTION) => {
            Kind::Other
        }
        kind => kind,
    };
    let mut name = |text: &Option<Text<'_>>| text.as_ref().map_or(Name(0), |text| names.intern(&text.0));
    Ok(Record {
        kind,
        ts: line.ts,
        trace: Trace(line.trace_id.and_then(|id| u128::from_str_radix(&id.0, 16).ok()).unwrap_or_default()),
        scope: ScopeId {
            gate: line.gate.map_or(source, |gate| digest(&gate.0)),
            origin: name(&line.origin),
            model: name(&line.model),
        },
        ok: matches!(outcome, "ok" | "success"),
        run: if kind == Kind::Tool { run(outcome) } else { Run::Other },
        outcome: name(&line.outcome),
        reason: line.reason.map_or(Reason::Other, |reason| why(&reason.0)),
        status: line.status,
        attempt: line.attempt.unwrap_or_default(),
        attempts: line.attempts.unwrap_or_default(),
        latency: line.latency_s.unwrap_or_default(),
        delay: line.delay_s.unwrap_or_default(),
        retry_after: line.retry_after_s,
        fingerprint: line.fingerprint.map(|text| digest(&text.0)),
        nested: line.parent_span_id.is_some(),
        key: line.idempotency_key.map(|text| digest(&text.0)),
        tool: name(&line.tool),
        repeatable: line.effect.is_some_and(|effect| matches!(&*effect.0, "read" | "idempotent")),
    })
}

fn kind(event: &str) -> Kind {
    match event {
        "attempt" => Kind::Attempt,
        "retry" => Kind::Retry,
        "breaker" => Kind::Breaker,
        "call" => Kind::Call,
        "tool" => Kind::Tool,
        _ => Kind::Other,
    }
}

fn why(reason: &str) -> Reason {
    match reason {
        "non_retryable" => Reason::NonRetryable,
        "budget" => Reason::Budget,
        "elapsed" => Reason::Elapsed,
        _ => Reason::Other,
    }
}

fn run(outcome: &str) -> Run {
    match outcome {
        "ok" | "executed" => Run::Executed,
        "failed" => Run::Failed,
        "in_doubt" => Run::InDoubt,
        "replay" => Run::Replayed,
        "joined" | "conflict" | "mismatch" => Run::Suppressed,
        "resolved" => Run::Resolved,
        _ => Run::Other,
    }
}

/// Digests are hex of any length; two that differ are kept apart by 64 bits.
fn digest(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<Record, Unread> {
        read(line.as_bytes(), &mut Names::default(), 7, 2e9)
    }

    #[test]
    fn a_record_says_what_its_line_says() {
        let record = one(
            r#"{"schema":1,"ts":10.5,"event":"call","trace_id":"000000000000000000000000000000ab","gate":"0f",
                "origin":"https://a.test","attempts":3,"outcome":"rate_limit","reason":"attempts","status":429,
                "latency_s":2.5,"retry_after_s":1.0,"fingerprint":"00000000000000ff","unheard_of":[1]}"#,
        )
        .unwrap();
        assert_eq!((record.kind, record.ok, record.status), (Kind::Call, false, Some(429)));
        assert_eq!((record.began(), record.attempts, record.retry_after), (8.0, 3, Some(1.0)));
        assert_eq!((record.trace, record.scope.gate), (Trace(0xab), 15));
        assert_eq!((record.fingerprint, record.key), (Some(255), None));
    }

    #[test]
    fn a_gate_that_is_not_named_is_the_files() {
        assert_eq!(one(r#"{"schema":1,"ts":1,"event":"wait"}"#).unwrap().scope.gate, 7);
    }

    #[test]
    fn what_is_no_record_is_told_apart() {
        for broken in [
            "",
            "{",
            "[]",
            "null",
            r#"{"schema":1,"ts":1.0}"#,
            r#"{"schema":1,"ts":"1","event":"call"}"#,
            r#"{"schema":1,"ts":3e9,"event":"call"}"#,
            r#"{"schema":1,"ts":-1,"event":"call"}"#,
            r#"{"schema":1,"ts":1,"event":"call","status":70000}"#,
        ] {
            assert_eq!(one(broken).unwrap_err(), Unread::Broken, "{broken}");
        }
        assert_eq!(one(r#"{"schema":2,"ts":1,"event":"call"}"#).unwrap_err(), Unread::Newer);
    }

    #[test]
    fn names_are_bounded() {
        let mut names = Names::default();
        for i in 0..2 * MOST_NAMES {
            names.intern(&i.to_string());
        }
        assert_eq!(names.texts.len(), MOST_NAMES);
        let known = names.intern("5");
        assert_eq!(names.text(known), "5");
        let late = names.intern("later still");
        assert_eq!(names.text(late), "(other)");
    }
}
