//! Runs calls in virtual time: one event heap in place of sockets, timers and tasks.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tidegate::admission::{Announced, Charge, Settlement};
use tidegate::call::{Answered, Call, Step};
use tidegate::classify::{self, Class, Verdict};
use tidegate::clock::Instant;
use tidegate::error::{CallError, Cause, Reason, TransportError, TransportErrorKind};
use tidegate::scope::{Place, Scope, Waiting};
use tidegate::usage::Usage;

use super::controls::Control;

/// An answer, read once however often it is given.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) verdict: Verdict,
    pub(crate) usage: Option<Usage>,
}

impl Reply {
    pub(crate) fn new(status: u16, headers: &[(&'static str, &str)], body: &str) -> Arc<Self> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header of a test"))
            })
            .collect();
        let read = classify::answer(status, &headers, body.as_bytes(), std::time::UNIX_EPOCH);
        Arc::new(Self {
            status,
            headers,
            verdict: read.verdict,
            usage: read.reading.and_then(|reading| reading.usage),
        })
    }

    pub(crate) fn ok() -> Arc<Self> {
        const BODY: &str = r#"{"choices":[{"finish_reason":"stop","message":{"content":"."}}],
            "usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17}}"#;
        Self::new(200, &[], BODY)
    }

    pub(crate) fn is_success(&self) -> bool {
        self.verdict.class == Class::Success
    }

    fn answered(&self, first_byte: Duration) -> Answered {
        let settlement = match self.usage {
            Some(usage) => Settlement::Used { tokens: usage.total() },
            None if self.status == 429 => Settlement::Failed { charge: Charge::Keep },
            None => Settlement::Failed { charge: Charge::Refund },
        };
        let cause = Cause::Answer {
            class: self.verdict.class,
            status: self.status,
            headers: self.headers.clone(),
            body: Bytes::new(),
            message: self.verdict.message.clone(),
            code: self.verdict.code.clone(),
        };
        Answered {
            verdict: self.verdict.clone(),
            cause,
            settlement,
            cost: None,
            announced: Announced::default(),
            status: self.status,
            request_id: None,
            first_byte: Some(first_byte),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Ended {
    Answered(Arc<Reply>),
    Failed(TransportErrorKind),
}

/// What the upstream makes of one attempt, if nobody stops it. No byte comes before the end.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) takes: Duration,
    pub(crate) ended: Ended,
}

/// What surrounds the calls. Calls are named by the order of their start.
pub(crate) trait World {
    /// Attempt `number` of `call` leaves.
    fn serve(&mut self, now: Instant, call: usize, number: u32) -> Served;
    /// `call` has come to `step`.
    fn watch(&mut self, now: Instant, call: usize, step: &Step);
}

/// A logical call: one of the real ones, or of a policy to compare them with.
#[derive(Debug)]
pub(crate) enum Caller {
    Guarded { call: Box<Call>, scope: Arc<Scope> },
    Control(Control),
}

#[derive(Debug)]
struct Running {
    caller: Caller,
    attempt_timeout: Option<Duration>,
    in_flight: Option<u32>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
enum What {
    Ended {
        number: u32,
        ended: Ended,
        first_byte: Duration,
    },
    Cut {
        number: u32,
    },
    Slow {
        number: u32,
    },
    Slept,
    /// The scope of the call may let somebody in.
    Timer,
}

#[derive(Debug)]
struct Event {
    at: Instant,
    /// Events of the same time happen in the order in which they were foreseen.
    serial: u64,
    call: usize,
    what: What,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

fn cancelled(attempts: u32, elapsed: Duration) -> CallError {
    CallError { reason: Reason::Cancelled, ..CallError::closed(attempts, elapsed) }
}

#[derive(Debug)]
pub(crate) struct Driver<W> {
    pub(crate) world: W,
    events: BinaryHeap<Reverse<Event>>,
    serial: u64,
    calls: Vec<Option<Box<Running>>>,
    /// Calls that wait for admission, in order of arrival, those of all scopes together.
    queue: Vec<usize>,
    /// When [`What::Timer`] is next foreseen.
    timer: Option<Instant>,
    /// Draws the backoff.
    rng: StdRng,
}

impl<W: World> Driver<W> {
    pub(crate) fn new(world: W, seed: u64) -> Self {
        Self {
            world,
            events: BinaryHeap::new(),
            serial: 0,
            calls: Vec::new(),
            queue: Vec::new(),
            timer: None,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Starts a call; an attempt that takes longer than `attempt_timeout` fails.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        mut caller: Caller,
        attempt_timeout: Option<Duration>,
    ) -> usize {
        let call = self.calls.len();
        let step = match &mut caller {
            Caller::Guarded { call, .. } => call.begin(now),
            Caller::Control(control) => control.begin(now),
        };
        let running = Running { caller, attempt_timeout, in_flight: None, waiting: None };
        self.calls.push(Some(Box::new(running)));
        self.follow(now, call, &step);
        self.admit(now);
        call
    }

    /// Lets happen what happens up to `until`.
    pub(crate) fn run(&mut self, until: Instant) {
        while self.events.peek().is_some_and(|Reverse(event)| event.at <= until) {
            if let Some(Reverse(event)) = self.events.pop() {
                self.happen(event);
            }
        }
    }

    /// Stops every call that still runs.
    pub(crate) fn stop(&mut self, now: Instant) {
        for call in 0..self.calls.len() {
            self.abandon(now, call);
        }
    }

    /// Stops one call, as when its task is cancelled.
    pub(crate) fn abandon(&mut self, now: Instant, call: usize) {
        let Some(mut running) = self.calls[call].take() else { return };
        self.queue.retain(|&waiting| waiting != call);
        if let Some(mut waiting) = running.waiting.take() {
            waiting.leave(now);
        }
        let error = match &mut running.caller {
            Caller::Guarded { call, .. } => {
                call.abandon(now);
                cancelled(call.attempts(), now.since(call.started()))
            }
            Caller::Control(_) => cancelled(0, Duration::ZERO),
        };
        self.world.watch(now, call, &Step::Done(Err(Box::new(error))));
        self.admit(now);
    }

    fn foresee(&mut self, at: Instant, call: usize, what: What) {
        if at < Instant::FAR_FUTURE {
            self.serial += 1;
            self.events.push(Reverse(Event { at, serial: self.serial, call, what }));
        }
    }

    fn happen(&mut self, event: Event) {
        let Event { at: now, call, what, .. } = event;
        if matches!(what, What::Timer) {
            return self.admit(now);
        }
        let Some(running) = &mut self.calls[call] else { return };
        let current = |number| running.in_flight == Some(number);
        let step = match (what, &mut running.caller) {
            (What::Slow { number }, Caller::Guarded { call, .. }) => {
                if current(number) {
                    call.slow(now);
                }
                return;
            }
            (What::Ended { number, .. } | What::Cut { number }, _) if !current(number) => return,
            (What::Ended { ended: Ended::Answered(reply), first_byte, .. }, Caller::Guarded { call, .. }) => {
                call.answered(now, reply.answered(first_byte), &mut self.rng)
            }
            (What::Ended { ended: Ended::Failed(kind), .. }, Caller::Guarded { call, .. }) => {
                let error = TransportError { kind, message: kind.as_str().to_owned() };
                call.failed(now, error, &mut self.rng)
            }
            (What::Cut { .. }, Caller::Guarded { call, .. }) => call.cut(now),
            (What::Slept, Caller::Guarded { call, .. }) => call.slept(now),
            (What::Ended { ended, .. }, Caller::Control(control)) => {
                control.ended(now, &ended, &mut self.rng)
            }
            (What::Slept, Caller::Control(control)) => control.slept(now),
            (What::Slow { .. } | What::Cut { .. } | What::Timer, _) => return,
        };
        running.in_flight = None;
        self.follow(now, call, &step);
        self.admit(now);
    }

    fn follow(&mut self, now: Instant, call: usize, step: &Step) {
        self.world.watch(now, call, step);
        match *step {
            Step::Admit { cost, limit } => {
                let Some(running) = &mut self.calls[call] else { return };
                let Caller::Guarded { call: guarded, scope } = &mut running.caller else { return };
                let next = match scope.enqueue(now, cost, limit) {
                    Ok(Place::Admitted(permit)) => guarded.admitted(now, permit),
                    Err(refusal) => guarded.refused(now, refusal),
                    Ok(Place::Waiting(waiting)) => {
                        running.waiting = Some(waiting);
                        self.queue.push(call);
                        return;
                    }
                };
                self.follow(now, call, &next);
            }
            Step::Send { number, until, slow_at } => self.send(now, call, number, until, slow_at),
            Step::Sleep { until } => self.foresee(until, call, What::Slept),
            Step::Done(_) => self.calls[call] = None,
        }
    }

    fn send(&mut self, now: Instant, call: usize, number: u32, until: Instant, slow_at: Instant) {
        let Served { takes, ended } = self.world.serve(now, call, number);
        let Some(running) = &mut self.calls[call] else { return };
        running.in_flight = Some(number);
        let (end, ended) = match running.attempt_timeout {
            Some(timeout) if timeout < takes => {
                (now + timeout, Ended::Failed(TransportErrorKind::AttemptTimeout))
            }
            _ => (now + takes, ended),
        };
        if slow_at < end.min(until) {
            self.foresee(slow_at, call, What::Slow { number });
        }
        if until < end {
            self.foresee(until, call, What::Cut { number });
        } else {
            self.foresee(end, call, What::Ended { number, ended, first_byte: takes });
        }
    }

    /// Lets in, and refuses, those in the queues whose time has come.
    fn admit(&mut self, now: Instant) {
        while !self.queue.is_empty() {
            let mut decided = Vec::new();
            for &call in &self.queue {
                let Some(running) = &mut self.calls[call] else { continue };
                let Running { caller: Caller::Guarded { scope, .. }, waiting, .. } = &mut **running else {
                    continue;
                };
                scope.advance(now);
                if let Some(decision) = waiting.as_mut().and_then(Waiting::poll) {
                    *waiting = None;
                    decided.push((call, decision));
                }
            }
            if decided.is_empty() {
                break;
            }
            self.queue.retain(|call| decided.iter().all(|(done, _)| done != call));
            for (call, decision) in decided {
                let Some(running) = &mut self.calls[call] else { continue };
                let Caller::Guarded { call: guarded, .. } = &mut running.caller else { continue };
                let step = match decision {
                    Ok(permit) => guarded.admitted(now, permit),
                    Err(refusal) => guarded.refused(now, refusal),
                };
                self.follow(now, call, &step);
            }
        }
        self.set_timer(now);
    }

    /// One timer serves all scopes: it rings when the first of those with a queue has something to decide.
    fn set_timer(&mut self, now: Instant) {
        let calls = &self.calls;
        let wakes = self.queue.iter().filter_map(|&call| match calls[call].as_deref() {
            Some(Running { caller: Caller::Guarded { scope, .. }, .. }) => scope.advance(now),
            _ => None,
        });
        let Some(wake) = wakes.min() else { return };
        if self.timer.is_none_or(|timer| timer <= now || wake < timer) {
            self.timer = Some(wake);
            self.foresee(wake, 0, What::Timer);
        }
    }
}
