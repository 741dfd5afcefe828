//! What an answer says: its verdict, its bill, and the quota it announces.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};

use super::attempt::Answer;
use super::bill::{Asked, Bill};
use super::order::{Order, Reply, UsageSource};
use super::report::Told;
use super::whole;
use crate::admission::{Announced, Charge, Settlement};
use crate::call::Answered;
use crate::classify::{self, Class, Period, Quota, QuotaFacts, Verdict};
use crate::clock;
use crate::error::Cause;
use crate::money::Pico;

/// What an answer said.
pub(super) struct Read {
    pub(super) reply: Reply,
    /// Of a success; what the others used is with the call.
    pub(super) bill: Option<Bill>,
    pub(super) first_byte: Duration,
}

/// `reserved`: tokens, by which an answer that states none is settled.
pub(super) fn read(told: &mut Told, order: &Order, answer: Answer, reserved: u64) -> (Answered, Read) {
    let Answer { status, headers, body, first_byte, stream, prelude: _ } = answer;
    let (engine, Asked { scope, facts }) = (&told.teller.engine, &told.asked);
    let facts = facts.as_ref();
    let failed_early = stream.is_some();
    // These have no body to judge.
    let bare = matches!(order.method, Method::DELETE | Method::HEAD) && body.is_empty() && status < 300;
    let whole = || if bare { None } else { whole::events(engine, scope, status, &headers, &body) };
    let (mut verdict, mut reading, seen) = if let Some((verdict, reader)) = stream.or_else(whole) {
        (verdict, Some(reader.observer().reading().clone()), Some(reader))
    } else if bare {
        (Verdict::success(status), None, None)
    } else {
        let answer = classify::answer(status, &headers, &body, clock::wall());
        (answer.verdict, answer.reading, None)
    };
    if order.foreign && status < 300 && !failed_early {
        let asks_a_model = order.method == Method::POST && facts.is_some_and(|facts| facts.model.is_some());
        if !asks_a_model {
            // Files, jobs and stored answers: what they tell of errors and usage is of the past.
            (verdict, reading) = (Verdict::success(status), None);
        } else if verdict.class == Class::Empty && (reading.is_some() || !headers.contains_key(CONTENT_TYPE))
        {
            verdict = Verdict::success(status);
        }
    }
    let asked = &told.asked;
    let (bill, settlement, billed) = if verdict.class == Class::Success {
        let bill = match (&reading, &seen) {
            (None, _) => Bill::default(),
            (Some(_), Some(reader)) => asked.bill(engine, reader.observer(), true),
            (Some(reading), None) => asked.answered(engine, reading, &body),
        };
        let (settlement, cost) = (bill.settlement(reserved), bill.cost);
        (Some(bill), settlement, cost)
    } else {
        let seen = seen.as_ref().map(|reader| reader.observer());
        let bill = asked.failed(engine, status, reading.as_ref(), seen);
        let (settlement, cost) = if bill.usage.is_some() {
            // Behind a gateway that gave up, nobody knows: all that was reserved stays booked.
            let known = seen.is_some() || bill.source == UsageSource::Reported;
            (bill.settlement(reserved), bill.cost.filter(|_| known))
        } else {
            let charge = if verdict.status == 429 { Charge::Keep } else { Charge::Refund };
            (Settlement::Failed { charge }, Some(Pico::ZERO))
        };
        told.failed_with(bill);
        (None, settlement, cost)
    };
    let cause = if verdict.class == Class::Success {
        Cause::Local { message: String::new() }
    } else {
        Cause::Answer {
            class: verdict.class,
            status: verdict.status,
            headers: headers.clone(),
            body: body.clone(),
            message: verdict.message.clone(),
            code: verdict.code.clone(),
        }
    };
    let request_id = classify::request_id(&headers);
    let announced = announced(&headers);
    let answered = Answered {
        verdict,
        cause,
        settlement,
        cost: billed,
        announced,
        status,
        request_id,
        first_byte: Some(first_byte),
    };
    (answered, Read { reply: Reply { status, headers, body }, bill, first_byte })
}

/// What the admission controller can use of what an answer announces: quotas per minute.
pub(super) fn announced(headers: &HeaderMap) -> Announced {
    let facts = QuotaFacts::from_headers(headers, clock::wall());
    let per_minute = |quota: &Quota| if quota.period == Some(Period::Minute) { quota.limit } else { None };
    Announced {
        limit_requests: per_minute(&facts.requests),
        limit_tokens: per_minute(&facts.tokens),
        remaining_requests: per_minute(&facts.requests).and(facts.requests.remaining),
        remaining_tokens: per_minute(&facts.tokens).and(facts.tokens.remaining),
    }
}
