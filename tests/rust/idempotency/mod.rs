//! One suite for every store: the protocol's rules, by example, by property, and under concurrency.

mod conformance;
mod linearizable;
mod model;
mod redis_server;
mod redis_time;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::idempotency::{
    Answer, Begin, Claim, Effect, Fingerprint, Memory, Operation, Outcome, Owner, Redis, Sqlite, Store, Time,
};

use self::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(10);

/// A store under test, whose clock is moved by hand.
struct Bench {
    name: &'static str,
    store: Arc<Store>,
    now: Arc<AtomicU64>,
    runtime: tokio::runtime::Runtime,
    _redis: Option<RedisServer>,
    _directory: Option<Directory>,
}

struct Directory(std::path::PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn directory() -> Directory {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("tidegate-idem-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&path).unwrap();
    Directory(path)
}

/// Every store that can be had here.
fn benches() -> Vec<Bench> {
    let mut benches = Vec::new();
    let mut add = |name, make: &dyn Fn(Time) -> Store, redis, directory| {
        let now = Arc::new(AtomicU64::new(1_800_000_000_000));
        let store = Arc::new(make(Time::Manual(Arc::clone(&now))));
        benches.push(Bench { name, store, now, runtime: runtime(), _redis: redis, _directory: directory });
    };
    add("memory", &|time| Store::Memory(Box::new(Memory::new(time))), None, None);
    let files = directory();
    let path = files.0.join("store.db");
    add("sqlite", &|time| Store::Sqlite(Sqlite::new(&path, time)), None, Some(files));
    if let Some(server) = RedisServer::start(&[]) {
        let url = server.url();
        add("redis", &|time| Store::Redis(Redis::open(&url, time).unwrap()), Some(server), None);
    }
    benches
}

impl Bench {
    fn apply(&self, key: &str, operation: &Operation) -> Answer {
        self.runtime.block_on(self.store.apply(key, operation, PATIENCE)).unwrap()
    }

    fn pass(&self, time: Duration) {
        self.now.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    fn get(&self, key: &str) -> Option<tidegate::idempotency::Record> {
        self.runtime.block_on(self.store.get(key)).unwrap()
    }

    fn begin(&self, key: &str, owner: u8, effect: Effect) -> Answer {
        self.apply(key, &begin(owner, effect, true))
    }
}

fn owner(number: u8) -> Owner {
    Owner::parse(&format!("{number:032x}")).unwrap()
}

fn claim(number: u8, fence: u64) -> Claim {
    Claim { owner: owner(number), fence }
}

fn begin(number: u8, effect: Effect, start: bool) -> Operation {
    begin_with(number, effect, start, 1)
}

fn begin_with(number: u8, effect: Effect, start: bool, payload: u8) -> Operation {
    Operation::Begin(Begin {
        fingerprint: Fingerprint([payload; 32]),
        owner: owner(number),
        effect,
        tool: "pay".into(),
        lease: LEASE,
        retention: RETENTION,
        start,
    })
}

fn outcome(ok: bool, text: &str) -> Outcome {
    Outcome { ok, codec: "json".into(), bytes: text.as_bytes().into() }
}

fn complete(number: u8, fence: u64, text: &str) -> Operation {
    Operation::Complete { claim: claim(number, fence), outcome: outcome(true, text) }
}
