//! Admission: one queue in front of concurrency, requests per minute and tokens per minute.
//!
//! A request enters when it is the first in line and all three have room, and takes from all three at once.
//! Nothing is held while waiting, so a waiter that leaves has nothing to give back, a large request cannot starve
//! behind small ones, and those behind move up at once.
//!
//! The controller is a state machine without a clock. Whoever drives it calls [`Admission::advance`] after any
//! call that may let somebody enter (`settle`, `cancel`, `cool_down`, `learn`, `set_limits`) and at the time that
//! [`Admission::next_wake`] names: one timer for the whole queue. Every [`Ticket`] ends in exactly one of
//! [`Admission::settle`], [`Admission::cancel`] or a refusal; ending it twice does nothing.

mod bucket;
mod pace;
mod queue;
mod quota;
mod ramp;
mod settlement;

use std::time::Duration;

use bucket::MICRO;
pub use queue::Ticket;
use queue::{Marks, Place, Queue, Request};
use quota::{MAX_TOKENS, Quota, Shape, micro};
use ramp::Ramp;
use settlement::UsageRatio;
pub use settlement::{Charge, Settlement};

use crate::clock::Instant;
use crate::config::{Limits, Oversize};

/// Waits are rounded up to this, so that a wait that rounds to zero cannot spin.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// What became of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Entry {
    /// It may be sent.
    Granted(Ticket),
    /// [`Admission::advance`] will tell.
    Queued(Ticket),
}

/// Why a request may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot enter before its limit. `eta` is how long it would have to wait at least; how long calls in
    /// flight take is not known, so with all slots taken it may be zero.
    Deadline { eta: Duration },
    /// It costs more tokens than will ever be admitted at once.
    TooLarge { cost: u64, limit: u64 },
}

/// What became of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved {
    pub ticket: Ticket,
    pub outcome: Result<(), Refusal>,
}

/// What an answer said about the quota, per minute. `None` where it said nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Announced {
    pub limit_requests: Option<u64>,
    pub limit_tokens: Option<u64>,
    pub remaining_requests: Option<u64>,
    pub remaining_tokens: Option<u64>,
}

/// The state of one dimension of the quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuotaSnapshot {
    /// What the provider grants per minute, as far as known.
    pub limit: u64,
    /// What is currently allowed per minute.
    pub rate: f64,
    pub capacity: f64,
    /// Negative while a debt is paid back.
    pub level: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    pub in_flight: usize,
    pub queued: usize,
    /// `None`: no limit is known.
    pub requests: Option<QuotaSnapshot>,
    pub tokens: Option<QuotaSnapshot>,
    /// End of the server's cool-down, if it lies ahead.
    pub blocked_until: Option<Instant>,
    /// Of those still waiting.
    pub longest_wait: Duration,
}

/// The admission controller of one scope. See the module's documentation.
#[derive(Debug)]
pub struct Admission {
    now: Instant,
    concurrency: usize,
    oversize: Oversize,
    in_flight: usize,
    /// Tokens reserved by the requests in flight.
    reserved: u128,
    requests: Quota,
    tokens: Quota,
    blocked_until: Instant,
    queue: Queue,
    ramp: Ramp,
    usage: UsageRatio,
    /// Grant of the latest request that an announcement was taken from.
    newest_answer: Instant,
    /// Refusals of requests granted before this tell nothing new: we have slowed down since, or had not been told
    /// anything yet.
    slowed_at: Instant,
}

fn concurrency(limits: &Limits) -> usize {
    limits.concurrency.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

impl Admission {
    pub fn new(limits: &Limits, now: Instant) -> Self {
        let requests = Quota::new(Shape::of_requests(limits), now);
        let tokens = Quota::new(Shape::of_tokens(limits), now);
        Self {
            now,
            concurrency: concurrency(limits),
            oversize: limits.oversize,
            in_flight: 0,
            reserved: 0,
            ramp: Ramp::new(requests.learns() || tokens.learns()),
            requests,
            tokens,
            blocked_until: Instant::ZERO,
            queue: Queue::default(),
            usage: UsageRatio::default(),
            newest_answer: Instant::ZERO,
            slowed_at: Instant::FAR_FUTURE,
        }
    }

    /// Asks to send a request that reserves `cost` tokens and is of no use after `limit`.
    ///
    /// It enters at once if nobody waits and there is room; it is refused at once if it could not enter before
    /// `limit`, or ever.
    pub fn enqueue(&mut self, now: Instant, cost: u64, limit: Instant) -> Result<Entry, Refusal> {
        let now = self.tick(now);
        let cost = cost.min(MAX_TOKENS);
        self.check_size(cost)?;
        let request = Request { cost, limit, arrived: now };
        if self.queue.waiting() == 0 && limit >= now && self.may_enter(now, cost) {
            let marks = self.take(now, cost);
            return Ok(Entry::Granted(self.queue.insert_granted(request, marks)));
        }
        let eta = self.eta(now, self.queue.waiting(), self.queue.waiting_cost(), cost);
        if now + eta > limit {
            return Err(Refusal::Deadline { eta });
        }
        Ok(Entry::Queued(self.queue.push(request)))
    }

    /// Lets in, in order of arrival, all who may enter, and refuses those who cannot before their limit.
    pub fn advance(&mut self, now: Instant, resolved: &mut Vec<Resolved>) {
        let now = self.tick(now);
        while let Some((ticket, outcome)) = self.resolve_one(now) {
            resolved.push(Resolved { ticket, outcome });
        }
    }

    fn resolve_one(&mut self, now: Instant) -> Option<(Ticket, Result<(), Refusal>)> {
        if let Some((ticket, refusal)) = self.doomed(now) {
            self.queue.remove(ticket);
            return Some((ticket, Err(refusal)));
        }
        let (ticket, head) = self.queue.front()?;
        if !self.may_enter(now, head.cost) {
            return None;
        }
        let marks = self.take(now, head.cost);
        self.queue.grant(ticket, marks);
        Some((ticket, Ok(())))
    }

    /// A waiter that will not enter before its limit: one whose limit has passed, or the first in line.
    fn doomed(&self, now: Instant) -> Option<(Ticket, Refusal)> {
        // Nobody enters before the cool-down ends, so limits before that have passed as good as now.
        if let Some((ticket, limit)) = self.queue.earliest_limit()
            && limit < now.max(self.blocked_until)
        {
            let eta = self.eta(now, self.queue.waiting(), self.queue.waiting_cost(), 0);
            return Some((ticket, Refusal::Deadline { eta }));
        }
        let (ticket, head) = self.queue.front()?;
        if let Err(refusal) = self.check_size(head.cost) {
            return Some((ticket, refusal));
        }
        let eta = self.eta(now, 0, 0, head.cost);
        (now + eta > head.limit).then_some((ticket, Refusal::Deadline { eta }))
    }

    /// When to call [`Self::advance`] next: always later than `now`. `None` if only the end of a request in flight
    /// can help, or nobody waits.
    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        let now = now.max(self.now);
        let (_, head) = self.queue.front()?;
        let cost = micro(head.cost);
        let entry = if self.in_flight >= self.concurrency {
            Instant::FAR_FUTURE
        } else {
            let quota = self.requests.wake_at(MICRO).max(self.tokens.wake_at(cost));
            quota.max(self.blocked_until).max(self.ramp.opens_at(now, self.in_flight))
        };
        let limit = self.queue.earliest_limit().map_or(Instant::FAR_FUTURE, |(_, limit)| limit);
        let wake = entry.min(limit + Duration::from_nanos(1));
        (wake < Instant::FAR_FUTURE).then(|| wake.max(now + SHORTEST_WAIT))
    }

    /// Takes back a request of which nothing was sent: a waiter leaves the line, a grant is returned in full.
    pub fn cancel(&mut self, now: Instant, ticket: Ticket) {
        self.settle(now, ticket, Settlement::NeverSent);
    }

    /// Ends a grant: frees its slot and corrects what it reserved by what it used.
    pub fn settle(&mut self, now: Instant, ticket: Ticket, settlement: Settlement) {
        self.tick(now);
        let Some((Place::Granted(marks), request)) = self.queue.remove(ticket) else { return };
        self.in_flight -= 1;
        self.reserved -= u128::from(request.cost);
        if settlement != Settlement::NeverSent {
            self.ramp.finish();
        }
        match settlement {
            Settlement::NeverSent => {
                self.requests.correct(-MICRO);
                self.tokens.correct(-micro(request.cost));
            }
            Settlement::Used { tokens } => {
                let tokens = tokens.min(MAX_TOKENS);
                self.usage.record(request.cost, tokens);
                self.tokens.correct(micro(tokens) - micro(request.cost));
            }
            Settlement::Estimated { tokens } => {
                self.tokens.correct(micro(tokens.min(MAX_TOKENS)) - micro(request.cost));
            }
            Settlement::Failed { charge: Charge::Refund } => self.tokens.correct(-micro(request.cost)),
            Settlement::Failed { charge: Charge::Keep } => {
                if marks.at >= self.slowed_at {
                    self.slowed_at = self.now;
                    self.requests.refused();
                    self.tokens.refused();
                }
            }
        }
    }

    /// Nobody enters before `until`. Only extends; how long a server may ask for is the caller's policy.
    pub fn cool_down(&mut self, now: Instant, until: Instant) {
        self.tick(now);
        self.blocked_until = self.blocked_until.max(until);
    }

    /// Takes in what the answer to `ticket`, before its settlement, announced. To be called for every answer, with
    /// or without an announcement: the first one ends the cautious start.
    ///
    /// Remaining quota only lowers ours, for it may be old and others may share it. Limits set the rates where the
    /// user gave none and learning is on.
    pub fn learn(&mut self, now: Instant, ticket: Ticket, announced: &Announced) {
        let now = self.tick(now);
        self.ramp.finish();
        let Some((Place::Granted(marks), _)) = self.queue.get(ticket) else { return };
        self.slowed_at = self.slowed_at.min(now);
        let newest = self.newest_answer <= marks.at;
        self.newest_answer = self.newest_answer.max(marks.at);
        let Announced { limit_requests, limit_tokens, remaining_requests, remaining_tokens } = *announced;
        self.requests.learn(now, limit_requests, remaining_requests, marks.requests, newest);
        self.tokens.learn(now, limit_tokens, remaining_tokens, marks.tokens, newest);
    }

    /// Another policy, for waiters too. Levels are kept as far as the new bursts have room.
    pub fn set_limits(&mut self, now: Instant, limits: &Limits) {
        let now = self.tick(now);
        self.concurrency = concurrency(limits);
        self.oversize = limits.oversize;
        self.requests.reshape(Shape::of_requests(limits), now);
        self.tokens.reshape(Shape::of_tokens(limits), now);
    }

    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let now = now.max(self.now);
        Snapshot {
            in_flight: self.in_flight,
            queued: self.queue.waiting(),
            requests: self.requests.snapshot(now),
            tokens: self.tokens.snapshot(now),
            blocked_until: Some(self.blocked_until).filter(|&until| until > now),
            longest_wait: self.queue.front().map_or(Duration::ZERO, |(_, head)| now.since(head.arrived)),
        }
    }

    /// Time never goes back.
    fn tick(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        for quota in [&mut self.requests, &mut self.tokens] {
            if self.now <= self.blocked_until {
                quota.pause(self.now);
            } else {
                quota.refill(self.now);
            }
        }
        self.now
    }

    fn check_size(&self, cost: u64) -> Result<(), Refusal> {
        let limit = match self.oversize {
            Oversize::Debt => self.tokens.limit(),
            Oversize::Refuse => self.tokens.burst(),
        };
        match limit {
            Some(limit) if cost > limit => Err(Refusal::TooLarge { cost, limit }),
            _ => Ok(()),
        }
    }

    fn may_enter(&self, now: Instant, cost: u64) -> bool {
        self.in_flight < self.concurrency
            && self.blocked_until <= now
            && self.ramp.opens_at(now, self.in_flight) <= now
            && self.requests.is_ready(now, MICRO)
            && self.tokens.is_ready(now, micro(cost))
    }

    fn take(&mut self, now: Instant, cost: u64) -> Marks {
        self.in_flight += 1;
        self.reserved += u128::from(cost);
        self.ramp.start(now);
        Marks {
            at: now,
            requests: self.requests.take(now, MICRO),
            tokens: self.tokens.take(now, micro(cost)),
        }
    }

    /// Least time until a request enters that stands behind `ahead` others who reserve `ahead_cost` tokens. Counts
    /// on the refunds that requests have brought so far, for those in flight and those ahead.
    fn eta(&self, now: Instant, ahead: usize, ahead_cost: u128, cost: u64) -> Duration {
        let micro_tokens = |tokens: i128| tokens.saturating_mul(MICRO.into());
        let requests = micro_tokens(i128::try_from(ahead).unwrap_or(i128::MAX));
        let requests = self.requests.eta(requests, MICRO, 0);
        let refund = micro_tokens(self.usage.refund(self.reserved));
        let tokens = self.tokens.eta(micro_tokens(self.usage.expected(ahead_cost)), micro(cost), refund);
        requests.max(tokens).max(self.blocked_until).since(now)
    }
}
