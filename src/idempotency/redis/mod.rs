//! The store of a fleet: Redis, by the server's clock. A new key is claimed by a `SET NX`; all else is a script.
//!
//! What is at most once elsewhere is so here while the primary keeps its data: a failover to a replica that lags,
//! or a restart without its append-only file, forgets records.

mod link;
mod words;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};

use self::link::{Link, Links, RESPONSE_TIMEOUT};
use self::words::{Argument, arguments, pack, parse_answer, parse_record};
use super::protocol::{Answer, Begin, Operation, fresh};
use super::record::{NEVER, Record, State};
use super::store::{StoreError, Time};
use crate::clock::{self, Instant};
use crate::error::ConfigError;

/// Before each key, so that the records are told from the application's own.
const PREFIX: &str = "tidegate:";
/// Ten years; the TTL of a record that only a decision may end, since no key is ever without.
const LONGEST_TTL: u64 = 315_360_000_000;
/// For what is asked without an effect waiting behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Records looked at for a listing.
const PAGE: usize = 500;

pub struct Redis {
    links: Links,
    time: Time,
    script: Script,
    /// It has answered. A server or a user that cannot run it must be found out before an effect and not after.
    script_runs: AtomicBool,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Redis {
    /// `redis://[user:password@]host[:port][/db]`, `redis+cluster://…host:port,host:port`, or
    /// `redis+sentinel://…host:port,host:port/name[/db]`; with `rediss` in place of `redis` over TLS.
    pub fn open(url: &str, time: Time) -> Result<Self, ConfigError> {
        let script = Script::new(include_str!("protocol.lua"));
        Ok(Self { links: Links::open(url)?, time, script, script_runs: AtomicBool::new(false) })
    }

    pub async fn apply(
        &self,
        key: &str,
        operation: &Operation,
        patience: Duration,
    ) -> Result<Answer, StoreError> {
        let deadline = clock::now() + patience;
        loop {
            if let Operation::Begin(begin) = operation
                && self.script_runs.load(Ordering::Relaxed)
                && self.claim(key, begin, deadline).await?
            {
                return Ok(Answer::Acquired { fence: 1, attempts: 1 });
            }
            match self.run(key, arguments(operation), deadline).await? {
                // There is no record, or the one that was in the way is gone by now.
                Value::Nil => {}
                answered => return parse_answer(answered).ok_or_else(|| strange("to an operation")),
            }
        }
    }

    /// Makes the record, unless there is one. Most keys are new, and a plain `SET` takes half of a script's time.
    async fn claim(&self, key: &str, begin: &Begin, deadline: Instant) -> Result<bool, StoreError> {
        // Where only the server knows, the script adds the time of the SET when it meets the record.
        let now = self.manual_now().unwrap_or(0);
        let record = fresh(begin, now);
        let ttl = if record.expires == NEVER { LONGEST_TTL } else { (record.expires - now).max(1) };
        let mut set = redis::cmd("SET");
        set.arg(prefixed(key)).arg(pack(&record)).arg("NX").arg("PX").arg(ttl);
        match self.patiently(deadline, Question::Command(&set)).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(strange("to a claim")),
        }
    }

    fn manual_now(&self) -> Option<u64> {
        matches!(self.time, Time::Manual(_)).then(|| self.time.now())
    }

    pub async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let deadline = clock::now() + PATIENCE;
        let values = match self.run(key, vec![Argument::from(&b"read"[..])], deadline).await? {
            Value::Nil => return Ok(None),
            Value::Array(values) => values,
            _ => return Err(strange("in a record")),
        };
        let record = parse_record(values).ok_or_else(|| strange("in a record"))?;
        // By its own clock Redis has dropped what has expired.
        let expired = self.manual_now().is_some_and(|now| record.expires <= now);
        Ok((!expired).then_some(record))
    }

    pub async fn list(
        &self,
        prefix: &str,
        states: &[State],
        limit: usize,
    ) -> Result<Vec<(String, Record)>, StoreError> {
        if self.links.is_cluster() {
            let problem = String::from("is a cluster, whose keys cannot be listed: name the key");
            return Err(StoreError { store: "redis", problem });
        }
        let pattern = format!("{}*", escape(&format!("{PREFIX}{prefix}")));
        let (mut cursor, mut keys) = (0_u64, BTreeSet::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("string");
            let page = self.patiently(clock::now() + PATIENCE, Question::Command(&scan)).await?;
            let (next, more) =
                <(u64, Vec<String>)>::from_redis_value(page).map_err(|_| strange("to a scan"))?;
            // A scan may tell a key twice.
            keys.extend(more);
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let mut found = Vec::new();
        for key in keys {
            let key = key.strip_prefix(PREFIX).unwrap_or(&key);
            if let Some(record) = self.get(key).await?.filter(|record| states.contains(&record.state)) {
                found.push((key.to_owned(), record));
            }
        }
        found.sort_by(|one, other| (one.1.created, &one.0).cmp(&(other.1.created, &other.0)));
        found.truncate(limit);
        Ok(found)
    }

    /// Whether it is there.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let ping = redis::cmd("PING");
        self.patiently(clock::now() + PATIENCE, Question::Command(&ping)).await.map(drop)
    }

    async fn run(
        &self,
        key: &str,
        arguments: Vec<Argument<'_>>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let mut invocation = self.script.key(prefixed(key));
        invocation.arg(self.manual_now().map(|now| now.to_string()).unwrap_or_default());
        for argument in arguments {
            invocation.arg(&*argument);
        }
        let answered = self.patiently(deadline, Question::Script(&invocation)).await?;
        self.script_runs.store(true, Ordering::Relaxed);
        Ok(answered)
    }

    /// Asks until there is an answer, on a new connection where one was lost, until `deadline`.
    async fn patiently(&self, deadline: Instant, question: Question<'_>) -> Result<Value, StoreError> {
        const FIRST_WAIT: Duration = Duration::from_millis(25);
        const LONGEST_WAIT: Duration = Duration::from_millis(500);
        let mut wait = FIRST_WAIT;
        loop {
            let problem = match self.ask(&question, deadline).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => {
                    let problem = format!("cannot be used: {error}");
                    if is_permanent(&error) && !is_demoted(&error) {
                        return Err(self.unavailable(&problem));
                    }
                    problem
                }
                None => String::from("did not answer in time"),
            };
            if clock::now() + wait > deadline {
                return Err(self.unavailable(&problem));
            }
            clock::sleep_until(clock::now() + wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Asks once; `None` is no answer in time.
    async fn ask(&self, question: &Question<'_>, deadline: Instant) -> Option<Result<Value, RedisError>> {
        let mut link = match clock::until(deadline, self.links.get()).await? {
            Ok(link) => link,
            Err(error) => return Some(Err(error)),
        };
        let limit = deadline.min(clock::now() + RESPONSE_TIMEOUT);
        let answered = clock::until(limit, question.send(&mut link.link)).await;
        // Whoever comes next must not wait on a connection that gives no answer.
        if answered.as_ref().is_none_or(|done| done.as_ref().is_err_and(has_lost_its_primary)) {
            self.links.drop_link(link.serial);
        }
        answered
    }

    fn unavailable(&self, problem: &str) -> StoreError {
        StoreError { store: "redis", problem: format!("at {} {problem}", self.links.shown()) }
    }
}

/// What is sent; again, if need be.
enum Question<'a> {
    Script(&'a ScriptInvocation<'a>),
    Command(&'a Cmd),
}

impl Question<'_> {
    async fn send(&self, link: &mut Link) -> Result<Value, RedisError> {
        match self {
            Self::Script(invocation) => invocation.invoke_async(link).await,
            Self::Command(command) => command.query_async(link).await,
        }
    }
}

fn prefixed(key: &str) -> String {
    format!("{PREFIX}{key}")
}

fn strange(place: &str) -> StoreError {
    let problem = format!("gave an answer {place} that this version does not know");
    StoreError { store: "redis", problem }
}

/// Whether the connection leads nowhere any more, or to a server that is no longer the primary.
fn has_lost_its_primary(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout() || is_demoted(error)
}

/// Whether another is the primary now. A script of Redis 6 tells it only in its text.
fn is_demoted(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error.detail().is_some_and(|text| text.contains("-READONLY"))
}

/// Whether trying again can only fail again.
fn is_permanent(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::Parse
            | ErrorKind::UnexpectedReturnType
            | ErrorKind::Server(
                ServerErrorKind::NoPerm | ServerErrorKind::ResponseError | ServerErrorKind::CrossSlot
            )
    ) || error.code() == Some("NOAUTH")
}

/// A text as a pattern that only it matches.
fn escape(text: &str) -> String {
    let special = |character| matches!(character, '*' | '?' | '[' | ']' | '\\');
    text.chars()
        .flat_map(|character| special(character).then_some('\\').into_iter().chain([character]))
        .collect()
}
