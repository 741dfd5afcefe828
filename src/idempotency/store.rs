//! The three stores behind one face, chosen by URL.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use super::protocol::{Answer, Operation};
use super::record::{Record, State};
use super::{Memory, Redis, Sqlite};
use crate::clock;
use crate::error::ConfigError;

/// The clock of a store.
#[derive(Debug, Clone, Default)]
pub enum Time {
    /// The machine's; on Redis the server's.
    #[default]
    System,
    /// Monotonic, as milliseconds to add: a step of the machine's clock does not reach it.
    Steady(u64),
    /// Moved by hand, for tests.
    Manual(Arc<AtomicU64>),
}

impl Time {
    /// Starts at the machine's time and goes on by itself.
    pub fn steady() -> Self {
        Self::Steady(Self::System.now().saturating_sub(clock::now().as_nanos() / 1_000_000))
    }

    /// Milliseconds since the Unix epoch.
    pub fn now(&self) -> u64 {
        match self {
            Self::System => {
                let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or_default()
            }
            Self::Steady(offset) => offset + clock::now().as_nanos() / 1_000_000,
            Self::Manual(now) => now.load(Ordering::SeqCst),
        }
    }
}

/// The store did not answer. Nothing is known of what it did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {store} store {problem}")]
pub struct StoreError {
    /// `sqlite` or `redis`.
    pub store: &'static str,
    /// A sentence's end, without credentials.
    pub problem: String,
}

#[allow(clippy::large_enum_variant, reason = "one for each gate, which lives as long as the process")]
pub enum Store {
    Memory(Box<Memory>),
    Sqlite(Sqlite),
    Redis(Redis),
}

/// URLs hold passwords, so only the kind is shown.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Store {
    /// `memory:`, `sqlite:///path`, or a Redis URL; see [`Redis::open`]. Connects when it is first used.
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "memory" if matches!(rest, "" | "//") => Ok(Self::Memory(Box::new(Memory::new(Time::steady())))),
            "sqlite" => Sqlite::open(rest).map(Self::Sqlite),
            "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
            | "rediss+sentinel" => Redis::open(url, Time::System).map(Self::Redis),
            _ => Err(ConfigError::new(
                "store",
                format!("{scheme}:…"),
                "must be memory:, sqlite:///file, sqlite:////absolute/file, redis://host:port/0, \
                 redis+sentinel://host:port/name or redis+cluster://host:port",
            )),
        }
    }

    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Redis(_) => "redis",
        }
    }

    /// Applies `operation` in one atomic step. A lost connection is mended and the operation sent again, for at
    /// most `patience`; every operation may be sent twice.
    pub async fn apply(
        self: &Arc<Self>,
        key: &str,
        operation: &Operation,
        patience: Duration,
    ) -> Result<Answer, StoreError> {
        match &**self {
            Self::Memory(memory) => Ok(memory.apply(key, operation)),
            Self::Sqlite(_) => {
                let (key, operation) = (key.to_owned(), operation.clone());
                self.aside(move |sqlite| sqlite.apply(&key, &operation, patience)).await
            }
            Self::Redis(redis) => redis.apply(key, operation, patience).await,
        }
    }

    pub async fn get(self: &Arc<Self>, key: &str) -> Result<Option<Record>, StoreError> {
        match &**self {
            Self::Memory(memory) => Ok(memory.get(key)),
            Self::Sqlite(_) => {
                let key = key.to_owned();
                self.aside(move |sqlite| sqlite.get(&key)).await
            }
            Self::Redis(redis) => redis.get(key).await,
        }
    }

    /// Records in one of `states` whose key begins with `prefix`, oldest first, at most `limit`.
    pub async fn list(
        self: &Arc<Self>,
        prefix: &str,
        states: &[State],
        limit: usize,
    ) -> Result<Vec<(String, Record)>, StoreError> {
        match &**self {
            Self::Memory(memory) => Ok(memory.list(prefix, states, limit)),
            Self::Sqlite(_) => {
                let (prefix, states) = (prefix.to_owned(), states.to_vec());
                self.aside(move |sqlite| sqlite.list(&prefix, &states, limit)).await
            }
            Self::Redis(redis) => redis.list(prefix, states, limit).await,
        }
    }

    /// Drops what has expired; returns how many. Redis does it by itself.
    pub async fn purge(self: &Arc<Self>) -> Result<u64, StoreError> {
        match &**self {
            Self::Memory(memory) => Ok(memory.purge()),
            Self::Sqlite(_) => self.aside(Sqlite::purge).await,
            Self::Redis(redis) => redis.ping().await.map(|()| 0),
        }
    }

    /// Does what waits for a disk where nothing else waits for it.
    async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Sqlite) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || match &*store {
            Self::Sqlite(sqlite) => work(sqlite),
            Self::Memory(_) | Self::Redis(_) => Err(stopped()),
        });
        done.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn stopped() -> StoreError {
    StoreError { store: "sqlite", problem: String::from("was stopped before it answered") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_store_and_never_shows_its_password() {
        for (url, kind) in [
            ("memory:", "memory"),
            ("memory://", "memory"),
            ("sqlite:///a.db", "sqlite"),
            ("redis://localhost:1/0", "redis"),
            ("redis+cluster://a:1,b:2", "redis"),
            ("redis+sentinel://[::1]:1/main", "redis"),
            ("redis+sentinel://a:1,b:2/main/3", "redis"),
        ] {
            assert_eq!(Store::open(url).unwrap().kind(), kind, "{url}");
        }
        for url in [
            "",
            "memory:x",
            "mysql://u:hush@h",
            "redis://u:hush@",
            "redis+sentinel://u:hush@h:1",
            "sqlite:x",
            "redis+sentinel://u:hush@h:1/main/x",
            "redis+sentinel://u:hush@h:1/main/-1",
            "redis+sentinel://u:hush@h:1/main/3/x",
            "redis+cluster://u:hush@h:1/2",
        ] {
            let error = Store::open(url).unwrap_err();
            assert_eq!(error.field, "store", "{url}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
