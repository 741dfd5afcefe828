//! Calls whose answer streams: what is held from the first content to the end, and what each end amounts to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tidegate::admission::{Announced, Settlement};
use tidegate::breaker::{Counts, State};
use tidegate::call::{Call, Ended, Plan, Step, StreamEnd};
use tidegate::classify::{self, Class};
use tidegate::clock::Instant;
use tidegate::config::{BreakerPolicy, Limits};
use tidegate::error::{CallError, Cause, Reason, TransportError, TransportErrorKind};
use tidegate::scope::{Place, Scope};

use crate::simulation::{Guards, at};

const RESERVED: u64 = 600;

fn guards() -> Guards {
    let limits = Limits {
        concurrency: Some(2),
        tpm: Some(1_000),
        headroom: 0.0,
        tpm_burst_seconds: 60.0,
        ..Limits::default()
    };
    Guards { limits, ..Guards::with_concurrency(2) }
}

/// A call that has been sent at `now`.
fn sent(guards: &Guards, scope: &Arc<Scope>, now: Instant, more: impl FnOnce(Plan) -> Plan) -> Call {
    let plan = more(Plan { cost: RESERVED, stream: true, ..guards.plan(None) });
    let mut call = Call::new(plan, Arc::clone(scope), now);
    let Step::Admit { cost, limit } = call.begin(now) else { panic!("the scope is healthy") };
    let Ok(Place::Admitted(permit)) = scope.enqueue(now, cost, limit) else { panic!("there is room") };
    assert!(matches!(call.admitted(now, permit), Step::Send { number: 1, .. }));
    call
}

fn began(call: &mut Call, now: Instant) {
    call.began(now, &Announced::default(), Duration::from_millis(200));
}

fn end(call: &mut Call, now: Instant, how: StreamEnd) -> Result<(), Box<CallError>> {
    let settlement = Settlement::Estimated { tokens: 100 };
    let ended = Ended { how, settlement, cost: None, status: 200, request_id: Some("r".to_owned()) };
    match call.ended(now, ended) {
        Step::Done(result) => result,
        other => panic!("a stream that has begun is never repeated: {other:?}"),
    }
}

fn broke_off() -> StreamEnd {
    let error = TransportError { kind: TransportErrorKind::Body, message: "cut".to_owned() };
    StreamEnd::Interrupted { verdict: classify::failure(&error), cause: Cause::Transport(error) }
}

fn gave_up(body: &'static [u8]) -> StreamEnd {
    let verdict = classify::error(200, &HeaderMap::new(), body, std::time::UNIX_EPOCH);
    let cause = Cause::Answer {
        class: verdict.class,
        status: verdict.status,
        headers: HeaderMap::new(),
        body: Bytes::from_static(body),
        message: verdict.message.clone(),
        code: verdict.code.clone(),
    };
    StreamEnd::Interrupted { verdict, cause }
}

fn counted(scope: &Scope, now: Instant) -> Counts {
    scope.breaker.as_ref().expect("a breaker").lock().snapshot(now).window
}

fn level(scope: &Scope, now: Instant) -> f64 {
    scope.admission(now).tokens.expect("a quota").level
}

#[test]
fn the_place_is_taken_until_the_stream_ends() {
    let guards = guards();
    let scope = guards.scope();
    let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
    began(&mut call, at(0.2));
    assert_eq!(scope.admission(at(30.0)).in_flight, 1);
    assert_eq!(counted(&scope, at(30.0)).total, 0, "nothing is recorded before the end");
    assert!(end(&mut call, at(30.0), StreamEnd::Complete).is_ok());
    assert_eq!(scope.admission(at(30.0)).in_flight, 0);
    assert_eq!((counted(&scope, at(33.1)).total, counted(&scope, at(33.1)).failures), (1, 0));
}

#[test]
fn tokens_are_settled_by_what_was_used() {
    let guards = guards();
    let scope = guards.scope();
    let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
    assert!((level(&scope, at(0.0)) - 400.0).abs() < 1.0);
    began(&mut call, at(0.0));
    let _ = end(&mut call, at(0.0), StreamEnd::Cancelled);
    assert!((level(&scope, at(0.0)) - 900.0).abs() < 1.0, "{}", level(&scope, at(0.0)));
}

#[test]
fn every_end_says_what_it_was_to_the_breaker() {
    for (how, failures, total) in [
        (StreamEnd::Complete, 0, 1),
        (broke_off(), 1, 1),
        (gave_up(br#"{"error":{"type":"server_error","message":"m"}}"#), 1, 1),
        (gave_up(br#"{"error":{"code":"rate_limit_exceeded","message":"m"}}"#), 0, 0),
        (StreamEnd::Cancelled, 0, 0),
        (StreamEnd::Deadline, 0, 0),
    ] {
        let guards = guards();
        let scope = guards.scope();
        let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
        began(&mut call, at(0.2));
        let told = format!("{how:?}");
        let _ = end(&mut call, at(1.0), how);
        let seen = counted(&scope, at(3.1));
        assert_eq!((seen.failures, seen.total), (failures, total), "{told}");
    }
}

#[test]
fn an_interruption_is_an_error_of_its_own_and_is_not_repeated() {
    let guards = guards();
    let scope = guards.scope();
    let balance = |now| scope.budget.as_ref().expect("a budget").lock().snapshot(now).balance;
    let before = balance(at(0.0));
    let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
    began(&mut call, at(0.2));
    let error = end(&mut call, at(1.0), broke_off()).unwrap_err();
    assert_eq!((error.reason, error.attempts), (Reason::StreamInterrupted, 1));
    assert_eq!(error.elapsed, Duration::from_secs(1));
    assert_eq!(balance(at(0.0)).to_string(), before.to_string(), "no retry was paid for");
    drop(call);
    assert_eq!(counted(&scope, at(3.1)).total, 1, "and it is recorded once");
}

#[test]
fn the_deadline_ends_a_stream_as_it_ends_any_call() {
    let guards = guards();
    let scope = guards.scope();
    let total = Some(Duration::from_secs(2));
    let mut call = sent(&guards, &scope, at(0.0), |plan| Plan { total, ..plan });
    began(&mut call, at(0.2));
    let error = end(&mut call, at(2.0), StreamEnd::Deadline).unwrap_err();
    assert_eq!(error.reason, Reason::Deadline);
    assert!(error.message().contains("2.000 s"), "{}", error.message());
    assert!(call.left_in_flight());
    assert!((level(&scope, at(0.0)) - 900.0).abs() < 40.0, "by the estimate, not by the reservation");
}

#[test]
fn a_hint_in_a_stream_holds_back_the_scope() {
    let guards = guards();
    let scope = guards.scope();
    let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
    began(&mut call, at(0.2));
    let body = br#"{"error":{"code":"rate_limit_exceeded","message":"Please try again in 20s."}}"#;
    let error = end(&mut call, at(1.0), gave_up(body)).unwrap_err();
    assert_eq!(error.retry_after, Some(Duration::from_secs(20)));
    assert_eq!(scope.admission(at(1.0)).blocked_until, Some(at(21.0)));
}

#[test]
fn the_first_content_is_the_verdict_of_a_probe() {
    let breaker = BreakerPolicy {
        window: Duration::from_secs(10),
        minimum_calls: 1,
        consecutive_hits: 1,
        half_open_max_calls: 1,
        half_open_successes: 1,
        ..BreakerPolicy::default()
    };
    let guards = Guards { breaker: Some(breaker), ..guards() };
    let scope = guards.scope();
    let mut failed = sent(&guards, &scope, at(0.0), |plan| plan);
    began(&mut failed, at(0.1));
    let _ = end(&mut failed, at(0.1), broke_off());
    let state = |now| scope.breaker.as_ref().expect("a breaker").lock().snapshot(now).state;
    let refused = Call::new(guards.plan(None), Arc::clone(&scope), at(1.1)).begin(at(1.1));
    assert!(matches!(refused, Step::Done(Err(_))), "the breaker is open");
    let mut probe = sent(&guards, &scope, at(22.0), |plan| Plan { cost: 1, ..plan });
    assert_eq!(state(at(22.0)), State::HalfOpen);
    began(&mut probe, at(22.5));
    assert_eq!(state(at(22.5)), State::Closed);
    let _ = end(&mut probe, at(23.0), broke_off());
    assert_eq!(counted(&scope, at(24.1)).failures, 1, "how it ends is an ordinary outcome");
}

#[test]
fn a_failure_before_the_first_content_is_repeated() {
    let guards = guards();
    let scope = guards.scope();
    let mut call = sent(&guards, &scope, at(0.0), |plan| plan);
    let error = TransportError { kind: TransportErrorKind::Body, message: "cut".to_owned() };
    let step = call.failed(at(0.1), error, &mut StdRng::seed_from_u64(1));
    assert!(matches!(step, Step::Sleep { .. }), "{step:?}");
    assert_eq!(scope.admission(at(0.1)).in_flight, 0);
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Complete,
    Broken,
    Refused,
    Cancelled,
    Deadline,
    Dropped,
    DroppedBefore,
}

proptest! {
    /// Whatever becomes of streams, in whatever order: places and tokens go back, each exactly once.
    #[test]
    fn nothing_is_left_behind(
        fates in proptest::collection::vec(
            prop_oneof![
                Just(Fate::Complete), Just(Fate::Broken), Just(Fate::Refused), Just(Fate::Cancelled),
                Just(Fate::Deadline), Just(Fate::Dropped), Just(Fate::DroppedBefore),
            ],
            // A new scope lets so many in at once.
            1..9,
        ),
    ) {
        let guards = Guards { limits: Limits::default(), ..Guards::with_concurrency(100) };
        let scope = guards.scope();
        let mut calls: Vec<_> =
            fates.iter().map(|fate| (*fate, sent(&guards, &scope, at(0.0), |plan| plan))).collect();
        prop_assert_eq!(scope.admission(at(0.0)).in_flight, fates.len());
        let mut failures: u64 = 0;
        for (fate, call) in &mut calls {
            if !matches!(fate, Fate::DroppedBefore) {
                began(call, at(0.5));
            }
            let how = match fate {
                Fate::Complete => StreamEnd::Complete,
                Fate::Broken => broke_off(),
                Fate::Refused => gave_up(br#"{"error":{"type":"server_error"}}"#),
                Fate::Cancelled => StreamEnd::Cancelled,
                Fate::Deadline => StreamEnd::Deadline,
                Fate::Dropped | Fate::DroppedBefore => {
                    call.abandon(at(1.0));
                    continue;
                }
            };
            failures += u64::from(matches!(fate, Fate::Broken | Fate::Refused));
            let result = end(call, at(1.0), how);
            prop_assert_eq!(result.is_ok(), matches!(fate, Fate::Complete));
        }
        prop_assert_eq!(scope.admission(at(1.0)).in_flight, 0);
        let seen = counted(&scope, at(3.1));
        prop_assert_eq!(seen.failures, failures);
    }
}

#[test]
fn classes_of_errors_in_streams() {
    for (body, class) in [
        (
            &br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#[..],
            Class::Overloaded,
        ),
        (
            br#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}"#,
            Class::RateLimit,
        ),
        (br#"{"type":"error","code":"server_error","message":"boom"}"#, Class::ServerError),
    ] {
        let verdict = classify::error(200, &HeaderMap::new(), body, std::time::UNIX_EPOCH);
        assert_eq!(verdict.class, class, "{}", String::from_utf8_lossy(body));
    }
}
