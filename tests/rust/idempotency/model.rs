//! Random histories: the stores agree with each other and with a model that knows only what was promised.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::idempotency::{Answer, Effect, Failure, Operation, Owner, Resolution};

use super::{LEASE, begin_with, benches, claim, outcome};

#[derive(Debug, Clone)]
enum Step {
    Operation(Operation),
    Pass(Duration),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let effect = prop::sample::select(Effect::ALL.to_vec());
    let claims = || (0..4_u8, 1..4_u64).prop_map(|(owner, fence)| claim(owner, fence));
    let step = prop_oneof![
        6 => (0..4_u8, effect, any::<bool>(), 1..3_u8)
            .prop_map(|(owner, effect, start, payload)| begin_with(owner, effect, start, payload)),
        2 => claims().prop_map(|claim| Operation::Start { claim, lease: LEASE }),
        1 => claims().prop_map(|claim| Operation::Heartbeat { claim, lease: LEASE, note: None }),
        2 => (claims(), any::<bool>())
            .prop_map(|(claim, ok)| Operation::Complete { claim, outcome: outcome(ok, &claim.fence.to_string()) }),
        2 => (claims(), any::<bool>()).prop_map(|(claim, unknown)| {
            let failure = if unknown { Failure::Unknown } else { Failure::NoEffect };
            Operation::Fail { claim, failure }
        }),
        1 => (prop::option::of(1..4_u64), any::<bool>()).prop_map(|(fence, done)| {
            let resolution =
                if done { Resolution::Done(outcome(true, "decided")) } else { Resolution::NotDone };
            Operation::Resolve { fence, resolution }
        }),
    ]
    .prop_map(Step::Operation);
    let pass = prop::sample::select(vec![1_u64, 10_000, 30_000, 31_000, 930_000])
        .prop_map(|millis| Step::Pass(Duration::from_millis(millis)));
    prop::collection::vec(prop_oneof![4 => step, 1 => pass], 1..24)
}

/// What was promised, without a word on how: who may be running the effect, and what the outcome is.
#[derive(Default)]
struct Promises {
    /// Executions that were let in and have neither ended nor been ruled out, with their declarations.
    running: Vec<(Effect, u64)>,
    outcome: Option<tidegate::idempotency::Outcome>,
    highest: u64,
    /// Who acquired last: a claim that is sent again is the same claim.
    holder: Option<(Owner, u64)>,
}

impl Promises {
    fn check(&mut self, operation: &Operation, answer: &Answer) {
        match (operation, answer) {
            (Operation::Begin(begin), Answer::Acquired { fence, .. }) => {
                assert_eq!(self.outcome, None, "an execution although the outcome is known");
                let again = self.holder == Some((begin.owner, *fence));
                if !again {
                    assert!(*fence > self.highest, "fences must rise");
                    let forbidden = self.running.iter().any(|(effect, _)| *effect == Effect::AtMostOnce);
                    assert!(!forbidden, "a second execution of what may have happened once");
                    self.highest = *fence;
                    self.holder = Some((begin.owner, *fence));
                    // A claim that has not started does nothing yet.
                    if begin.start {
                        self.running.push((begin.effect, *fence));
                    }
                }
            }
            (Operation::Begin(_), Answer::Replay(outcome)) => {
                assert_eq!(
                    self.outcome.as_ref(),
                    Some(outcome),
                    "another outcome than the one that was kept"
                );
            }
            // It had not started.
            (Operation::Fail { claim, failure: Failure::Unknown }, Answer::Held)
                if self.running.iter().all(|(_, fence)| *fence != claim.fence) =>
            {
                *self = Self::default();
            }
            (Operation::Complete { claim, outcome }, Answer::Held) => {
                assert_eq!(claim.fence, self.highest, "an outcome from an owner who was replaced");
                self.outcome.get_or_insert_with(|| outcome.clone());
                self.running.clear();
            }
            (
                Operation::Fail { failure: Failure::NoEffect, .. }
                | Operation::Resolve { resolution: Resolution::NotDone, .. },
                Answer::Held,
            ) => {
                *self = Self::default();
            }
            (Operation::Resolve { resolution: Resolution::Done(outcome), .. }, Answer::Held) => {
                assert_eq!(self.outcome, None, "a decision on what is known");
                self.outcome = Some(outcome.clone());
                self.running.clear();
            }
            _ => {}
        }
    }
}

#[test]
fn random_histories_keep_every_promise_and_the_stores_agree() {
    let stores = benches();
    let mut count = 0_u64;
    let cases = if stores.iter().any(|bench| bench.name == "redis") { 400 } else { 1000 };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let check = |steps: Vec<Step>| {
        count += 1;
        let key = format!("history{count}");
        let mut promises = Promises::default();
        let mut effects: HashMap<u64, Effect> = HashMap::new();
        for step in steps {
            let operation = match step {
                Step::Pass(time) => {
                    for bench in &stores {
                        bench.pass(time);
                    }
                    // What expired is as if it had never been; the stores say what has.
                    if stores[0].get(&key).is_none() {
                        promises = Promises::default();
                    }
                    continue;
                }
                Step::Operation(operation) => operation,
            };
            let answers: Vec<_> = stores.iter().map(|bench| bench.apply(&key, &operation)).collect();
            for (bench, answer) in stores.iter().zip(&answers) {
                prop_assert_eq!(answer, &answers[0], "{} differs on {:?}", bench.name, operation);
                prop_assert_eq!(
                    bench.get(&key),
                    stores[0].get(&key),
                    "{} after {:?}",
                    bench.name,
                    &operation
                );
            }
            if let (Operation::Begin(begin), Answer::Acquired { fence, .. }) = (&operation, &answers[0]) {
                effects.entry(*fence).or_insert(begin.effect);
            }
            promises.check(&operation, &answers[0]);
            if let (Operation::Start { claim, .. }, Answer::Held) = (&operation, &answers[0]) {
                let known = promises.running.iter().any(|(_, fence)| *fence == claim.fence);
                if !known {
                    let effect = stores[0].get(&key).map_or(Effect::Read, |record| record.effect);
                    promises.running.push((effect, claim.fence));
                }
            }
            let first = stores[0].now.load(Ordering::SeqCst);
            prop_assert!(stores.iter().all(|bench| bench.now.load(Ordering::SeqCst) == first));
        }
        Ok(())
    };
    let check = std::cell::RefCell::new(check);
    runner.run(&steps(), |steps| (check.borrow_mut())(steps)).unwrap();
}
