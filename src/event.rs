//! What is told about a call while it runs: one flat record per event, the same for Python's `logging`, the
//! JSON-lines file and whoever reads either. Prompts, completions, headers and keys are never in it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::Rng;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ConfigError;

/// Version of the record's fields; raised when one changes its meaning.
pub const SCHEMA: u32 = 1;

/// 128 random bits, printed as the 32 hex digits of a W3C trace id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    pub fn random(rng: &mut impl Rng) -> Self {
        Self(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()) | 1)
    }

    /// Accepts the 32 lower-case hex digits of a trace id that is not zero.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|id| hex && *id != 0).map(Self)
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A wait for admission came to its end.
    Wait,
    /// An attempt ended.
    Attempt,
    /// A retry was decided; its wait begins.
    Retry,
    /// The breaker of the call's scope opened.
    Breaker,
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
    pub trace_id: TraceId,
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
    pub cost_usd: Option<String>,
    /// Of the request: method, URL and body. A gate gives equal requests equal ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// Of the request's `Idempotency-Key`, or of the key under which a tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Arc<str>>,
    /// What the tool declares about running twice: `read`, `idempotent`, `at_most_once` or `transactional`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
}

impl Facts {
    /// How much an event of this kind and with these facts matters to a person.
    pub fn level(&self, kind: Kind) -> Level {
        match kind {
            Kind::Attempt => Level::Debug,
            Kind::Call | Kind::Tool if self.outcome != Some("ok") => Level::Warning,
            Kind::Call | Kind::Tool | Kind::Wait => Level::Info,
            Kind::Retry | Kind::Breaker => Level::Warning,
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

/// The JSON-lines file. Each record is one write to a file opened for appending, so that several processes can
/// share it and a crash loses no complete line.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
            ConfigError::new(
                "log_file",
                path.display(),
                format!("must be a file that can be created or appended to ({error})"),
            )
        })?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, event: &Event) -> io::Result<()> {
        let mut line = event.to_json();
        line.push(b'\n');
        self.file.lock().write_all(&line)
    }
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
            r#"{"schema":1,"ts":1.5,"event":"attempt","gate":"00000000000000cd","trace_id":"000000000000000000000000000000ab","origin":"https://a.test","model":"m","attempt":1,"outcome":"server_error","status":500}"#
        );
    }

    #[test]
    fn levels_tell_what_a_person_must_see() {
        let ok = Facts { outcome: Some("ok"), ..Facts::default() };
        assert_eq!(ok.level(Kind::Call), Level::Info);
        assert_eq!(Facts::default().level(Kind::Call), Level::Warning);
        assert_eq!(Facts::default().level(Kind::Retry), Level::Warning);
        assert_eq!(Facts::default().level(Kind::Attempt), Level::Debug);
    }

    #[test]
    fn trace_ids_are_read_strictly() {
        let id = TraceId(0xab);
        assert_eq!(TraceId::parse(&id.to_string()), Some(id));
        for bad in ["", "ab", &"0".repeat(32), &"A".repeat(32), &"+".repeat(32), &"a".repeat(33)] {
            assert_eq!(TraceId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn two_writers_of_one_file_lose_nothing() {
        let path = std::env::temp_dir().join(format!("tidegate-event-{}.jsonl", std::process::id()));
        let _ = std::fs::remove_file(&path);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let log = LogFile::open(&path).unwrap();
                    for _ in 0..500 {
                        log.write(&event(Kind::Wait, Facts::default())).unwrap();
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }
}
