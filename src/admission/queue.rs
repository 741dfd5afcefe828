//! The waiters in order of arrival, and the grants that are out. Both live in one slab, so that one ticket names
//! a request from its arrival to its settlement.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use super::pace::Mark;
use crate::clock::Instant;

/// Names one request. A ticket that was settled, cancelled or refused names nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    index: usize,
    serial: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Tokens reserved.
    pub(super) cost: u64,
    /// Entering later than this is of no use.
    pub(super) limit: Instant,
    pub(super) arrived: Instant,
}

/// When a request was granted, and where both quotas stood after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Marks {
    pub(super) at: Instant,
    pub(super) requests: Mark,
    pub(super) tokens: Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Waiting,
    Granted(Marks),
}

#[derive(Debug)]
struct Slot {
    serial: u64,
    request: Request,
    place: Place,
    previous: Option<usize>,
    next: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: Slab<Slot>,
    head: Option<usize>,
    tail: Option<usize>,
    waiting: usize,
    /// Tokens that all waiters together reserve.
    waiting_cost: u128,
    next_serial: u64,
    /// Earliest limit first; entries of requests that no longer wait are dropped when they reach the top, or when
    /// they outnumber the waiters.
    limits: BinaryHeap<Reverse<(Instant, usize, u64)>>,
}

impl Queue {
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn waiting_cost(&self) -> u128 {
        self.waiting_cost
    }

    /// A request that enters without waiting.
    pub(super) fn insert_granted(&mut self, request: Request, marks: Marks) -> Ticket {
        self.insert(request, Place::Granted(marks))
    }

    /// A request that waits behind all others.
    pub(super) fn push(&mut self, request: Request) -> Ticket {
        let ticket = self.insert(request, Place::Waiting);
        let tail = self.tail.replace(ticket.index);
        if let Some(slot) = self.slots.get_mut(ticket.index) {
            slot.previous = tail;
        }
        match tail.and_then(|tail| self.slots.get_mut(tail)) {
            Some(before) => before.next = Some(ticket.index),
            None => self.head = Some(ticket.index),
        }
        self.waiting += 1;
        self.waiting_cost += u128::from(request.cost);
        if request.limit < Instant::FAR_FUTURE {
            self.limits.push(Reverse((request.limit, ticket.index, ticket.serial)));
        }
        ticket
    }

    fn insert(&mut self, request: Request, place: Place) -> Ticket {
        let serial = self.next_serial;
        self.next_serial += 1;
        let index = self.slots.insert(Slot { serial, request, place, previous: None, next: None });
        Ticket { index, serial }
    }

    pub(super) fn front(&self) -> Option<(Ticket, Request)> {
        let index = self.head?;
        let slot = self.slots.get(index)?;
        Some((Ticket { index, serial: slot.serial }, slot.request))
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<(Place, Request)> {
        let slot = self.slots.get(ticket.index).filter(|slot| slot.serial == ticket.serial)?;
        Some((slot.place, slot.request))
    }

    /// Turns a waiter into a grant.
    pub(super) fn grant(&mut self, ticket: Ticket, marks: Marks) {
        self.unlink(ticket);
        if let Some(slot) = self.slots.get_mut(ticket.index) {
            slot.place = Place::Granted(marks);
        }
        self.prune();
    }

    /// Forgets a waiter or a grant.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<(Place, Request)> {
        let (place, request) = self.get(ticket)?;
        if place == Place::Waiting {
            self.unlink(ticket);
        }
        self.slots.try_remove(ticket.index);
        if place == Place::Waiting {
            self.prune();
        }
        Some((place, request))
    }

    pub(super) fn earliest_limit(&self) -> Option<(Ticket, Instant)> {
        let &Reverse((limit, index, serial)) = self.limits.peek()?;
        Some((Ticket { index, serial }, limit))
    }

    fn unlink(&mut self, ticket: Ticket) {
        let Some(slot) = self.slots.get_mut(ticket.index) else { return };
        let (previous, next, cost) = (slot.previous.take(), slot.next.take(), slot.request.cost);
        match previous.and_then(|previous| self.slots.get_mut(previous)) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match next.and_then(|next| self.slots.get_mut(next)) {
            Some(after) => after.previous = previous,
            None => self.tail = previous,
        }
        self.waiting -= 1;
        self.waiting_cost -= u128::from(cost);
    }

    /// Keeps a waiter's limit on top of the heap, and the heap within twice the waiters.
    fn prune(&mut self) {
        let slots = &self.slots;
        let waits = |index: usize, serial: u64| {
            slots.get(index).is_some_and(|slot| slot.serial == serial && slot.place == Place::Waiting)
        };
        if self.limits.len() > 2 * self.waiting + 64 {
            self.limits.retain(|&Reverse((_, index, serial))| waits(index, serial));
        }
        while let Some(&Reverse((_, index, serial))) = self.limits.peek()
            && !waits(index, serial)
        {
            self.limits.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_those_who_left_are_forgotten() {
        let mut queue = Queue::default();
        let request = |limit| Request { cost: 1, limit: Instant::from_nanos(limit), arrived: Instant::ZERO };
        // One that stays keeps the earliest limit, so the others' never reach the top.
        let stays = queue.push(request(0));
        for limit in 1..10_000 {
            let ticket = queue.push(request(limit));
            assert!(queue.remove(ticket).is_some());
            assert!(queue.limits.len() <= 2 + 64 + 1);
        }
        assert_eq!(queue.earliest_limit(), Some((stays, Instant::ZERO)));
    }

    #[test]
    fn a_used_ticket_names_nothing() {
        let mut queue = Queue::default();
        let request = Request { cost: 1, limit: Instant::FAR_FUTURE, arrived: Instant::ZERO };
        let first = queue.push(request);
        assert!(queue.remove(first).is_some());
        let second = queue.push(request);
        assert_eq!(first.index, second.index);
        assert!(queue.get(first).is_none() && queue.remove(first).is_none());
        assert_eq!(queue.waiting(), 1);
    }
}
