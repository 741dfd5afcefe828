//! A call whose attempts are asked for one by one, by a caller that has a retry loop to be told what to do.
//!
//! The gates stand in the same order and the same state machine decides; only the waits between attempts are the
//! caller's. Either this file sends an attempt, or the caller does and says what came of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::attempt::{Answer, Attempt, Outgoing, attempt};
use super::begin::{Began, Flow, content_type, flow};
use super::bill::Asked;
use super::live::Stream;
use super::order::{Order, Outcome, Reply};
use super::read::{Read, read};
use super::report::{Teller, Told, conclude};
use super::{Delivered, call, plan, usage_to_ask};
use crate::call::{Call, Step};
use crate::clock::{self, Instant};
use crate::engine::{Engine, Upstream};
use crate::error::{CallError, Cause, TransportError};
use crate::event::{Digest, Listener};
use crate::request::RequestFacts;
use crate::scope::Scope;

/// What became of one attempt.
#[derive(Debug)]
pub struct Ended {
    /// The answer, under the status that it means: a 200 that holds an error has the error's.
    pub reply: Option<Reply>,
    /// Why there was no answer.
    pub failure: Option<TransportError>,
    /// The answer is a stream that failed before its first content, as it came: the caller reads it itself.
    pub as_it_came: bool,
    pub next: Next,
}

impl Ended {
    /// The end of a call, told by its outcome.
    pub fn over(outcome: Outcome) -> Self {
        let (reply, failure) = match &outcome.result {
            Ok(reply) => (Some(reply.clone()), None),
            Err(error) => match &error.cause {
                Cause::Answer { status, headers, body, .. } => {
                    (Some(Reply { status: *status, headers: headers.clone(), body: body.clone() }), None)
                }
                Cause::Transport(error) => (None, Some(error.clone())),
                Cause::Local { .. } => (None, None),
            },
        };
        Self { reply, failure, as_it_came: false, next: Next::Over(Box::new(outcome)) }
    }
}

#[derive(Debug)]
pub enum Next {
    /// Another attempt may follow after this wait.
    Retry(Duration),
    Over(Box<Outcome>),
    /// The answer comes in pieces, and the call ends with it.
    Stream(Box<Stream>),
}

/// A place in the order of the gates, taken: the attempt may be sent.
#[derive(Debug, Clone, Copy)]
pub struct Go {
    /// The call's deadline: by then the attempt has to be over.
    pub until: Instant,
    since: Instant,
    number: u32,
    slow_at: Instant,
}

/// A call under way, between two attempts or in one. Dropping it is leaving the call.
pub struct Stepped {
    pub(super) engine: Arc<Engine>,
    scope: Arc<Scope>,
    cost: u64,
    with_usage: Option<Bytes>,
    pub(super) told: Told,
    begun: bool,
    /// Of the request, by which it is known if it is made again.
    request: Option<Digest>,
    /// The place in the order of the gates that was taken last.
    go: Option<Go>,
}

impl std::fmt::Debug for Stepped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stepped").field("call", &self.told.call).finish_non_exhaustive()
    }
}

impl Stepped {
    pub fn new(
        engine: &Arc<Engine>,
        upstream: &Upstream,
        order: &Order,
        listener: Option<Arc<dyn Listener>>,
    ) -> Self {
        let facts = RequestFacts::read(&order.body);
        let model: Arc<str> =
            facts.as_ref().and_then(|facts| facts.model.as_deref()).unwrap_or_default().into();
        let scope = engine.scope(upstream, &model, clock::now());
        let plan = plan(engine, order, facts.as_ref(), &scope);
        let cost = plan.cost;
        let teller = Teller::new(engine, upstream, &model, order, listener);
        let call = Call::new(plan, Arc::clone(&scope), clock::now());
        let with_usage = usage_to_ask(order, facts.as_ref());
        let asked = Asked { scope: Arc::clone(&scope), facts };
        let told = Told::new(teller, call, asked);
        let request = Some(order.digest(engine));
        Self { with_usage, request, ..Self::made(engine, scope, cost, told) }
    }

    pub(super) fn made(engine: &Arc<Engine>, scope: Arc<Scope>, cost: u64, told: Told) -> Self {
        Self {
            engine: Arc::clone(engine),
            scope,
            cost,
            with_usage: None,
            told,
            begun: false,
            request: None,
            go: None,
        }
    }

    /// Who hears of what happens from now on.
    pub fn listen(&mut self, listener: Option<Arc<dyn Listener>>) {
        self.told.teller.listener = listener;
    }

    /// Makes one attempt. The call comes back if another may follow.
    pub async fn attempt(mut self, upstream: &Upstream, order: &Order) -> (Ended, Option<Self>) {
        let go = match self.admit().await {
            Ok(go) => go,
            Err(outcome) => return (Ended::over(*outcome), None),
        };
        let ended = match self.send(upstream, order, go).await {
            Attempt::Began(began) => {
                let stream = Stream::new(self.told, order, *began, self.cost, go.until);
                let reply =
                    Reply { status: stream.status(), headers: stream.headers().clone(), body: Bytes::new() };
                let next = Next::Stream(Box::new(stream));
                return (Ended { reply: Some(reply), failure: None, as_it_came: false, next }, None);
            }
            Attempt::Cut => self.cut(),
            Attempt::Failed(error) => self.failed(error),
            Attempt::Answered(answer) => self.judge(order, answer),
        };
        let goes_on = matches!(ended.next, Next::Retry(_));
        (ended, goes_on.then_some(self))
    }

    async fn send(&mut self, upstream: &Upstream, order: &Order, go: Go) -> Attempt {
        let begun = AtomicBool::new(false);
        let outgoing =
            Outgoing { engine: &self.engine, upstream, order, with_usage: self.with_usage.as_ref() };
        let mut sending = pin!(attempt(outgoing, go.number, go.until, &begun));
        if let Some(ended) = clock::until(go.slow_at, &mut sending).await {
            return ended;
        }
        if !begun.load(Ordering::Relaxed) {
            self.told.call.slow(clock::now());
        }
        sending.await
    }

    /// Passes the gates: a look at the breaker, the queue, the breaker's permit.
    pub async fn admit(&mut self) -> Result<Go, Box<Outcome>> {
        let call = &mut self.told.call;
        let mut step = if std::mem::replace(&mut self.begun, true) {
            call.slept(clock::now())
        } else {
            call.begin(clock::now())
        };
        loop {
            self.tell();
            let call = &mut self.told.call;
            step = match step {
                Step::Admit { cost, limit } => match self.scope.admit(cost, limit).await {
                    Ok(permit) => call.admitted(clock::now(), permit),
                    Err(refusal) => call.refused(clock::now(), refusal),
                },
                Step::Send { number, until, slow_at } => {
                    let go = Go { until, since: clock::now(), number, slow_at };
                    self.go = Some(go);
                    return Ok(go);
                }
                Step::Sleep { until } => {
                    clock::sleep_until(until).await;
                    call.slept(clock::now())
                }
                Step::Done(result) => return Err(self.over(result, None)),
            };
        }
    }

    /// An answer to an attempt that the caller sent.
    pub fn answered(&mut self, order: &Order, reply: Reply, first_byte: Duration) -> Ended {
        let Reply { status, headers, body } = reply;
        self.judge(order, Answer { status, headers, body, first_byte, stream: None, prelude: Bytes::new() })
    }

    /// The head of an answer to an attempt that the caller sent. Where the rest is to be handed on as it comes, the
    /// call ends with the stream, which the caller tells what it receives; else the call comes back.
    pub fn streamed(self, order: &Order, status: u16, headers: &HeaderMap) -> Result<Stream, Box<Self>> {
        // Only of JSON is it known that it is one piece: what else has no type, its reader knows.
        let unread = || {
            let kind = content_type(headers);
            let typeless = matches!(kind.as_slice(), b"" | b"text/html") && (200..300).contains(&status);
            typeless.then_some(Flow::Bytes)
        };
        let (Some(flow), Some(go)) = (flow(order, status, headers, false).or_else(unread), self.go) else {
            return Err(Box::new(self));
        };
        let now = clock::now();
        let began = Began {
            status,
            headers: headers.clone(),
            flow,
            body: None,
            items: Vec::new(),
            first_byte: now.since(go.since),
            sent_at: go.since,
            content_at: now,
        };
        Ok(Stream::new(self.told, order, began, self.cost, go.until))
    }

    /// No answer came to an attempt.
    pub fn failed(&mut self, error: TransportError) -> Ended {
        let told = error.clone();
        self.told.failed_by(&error);
        let step = self.engine.with_rng(|rng| self.told.call.failed(clock::now(), error, rng));
        Ended { failure: Some(told), ..self.ended(step) }
    }

    /// The call's deadline came while an attempt was in flight.
    pub fn cut(&mut self) -> Ended {
        let step = self.told.call.cut(clock::now());
        self.ended(step)
    }

    fn judge(&mut self, order: &Order, answer: Answer) -> Ended {
        let prelude = answer.prelude.clone();
        let (answered, read) = read(&mut self.told, order, answer, self.cost);
        let meant = match &answered.cause {
            Cause::Answer { status, .. } => *status,
            Cause::Transport(_) | Cause::Local { .. } => answered.status,
        };
        let mut reply = Reply { status: meant, ..read.reply.clone() };
        let as_sent = read.reply.status;
        let step = self.engine.with_rng(|rng| self.told.call.answered(clock::now(), answered, rng));
        let next = self.next(step, Some(read));
        let as_it_came = !prelude.is_empty() && matches!(next, Next::Over(_));
        if as_it_came {
            (reply.status, reply.body) = (as_sent, prelude);
        }
        Ended { reply: Some(reply), failure: None, as_it_came, next }
    }

    fn over(&mut self, result: Result<(), Box<CallError>>, got: Option<Read>) -> Box<Outcome> {
        let request = self.request;
        let result = result.map_err(|mut error| {
            error.request = request;
            error
        });
        Box::new(conclude(&mut self.told, result, got))
    }

    /// What has become of an attempt without an answer.
    pub(super) fn ended(&mut self, step: Step) -> Ended {
        Ended { reply: None, failure: None, as_it_came: false, next: self.next(step, None) }
    }

    fn next(&mut self, step: Step, got: Option<Read>) -> Next {
        match step {
            Step::Sleep { until } => {
                self.tell();
                Next::Retry(until.since(clock::now()))
            }
            Step::Done(result) => Next::Over(self.over(result, got)),
            // Gates come before an attempt; after one, there is a wait or the end.
            Step::Admit { .. } | Step::Send { .. } => Next::Retry(Duration::ZERO),
        }
    }

    fn tell(&mut self) {
        for (kind, facts) in self.told.call.take_events() {
            self.told.teller.tell(kind, facts);
        }
    }
}

/// Makes a whole call, waits included, for callers without a retry loop.
pub async fn whole(
    engine: &Arc<Engine>,
    upstream: &Upstream,
    order: Order,
    listener: Option<Arc<dyn Listener>>,
) -> Ended {
    match call(engine, upstream, order, listener).await {
        Delivered::Outcome(outcome) => Ended::over(*outcome),
        Delivered::Stream(stream) => {
            Ended { reply: None, failure: None, as_it_came: false, next: Next::Stream(stream) }
        }
    }
}
