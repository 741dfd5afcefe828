//! Hints of the server and limits of the caller: which waits are made, and which are refused.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::call::Plan;
use tidegate::config::{Limits, RetryPolicy};
use tidegate::error::{Reason, TransportErrorKind};

use crate::call::{SEED, Scene, Was, one};
use crate::simulation::driver::{Ended, Reply, Served};
use crate::simulation::{Guards, at};

fn hinted(status: u16, hint: f64) -> Arc<Reply> {
    Reply::new(status, &[("retry-after", &hint.to_string())], "")
}

#[test]
fn a_hint_is_never_undercut_and_hardly_exceeded() {
    let mut above_half = 0;
    for run in 0..10_000_usize {
        let hint = [0.0, 0.1, 0.5, 1.5, 3.0, 10.0][run % 6];
        let status = [429, 503][run / 6 % 2];
        let scene = one(Guards::with_concurrency(5), run as u64, hinted(status, hint));
        // Ceiling of the local backoff, which is the throttle's where the hint does not pace.
        let ceiling = if status == 429 && hint == 0.0 { 1.0 } else { 0.2 };
        let spread = (0.1 * hint + 0.1).min(1.0);
        let wait = scene.sleeps(0)[0].as_secs_f64();
        assert!(wait >= hint, "{status} {hint}: {wait}");
        assert!(wait <= hint.max(ceiling) + spread + 1e-9, "{status} {hint}: {wait}");
        above_half += u32::from(wait > hint.max(ceiling) + spread / 2.0);
        let sent = scene.steps(0).filter(|(_, step)| matches!(step, Was::Send { .. })).nth(1);
        assert!(sent.is_some_and(|(now, _)| now >= at(hint)), "{status} {hint}: {sent:?}");
    }
    assert!(above_half > 2_500, "the spread is used: {above_half}");
}

#[test]
fn a_hint_that_does_not_fit_is_refused_at_once() {
    let unlimited = RetryPolicy { max_elapsed: None, ..RetryPolicy::default() };
    for (retry, hint) in [(RetryPolicy::default(), 30.0), (unlimited, 200.0)] {
        let guards = Guards { retry, ..Guards::with_concurrency(5) };
        let scene = one(guards, SEED, hinted(429, hint));
        let (now, _) = scene.end(0);
        let error = scene.error(0);
        assert_eq!(now, at(0.05), "no time passes after the answer");
        assert_eq!((error.reason, error.attempts), (Reason::HintExceedsBudget, 1));
        assert_eq!(error.retry_after, Some(Duration::from_secs_f64(hint)));
        assert_eq!(scene.balance(0.0).to_string(), "5", "nothing was paid");
        let blocked = scene.scope.admission(at(1.0)).blocked_until;
        assert_eq!(blocked, Some(at(0.05 + hint.min(120.0))), "the whole scope knows");
    }
}

#[test]
fn a_hint_of_one_call_holds_back_the_others() {
    let (throttled, good) = (hinted(429, 5.0), Reply::ok());
    let mut scene = Scene::new(Guards::with_concurrency(5), SEED, move |_, call, number| Served {
        takes: Duration::from_millis(50),
        ended: Ended::Answered(if (call, number) == (0, 1) { throttled.clone() } else { good.clone() }),
    });
    scene.start(0.0, scene.plan());
    let other = scene.start(1.0, scene.plan());
    let hasty = scene.start(2.0, Plan { total: Some(Duration::from_secs(2)), ..scene.plan() });
    scene.run(60.0);
    let sent = scene.steps(other).find(|(_, step)| matches!(step, Was::Send { .. })).map(|(now, _)| now);
    assert_eq!(sent, Some(at(5.05)));
    let (now, _) = scene.end(hasty);
    let error = scene.error(hasty);
    assert_eq!((now, error.reason, error.attempts), (at(2.0), Reason::AdmissionDeadline, 0));
    assert_eq!(error.retry_after, Some(Duration::from_millis(3_050)));
}

/// How one attempt goes.
#[derive(Debug, Clone)]
struct Attempt {
    takes: Duration,
    ended: Ended,
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let hint = prop_oneof![Just(None), (0..40_000_u64).prop_map(Some)];
    let answer =
        (prop::sample::select(vec![200, 500, 503, 429, 429, 400]), hint).prop_map(|(status, hint)| {
            let hint = hint.map(|millis| (millis as f64 / 1000.0).to_string());
            let headers: Vec<_> = hint.iter().map(|hint| ("retry-after", hint.as_str())).collect();
            Ended::Answered(if status == 200 { Reply::ok() } else { Reply::new(status, &headers, "") })
        });
    let failure = prop::sample::select(vec![
        Ended::Failed(TransportErrorKind::Connect),
        Ended::Failed(TransportErrorKind::Reset),
        Ended::Failed(TransportErrorKind::FirstByteTimeout),
    ]);
    let takes = prop_oneof![0..300_u64, 0..20_000_u64].prop_map(Duration::from_millis);
    (takes, prop_oneof![4 => answer, 1 => failure]).prop_map(|(takes, ended)| Attempt { takes, ended })
}

#[derive(Debug, Clone)]
struct Case {
    guards: Guards,
    total: Option<Duration>,
    starts: Vec<u64>,
    attempts: Vec<Attempt>,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let millis = |range: std::ops::Range<u64>| prop::option::of(range.prop_map(Duration::from_millis));
    let guards = (1..4_u32, prop::option::of(20..600_u64), millis(1..30_000), 1..6_u32).prop_map(
        |(concurrency, rpm, max_elapsed, max_attempts)| {
            let guards = Guards::with_concurrency(concurrency);
            Guards {
                limits: Limits { rpm, ..guards.limits },
                retry: RetryPolicy { max_elapsed, max_attempts, ..RetryPolicy::default() },
                ..guards
            }
        },
    );
    let starts = prop::collection::vec(0..10_000_u64, 1..6).prop_map(|mut starts| {
        starts.sort_unstable();
        starts
    });
    let attempts = prop::collection::vec(attempt(), 1..12);
    (guards, millis(1..60_000), starts, attempts, any::<u64>())
        .prop_map(|(guards, total, starts, attempts, seed)| Case { guards, total, starts, attempts, seed })
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let attempts = case.attempts.clone();
    let mut sent = 0;
    let mut scene = Scene::new(case.guards.clone(), case.seed, move |_, _, _| {
        let Attempt { takes, ended } = attempts[sent % attempts.len()].clone();
        sent += 1;
        Served { takes, ended }
    });
    for &start in &case.starts {
        scene.start(start as f64 / 1000.0, Plan { total: case.total, ..scene.plan() });
    }
    scene.run(100_000.0);
    scene.assert_nothing_held(100_000.0);
    (0..case.starts.len()).try_for_each(|call| check_call(case, &scene, call))
}

fn check_call(case: &Case, scene: &Scene, call: usize) -> Result<(), TestCaseError> {
    let started = at(case.starts[call] as f64 / 1000.0);
    let after =
        |limit: Option<Duration>| limit.map_or(tidegate::clock::Instant::FAR_FUTURE, |limit| started + limit);
    let deadline = after(case.total);
    let retry_deadline = after(case.guards.retry.max_elapsed).min(deadline);
    let (ended, result) = scene.end(call);
    let mut last_sent = None;
    let mut first_sent = started;
    for (now, step) in scene.steps(call) {
        match *step {
            Was::Admit { limit, .. } => {
                prop_assert_eq!(limit, if last_sent.is_none() { deadline } else { retry_deadline });
                prop_assert!(now <= limit, "a wait that starts after its limit");
            }
            Was::Send { number: 1 } => {
                prop_assert!(now <= deadline);
                (first_sent, last_sent) = (now, Some(now));
            }
            Was::Send { number } => {
                prop_assert!(now <= retry_deadline, "attempt {} starts too late", number);
                prop_assert!(number <= case.guards.retry.max_attempts);
                last_sent = Some(now);
            }
            Was::Sleep { until } => {
                prop_assert!(until <= retry_deadline, "a sleep that ends too late");
                let sends = scene.steps(call).filter(|(_, step)| matches!(step, Was::Send { .. }));
                let before = sends.filter(|(sent, _)| *sent <= now).count();
                prop_assert!(
                    before < case.guards.retry.max_attempts as usize,
                    "a sleep after the last attempt"
                );
            }
            Was::Done(_) => prop_assert_eq!(now, ended),
        }
    }
    let bound = match (&result, last_sent) {
        // A queue is left when its limit has passed.
        (Err(error), None) if error.reason == Reason::AdmissionDeadline => deadline + Duration::from_nanos(1),
        (Err(error), _) if error.reason == Reason::AdmissionDeadline => {
            retry_deadline + Duration::from_nanos(1)
        }
        (_, Some(sent)) => retry_deadline.max(first_sent) + ended.since(sent),
        (_, None) => started,
    };
    prop_assert!(ended <= bound, "{ended:?} {result:?}");
    if let Err(error) = &result {
        prop_assert_eq!(error.elapsed, ended.since(started));
        prop_assert_eq!(error.attempts as usize, scene.sends(call));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_starts_after_its_limit(case in case()) {
        check(&case)?;
    }
}
