//! The last good answer to each request, for when no other can be had: bounded in age and in memory.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Degrade;

/// What an entry costs besides its answer: keys, places in the tables, the answer's headers.
const ENTRY_BYTES: usize = 512;

/// Answers by the digest of their request. `T` is the answer.
#[derive(Debug)]
pub struct LastGood<T> {
    ttl: Duration,
    max_bytes: usize,
    bytes: usize,
    entries: HashMap<u64, Entry<T>>,
    /// Keys by the number of their storing: the first is the oldest.
    order: BTreeMap<u64, u64>,
    stored: u64,
}

#[derive(Debug)]
struct Entry<T> {
    answer: T,
    bytes: usize,
    stored: Instant,
    place: u64,
}

impl<T: Clone> LastGood<T> {
    pub fn new(policy: &Degrade) -> Self {
        Self {
            ttl: policy.ttl,
            max_bytes: policy.max_bytes,
            bytes: 0,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            stored: 0,
        }
    }

    /// Keeps `answer`, whose body has so many bytes, and forgets the oldest until all fit. One that is larger
    /// than the whole memory is not kept.
    pub fn store(&mut self, now: Instant, request: u64, answer: T, body_bytes: usize) {
        let bytes = body_bytes.saturating_add(ENTRY_BYTES);
        self.remove(request);
        if bytes > self.max_bytes {
            return;
        }
        self.stored += 1;
        self.entries.insert(request, Entry { answer, bytes, stored: now, place: self.stored });
        self.order.insert(self.stored, request);
        self.bytes += bytes;
        while let Some((_, &oldest)) = self.order.first_key_value()
            && (self.bytes > self.max_bytes || self.is_too_old(now, oldest))
        {
            self.remove(oldest);
        }
    }

    /// The answer and its age, if it is not too old.
    pub fn get(&self, now: Instant, request: u64) -> Option<(T, Duration)> {
        let entry = self.entries.get(&request)?;
        let age = now.since(entry.stored);
        (age <= self.ttl).then(|| (entry.answer.clone(), age))
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, request: u64) {
        if let Some(entry) = self.entries.remove(&request) {
            self.bytes -= entry.bytes;
            self.order.remove(&entry.place);
        }
    }

    fn is_too_old(&self, now: Instant, request: u64) -> bool {
        self.entries.get(&request).is_some_and(|entry| now.since(entry.stored) > self.ttl)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: u64 = 50;
    const ROOM: usize = 4 * (ENTRY_BYTES + 10);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn memory() -> LastGood<u32> {
        LastGood::new(&Degrade { ttl: Duration::from_secs(TTL), max_bytes: ROOM })
    }

    #[test]
    fn an_answer_larger_than_the_memory_is_not_kept_and_replaces_none() {
        let mut memory = memory();
        memory.store(at(0), 1, 7, ROOM);
        assert_eq!(memory.get(at(0), 1), None);
        assert_eq!(memory.bytes(), 0);
    }

    proptest! {
        /// The model keeps everything in a list and looks through it.
        #[test]
        fn does_what_a_list_does(steps in proptest::collection::vec((0..6_u64, 0..20_u64, 0..30_usize), 1..80)) {
            let mut memory = memory();
            let mut list: Vec<(u64, u32, u64, usize)> = Vec::new();
            let mut now = 0;
            for (number, (request, passed, size)) in steps.into_iter().enumerate() {
                now += passed;
                let answer = u32::try_from(number).unwrap();
                memory.store(at(now), request, answer, size);
                list.retain(|(key, ..)| *key != request);
                list.push((request, answer, now, size + ENTRY_BYTES));
                while list.iter().map(|(.., bytes)| bytes).sum::<usize>() > ROOM {
                    list.remove(0);
                }
                list.retain(|(_, _, stored, _)| now - stored <= TTL);
                prop_assert_eq!(memory.bytes(), list.iter().map(|(.., bytes)| bytes).sum::<usize>());
                prop_assert_eq!(memory.order.len(), list.len());
                for request in 0..6 {
                    let kept = list.iter().find(|(key, ..)| *key == request);
                    let want = kept.map(|(_, answer, stored, _)| (*answer, Duration::from_secs(now - stored)));
                    prop_assert_eq!(memory.get(at(now), request), want);
                }
            }
        }
    }
}
