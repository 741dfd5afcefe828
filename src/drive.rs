//! Feeds `call.rs` with sockets and timers: one HTTP call from its order to its outcome. `routes.rs` says where
//! it goes when it cannot be had there.

mod attempt;
mod begin;
mod bill;
mod function;
mod live;
mod order;
mod pipe;
mod read;
mod report;
mod routes;
mod stepped;
mod whole;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

pub use self::function::Guarded;
pub use self::live::{Stream, StreamOver};
pub use self::order::{CallInfo, Deliver, Order, Outcome, Reply, StreamEndRule, UsageSource};
pub use self::pipe::{Found, Pump, READ_AHEAD, Tap, pipe};
pub use self::routes::call;
pub use self::stepped::{Ended, Go, Next, Stepped, whole};

use self::attempt::{Attempt, Outgoing, attempt};
use self::bill::Asked;
use self::read::read;
use self::report::{Teller, Told, conclude};
use crate::call::{Call, Plan, Spending, Step};
use crate::clock;
use crate::engine::{Engine, Upstream};
use crate::event::Listener;
use crate::money::Pico;
use crate::request::RequestFacts;
use crate::scope::Scope;
use crate::stream::with_usage;
use crate::usage::Usage;

/// What a call comes to: an outcome, or an answer that goes on.
#[derive(Debug)]
pub enum Delivered {
    Outcome(Box<Outcome>),
    Stream(Box<Stream>),
}

/// One call to one upstream. Dropping the future stops it: the connection closes and everything held goes back.
///
/// An answer that streams is handed over at its first content. Until then it may fail like any other, and be
/// repeated.
async fn call_one(
    engine: &Arc<Engine>,
    upstream: &Upstream,
    order: Order,
    listener: Option<Arc<dyn Listener>>,
) -> Delivered {
    let facts = RequestFacts::read(&order.body);
    let model: Arc<str> = facts.as_ref().and_then(|facts| facts.model.as_deref()).unwrap_or_default().into();
    let scope = engine.scope(upstream, &model, clock::now());
    let plan = plan(engine, &order, facts.as_ref(), &scope);
    let cost = plan.cost;
    let teller = Teller::new(engine, upstream, &model, &order, listener);
    let with_usage = usage_to_ask(&order, facts.as_ref());
    let outgoing = Outgoing { engine, upstream, order: &order, with_usage: with_usage.as_ref() };
    let call = Call::new(plan, Arc::clone(&scope), clock::now());
    let mut told = Told::new(teller, call, Asked { scope: Arc::clone(&scope), facts });
    let mut step = told.call.begin(clock::now());
    let mut got = None;
    let result = loop {
        for (kind, facts) in told.call.take_events() {
            told.teller.tell(kind, facts);
        }
        let call = &mut told.call;
        step = match step {
            Step::Admit { cost, limit } => match scope.admit(cost, limit).await {
                Ok(permit) => call.admitted(clock::now(), permit),
                Err(refusal) => call.refused(clock::now(), refusal),
            },
            Step::Send { number, until, slow_at } => {
                let answers = AtomicBool::new(false);
                let mut attempt = pin!(attempt(outgoing, number, until, &answers));
                let ended = if let Some(ended) = clock::until(slow_at, &mut attempt).await {
                    ended
                } else {
                    if !answers.load(Ordering::Relaxed) {
                        call.slow(clock::now());
                    }
                    attempt.await
                };
                match ended {
                    Attempt::Began(began) => {
                        return Delivered::Stream(Box::new(Stream::new(told, &order, *began, cost, until)));
                    }
                    Attempt::Cut => call.cut(clock::now()),
                    Attempt::Failed(error) => {
                        told.failed_by(&error);
                        engine.with_rng(|rng| told.call.failed(clock::now(), error, rng))
                    }
                    Attempt::Answered(answer) => {
                        let (answered, read) = read(&mut told, &order, answer, cost);
                        got = Some(read);
                        engine.with_rng(|rng| told.call.answered(clock::now(), answered, rng))
                    }
                }
            }
            Step::Sleep { until } => {
                clock::sleep_until(until).await;
                call.slept(clock::now())
            }
            Step::Done(result) => break result,
        };
    };
    let result = result.map_err(|mut error| {
        error.request = Some(order.digest(engine));
        error
    });
    Delivered::Outcome(Box::new(conclude(&mut told, result, got)))
}

/// The body that asks for a chat stream's usage, where its caller does not say whether they want it.
fn usage_to_ask(order: &Order, facts: Option<&RequestFacts>) -> Option<Bytes> {
    let streams = facts.is_some_and(|facts| facts.stream && facts.include_usage.is_none());
    let chat = order.url.path().trim_end_matches('/').ends_with("/chat/completions");
    (streams && chat && order.deliver != Deliver::Whole).then(|| with_usage(&order.body)).flatten()
}

/// A request without a body that can be read costs a request, but no tokens.
fn plan(engine: &Engine, order: &Order, facts: Option<&RequestFacts>, scope: &Scope) -> Plan {
    let (mut cost, mut least_cost) = (0, 0);
    if let Some(facts) = facts {
        let sizes = scope.sizes.lock();
        let prompt = facts.prompt_tokens(sizes.bytes_per_token());
        let guess = || sizes.output().saturating_mul(facts.n);
        cost = prompt.saturating_add(facts.output_limit.unwrap_or_else(guess));
        least_cost = prompt.saturating_add(facts.output_limit.unwrap_or_default());
    }
    Plan {
        retry: engine.retry_policy(),
        max_attempts: order.max_attempts,
        total: order.timeouts.total,
        attempt_timeout: order.timeouts.attempt,
        cost,
        least_cost,
        replay_unsafe: facts.is_some_and(|facts| facts.replay_unsafe),
        stream: facts.is_some_and(|facts| facts.stream),
        on_open: engine.on_open(),
        resent_after: resent_after(engine, order),
        spending: spending(engine, order, facts, scope),
    }
}

fn resent_after(engine: &Engine, order: &Order) -> Option<u32> {
    let (request, attempts) = order.failed_before?;
    (request == order.digest(engine)).then_some(attempts)
}

/// Nobody knows how long an answer without a limit will be: this much is set aside for one, or twice the longest
/// answers of late.
const UNLIMITED_OUTPUT: u64 = 4096;

fn spending(engine: &Engine, order: &Order, facts: Option<&RequestFacts>, scope: &Scope) -> Option<Spending> {
    let ledger = engine.spend()?;
    let wall = clock::wall();
    // What has no body that can be read bills no tokens.
    let max_cost = facts.map_or(Some(Pico::ZERO), |facts| {
        let sizes = scope.sizes.lock();
        let output = || (2 * sizes.output()).max(UNLIMITED_OUTPUT).saturating_mul(facts.n);
        let most = Usage {
            input: facts.prompt_tokens(sizes.bytes_per_token()),
            output: facts.output_limit.unwrap_or_else(output),
            ..Usage::default()
        };
        engine.cost(&scope.key.model, None, facts.service_tier.as_deref(), &most)
    });
    let tags = order.tags.iter().flat_map(|tags| tags.iter());
    Some(Spending {
        ledger: Arc::clone(ledger),
        tags: tags.map(|(key, value)| (key.clone(), value.clone())).collect(),
        max_cost,
        started: (clock::now(), wall),
    })
}
