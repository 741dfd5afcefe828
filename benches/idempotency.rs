//! What one run under a key costs where nobody else wants it: claim and completion, beside the one write of the
//! same driver that would be the least a guard could do.
//!
//! `TIDEGATE_REDIS_URL` names a Redis to measure against; without it that half is left out.

#![allow(clippy::expect_used, reason = "a bench fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rusqlite::Connection;
use tidegate::idempotency::{
    Answer, Begin, Claim, Effect, Memory, Operation, Outcome, Owner, Redis, Sqlite, Store, Time, fingerprint,
};

const PATIENCE: Duration = Duration::from_secs(5);

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

fn memory(c: &mut Criterion) {
    let store = Memory::new(Time::steady());
    c.bench_function("idempotency/memory/once", |bencher| {
        bencher.iter(|| {
            let (key, owner) = fresh_key();
            let answer = store.apply(&key, &begin(owner));
            store.apply(&key, &complete(owner, &answer))
        });
    });
}

fn sqlite(c: &mut Criterion) {
    let folder = std::env::current_dir().expect("a folder").join("target/bench-idempotency");
    std::fs::create_dir_all(&folder).expect("a folder");
    let files = ["once.db", "insert.db"].map(|name| folder.join(format!("{}-{name}", std::process::id())));
    let [once, bare] = &files;
    let mut group = c.benchmark_group("idempotency/sqlite");
    let store = Sqlite::new(once, Time::System);
    group.bench_function("once", |bencher| {
        bencher.iter(|| {
            let (key, owner) = fresh_key();
            let answer = store.apply(&key, &begin(owner), PATIENCE).expect("a store");
            store.apply(&key, &complete(owner, &answer), PATIENCE).expect("a store")
        });
    });
    let connection = Connection::open(bare).expect("a file");
    let pragmas = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (key TEXT PRIMARY KEY, at INTEGER)";
    connection.execute_batch(pragmas).expect("a table");
    group.bench_function("bare INSERT", |bencher| {
        bencher.iter(|| {
            let (key, _) = fresh_key();
            let mut insert = connection.prepare_cached("INSERT INTO t VALUES (?1, ?2)").expect("SQL");
            insert.execute((key, 1)).expect("a row")
        });
    });
    group.finish();
    drop((store, connection));
    let _ = std::fs::remove_dir_all(&folder);
}

fn redis(c: &mut Criterion) {
    let Ok(url) = std::env::var("TIDEGATE_REDIS_URL") else {
        eprintln!("idempotency/redis: left out, TIDEGATE_REDIS_URL is not set");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut group = c.benchmark_group("idempotency/redis");
    let store = Arc::new(Store::Redis(Redis::open(&url, Time::System).expect("a URL")));
    group.bench_function("once", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async {
                let (key, owner) = fresh_key();
                let answer = store.apply(&key, &begin(owner), PATIENCE).await.expect("a store");
                store.apply(&key, &complete(owner, &answer), PATIENCE).await.expect("a store")
            })
        });
    });
    let client = ::redis::Client::open(url).expect("a URL");
    let mut connection = runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection");
    group.bench_function("bare SET NX", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async {
                let (key, _) = fresh_key();
                let mut set = ::redis::cmd("SET");
                set.arg(key).arg("1").arg("NX").arg("PX").arg(900_000);
                set.query_async::<Option<String>>(&mut connection).await.expect("an answer")
            })
        });
    });
    group.finish();
}

criterion_group!(benches, memory, sqlite, redis);
criterion_main!(benches);
