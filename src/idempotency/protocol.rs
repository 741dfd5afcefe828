//! The protocol: what each operation makes of a record. `redis/protocol.lua` says the same in Lua.

use std::sync::Arc;
use std::time::Duration;

use super::fingerprint::Fingerprint;
use super::record::{Claim, Effect, NEVER, Outcome, Owner, Record, State};

/// A wish to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    pub fingerprint: Fingerprint,
    pub owner: Owner,
    pub effect: Effect,
    pub tool: Arc<str>,
    pub lease: Duration,
    /// How long the outcome is kept; must be longer than any caller goes on trying.
    pub retention: Duration,
    /// Claim and start in one step, for effects with no gate between the two.
    pub start: bool,
}

/// How an execution ended that has no outcome to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was done: the key is free again.
    NoEffect,
    /// Nobody knows what was done.
    Unknown,
}

/// A decision on an execution whose owner is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Done(Outcome),
    NotDone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Begin(Begin),
    /// The effect is about to become possible. Must be answered before it does.
    Start {
        claim: Claim,
        lease: Duration,
    },
    Heartbeat {
        claim: Claim,
        lease: Duration,
        note: Option<Arc<str>>,
    },
    Complete {
        claim: Claim,
        outcome: Outcome,
    },
    Fail {
        claim: Claim,
        failure: Failure,
    },
    /// `fence`: the acquisition that was judged; `None` for whichever is there.
    Resolve {
        fence: Option<u64>,
        resolution: Resolution,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Operation::Begin`]: execute. `attempts` counts this one.
    Acquired { fence: u64, attempts: u32 },
    /// To [`Operation::Begin`]: it was done before, with this outcome.
    Replay(Outcome),
    /// To [`Operation::Begin`]: somebody is at it.
    InProgress { lease_left: Duration },
    /// To [`Operation::Begin`]: the key was used for something else.
    Mismatch,
    /// To [`Operation::Begin`]: it may have been done, at `started`.
    InDoubt { fence: u64, started: u64 },
    /// To all others: so be it.
    Held,
    /// To all others: the record is another's by now, or in another state, or gone.
    Stale,
}

/// Applies `operation` to what the store has under a key, at the store's time `now`. Returns the answer and whether
/// the record changed.
pub fn apply(slot: &mut Option<Record>, operation: &Operation, now: u64) -> (Answer, bool) {
    // A clock that was set back must not lengthen a lease.
    let now = slot.as_ref().map_or(now, |record| now.max(record.updated));
    let expired = slot.as_ref().is_some_and(|record| record.expires <= now);
    if expired {
        *slot = None;
    }
    let before = slot.is_some();
    let (answer, changed) = match (operation, slot.as_mut()) {
        (Operation::Begin(begin), None) => {
            *slot = Some(fresh(begin, now));
            (Answer::Acquired { fence: 1, attempts: 1 }, true)
        }
        (Operation::Begin(begin), Some(record)) => begin_again(record, begin, now),
        (Operation::Start { claim, lease }, Some(record)) if is_held(record, *claim) => {
            if record.state == State::Claimed {
                record.started = Some(now);
            }
            record.state = State::Started;
            renew(record, *lease, now);
            (Answer::Held, true)
        }
        (Operation::Heartbeat { claim, lease, note }, Some(record)) if is_held(record, *claim) => {
            renew(record, *lease, now);
            if note.is_some() {
                record.note.clone_from(note);
            }
            (Answer::Held, true)
        }
        (Operation::Complete { claim, outcome }, Some(record)) if is_held(record, *claim) => {
            finish(record, outcome, now);
            (Answer::Held, true)
        }
        // Sent again because the first answer was lost.
        (Operation::Complete { claim, .. }, Some(record))
            if record.state == State::Done && record.claim() == *claim =>
        {
            (Answer::Held, false)
        }
        (Operation::Fail { claim, failure }, Some(record)) if is_held(record, *claim) => {
            if *failure == Failure::NoEffect || record.state == State::Claimed {
                *slot = None;
            } else {
                abandon(record, now);
            }
            (Answer::Held, true)
        }
        (Operation::Fail { failure: Failure::NoEffect, .. }, None) => (Answer::Held, false),
        (Operation::Resolve { fence, resolution }, Some(record))
            if is_orphaned(record, now) && fence.is_none_or(|fence| fence == record.fence) =>
        {
            match resolution {
                Resolution::Done(outcome) => finish(record, outcome, now),
                Resolution::NotDone => *slot = None,
            }
            (Answer::Held, true)
        }
        _ => (Answer::Stale, false),
    };
    (answer, changed || (expired && !before))
}

/// The record of a key that had none.
pub(super) fn fresh(begin: &Begin, now: u64) -> Record {
    let mut record = Record {
        fingerprint: begin.fingerprint,
        state: State::Claimed,
        effect: begin.effect,
        tool: Arc::clone(&begin.tool),
        owner: begin.owner,
        fence: 0,
        attempts: 0,
        lease_until: now,
        retention: 0,
        created: now,
        updated: now,
        started: None,
        expires: now,
        outcome: None,
        note: None,
    };
    acquire(&mut record, begin, now);
    record
}

fn acquire(record: &mut Record, begin: &Begin, now: u64) {
    record.effect = begin.effect;
    record.tool = Arc::clone(&begin.tool);
    record.owner = begin.owner;
    record.fence += 1;
    record.attempts = record.attempts.saturating_add(1);
    record.state = if begin.start { State::Started } else { State::Claimed };
    record.started = begin.start.then_some(now);
    record.note = None;
    record.retention = millis(begin.retention);
    renew(record, begin.lease, now);
}

fn begin_again(record: &mut Record, begin: &Begin, now: u64) -> (Answer, bool) {
    if record.fingerprint != begin.fingerprint {
        return (Answer::Mismatch, false);
    }
    let in_doubt = |record: &Record| Answer::InDoubt {
        fence: record.fence,
        started: record.started.unwrap_or(record.created),
    };
    match record.state {
        State::Done => {
            let outcome = record.outcome.clone();
            outcome.map_or((Answer::Stale, false), |outcome| (Answer::Replay(outcome), false))
        }
        State::InDoubt => (in_doubt(record), false),
        State::Claimed | State::Started if record.owner == begin.owner => {
            (Answer::Acquired { fence: record.fence, attempts: record.attempts }, false)
        }
        State::Claimed | State::Started if now < record.lease_until => {
            let lease_left = Duration::from_millis(record.lease_until - now);
            (Answer::InProgress { lease_left }, false)
        }
        // The stricter of the two declarations holds: the tool may have been declared anew because it was wrong.
        State::Started if !(record.effect.may_repeat() && begin.effect.may_repeat()) => {
            doubt(record, now);
            (in_doubt(record), true)
        }
        State::Claimed | State::Started => {
            acquire(record, begin, now);
            (Answer::Acquired { fence: record.fence, attempts: record.attempts }, true)
        }
    }
}

fn is_held(record: &Record, claim: Claim) -> bool {
    matches!(record.state, State::Claimed | State::Started) && record.claim() == claim
}

/// Nobody is at work on it, and there is no outcome.
fn is_orphaned(record: &Record, now: u64) -> bool {
    match record.state {
        State::InDoubt => true,
        State::Claimed | State::Started => record.lease_until <= now,
        State::Done => false,
    }
}

fn renew(record: &mut Record, lease: Duration, now: u64) {
    record.lease_until = now.saturating_add(millis(lease));
    record.updated = now;
    // What may be taken over may also be forgotten, some time after its lease; the rest may not.
    record.expires = if record.state == State::Started && !record.effect.may_repeat() {
        NEVER
    } else {
        record.lease_until.saturating_add(record.retention)
    };
}

fn finish(record: &mut Record, outcome: &Outcome, now: u64) {
    record.state = State::Done;
    record.outcome = Some(outcome.clone());
    record.lease_until = now;
    record.updated = now;
    record.expires = now.saturating_add(record.retention);
}

/// The owner gives up without knowing what it did.
fn abandon(record: &mut Record, now: u64) {
    if record.effect.may_repeat() {
        renew(record, Duration::ZERO, now);
    } else {
        doubt(record, now);
    }
}

fn doubt(record: &mut Record, now: u64) {
    record.state = State::InDoubt;
    record.lease_until = now;
    record.updated = now;
    record.expires = NEVER;
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER / 4)
}
