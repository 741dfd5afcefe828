//! A claim on Redis is a `SET`, which cannot ask the server for its time; what meets the record works it out.

use std::sync::Arc;
use std::time::Duration;

use tidegate::idempotency::{
    Answer, Begin, Effect, Failure, NEVER, Operation, Record, Redis, Resolution, State, Store, Time,
};

use super::redis_server::RedisServer;
use super::{PATIENCE, begin, begin_with, claim, complete, outcome, runtime};

struct Fleet {
    runtime: tokio::runtime::Runtime,
    store: Arc<Store>,
    server: RedisServer,
}

impl Fleet {
    fn start() -> Option<Self> {
        let server = RedisServer::start(&[])?;
        let store = Arc::new(Store::Redis(Redis::open(&server.url(), Time::System).unwrap()));
        Some(Self { runtime: runtime(), store, server })
    }

    fn apply(&self, key: &str, operation: &Operation) -> Answer {
        self.runtime.block_on(self.store.apply(key, operation, PATIENCE)).unwrap()
    }

    fn get(&self, key: &str) -> Record {
        self.runtime.block_on(self.store.get(key)).unwrap().unwrap()
    }

    /// The server's clock, in milliseconds.
    fn now(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&redis::cmd("TIME"));
        seconds * 1000 + micros / 1000
    }

    /// After how long the server forgets the record.
    fn left(&self, key: &str) -> u64 {
        self.ask(redis::cmd("PTTL").arg(format!("tidegate:{key}")))
    }

    fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let client = redis::Client::open(self.server.url()).unwrap();
        self.runtime.block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            command.query_async(&mut connection).await.unwrap()
        })
    }
}

fn begin_for(number: u8, effect: Effect, start: bool, lease: Duration) -> Operation {
    let Operation::Begin(wish) = begin(number, effect, start) else { unreachable!() };
    Operation::Begin(Begin { lease, ..wish })
}

/// The server may read its clock a millisecond later for the one than for the other.
fn is_near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 2
}

#[test]
fn a_claim_tells_when_it_was_made() {
    const LEASE_MS: u64 = 30_000;
    const RETENTION_MS: u64 = 900_000;
    const TEN_YEARS_MS: u64 = 315_360_000_000;
    let Some(fleet) = Fleet::start() else { return };
    for effect in Effect::ALL {
        for start in [true, false] {
            let key = format!("{}-{start}", effect.as_str());
            let before = fleet.now();
            assert_eq!(
                fleet.apply(&key, &begin(1, effect, start)),
                Answer::Acquired { fence: 1, attempts: 1 }
            );
            let after = fleet.now();
            let record = fleet.get(&key);
            let made = record.created;
            assert!(before.saturating_sub(2) <= made && made <= after + 2, "{before} {made} {after}");
            assert_eq!((record.updated, record.lease_until), (made, made + LEASE_MS), "{key}");
            assert_eq!(record.started, start.then_some(made), "{key}");
            let is_kept = start && !effect.may_repeat();
            let expires = if is_kept { NEVER } else { made + LEASE_MS + RETENTION_MS };
            assert_eq!(record.expires, expires, "{key}");
            let forgotten: u64 = fleet.now() + fleet.left(&key);
            let ttl = if is_kept { TEN_YEARS_MS } else { LEASE_MS + RETENTION_MS };
            assert!(forgotten.abs_diff(made + ttl) < 5_000, "{key} is forgotten at {forgotten}");
            while fleet.now() < after + 20 {}
            assert!(is_near(fleet.get(&key).created, made), "{key}: the same, asked later");
            // What comes after has the time of the server, and keeps the times from before.
            assert_eq!(fleet.apply(&key, &complete(1, 1, "r")), Answer::Held);
            let record = fleet.get(&key);
            assert!(is_near(record.created, made) && record.updated >= after + 18, "{record:?}");
            assert_eq!((record.state, record.outcome), (State::Done, Some(outcome(true, "r"))));
            assert_eq!(record.expires, record.updated + RETENTION_MS);
        }
    }
}

#[test]
fn its_lease_ends_by_the_servers_clock() {
    const LEASE: Duration = Duration::from_millis(300);
    let Some(fleet) = Fleet::start() else { return };
    for (effect, start) in
        [(Effect::AtMostOnce, true), (Effect::AtMostOnce, false), (Effect::Idempotent, true)]
    {
        let key = format!("{}-{start}", effect.as_str());
        assert!(matches!(fleet.apply(&key, &begin_for(1, effect, start, LEASE)), Answer::Acquired { .. }));
        let record = fleet.get(&key);
        let (made, ends) = (record.created, record.lease_until);
        let taken = loop {
            let before = fleet.now();
            match fleet.apply(&key, &begin_for(2, effect, start, LEASE)) {
                Answer::InProgress { lease_left } => {
                    assert!(lease_left <= LEASE && before <= ends + 2, "{key} at {before}: {lease_left:?}");
                }
                other => break other,
            }
        };
        assert!(fleet.now() + 2 >= ends, "{key}: not before its lease ends");
        if effect.may_repeat() || !start {
            assert_eq!(taken, Answer::Acquired { fence: 2, attempts: 2 });
            assert_eq!(fleet.apply(&key, &complete(1, 1, "late")), Answer::Stale);
        } else {
            let Answer::InDoubt { fence: 1, started } = taken else { panic!("{taken:?}") };
            assert!(is_near(started, made), "{started} and {made}");
        }
        assert!(is_near(fleet.get(&key).created, made), "{key}");
    }
}

#[test]
fn a_heartbeat_keeps_what_a_claim_began() {
    let lease = Duration::from_secs(30);
    let Some(fleet) = Fleet::start() else { return };
    assert!(matches!(fleet.apply("key", &begin(1, Effect::AtMostOnce, true)), Answer::Acquired { .. }));
    let made = fleet.get("key").created;
    while fleet.now() < made + 20 {}
    let heartbeat = Operation::Heartbeat { claim: claim(1, 1), lease, note: Some("half".into()) };
    assert_eq!(fleet.apply("key", &heartbeat), Answer::Held);
    let record = fleet.get("key");
    assert!(is_near(record.created, made) && is_near(record.started.unwrap(), made), "{record:?}");
    assert!(record.lease_until >= made + 30_018 && record.note.as_deref() == Some("half"), "{record:?}");
    assert_eq!(record.expires, NEVER);
}

#[test]
fn whatever_meets_a_claim_first_takes_it_as_it_is() {
    let Some(fleet) = Fleet::start() else { return };
    let claim = claim(1, 1);
    let fail = |failure| Operation::Fail { claim, failure };
    let resolve = |resolution| Operation::Resolve { fence: None, resolution };
    let acquired = Answer::Acquired { fence: 1, attempts: 1 };
    let start = Operation::Start { claim, lease: Duration::from_secs(30) };
    let table = [
        ("sent again", begin(1, Effect::AtMostOnce, true), acquired, Some(State::Started)),
        ("another's", begin_with(2, Effect::AtMostOnce, true, 9), Answer::Mismatch, Some(State::Started)),
        ("started", start, Answer::Held, Some(State::Started)),
        ("done", complete(1, 1, "r"), Answer::Held, Some(State::Done)),
        ("late", complete(2, 1, "r"), Answer::Stale, Some(State::Started)),
        ("had no effect", fail(Failure::NoEffect), Answer::Held, None),
        ("unknown", fail(Failure::Unknown), Answer::Held, Some(State::InDoubt)),
        ("not orphaned", resolve(Resolution::NotDone), Answer::Stale, Some(State::Started)),
    ];
    for (key, operation, answer, state) in table {
        // The first of all goes by the script.
        fleet.apply("first", &begin(1, Effect::Read, true));
        assert!(matches!(fleet.apply(key, &begin(1, Effect::AtMostOnce, true)), Answer::Acquired { .. }));
        assert_eq!(fleet.apply(key, &operation), answer, "{key}");
        let record = fleet.runtime.block_on(fleet.store.get(key)).unwrap();
        assert_eq!(record.map(|record| record.state), state, "{key}");
    }
}
