//! Where a call goes: to its own upstream, then to those that stand in for it, then to the last good answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::bill::Bill;
use super::order::{CallInfo, Order, Outcome};
use super::report::Teller;
use super::{Delivered, call_one};
use crate::classify::Class;
use crate::clock::{self, Instant};
use crate::engine::{Engine, StandIn, Upstream};
use crate::error::{CallError, Cause, Reason, TransportErrorKind};
use crate::event::{Facts, Kind, Listener};

/// Makes one call, or what stands in for it. Dropping the future stops it: the connection closes and everything
/// held goes back.
pub async fn call(
    engine: &Arc<Engine>,
    upstream: &Upstream,
    mut order: Order,
    listener: Option<Arc<dyn Listener>>,
) -> Delivered {
    if !engine.degrades() {
        return Box::pin(call_one(engine, upstream, order, listener)).await;
    }
    order.trace_id.get_or_insert_with(|| engine.draw_trace_id());
    let mut instead_of = *order.span_id.get_or_insert_with(|| engine.draw_span_id());
    let began = clock::now();
    let asked = order.clone();
    let mut delivered = Box::pin(call_one(engine, upstream, order, listener.clone())).await;
    let model = match &delivered {
        Delivered::Outcome(outcome) => Arc::clone(&outcome.info.model),
        Delivered::Stream(_) => return delivered,
    };
    for stand_in in engine.stand_ins(&model) {
        let Delivered::Outcome(failed) = &delivered else { break };
        let Some(error) = failed.result.as_ref().err().filter(|error| another_may_serve(error)) else {
            break;
        };
        let instead = stand_in.upstream.as_ref().unwrap_or(upstream);
        let Some(mut order) = order_for(stand_in, &asked, upstream, began, &notice(error, &model, stand_in))
        else {
            continue;
        };
        let span_id = engine.draw_span_id();
        order.span_id = Some(span_id);
        Teller::new(engine, instead, &model, &order, listener.clone()).tell(
            Kind::Degraded,
            Facts {
                outcome: Some("fallback"),
                reason: Some(why(error)),
                instead_of: Some(instead_of),
                ..Facts::default()
            },
        );
        instead_of = span_id;
        let before = failed.info.clone();
        delivered = match Box::pin(call_one(engine, instead, order, listener.clone())).await {
            Delivered::Outcome(next) => Delivered::Outcome(Box::new(joined(before, *next, began))),
            stream @ Delivered::Stream(_) => stream,
        };
    }
    match delivered {
        Delivered::Outcome(outcome) => {
            Delivered::Outcome(Box::new(remembered(engine, upstream, &asked, *outcome, listener)))
        }
        stream @ Delivered::Stream(_) => stream,
    }
}

/// Whether the request is right and its upstream cannot take it now, or ever.
fn another_may_serve(error: &CallError) -> bool {
    let refused = matches!(
        error.reason,
        Reason::BreakerOpen | Reason::AdmissionDeadline | Reason::RequestTooLarge | Reason::HintExceedsBudget
    );
    let class = match &error.cause {
        Cause::Answer { class, .. } => Some(*class),
        _ => None,
    };
    refused || matches!(class, Some(Class::Quota | Class::RequestTooLarge | Class::ContextLength))
}

/// Whether it is not the caller's mistake.
fn is_upstreams(error: &CallError) -> bool {
    match &error.cause {
        Cause::Answer { class, .. } => matches!(
            class,
            Class::RateLimit
                | Class::Quota
                | Class::Overloaded
                | Class::ServerError
                | Class::Timeout
                | Class::Malformed
                | Class::Empty
        ),
        Cause::Transport(error) => error.kind != TransportErrorKind::Request,
        Cause::Local { .. } => matches!(
            error.reason,
            Reason::BreakerOpen
                | Reason::AdmissionDeadline
                | Reason::Budget
                | Reason::Deadline
                | Reason::SpendCap
        ),
    }
}

/// In one word, for people: what the gate found, or else what the upstream said.
fn why(error: &CallError) -> &'static str {
    match error.reason {
        reason @ (Reason::BreakerOpen
        | Reason::AdmissionDeadline
        | Reason::RequestTooLarge
        | Reason::HintExceedsBudget) => reason.as_str(),
        _ => error.kind(),
    }
}

fn notice(error: &CallError, model: &str, stand_in: &StandIn) -> String {
    let by = stand_in.model.as_deref().unwrap_or(model);
    let at =
        stand_in.upstream.as_ref().map_or_else(String::new, |upstream| format!(" at {}", upstream.origin));
    format!("answered by {by}{at} instead of {model} ({}): the result may be incomplete", why(error))
}

/// The same request for another upstream, with what is left of its time; `None` if it cannot be made.
fn order_for(
    stand_in: &StandIn,
    asked: &Order,
    own: &Upstream,
    began: Instant,
    notice: &str,
) -> Option<Order> {
    let mut order = Order { notice: Some(notice.into()), span_id: None, ..asked.clone() };
    if let Some(total) = &mut order.timeouts.total {
        *total = total.checked_sub(clock::now().since(began)).filter(|left| !left.is_zero())?;
    }
    if let Some(model) = &stand_in.model {
        order.body = with_model(&asked.body, model)?;
    }
    if let Some(upstream) = &stand_in.upstream {
        let path = asked.url.path().strip_prefix(own.base.path().trim_end_matches('/'))?;
        order.url = upstream.url(path, &[]).ok()?;
        order.url.set_query(asked.url.query());
        let mut headers = (*upstream.headers).clone();
        // What the call itself has set, but nothing that its own client sends: that may be a credential.
        for (name, value) in asked.headers.iter() {
            if !own.headers.contains_key(name) && !value.is_sensitive() {
                headers.insert(name, value.clone());
            }
        }
        order.headers = Arc::new(headers);
    }
    Some(order)
}

fn with_model(body: &Bytes, model: &str) -> Option<Bytes> {
    let mut fields: BTreeMap<&str, &RawValue> = serde_json::from_slice(body).ok()?;
    let model = serde_json::value::to_raw_value(model).ok()?;
    fields.insert("model", &model);
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// What a stand-in came to, with what was spent before it.
fn joined(before: CallInfo, next: Outcome, began: Instant) -> Outcome {
    let Outcome { result, mut info } = next;
    let bill = Bill::of(&info).after(&Bill::of(&before), result.is_err());
    (info.usage, info.usage_source, info.cost) = (bill.usage, bill.source, bill.cost);
    info.attempts += before.attempts;
    info.queue += before.queue;
    info.latency = clock::now().since(began);
    info.retries.splice(0..0, before.retries);
    Outcome { result, info }
}

/// Keeps a good answer, or gives the last one in place of an error.
fn remembered(
    engine: &Arc<Engine>,
    upstream: &Upstream,
    asked: &Order,
    mut outcome: Outcome,
    listener: Option<Arc<dyn Listener>>,
) -> Outcome {
    let Some(memory) = engine.last_good() else { return outcome };
    let request = engine
        .digest((
            &upstream.origin,
            upstream.credential,
            asked.method.as_str(),
            asked.url.as_str(),
            &asked.body,
        ))
        .0;
    let now = clock::now();
    match &outcome.result {
        Ok(reply) if outcome.info.notice.is_none() => {
            memory.lock().store(now, request, reply.clone(), reply.body.len());
        }
        Err(error) if is_upstreams(error) => {
            let found = memory.lock().get(now, request);
            if let Some((reply, age)) = found {
                let facts =
                    Facts { outcome: Some("last_good"), reason: Some(why(error)), ..Facts::default() };
                Teller::new(engine, upstream, &outcome.info.model, asked, listener)
                    .tell(Kind::Degraded, facts);
                outcome.info.notice = Some(age_notice(age, error).into());
                outcome.result = Ok(reply);
            }
        }
        _ => {}
    }
    outcome
}

fn age_notice(age: Duration, error: &CallError) -> String {
    format!(
        "the last good answer to the same request, {:.0} s old ({}): the result may be incomplete",
        age.as_secs_f64(),
        why(error)
    )
}
