//! The calls that a half-open breaker lets through, each on a lease.

use crate::clock::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbeId(u64);

#[derive(Debug)]
struct Lease {
    id: ProbeId,
    until: Instant,
}

/// A lease bounds how long a probe may be silent: a breaker that waits for a probe whose task has died would
/// refuse calls for ever.
#[derive(Debug)]
pub(super) struct Probes {
    /// Holds room for `limit` from the start.
    leases: Vec<Lease>,
    limit: usize,
    next_id: u64,
}

impl Probes {
    pub(super) fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit.max(1)).unwrap_or(1);
        Self { leases: Vec::with_capacity(limit), limit, next_id: 0 }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.leases.len() < self.limit
    }

    pub(super) fn grant(&mut self, until: Instant) -> Option<ProbeId> {
        if !self.has_room() {
            return None;
        }
        let id = ProbeId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.leases.push(Lease { id, until });
        Some(id)
    }

    pub(super) fn release(&mut self, id: ProbeId) {
        self.leases.retain(|lease| lease.id != id);
    }

    /// When the first lease ran out, if one has.
    pub(super) fn expired(&self, now: Instant) -> Option<Instant> {
        self.leases.iter().map(|lease| lease.until).filter(|until| *until <= now).min()
    }

    pub(super) fn clear(&mut self) {
        self.leases.clear();
    }
}
