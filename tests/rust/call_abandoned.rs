//! A call may be dropped at any time: nothing stays held, and a retry that was not sent is not paid for.

use std::time::Duration;

use tidegate::breaker::State;
use tidegate::call::Plan;
use tidegate::config::{BreakerPolicy, Limits, RetryBudgetPolicy};

use crate::call::{SEED, Scene, Was, answers, status};
use crate::simulation::driver::{Ended, Reply, Served};
use crate::simulation::{Guards, at};

fn guards(concurrency: u32) -> Guards {
    let budget = RetryBudgetPolicy { capacity: Some(10), deposit: 0.0, trickle: 0.0 };
    Guards { budget: Some(budget), ..Guards::with_concurrency(concurrency) }
}

#[test]
fn nothing_is_held_whenever_all_calls_are_dropped() {
    for step in 0..300 {
        let now = f64::from(step) * 0.01;
        let mut scene = Scene::new(guards(1), SEED, |_, _, _| Served {
            takes: Duration::from_millis(200),
            ended: Ended::Answered(status(500)),
        });
        let calls = [(); 3].map(|()| scene.start(0.0, scene.plan()));
        scene.run(now);
        scene.driver.stop(at(now));
        scene.assert_nothing_held(now);
        let sent =
            scene.driver.world.seen.iter().filter(|seen| matches!(seen.step, Was::Send { .. })).count();
        let started = calls.iter().filter(|&&call| scene.sends(call) > 0).count();
        let retried = (sent - started) as f64;
        assert_eq!(scene.balance(now).to_string(), (10.0 - retried).to_string(), "at {now} s");
        let next = scene.start(now, scene.plan());
        assert_eq!(scene.sends(next), 1, "there is room at once");
        scene.run(now + 60.0);
        let after = scene.driver.world.seen.iter().filter(|seen| seen.at > at(now));
        assert!(
            after.into_iter().all(|seen| seen.call == next),
            "nothing happens to a call that was dropped"
        );
    }
}

#[test]
fn a_dropped_attempt_tells_the_breaker_nothing_and_keeps_its_tokens_spent() {
    let limits = Limits { tpm: Some(1_000), headroom: 0.0, tpm_burst_seconds: 60.0, ..Limits::default() };
    let mut scene = Scene::new(Guards { limits, ..guards(5) }, SEED, |_, _, _| answers(&Reply::ok()));
    let plan = Plan { cost: 600, ..scene.plan() };
    let in_flight = scene.start(0.0, plan.clone());
    let queued = scene.start(0.0, plan);
    scene.abandon(0.01, queued);
    scene.abandon(0.01, in_flight);
    scene.assert_nothing_held(0.01);
    let level = scene.scope.admission(at(0.01)).tokens.expect("a quota").level;
    assert!((400.0..401.0).contains(&level), "one was sent and the other was not: {level}");
    assert_eq!(scene.breaker(0.01).window.total, 0);
}

#[test]
fn a_dropped_probe_leaves_its_place_to_another() {
    let breaker = BreakerPolicy {
        window: Duration::from_secs(10),
        minimum_calls: 1,
        consecutive_hits: 1,
        half_open_max_calls: 1,
        half_open_successes: 1,
        ..BreakerPolicy::default()
    };
    let guards = Guards { breaker: Some(breaker), ..guards(5) };
    let mut scene =
        Scene::new(guards, SEED, |_, call, _| answers(&status(if call == 0 { 500 } else { 200 })));
    scene.start(0.0, Plan { max_attempts: 1, ..scene.plan() });
    let trip = scene.start(1.0, scene.plan());
    assert_eq!(scene.error(trip).attempts, 0);
    let probe = scene.start(21.0, scene.plan());
    let other = scene.start(21.01, scene.plan());
    assert_eq!(scene.error(other).attempts, 0, "the only place for a probe is taken");
    scene.abandon(21.02, probe);
    assert_eq!(scene.breaker(21.02).state, State::HalfOpen);
    scene.start(21.02, scene.plan());
    scene.run(22.0);
    assert_eq!(scene.breaker(22.0).state, State::Closed);
}

/// Without a driver to settle it, dropping a call does the same.
#[test]
fn drop_gives_back_as_abandon_does() {
    use tidegate::call::{Call, Step};
    use tidegate::clock;
    use tidegate::scope::Place;

    let guards = guards(1);
    let scope = guards.scope();
    let mut call = Call::new(guards.plan(None), std::sync::Arc::clone(&scope), clock::now());
    let Step::Admit { cost, limit } = call.begin(clock::now()) else { panic!("a healthy scope") };
    let Ok(Place::Admitted(permit)) = scope.enqueue(clock::now(), cost, limit) else {
        panic!("an empty scope")
    };
    assert!(matches!(call.admitted(clock::now(), permit), Step::Send { number: 1, .. }));
    let Ok(Place::Waiting(second)) = scope.enqueue(clock::now(), cost, limit) else { panic!("a full scope") };
    drop(second);
    assert_eq!(scope.admission(clock::now()).queued, 0);
    drop(call);
    assert_eq!(scope.admission(clock::now()).in_flight, 0);
}
