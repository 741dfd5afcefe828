//! A call between breaker, admission and retry budget: which of them stops it, and what it then says.

use std::time::Duration;

use tidegate::breaker::State;
use tidegate::call::Plan;
use tidegate::config::{BreakerPolicy, Limits, OnOpen, RetryBudgetPolicy, RetryPolicy};
use tidegate::error::{Cause, Reason, TransportErrorKind};

use crate::call::{SEED, Scene, Was, answers, one, status};
use crate::simulation::driver::{Ended, Reply, Served};
use crate::simulation::{Guards, at};

/// Opens at the first whole second after the second failure.
fn touchy() -> BreakerPolicy {
    BreakerPolicy {
        window: Duration::from_secs(10),
        minimum_calls: 2,
        consecutive_hits: 1,
        ..BreakerPolicy::default()
    }
}

/// A budget that only a refund refills.
fn closed_budget() -> RetryBudgetPolicy {
    RetryBudgetPolicy { capacity: Some(5), deposit: 0.0, trickle: 0.0 }
}

fn guards() -> Guards {
    Guards { breaker: Some(touchy()), budget: Some(closed_budget()), ..Guards::with_concurrency(5) }
}

/// Two calls without retries that fail at 0.05 s and 0.15 s.
fn trip(scene: &mut Scene) {
    for start in [0.0, 0.1] {
        scene.start(start, Plan { max_attempts: 1, ..scene.plan() });
    }
    scene.run(0.5);
}

#[test]
fn a_breaker_that_opens_during_the_wait_ends_the_call_with_the_upstreams_error() {
    let retry = RetryPolicy { min_delay: Duration::from_secs(3), ..RetryPolicy::default() };
    let mut scene = Scene::new(Guards { retry, ..guards() }, SEED, |_, _, _| answers(&status(500)));
    let waiting = scene.start(0.0, scene.plan());
    trip(&mut scene);
    assert_eq!(scene.balance(0.5).to_string(), "4", "its retry is paid for");
    scene.run(60.0);
    let error = scene.error(waiting);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::BreakerOpen, Some(500), 1));
    assert_eq!(scene.end(waiting).0, at(3.05));
    assert_eq!(error.retry_after, Some(Duration::from_secs(20)), "nobody had looked before");
    assert_eq!(scene.balance(60.0).to_string(), "5", "a retry that was not sent is free");
    scene.assert_nothing_held(60.0);
}

#[test]
fn a_breaker_that_opens_during_the_attempt_forbids_the_retry() {
    let mut scene = Scene::new(guards(), SEED, |_, call, _| Served {
        takes: Duration::from_millis(if call == 0 { 4_000 } else { 50 }),
        ended: Ended::Answered(status(500)),
    });
    let slow = scene.start(0.0, scene.plan());
    trip(&mut scene);
    let rejected = scene.start(2.0, scene.plan());
    scene.run(60.0);
    let error = scene.error(slow);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::BreakerOpen, Some(500), 1));
    assert_eq!((scene.end(slow).0, error.retry_after), (at(4.0), Some(Duration::from_secs(18))));
    assert_eq!(scene.balance(60.0).to_string(), "5");
    let error = scene.error(rejected);
    assert_eq!((error.reason, error.attempts), (Reason::BreakerOpen, 0));
    assert_eq!((scene.end(rejected).0, error.retry_after), (at(2.0), Some(Duration::from_secs(20))));
    assert!(matches!(error.cause, Cause::Local { .. }));
    assert_eq!(scene.breaker(5.0).late_total, 1, "the outcome of an attempt from before it opened");
}

#[test]
fn a_breaker_that_opens_while_the_call_queues_sends_nothing() {
    let mut scene = Scene::new(guards(), SEED, |_, _, _| answers(&status(500)));
    trip(&mut scene);
    scene.scope.cool_down(at(0.5), at(1.5));
    let queued = scene.start(0.6, scene.plan());
    scene.run(60.0);
    let error = scene.error(queued);
    assert_eq!((error.reason, error.attempts, scene.sends(queued)), (Reason::BreakerOpen, 0, 0));
    assert_eq!(scene.end(queued).0, at(1.5));
    scene.assert_nothing_held(60.0);
}

#[test]
fn a_probe_is_a_single_attempt() {
    let mut scene = Scene::new(guards(), SEED, |_, _, _| answers(&status(500)));
    trip(&mut scene);
    let probe = scene.start(1.0, scene.plan());
    assert_eq!(scene.error(probe).attempts, 0, "open");
    let probe = scene.start(21.0, scene.plan());
    scene.run(60.0);
    let error = scene.error(probe);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::BreakerOpen, Some(500), 1));
    assert_eq!(error.retry_after, Some(Duration::from_secs(5)));
    assert_eq!((scene.breaker(22.0).state, scene.breaker(22.0).reopened_total), (State::Open, 1));
    assert_eq!(scene.balance(60.0).to_string(), "5");
    scene.assert_nothing_held(60.0);
}

#[test]
fn no_retries_lets_first_attempts_through_an_open_breaker() {
    let breaker = BreakerPolicy { on_open: OnOpen::NoRetries, ..touchy() };
    let guards = Guards { breaker: Some(breaker), ..guards() };
    let mut scene =
        Scene::new(guards, SEED, |_, call, _| answers(&status(if call == 3 { 200 } else { 500 })));
    trip(&mut scene);
    let bad = scene.start(2.0, scene.plan());
    let good = scene.start(3.0, scene.plan());
    scene.run(10.0);
    let error = scene.error(bad);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::BreakerOpen, Some(500), 1));
    assert!(scene.end(good).1.is_ok());
    assert_eq!(scene.breaker(10.0).state, State::Open, "neither is a probe");
    assert_eq!(scene.balance(10.0).to_string(), "5");
}

#[test]
fn an_empty_budget_ends_the_call_with_the_upstreams_error() {
    let budget = Some(RetryBudgetPolicy { capacity: Some(1), deposit: 0.0, trickle: 0.1 });
    let mut scene = Scene::new(Guards { budget, ..guards() }, SEED, |_, _, _| answers(&status(502)));
    let first = scene.start(0.0, scene.plan());
    let second = scene.start(0.0, scene.plan());
    scene.run(60.0);
    let error = scene.error(second);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::Budget, Some(502), 1));
    assert_eq!(error.retry_after, Some(Duration::from_secs(10)), "when the trickle has filled it");
    assert_eq!(scene.sleeps(second), []);
    assert_eq!((scene.error(first).reason, scene.sends(first)), (Reason::Budget, 2));
}

#[test]
fn retries_cost_what_the_failure_says() {
    let spent = |ended: Ended| {
        let guards = Guards { breaker: None, ..guards() };
        let mut scene = Scene::new(guards, SEED, move |_, _, _| Served {
            takes: Duration::from_millis(10),
            ended: ended.clone(),
        });
        scene.start(0.0, Plan { max_attempts: 2, ..scene.plan() });
        scene.run(60.0);
        (5.0 - scene.balance(60.0)).to_string()
    };
    let hinted = |hint| Ended::Answered(Reply::new(503, &[("retry-after", hint)], ""));
    assert_eq!(spent(Ended::Answered(status(503))), "1");
    assert_eq!(spent(hinted("1")), "0.5");
    assert_eq!(spent(hinted("0")), "1", "a wait of zero paces nobody");
    assert_eq!(spent(Ended::Failed(TransportErrorKind::FirstByteTimeout)), "2");
    assert_eq!(spent(Ended::Failed(TransportErrorKind::Connect)), "1");
}

#[test]
fn a_queue_that_is_too_long_is_not_entered() {
    let limits = Limits { rpm: Some(60), headroom: 0.0, ..Limits::default() };
    let mut scene = Scene::new(Guards { limits, ..guards() }, SEED, |_, _, _| answers(&status(200)));
    scene.start(0.0, scene.plan());
    let refused = scene.start(0.0, Plan { total: Some(Duration::from_millis(999)), ..scene.plan() });
    let error = scene.error(refused);
    assert_eq!((scene.end(refused).0, error.reason, error.attempts), (at(0.0), Reason::AdmissionDeadline, 0));
    assert_eq!(error.retry_after, Some(Duration::from_secs(1)));
    let admitted = scene.start(0.0, Plan { total: Some(Duration::from_millis(1_100)), ..scene.plan() });
    scene.run(60.0);
    assert!(scene.end(admitted).1.is_ok());
    assert_eq!(scene.breaker(60.0).late_total + scene.breaker(1.0).window.failures, 0);
}

#[test]
fn a_place_that_does_not_come_free_is_given_up_at_the_limit() {
    let guards = Guards { limits: Limits { concurrency: Some(1), ..Limits::default() }, ..guards() };
    let mut scene = Scene::new(guards, SEED, |_, _, _| Served {
        takes: Duration::from_secs(10),
        ended: Ended::Answered(status(200)),
    });
    scene.start(0.0, scene.plan());
    let second = scene.start(0.0, Plan { total: Some(Duration::from_secs(2)), ..scene.plan() });
    let third = scene.start(0.0, scene.plan());
    scene.run(60.0);
    let (now, _) = scene.end(second);
    let error = scene.error(second);
    assert_eq!((error.reason, error.attempts), (Reason::AdmissionDeadline, 0));
    assert_eq!(now, at(2.0) + Duration::from_nanos(1));
    assert_eq!(scene.end(third).0, at(20.0), "whoever stood behind moves up");
    scene.assert_nothing_held(60.0);
}

#[test]
fn a_retry_that_cannot_be_admitted_ends_with_the_upstreams_error_and_costs_nothing() {
    let (good, bad) = (Reply::ok(), status(500));
    let retry = RetryPolicy { min_delay: Duration::from_secs(1), ..RetryPolicy::default() };
    let mut scene = Scene::new(Guards { retry, ..guards() }, SEED, move |_, _, number| {
        answers(if number == 1 { &bad } else { &good })
    });
    scene.start(0.0, scene.plan());
    scene.run(0.06);
    assert_eq!(scene.balance(0.06).to_string(), "4");
    // As another call's 429 would.
    scene.scope.cool_down(at(0.06), at(60.0));
    scene.run(100.0);
    let error = scene.error(0);
    assert_eq!((error.reason, error.status(), error.attempts), (Reason::AdmissionDeadline, Some(500), 1));
    assert_eq!(error.retry_after, Some(at(60.0).since(scene.end(0).0)));
    assert_eq!(scene.balance(100.0).to_string(), "5");
}

#[test]
fn a_guess_that_exceeds_the_quota_is_lowered_to_it() {
    let limits = Limits { tpm: Some(1_000), headroom: 0.0, ..Limits::default() };
    let mut scene = Scene::new(Guards { limits, ..guards() }, SEED, |_, _, _| answers(&status(200)));
    let guessed = scene.start(0.0, Plan { cost: 5_000, least_cost: 400, ..scene.plan() });
    let certain = scene.start(0.0, Plan { cost: 5_000, least_cost: 1_001, ..scene.plan() });
    scene.run(60.0);
    let costs = scene.steps(guessed).filter_map(|(_, step)| match step {
        Was::Admit { cost, .. } => Some(*cost),
        _ => None,
    });
    assert_eq!(costs.collect::<Vec<_>>(), [5_000, 1_000]);
    assert!(scene.end(guessed).1.is_ok());
    let error = scene.error(certain);
    assert_eq!((error.reason, error.attempts), (Reason::RequestTooLarge, 0));
    assert!(error.message().contains("5000 tokens"), "{}", error.message());
}

#[test]
fn what_may_have_acted_is_not_repeated() {
    let sends = |kind, replay_unsafe| {
        let mut scene = Scene::new(guards(), SEED, move |_, _, _| Served {
            takes: Duration::from_millis(10),
            ended: Ended::Failed(kind),
        });
        scene.start(0.0, Plan { replay_unsafe, max_attempts: 2, ..scene.plan() });
        scene.run(60.0);
        (scene.sends(0), scene.error(0).reason)
    };
    assert_eq!(sends(TransportErrorKind::Reset, true), (1, Reason::NonRetryable));
    assert_eq!(sends(TransportErrorKind::AttemptTimeout, true), (1, Reason::NonRetryable));
    assert_eq!(sends(TransportErrorKind::Connect, true), (2, Reason::Attempts));
    assert_eq!(sends(TransportErrorKind::Reset, false), (2, Reason::Attempts));
    assert_eq!(one(guards(), SEED, status(500)).sends(0), 4, "an error that was answered is no such thing");
}

/// Fifty answers after a tenth of a second, and then a call whose first attempt hangs for a minute.
fn hang(second: Served) -> Scene {
    let breaker = BreakerPolicy { window: Duration::from_secs(1_000), ..BreakerPolicy::default() };
    let retry = RetryPolicy { max_elapsed: None, ..RetryPolicy::default() };
    let guards = Guards { breaker: Some(breaker), retry, ..guards() };
    let mut scene = Scene::new(guards, SEED, move |_, call, number| match (call, number) {
        (50, 1) => Served {
            takes: Duration::from_secs(60),
            ended: Ended::Failed(TransportErrorKind::AttemptTimeout),
        },
        (50, _) => second.clone(),
        _ => Served { takes: Duration::from_millis(100), ended: Ended::Answered(Reply::ok()) },
    });
    for call in 0..50 {
        scene.start(f64::from(call) / 5.0, scene.plan());
    }
    scene.start(20.0, Plan { max_attempts: 2, ..scene.plan() });
    scene
}

#[test]
fn a_silent_attempt_is_one_failure_however_it_goes_on() {
    let silent = Served { takes: Duration::from_secs(60), ended: Ended::Failed(TransportErrorKind::Reset) };
    let good = Served { takes: Duration::from_millis(100), ended: Ended::Answered(Reply::ok()) };
    for (second, ok) in [(silent, false), (good, true)] {
        let mut scene = hang(second);
        let window = |scene: &Scene, now| {
            let window = scene.breaker(now).window;
            (window.total, window.failures)
        };
        scene.run(34.9);
        assert_eq!(window(&scene, 34.9), (50, 0), "silent, but not for long");
        scene.run(35.1);
        assert_eq!(window(&scene, 35.1), (51, 1), "counted while in flight");
        scene.run(400.0);
        assert_eq!(scene.end(50).1.is_ok(), ok);
        assert_eq!(scene.sends(50), 2);
        assert_eq!(window(&scene, 400.0), (51, 1), "and not again");
    }
}
