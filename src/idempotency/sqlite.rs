//! The store of one machine: a file that its processes share.
//!
//! Write-ahead log and `synchronous = FULL`: an answer is on disk when it is given, even if the power fails. A
//! process uses one connection; `SQLite` admits one writer at a time anyway, and a lock of our own is fairer among
//! threads than its waiting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::Mutex;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, TransactionBehavior, params};

use super::fingerprint::Fingerprint;
use super::protocol::{Answer, Operation, apply};
use super::record::{Claim, Effect, NEVER, Outcome, Owner, Record, State};
use super::store::{StoreError, Time};
use crate::clock;
use crate::error::ConfigError;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS tidegate_idempotency (
        key TEXT PRIMARY KEY NOT NULL,
        fingerprint BLOB NOT NULL,
        state TEXT NOT NULL,
        effect TEXT NOT NULL,
        tool TEXT NOT NULL,
        owner TEXT NOT NULL,
        fence INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        lease_until INTEGER NOT NULL,
        retention INTEGER NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        started INTEGER,
        expires INTEGER,
        ok INTEGER,
        codec TEXT,
        result BLOB,
        note TEXT
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS tidegate_idempotency_expires ON tidegate_idempotency (expires)
        WHERE expires IS NOT NULL;
";

/// How long another process may hold the file.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    time: Time,
    connection: Mutex<Option<Connection>>,
}

impl Sqlite {
    /// `rest` is the URL after its scheme: `///file`, or `////absolute/file`.
    pub fn open(rest: &str) -> Result<Self, ConfigError> {
        match rest.strip_prefix("///").filter(|path| !path.is_empty()) {
            Some(path) => Ok(Self::new(path, Time::System)),
            None => Err(ConfigError::new(
                "store",
                format!("sqlite:{rest}"),
                "must be sqlite:///file, or sqlite:////absolute/file",
            )),
        }
    }

    pub fn new(path: impl AsRef<Path>, time: Time) -> Self {
        Self { path: path.as_ref().to_owned(), time, connection: Mutex::default() }
    }

    /// Opens a transaction in which a tool writes its effect. It excludes every other writer until it ends.
    pub fn transaction(&self) -> Result<Unfinished, StoreError> {
        let open = || {
            let connection = connect(&self.path)?;
            connection.execute_batch("BEGIN IMMEDIATE")?;
            Ok(connection)
        };
        let connection = open().map_err(|error| self.unavailable(&error))?;
        Ok(Unfinished { connection, time: self.time.clone() })
    }

    pub fn apply(&self, key: &str, operation: &Operation, patience: Duration) -> Result<Answer, StoreError> {
        self.with(|connection| {
            // Most duplicates change nothing; they need not queue for the right to write.
            if matches!(operation, Operation::Begin(_)) {
                let mut slot = read(connection, key)?;
                let known = slot.is_some();
                let (answer, changed) = apply(&mut slot, operation, self.time.now());
                if known && !changed {
                    return Ok(answer);
                }
            }
            connection.busy_timeout(patience.max(PATIENCE))?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut slot = read(&transaction, key)?;
            let (answer, changed) = apply(&mut slot, operation, self.time.now());
            if changed {
                write(&transaction, key, slot.as_ref())?;
                transaction.commit()?;
            }
            Ok(answer)
        })
    }

    pub fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let now = self.time.now();
        self.with(|connection| Ok(read(connection, key)?.filter(|record| record.expires > now)))
    }

    pub fn list(
        &self,
        prefix: &str,
        states: &[State],
        limit: usize,
    ) -> Result<Vec<(String, Record)>, StoreError> {
        let now = self.time.now();
        let states: Vec<_> = states.iter().map(|state| format!("'{}'", state.as_str())).collect();
        self.with(|connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT * FROM tidegate_idempotency
                 WHERE substr(key, 1, length(?1)) = ?1 AND (expires IS NULL OR expires > ?2)
                 AND state IN ({})
                 ORDER BY created, key LIMIT ?3",
                states.join(", ")
            ))?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement
                .query_map(params![prefix, signed(now), limit], |row| Ok((row.get("key")?, record(row)?)))?;
            rows.collect()
        })
    }

    pub fn purge(&self) -> Result<u64, StoreError> {
        let now = self.time.now();
        self.with(|connection| {
            let dropped =
                connection.execute("DELETE FROM tidegate_idempotency WHERE expires <= ?1", [signed(now)])?;
            Ok(dropped as u64)
        })
    }

    /// Runs `work` on the connection, which is made on first use and made anew after an error.
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let mut slot = self.connection.lock();
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => connect(&self.path).map_err(|error| self.unavailable(&error))?,
        };
        let done = work(&mut connection).map_err(|error| self.unavailable(&error))?;
        *slot = Some(connection);
        Ok(done)
    }

    fn unavailable(&self, error: &rusqlite::Error) -> StoreError {
        StoreError { store: "sqlite", problem: format!("at {} cannot be used: {error}", self.path.display()) }
    }
}

/// A transaction under way. Dropping it undoes what was written.
///
/// It is a connection of this very library: two copies of `SQLite` in one process do not see each other's locks on
/// a file, so a tool must not write through another.
#[derive(Debug)]
pub struct Unfinished {
    connection: Connection,
    time: Time,
}

impl Unfinished {
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Commits what was written together with the outcome, or neither if the claim is stale.
    pub fn complete(self, key: &str, claim: Claim, outcome: &Outcome) -> rusqlite::Result<Answer> {
        let mut slot = read(&self.connection, key)?;
        let operation = Operation::Complete { claim, outcome: outcome.clone() };
        let (answer, changed) = apply(&mut slot, &operation, self.time.now());
        if answer == Answer::Held && changed {
            write(&self.connection, key, slot.as_ref())?;
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(answer)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    // Whoever finds the file being made is told "busy" without a wait.
    let deadline = clock::now() + PATIENCE;
    loop {
        match prepare(&connection) {
            Err(error) if is_busy(&error) && clock::now() < deadline => {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            other => return other.map(|()| connection),
        }
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let problem = format!("its directory does not allow a write-ahead log (journal mode {mode})");
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY),
            Some(problem),
        ));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    let known = connection
        .query_row("SELECT 1 FROM sqlite_master WHERE name = 'tidegate_idempotency_expires'", [], |_| Ok(()))
        .optional()?;
    if known.is_none() {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT;"))?;
    }
    Ok(())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn read(connection: &Connection, key: &str) -> rusqlite::Result<Option<Record>> {
    connection
        .prepare_cached("SELECT * FROM tidegate_idempotency WHERE key = ?1")?
        .query_row([key], record)
        .optional()
}

fn write(connection: &Connection, key: &str, record: Option<&Record>) -> rusqlite::Result<()> {
    let Some(record) = record else {
        return connection
            .prepare_cached("DELETE FROM tidegate_idempotency WHERE key = ?1")?
            .execute([key])
            .map(drop);
    };
    let outcome = record.outcome.as_ref();
    connection
        .prepare_cached(
            "INSERT INTO tidegate_idempotency
             (key, fingerprint, state, effect, tool, owner, fence, attempts, lease_until, retention, created,
              updated, started, expires, ok, codec, result, note)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
             ON CONFLICT (key) DO UPDATE SET
             (fingerprint, state, effect, tool, owner, fence, attempts, lease_until, retention, created, updated,
              started, expires, ok, codec, result, note)
             = (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            key,
            record.fingerprint.0.as_slice(),
            record.state.as_str(),
            record.effect.as_str(),
            &*record.tool,
            record.owner.to_string(),
            signed(record.fence),
            record.attempts,
            signed(record.lease_until),
            signed(record.retention),
            signed(record.created),
            signed(record.updated),
            record.started.map(signed),
            (record.expires != NEVER).then(|| signed(record.expires)),
            outcome.map(|outcome| outcome.ok),
            outcome.map(|outcome| &*outcome.codec),
            outcome.map(|outcome| &*outcome.bytes),
            record.note.as_deref(),
        ])
        .map(drop)
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let outcome = match row.get::<_, Option<bool>>("ok")? {
        Some(ok) => {
            let (codec, bytes) = (row.get::<_, String>("codec")?, row.get::<_, Vec<u8>>("result")?);
            Some(Outcome { ok, codec: codec.into(), bytes: bytes.into() })
        }
        None => None,
    };
    Ok(Record {
        fingerprint: Fingerprint(row.get("fingerprint")?),
        state: word(row, "state", State::parse)?,
        effect: word(row, "effect", Effect::parse)?,
        tool: row.get::<_, String>("tool")?.into(),
        owner: word(row, "owner", Owner::parse)?,
        fence: unsigned(row.get("fence")?),
        attempts: row.get("attempts")?,
        lease_until: unsigned(row.get("lease_until")?),
        retention: unsigned(row.get("retention")?),
        created: unsigned(row.get("created")?),
        updated: unsigned(row.get("updated")?),
        started: row.get::<_, Option<i64>>("started")?.map(unsigned),
        expires: row.get::<_, Option<i64>>("expires")?.map_or(NEVER, unsigned),
        outcome,
        note: row.get::<_, Option<String>>("note")?.map(Into::into),
    })
}

fn word<T>(row: &Row<'_>, column: &str, parse: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
    let value = row.get_ref(column)?;
    let text = value.as_str()?;
    parse(text).ok_or_else(|| {
        let problem = format!("{column} holds {text:?}, which this version does not know");
        rusqlite::Error::FromSqlConversionFailure(0, value.data_type(), problem.into())
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
