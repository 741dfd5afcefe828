//! The store of a fleet: Redis, with one script per operation and the server's clock.
//!
//! What is at most once elsewhere is so here while the primary keeps its data: a failover to a replica that lags,
//! or a restart without its append-only file, forgets records.

mod link;
mod words;

use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};

use self::link::{Link, Links};
use self::words::{Argument, arguments, parse_answer, parse_record};
use super::protocol::{Answer, Operation};
use super::record::{Record, State};
use super::store::{StoreError, Time};
use crate::clock;
use crate::error::ConfigError;

/// Before each key, so that the records are told from the application's own.
const PREFIX: &str = "tidegate:";
/// For what is asked without an effect waiting behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Records looked at for a listing.
const PAGE: usize = 500;

pub struct Redis {
    links: Links,
    time: Time,
    script: Script,
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
        Ok(Self { links: Links::open(url)?, time, script })
    }

    pub async fn apply(
        &self,
        key: &str,
        operation: &Operation,
        patience: Duration,
    ) -> Result<Answer, StoreError> {
        let answered = self.run(key, arguments(operation), patience).await?;
        parse_answer(answered).ok_or_else(|| strange("to an operation"))
    }

    pub async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let answered = self.run(key, vec![Argument::from(&b"read"[..])], PATIENCE).await?;
        let Value::Array(values) = answered else { return Err(strange("in a record")) };
        if values.is_empty() {
            return Ok(None);
        }
        let record = parse_record(values).ok_or_else(|| strange("in a record"))?;
        // By its own clock Redis has dropped what has expired.
        let expired = matches!(&self.time, manual @ Time::Manual(_) if record.expires <= manual.now());
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
        let (mut cursor, mut found) = (0_u64, Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("string");
            let page = self.patiently(PATIENCE, Question::Command(&scan)).await?;
            let (next, keys) =
                <(u64, Vec<String>)>::from_redis_value(page).map_err(|_| strange("to a scan"))?;
            for key in keys {
                let key = key.strip_prefix(PREFIX).unwrap_or(&key);
                if let Some(record) = self.get(key).await?.filter(|record| states.contains(&record.state)) {
                    found.push((key.to_owned(), record));
                }
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        found.sort_by(|one, other| (one.1.created, &one.0).cmp(&(other.1.created, &other.0)));
        found.dedup_by(|one, other| one.0 == other.0);
        found.truncate(limit);
        Ok(found)
    }

    async fn run(
        &self,
        key: &str,
        arguments: Vec<Argument<'_>>,
        patience: Duration,
    ) -> Result<Value, StoreError> {
        let now = match &self.time {
            Time::System | Time::Steady(_) => String::new(),
            manual @ Time::Manual(_) => manual.now().to_string(),
        };
        let mut invocation = self.script.key(format!("{PREFIX}{key}"));
        invocation.arg(now);
        for argument in arguments {
            invocation.arg(&*argument);
        }
        self.patiently(patience, Question::Script(&invocation)).await
    }

    /// Asks until there is an answer, on a new connection where one was lost, for at most `patience`.
    async fn patiently(&self, patience: Duration, question: Question<'_>) -> Result<Value, StoreError> {
        const FIRST_WAIT: Duration = Duration::from_millis(25);
        const LONGEST_WAIT: Duration = Duration::from_millis(500);
        let deadline = clock::now() + patience;
        let mut wait = FIRST_WAIT;
        loop {
            let tried = clock::until(deadline, async {
                let mut link = self.links.get().await?;
                let done = question.ask(&mut link.link).await;
                if done.as_ref().is_err_and(has_lost_its_primary) {
                    self.links.drop_link(link.serial);
                }
                done
            });
            let error = match tried.await {
                Some(Ok(done)) => return Ok(done),
                Some(Err(error)) => error,
                None => {
                    // Whoever comes next must not wait on a connection that gives no answer.
                    self.links.drop_current();
                    return Err(self.unavailable("did not answer in time"));
                }
            };
            if (is_permanent(&error) && !is_demoted(&error)) || clock::now() + wait > deadline {
                return Err(self.unavailable(&format!("cannot be used: {error}")));
            }
            clock::sleep_until(clock::now() + wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
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
    async fn ask(&self, link: &mut Link) -> Result<Value, RedisError> {
        match self {
            Self::Script(invocation) => invocation.invoke_async(link).await,
            Self::Command(command) => command.query_async(link).await,
        }
    }
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
