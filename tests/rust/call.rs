//! The life of a call, step by step and in virtual time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rand::SeedableRng;
use rand::rngs::StdRng;
use tidegate::backoff::{self, BackoffClass};
use tidegate::call::{Call, Plan, Step};
use tidegate::clock::Instant;
use tidegate::error::{CallError, Reason};
use tidegate::price::PriceBook;
use tidegate::scope::Scope;

use crate::simulation::driver::{Caller, Driver, Ended, Reply, Served, World};
use crate::simulation::{Guards, at};

pub(crate) const SEED: u64 = 7;
/// How long [`answers`] and [`breaks`] take.
pub(crate) const QUICK: Duration = Duration::from_millis(50);

/// A step that a call has come to.
#[derive(Debug, Clone)]
pub(crate) enum Was {
    Admit { cost: u64, limit: Instant },
    Send { number: u32 },
    Sleep { until: Instant },
    Done(Result<(), Box<CallError>>),
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) call: usize,
    pub(crate) step: Was,
}

/// What an upstream does with attempt `number` of a call that reaches it at a time.
type Upstream = Box<dyn FnMut(Instant, usize, u32) -> Served>;

/// An upstream that follows a script. It watches that a call in flight holds a place, and no other does.
pub(crate) struct Script {
    upstream: Upstream,
    scope: Arc<Scope>,
    in_flight: HashSet<usize>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) given: Vec<Ended>,
}

impl World for Script {
    fn serve(&mut self, now: Instant, call: usize, number: u32) -> Served {
        let served = (self.upstream)(now, call, number);
        self.given.push(served.ended.clone());
        served
    }

    fn watch(&mut self, now: Instant, call: usize, step: &Step) {
        let step = match step {
            Step::Admit { cost, limit } => Was::Admit { cost: *cost, limit: *limit },
            Step::Send { number, .. } => Was::Send { number: *number },
            Step::Sleep { until } => Was::Sleep { until: *until },
            Step::Done(result) => Was::Done(result.clone()),
        };
        if let Was::Send { .. } = step {
            self.in_flight.insert(call);
        } else {
            self.in_flight.remove(&call);
        }
        assert!(
            self.in_flight.len() <= self.scope.admission(now).in_flight,
            "sent without a place: {step:?}"
        );
        self.seen.push(Seen { at: now, call, step });
    }
}

/// Calls of one scope.
pub(crate) struct Scene {
    pub(crate) guards: Guards,
    pub(crate) scope: Arc<Scope>,
    pub(crate) driver: Driver<Script>,
}

impl Scene {
    pub(crate) fn new(
        guards: Guards,
        seed: u64,
        upstream: impl FnMut(Instant, usize, u32) -> Served + 'static,
    ) -> Self {
        let scope = guards.scope();
        let script = Script {
            upstream: Box::new(upstream),
            scope: Arc::clone(&scope),
            in_flight: HashSet::new(),
            seen: Vec::new(),
            given: Vec::new(),
        };
        Self { guards, scope, driver: Driver::new(script, seed) }
    }

    pub(crate) fn plan(&self) -> Plan {
        self.guards.plan(None)
    }

    pub(crate) fn start(&mut self, seconds: f64, plan: Plan) -> usize {
        let now = at(seconds);
        self.driver.run(now);
        let attempt_timeout = plan.attempt_timeout;
        let call = Box::new(Call::new(plan, Arc::clone(&self.scope), now));
        self.driver.start(now, Caller::Guarded { call, scope: Arc::clone(&self.scope) }, attempt_timeout)
    }

    pub(crate) fn run(&mut self, seconds: f64) {
        self.driver.run(at(seconds));
    }

    pub(crate) fn abandon(&mut self, seconds: f64, call: usize) {
        self.driver.run(at(seconds));
        self.driver.abandon(at(seconds), call);
    }

    pub(crate) fn steps(&self, call: usize) -> impl Iterator<Item = (Instant, &Was)> {
        self.driver.world.seen.iter().filter(move |seen| seen.call == call).map(|seen| (seen.at, &seen.step))
    }

    pub(crate) fn sends(&self, call: usize) -> usize {
        self.steps(call).filter(|(_, step)| matches!(step, Was::Send { .. })).count()
    }

    pub(crate) fn sleeps(&self, call: usize) -> Vec<Duration> {
        let sleep = |(now, step): (Instant, &Was)| match step {
            Was::Sleep { until } => Some(until.since(now)),
            _ => None,
        };
        self.steps(call).filter_map(sleep).collect()
    }

    /// When and how the call ended.
    pub(crate) fn end(&self, call: usize) -> (Instant, Result<(), Box<CallError>>) {
        let done = |(now, step): (Instant, &Was)| match step {
            Was::Done(result) => Some((now, result.clone())),
            _ => None,
        };
        self.steps(call).find_map(done).unwrap_or_else(|| panic!("call {call} has not ended"))
    }

    pub(crate) fn error(&self, call: usize) -> CallError {
        *self.end(call).1.expect_err("the call failed")
    }

    pub(crate) fn balance(&self, seconds: f64) -> f64 {
        self.scope.budget.as_ref().expect("a budget").lock().snapshot(at(seconds)).balance
    }

    pub(crate) fn breaker(&self, seconds: f64) -> tidegate::breaker::Snapshot {
        self.scope.breaker.as_ref().expect("a breaker").lock().snapshot(at(seconds))
    }

    pub(crate) fn assert_nothing_held(&self, seconds: f64) {
        let admission = self.scope.admission(at(seconds));
        assert_eq!((admission.in_flight, admission.queued), (0, 0), "at {seconds} s");
        assert_eq!(self.breaker(seconds).probes_in_flight, 0, "at {seconds} s");
    }
}

pub(crate) fn answers(reply: &Arc<Reply>) -> Served {
    Served { takes: QUICK, ended: Ended::Answered(Arc::clone(reply)) }
}

pub(crate) fn status(status: u16) -> Arc<Reply> {
    if status == 200 { Reply::ok() } else { Reply::new(status, &[], "") }
}

/// One call to an upstream that always gives this answer.
pub(crate) fn one(guards: Guards, seed: u64, reply: Arc<Reply>) -> Scene {
    let mut scene = Scene::new(guards, seed, move |_, _, _| answers(&reply));
    scene.start(0.0, scene.plan());
    scene.run(1000.0);
    scene
}

#[test]
fn a_call_that_fails_to_the_end_takes_these_steps() {
    let guards = Guards::with_concurrency(1000);
    let scene = one(guards.clone(), SEED, status(500));

    let rng = &mut StdRng::seed_from_u64(SEED);
    let mut now = at(0.0);
    let mut expected = Vec::new();
    for number in 1..=4 {
        let limit = if number == 1 { "never".to_owned() } else { "15.000000000s".to_owned() };
        expected.push(format!("{now:?} admit 0 by {limit}"));
        expected.push(format!("{now:?} send {number}"));
        now = now + QUICK;
        if number < 4 {
            let until = now + backoff::delay(&guards.retry, number - 1, BackoffClass::Transient, None, rng);
            expected.push(format!("{now:?} sleep until {until:?}"));
            now = until;
        }
    }
    expected.push(format!("{now:?} attempts after 4, {:?}", now.since(at(0.0))));
    let told = |(at, step): (Instant, &Was)| match step {
        Was::Admit { cost, limit } => format!("{at:?} admit {cost} by {limit:?}"),
        Was::Send { number } => format!("{at:?} send {number}"),
        Was::Sleep { until } => format!("{at:?} sleep until {until:?}"),
        Was::Done(Ok(())) => format!("{at:?} ok"),
        Was::Done(Err(error)) => {
            format!("{at:?} {} after {}, {:?}", error.reason.as_str(), error.attempts, error.elapsed)
        }
    };
    assert_eq!(scene.steps(0).map(told).collect::<Vec<_>>(), expected);
    assert_eq!(scene.error(0).status(), Some(500));
    scene.assert_nothing_held(1000.0);
}

/// The first run of the text that the defaults come from.
#[test]
fn thirty_calls_of_which_the_first_three_attempts_fail() {
    let mut attempts = 0;
    let (good, bad) = (status(200), status(500));
    let mut scene = Scene::new(Guards::with_concurrency(30), SEED, move |_, _, _| {
        attempts += 1;
        answers(if attempts <= 3 { &bad } else { &good })
    });
    for _ in 0..30 {
        scene.start(0.0, scene.plan());
    }
    scene.run(60.0);

    let ok = (0..30).filter(|&call| scene.end(call).1.is_ok()).count();
    let retries: usize = (0..30).map(|call| scene.sleeps(call).len()).sum();
    let attempts: usize = (0..30).map(|call| scene.sends(call)).sum();
    assert_eq!((ok, retries, attempts), (30, 3, 33));

    let prices = PriceBook::from_json(r#"{"m":{"input":"0.15","output":"0.60"}}"#).unwrap();
    let usages = scene.driver.world.given.iter().filter_map(|ended| match ended {
        Ended::Answered(reply) => reply.usage,
        Ended::Failed(_) => None,
    });
    let (mut input, mut output, mut cost) = (0, 0, 0);
    for usage in usages {
        input += usage.input;
        output += usage.output;
        cost += prices.cost("m", None, &usage, UNIX_EPOCH).unwrap().get();
    }
    assert_eq!((input, output), (360, 150));
    assert_eq!(cost, 144_000_000, "0.000144 USD in pico-dollars");
    scene.assert_nothing_held(60.0);
}

#[test]
fn what_no_retry_can_mend_is_sent_once_and_tells_the_breaker_nothing() {
    let too_large = r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 30000, Requested 30601. The input or output tokens must be reduced in order to run successfully.","type":"tokens","code":"rate_limit_exceeded"}}"#;
    let quota = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let plain = [400, 401, 403, 404, 413, 422].map(|status| (status, ""));
    for (status, body) in plain.into_iter().chain([(429, quota), (429, too_large)]) {
        let (good, bad) = (Reply::ok(), Reply::new(status, &[], body));
        let mut scene = Scene::new(Guards::with_concurrency(5), SEED, move |_, call, _| {
            answers(if call == 0 { &good } else { &bad })
        });
        scene.start(0.0, scene.plan());
        scene.run(1.0);
        let (window, balance) = (scene.breaker(1.0).window, scene.balance(1.0));
        let call = scene.start(1.0, scene.plan());
        scene.run(100.0);
        let error = scene.error(call);
        assert_eq!((error.reason, error.attempts), (Reason::NonRetryable, 1), "{status} {body}");
        assert_eq!(scene.sends(call), 1, "{status} {body}");
        assert_eq!(scene.breaker(2.0).window, window, "{status} {body}");
        assert_eq!(scene.balance(1.0).to_string(), balance.to_string(), "{status} {body}");
        assert_eq!(window.total, 1, "the success before was counted");
    }
}

#[test]
fn an_answer_without_choices_is_repeated_once() {
    let scene = one(Guards::with_concurrency(5), SEED, Reply::new(200, &[], r#"{"choices":[]}"#));
    assert_eq!((scene.sends(0), scene.error(0).reason), (2, Reason::NonRetryable));
    assert_eq!(scene.breaker(1.0).window.failures, 1, "one call, one failure");
}

#[test]
fn the_callers_deadline_cuts_the_attempt_in_flight() {
    let good = Reply::ok();
    let mut scene = Scene::new(Guards::with_concurrency(5), SEED, move |_, _, _| Served {
        takes: Duration::from_secs(30),
        ended: Ended::Answered(good.clone()),
    });
    let plan = Plan { total: Some(Duration::from_secs(2)), ..scene.plan() };
    scene.start(0.0, plan);
    scene.run(60.0);
    let (now, _) = scene.end(0);
    let error = scene.error(0);
    assert_eq!((now, error.reason, error.attempts), (at(2.0), Reason::Deadline, 1));
    assert_eq!(scene.breaker(3.0).window.total, 0, "that the caller was in a hurry is no failure");
    scene.assert_nothing_held(60.0);
}
