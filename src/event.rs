//! What is told about a call while it runs: one flat record per event, the same for Python's `logging`, the
//! JSON-lines file and whoever reads either. Prompts, completions, headers and keys are never in it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::Rng;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::money::Pico;

/// Version of the record's fields; raised when one changes its meaning.
pub const SCHEMA: u32 = 1;

/// The origin in events of calls whose attempts are a function of the caller's, whose name stands for the model.
pub const FUNCTION: &str = "function";

/// 128 random bits, printed as the 32 hex digits of a W3C trace id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    pub fn random(rng: &mut impl Rng) -> Self {
        Self(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()) | 1)
    }

    /// Accepts the 32 lower-case hex digits of a trace id that is not zero.
    pub fn parse(text: &str) -> Option<Self> {
        hex(text, 32).map(Self)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("a trace id of 32 hex digits is expected"))
    }
}

/// Stands for something that must not be told: equal things have equal digests. Its key is drawn anew for each
/// gate, so that nobody can try guesses against a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// 64 random bits, printed as the 16 hex digits of a W3C span id: tells the calls of one trace apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    pub fn random(rng: &mut impl Rng) -> Self {
        Self(rng.next_u64() | 1)
    }

    /// Accepts the 16 lower-case hex digits of a span id that is not zero.
    pub fn parse(text: &str) -> Option<Self> {
        let id = hex(text, 16).and_then(|id| u64::try_from(id).ok());
        id.map(Self)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(text, 16).ok().filter(|id| is_hex && *id != 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A wait for admission came to its end.
    Wait,
    /// An attempt ended.
    Attempt,
    /// The request has been made, and has failed, just before: a layer around the gate retries too.
    Stacked,
    /// A retry was decided; its wait begins.
    Retry,
    /// The breaker of the call's scope went over to the state that `outcome` names.
    Breaker,
    /// A substitute is tried for the answer that was asked for; or the answer is one.
    Degraded,
    /// The call ended.
    Call,
    /// A run of a tool under an idempotency key ended. `outcome` is `ok` or `failed` where its effect was executed,
    /// `in_doubt` where nobody knows, `resolved` where a doubt was settled, and for a duplicate that was not
    /// executed `replay`, `joined`, `conflict` or `mismatch`. `fingerprint` is of the tool and its arguments; it and
    /// `idempotency_key` are the same in all processes that share a store.
    Tool,
}

/// Python's `logging` levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug = 10,
    Info = 20,
    Warning = 30,
}

/// One record. Times are seconds, `ts` is Unix time; what does not apply is absent.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    pub schema: u32,
    pub ts: f64,
    pub event: Kind,
    /// Whose breakers, queues and budgets it speaks of: no two gates have the same.
    pub gate: Digest,
    /// Shared by all calls of one trace.
    pub trace_id: TraceId,
    /// Shared by all events of one call.
    pub span_id: SpanId,
    /// Of the guarded call that this one was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    pub origin: Arc<str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub model: Arc<str>,
    #[serde(flatten)]
    pub facts: Facts,
    #[serde(skip_serializing_if = "tags_absent")]
    pub tags: Option<Arc<Tags>>,
}

pub type Tags = std::collections::BTreeMap<String, String>;

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn tags_absent(tags: &Option<Arc<Tags>>) -> bool {
    tags.as_ref().is_none_or(|tags| tags.is_empty())
}

/// The fields that depend on the kind of event.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Facts {
    /// 1 is the first; for a call: how many were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// `ok`, or the class of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Why the call ended without an answer, or why the attempt is repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    /// The model that answered, where the server named another than the one asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_model: Option<Arc<str>>,
    /// The wait that the server asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// `reported`, `estimated` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<&'static str>,
    /// Decimal US dollars; absent where the price is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<Pico>,
    /// Of the request: method, URL and body. A gate gives equal requests equal ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// Of the request's `Idempotency-Key`, or of the key under which a tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Digest>,
    /// The call that failed, of the one that is made instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<SpanId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Arc<str>>,
    /// What the tool declares about running twice: `read`, `idempotent`, `at_most_once` or `transactional`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
}

impl Facts {
    /// A wait for admission that a person may want to know of.
    const LONG_WAIT_S: f64 = 1.0;

    /// How much an event of this kind and with these facts matters to a person.
    pub fn level(&self, kind: Kind) -> Level {
        match kind {
            Kind::Attempt => Level::Debug,
            Kind::Wait if self.queue_s.is_none_or(|waited| waited < Self::LONG_WAIT_S) => Level::Debug,
            Kind::Breaker if !matches!(self.outcome, Some("open" | "forced_open")) => Level::Info,
            // A call that found what an earlier one left is what keys are for.
            Kind::Tool if matches!(self.outcome, Some("replay" | "joined" | "resolved")) => Level::Info,
            Kind::Call | Kind::Tool if self.outcome != Some("ok") => Level::Warning,
            Kind::Call | Kind::Tool | Kind::Wait => Level::Info,
            Kind::Retry | Kind::Breaker | Kind::Degraded | Kind::Stacked => Level::Warning,
        }
    }
}

impl Event {
    /// The record as one JSON object without a line end.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Unix time in seconds.
pub fn unix_seconds(wall: SystemTime) -> f64 {
    wall.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Hears a call's events as they happen.
pub trait Listener: Send + Sync {
    /// Whether an event of this level is worth building.
    fn wants(&self, level: Level) -> bool;

    fn hear(&self, level: Level, event: &Event);
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn event(kind: Kind, facts: Facts) -> Event {
        Event {
            schema: SCHEMA,
            ts: 1.5,
            event: kind,
            gate: Digest(0xcd),
            trace_id: TraceId(0xab),
            span_id: SpanId(0xef),
            parent_span_id: None,
            origin: "https://a.test".into(),
            model: "m".into(),
            facts,
            tags: None,
        }
    }

    #[test]
    fn a_record_holds_what_applies_and_nothing_else() {
        let facts =
            Facts { attempt: Some(1), status: Some(500), outcome: Some("server_error"), ..Facts::default() };
        assert_eq!(
            String::from_utf8(event(Kind::Attempt, facts).to_json()).unwrap(),
            r#"{"schema":1,"ts":1.5,"event":"attempt","gate":"00000000000000cd","trace_id":"000000000000000000000000000000ab","span_id":"00000000000000ef","origin":"https://a.test","model":"m","attempt":1,"outcome":"server_error","status":500}"#
        );
    }

    #[test]
    fn levels_tell_what_a_person_must_see() {
        let ok = Facts { outcome: Some("ok"), ..Facts::default() };
        assert_eq!(ok.level(Kind::Call), Level::Info);
        assert_eq!(Facts::default().level(Kind::Call), Level::Warning);
        let tool = |outcome| Facts { outcome: Some(outcome), ..Facts::default() }.level(Kind::Tool);
        assert_eq!(["ok", "replay", "joined", "resolved"].map(tool), [Level::Info; 4]);
        assert_eq!(["failed", "in_doubt", "skipped"].map(tool), [Level::Warning; 3]);
        assert_eq!(Facts::default().level(Kind::Retry), Level::Warning);
        assert_eq!(Facts::default().level(Kind::Attempt), Level::Debug);
        let waited = |queue_s| Facts { queue_s: Some(queue_s), ..Facts::default() }.level(Kind::Wait);
        assert_eq!((waited(0.9), waited(1.0)), (Level::Debug, Level::Info));
        let breaker = |state| Facts { outcome: Some(state), ..Facts::default() }.level(Kind::Breaker);
        assert_eq!((breaker("open"), breaker("closed")), (Level::Warning, Level::Info));
    }

    #[test]
    fn trace_ids_are_read_strictly() {
        let id = TraceId(0xab);
        assert_eq!(TraceId::parse(&id.to_string()), Some(id));
        for bad in ["", "ab", &"0".repeat(32), &"A".repeat(32), &"+".repeat(32), &"a".repeat(33)] {
            assert_eq!(TraceId::parse(bad), None, "{bad}");
        }
        let id = SpanId(0xcd);
        assert_eq!(SpanId::parse(&id.to_string()), Some(id));
        for bad in ["", "cd", &"0".repeat(16), &"A".repeat(16), &"a".repeat(32)] {
            assert_eq!(SpanId::parse(bad), None, "{bad}");
        }
    }
}
