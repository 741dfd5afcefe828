//! A controller in virtual time, beside events of the test's own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate::admission::{Admission, Entry, Refusal, Resolved, Ticket};
use tidegate::clock::Instant;
use tidegate::config::Limits;

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9).round() as u64)
}

pub(crate) fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e9
}

/// Limits as given, learning off.
pub(crate) fn limits(rpm: Option<u64>, tpm: Option<u64>) -> Limits {
    Limits { concurrency: None, rpm, tpm, learn: false, ..Limits::default() }
}

pub(crate) struct Sim<E> {
    pub(crate) admission: Admission,
    pub(crate) now: Instant,
    events: BinaryHeap<Reverse<(Instant, usize)>>,
    payloads: Vec<Option<E>>,
}

impl<E> Sim<E> {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            admission: Admission::new(limits, Instant::ZERO),
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            payloads: Vec::new(),
        }
    }

    pub(crate) fn schedule(&mut self, at: Instant, event: E) {
        self.events.push(Reverse((at, self.payloads.len())));
        self.payloads.push(Some(event));
    }

    /// The granted ticket at once, or a queued one.
    pub(crate) fn enqueue(&mut self, cost: u64) -> Entry {
        self.enqueue_until(cost, Instant::FAR_FUTURE).expect("no limit")
    }

    pub(crate) fn enqueue_until(&mut self, cost: u64, limit: Instant) -> Result<Entry, Refusal> {
        self.admission.enqueue(self.now, cost, limit)
    }

    /// Moves to the next event of the test, or to the controller's timer if that is earlier (`None`).
    #[allow(clippy::option_option, reason = "the end, the timer, or an event")]
    pub(crate) fn step(&mut self, end: Instant) -> Option<Option<E>> {
        let wake = self.admission.next_wake(self.now).unwrap_or(Instant::FAR_FUTURE);
        let event = self.events.peek().map_or(Instant::FAR_FUTURE, |&Reverse((at, _))| at);
        if wake.min(event) > end {
            self.now = end;
            return None;
        }
        self.now = self.now.max(wake.min(event));
        if wake < event {
            return Some(None);
        }
        let Reverse((_, index)) = self.events.pop().expect("peeked");
        Some(self.payloads[index].take())
    }

    pub(crate) fn advance(&mut self) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        self.admission.advance(self.now, &mut resolved);
        resolved
    }

    /// As [`Self::advance`], where nobody may be refused.
    pub(crate) fn granted(&mut self) -> Vec<Ticket> {
        let granted = |one: Resolved| {
            one.outcome.expect("no limit");
            one.ticket
        };
        self.advance().into_iter().map(granted).collect()
    }
}
