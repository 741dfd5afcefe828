//! The store of one process. Answers at once, forgets at the end.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::lock::Mutex;
use hashlink::LinkedHashMap;

use super::protocol::{Answer, Operation, apply};
use super::record::{Record, State};
use super::store::Time;

const SHARDS: usize = 16;
/// Outcomes kept at once. Beyond it the longest unused are let go; what has no outcome never is.
const OUTCOMES: usize = 100_000;

#[derive(Debug)]
pub struct Memory {
    time: Time,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    outcomes_per_shard: usize,
}

#[derive(Debug, Default)]
struct Shard {
    open: HashMap<Box<str>, Record>,
    /// The longest unused first.
    done: LinkedHashMap<Box<str>, Record>,
}

impl Memory {
    pub fn new(time: Time) -> Self {
        Self::with_capacity(time, OUTCOMES)
    }

    /// Keeps about so many outcomes.
    pub fn with_capacity(time: Time, outcomes: usize) -> Self {
        Self {
            time,
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
            outcomes_per_shard: outcomes.div_ceil(SHARDS).max(1),
        }
    }

    pub fn apply(&self, key: &str, operation: &Operation) -> Answer {
        let now = self.time.now();
        let Some(shard) = self.shard(key) else { return Answer::Stale };
        let mut shard = shard.lock();
        let done = shard.done.remove(key);
        let mut slot = done.or_else(|| shard.open.remove(key));
        let (answer, _) = apply(&mut slot, operation, now);
        if let Some(record) = slot {
            shard.insert(key, record, now, self.outcomes_per_shard);
        }
        answer
    }

    pub fn get(&self, key: &str) -> Option<Record> {
        let now = self.time.now();
        let shard = self.shard(key)?.lock();
        shard.open.get(key).or_else(|| shard.done.get(key)).filter(|record| record.expires > now).cloned()
    }

    /// Every record in one of `states` whose key begins with `prefix`, oldest first, at most `limit`.
    pub fn list(&self, prefix: &str, states: &[State], limit: usize) -> Vec<(String, Record)> {
        let now = self.time.now();
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let all = shard.open.iter().chain(shard.done.iter());
            let chosen = all.filter(|(key, record)| {
                record.expires > now && states.contains(&record.state) && key.starts_with(prefix)
            });
            found.extend(chosen.map(|(key, record)| (key.to_string(), record.clone())));
        }
        found.sort_by(|one, other| (one.1.created, &one.0).cmp(&(other.1.created, &other.0)));
        found.truncate(limit);
        found
    }

    /// Drops what has expired; returns how many.
    pub fn purge(&self) -> u64 {
        let now = self.time.now();
        let mut dropped = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.open.len() + shard.done.len();
            shard.open.retain(|_, record| record.expires > now);
            shard.done.retain(|_, record| record.expires > now);
            dropped += before - shard.open.len() - shard.done.len();
        }
        dropped as u64
    }

    fn shard(&self, key: &str) -> Option<&Mutex<Shard>> {
        let hash = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).ok()?;
        self.shards.get(hash)
    }
}

impl Shard {
    fn insert(&mut self, key: &str, record: Record, now: u64, most: usize) {
        if record.state != State::Done {
            self.open.insert(key.into(), record);
            return;
        }
        self.done.insert(key.into(), record);
        while self.done.front().is_some_and(|(_, oldest)| oldest.expires <= now) || self.done.len() > most {
            self.done.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::idempotency::{Begin, Claim, Effect, Fingerprint, Outcome, Owner};

    fn begin(owner: u32) -> Operation {
        Operation::Begin(Begin {
            fingerprint: Fingerprint([1; 32]),
            owner: Owner::parse(&format!("{owner:032x}")).unwrap(),
            effect: Effect::AtMostOnce,
            tool: "t".into(),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(900),
            start: true,
        })
    }

    #[test]
    fn the_longest_unused_outcome_goes_first_and_what_is_open_stays() {
        let store = Memory::with_capacity(Time::System, SHARDS);
        let claim = Claim { owner: Owner::parse(&format!("{:032x}", 1)).unwrap(), fence: 1 };
        let outcome = Outcome { ok: true, codec: "json".into(), bytes: Arc::from(&b"1"[..]) };
        for number in 0..100 {
            let key = format!("key{number}");
            assert!(matches!(store.apply(&key, &begin(1)), Answer::Acquired { .. }));
            if number % 2 == 0 {
                let complete = Operation::Complete { claim, outcome: outcome.clone() };
                assert_eq!(store.apply(&key, &complete), Answer::Held);
            }
        }
        assert_eq!(store.list("", &[State::Started], 1000).len(), 50);
        assert!(store.list("", &[State::Done], 1000).len() <= SHARDS);
        assert!(store.get("key98").is_some(), "the newest is kept");
        assert_eq!(store.purge(), 0);
    }
}
