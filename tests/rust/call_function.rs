//! Calls whose attempts are a function of the caller's.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tidegate::call::{Call, Plan, Raised, Step};
use tidegate::classify::Class;
use tidegate::clock::Instant;
use tidegate::config::Limits;
use tidegate::error::{CallError, Reason};
use tidegate::scope::{Place, Scope};

use crate::call::SEED;
use crate::simulation::{Guards, at};

/// A call that is being made, and the time of it.
struct Scene {
    scope: Arc<Scope>,
    call: Call,
    now: Instant,
    rng: StdRng,
}

impl Scene {
    fn new(cost: u64) -> Self {
        let limits = Limits { tpm: Some(60_000), headroom: 0.0, learn: false, ..Limits::default() };
        let guards = Guards { limits, ..Guards::with_concurrency(10) };
        let scope = guards.scope();
        let plan = Plan { cost, least_cost: cost, ..guards.plan(None) };
        let call = Call::new(plan, Arc::clone(&scope), at(0.0));
        Self { scope, call, now: at(0.0), rng: StdRng::seed_from_u64(SEED) }
    }

    fn enter(&mut self, step: Step) -> Step {
        let Step::Admit { cost, limit } = step else { return step };
        let Place::Admitted(permit) = self.scope.enqueue(self.now, cost, limit).expect("room") else {
            panic!("to be admitted")
        };
        self.call.admitted(self.now, permit)
    }

    fn begin(&mut self) {
        let step = self.call.begin(self.now);
        assert!(matches!(self.enter(step), Step::Send { .. }));
    }

    fn raise(&mut self, class: Class, transient: bool, hint: Option<Duration>) -> Step {
        let message = String::from("no");
        let raised = Raised { class, transient, repeatable: true, hint, outcome_unknown: false, message };
        self.call.raised(self.now, raised, &mut self.rng)
    }

    fn sleep(&mut self, step: &Step) -> Duration {
        let Step::Sleep { until } = step else { panic!("to sleep: {step:?}") };
        let waited = until.since(self.now);
        self.now = *until;
        let step = self.call.slept(self.now);
        assert!(matches!(self.enter(step), Step::Send { .. }));
        waited
    }

    fn tokens(&self) -> f64 {
        self.scope.admission(self.now).tokens.expect("limited").level
    }
}

fn failed(step: Step) -> Box<CallError> {
    let Step::Done(Err(error)) = step else { panic!("to fail: {step:?}") };
    error
}

#[test]
fn it_is_called_again_as_a_request_is_sent_again() {
    let mut scene = Scene::new(1_000);
    scene.begin();
    for hint in [None, Some(Duration::from_secs(2)), None] {
        let step = scene.raise(Class::ServerError, true, hint);
        assert!(scene.sleep(&step) >= hint.unwrap_or_default());
    }
    let error = failed(scene.raise(Class::ServerError, true, None));
    assert_eq!((error.reason, error.attempts, error.kind()), (Reason::Attempts, 4, "server_error"));
    assert_eq!(error.status(), None);
    assert_eq!(scene.scope.admission(scene.now).in_flight, 0);
    assert_eq!(scene.tokens(), 6_000.0, "what failed has used nothing");
}

#[test]
fn what_is_no_failure_of_the_upstream_is_told_at_once_and_not_counted() {
    let mut scene = Scene::new(0);
    scene.begin();
    let error = failed(scene.raise(Class::InvalidRequest, false, None));
    assert_eq!((error.reason, error.attempts), (Reason::NonRetryable, 1));
    let breaker = scene.scope.breaker.as_ref().expect("there is one").lock().snapshot(scene.now);
    assert_eq!(breaker.window.total, 0);
}

#[test]
fn what_it_has_used_is_settled_and_a_success_pays_back_its_retry() {
    let mut scene = Scene::new(1_000);
    scene.begin();
    let step = scene.raise(Class::Timeout, true, None);
    scene.sleep(&step);
    let balance =
        |scene: &Scene| scene.scope.budget.as_ref().expect("there is one").lock().snapshot(scene.now).balance;
    let before = balance(&scene);
    assert!(matches!(scene.call.returned(scene.now, Some(400)), Step::Done(Ok(()))));
    assert!(balance(&scene) > before);
    assert_eq!(scene.tokens(), 5_600.0);
    assert_eq!(scene.scope.admission(scene.now).in_flight, 0);
}
