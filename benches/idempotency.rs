//! What one run under a key costs where nobody else wants it: claim and completion, beside the one write of the
//! same driver that would be the least a guard could do.
//!
//! Redis is measured as the guide wants it, with each write on the disk before it is answered, and in memory only.
//! Without a `redis-server` (see the helper's `start`) that part is left out.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench fails by panicking and tells by printing"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tidegate::idempotency::{
    Answer, Begin, Claim, Effect, Memory, Operation, Outcome, Owner, Redis, Sqlite, Store, Time, fingerprint,
};
use tokio::runtime::{Builder, Runtime};

#[path = "../tests/rust/idempotency/redis_server.rs"]
mod redis_server;

use self::redis_server::RedisServer;

const PATIENCE: Duration = Duration::from_secs(5);

/// A folder that goes with its user.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// On the disk of the build, since the machine's temporary files may be in memory.
fn directory() -> Directory {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::current_dir().expect("a folder").join("target/bench-idempotency").join(name);
    std::fs::create_dir_all(&path).expect("a folder");
    Directory(path)
}

fn fresh_key() -> (String, Owner) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let owner = Owner::from_bytes(u128::from(count + 1).to_be_bytes());
    (format!("idem:acme:refund:order-{}-{count}:pay", std::process::id()), owner)
}

fn begin(owner: Owner) -> Operation {
    let arguments = br#"{"order_id":"order-7","amount":1999,"currency":"EUR"}"#;
    Operation::Begin(Begin {
        fingerprint: fingerprint("refund", "1", arguments).expect("JSON"),
        owner,
        effect: Effect::AtMostOnce,
        tool: "refund".into(),
        lease: Duration::from_secs(30),
        retention: Duration::from_secs(900),
        start: true,
    })
}

fn complete(owner: Owner, answer: &Answer) -> Operation {
    let Answer::Acquired { fence, .. } = answer else { unreachable!("the key is fresh: {answer:?}") };
    let outcome =
        Outcome { ok: true, codec: "json".into(), bytes: br#"{"receipt":"r-1"}"#.as_slice().into() };
    Operation::Complete { claim: Claim { owner, fence: *fence }, outcome }
}

fn memory() -> impl FnMut() {
    let store = Memory::new(Time::steady());
    move || {
        let (key, owner) = fresh_key();
        let answer = store.apply(&key, &begin(owner));
        store.apply(&key, &complete(owner, &answer));
    }
}

fn sqlite(path: &Path) -> impl FnMut() {
    let store = Sqlite::new(path, Time::System);
    move || {
        let (key, owner) = fresh_key();
        let answer = store.apply(&key, &begin(owner), PATIENCE).expect("a store");
        store.apply(&key, &complete(owner, &answer), PATIENCE).expect("a store");
    }
}

fn bare_insert(path: &Path) -> impl FnMut() {
    let connection = Connection::open(path).expect("a file");
    let pragmas = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (key TEXT PRIMARY KEY, at INTEGER)";
    connection.execute_batch(pragmas).expect("a table");
    move || {
        let (key, _) = fresh_key();
        let mut insert = connection.prepare_cached("INSERT INTO t VALUES (?1, ?2)").expect("SQL");
        insert.execute((key, 1)).expect("a row");
    }
}

fn redis(url: &str, runtime: &Runtime) -> impl FnMut() {
    let store = Arc::new(Store::Redis(Redis::open(url, Time::System).expect("a URL")));
    move || {
        runtime.block_on(async {
            let (key, owner) = fresh_key();
            let answer = store.apply(&key, &begin(owner), PATIENCE).await.expect("a store");
            store.apply(&key, &complete(owner, &answer), PATIENCE).await.expect("a store");
        });
    }
}

fn bare_set(url: &str, runtime: &Runtime) -> impl FnMut() {
    let client = ::redis::Client::open(url).expect("a URL");
    let mut connection = runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection");
    move || {
        runtime.block_on(async {
            let (key, _) = fresh_key();
            let mut set = ::redis::cmd("SET");
            set.arg(key).arg("1").arg("NX").arg("PX").arg(900_000);
            set.query_async::<Option<String>>(&mut connection).await.expect("an answer");
        });
    }
}

/// Time per run in microseconds, of as many runs as fit into `stretch`.
#[allow(clippy::disallowed_methods, reason = "a bench takes real time")]
fn time(run: &mut impl FnMut(), stretch: Duration) -> f64 {
    let begun = Instant::now();
    for count in 1.. {
        run();
        let passed = begun.elapsed();
        if passed >= stretch {
            return passed.as_secs_f64() * 1e6 / f64::from(count);
        }
    }
    unreachable!("a stretch ends")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Rounds {
    count: usize,
    stretch: Duration,
}

impl Rounds {
    fn alone(&self, name: &str, mut run: impl FnMut()) {
        let once = median((0..self.count).map(|_| time(&mut run, self.stretch)).collect());
        println!("{name:<20}{once:>10.1}");
    }

    /// In turn, so that a machine that is slow for a while is so to both.
    fn beside(&self, name: &str, mut run: impl FnMut(), mut bare: impl FnMut()) {
        let pairs: Vec<_> =
            (0..self.count).map(|_| (time(&mut run, self.stretch), time(&mut bare, self.stretch))).collect();
        let of = |part: fn(&(f64, f64)) -> f64| median(pairs.iter().map(part).collect());
        let (once, bare, ratio) = (of(|pair| pair.0), of(|pair| pair.1), of(|pair| pair.0 / pair.1));
        println!("{name:<20}{once:>10.1}{bare:>10.1}{ratio:>8.2}");
    }
}

fn main() {
    // As `make bench-smoke` says to a bench that shall only show that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--test") {
        Rounds { count: 1, stretch: Duration::ZERO }
    } else {
        Rounds { count: 41, stretch: Duration::from_millis(50) }
    };
    println!("{:<20}{:>10}{:>10}{:>8}", "us", "once", "one write", "ratio");
    rounds.alone("memory", memory());
    let folder = directory();
    rounds.beside("sqlite", sqlite(&folder.0.join("once.db")), bare_insert(&folder.0.join("insert.db")));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    for (name, options) in [("redis, durable", &durable[..]), ("redis, in memory", &[])] {
        if let Some(server) = RedisServer::start(options) {
            let url = server.url();
            rounds.beside(name, redis(&url, &runtime), bare_set(&url, &runtime));
        }
    }
}
