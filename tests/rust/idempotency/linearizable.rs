//! Concurrent histories: there is an order, true to who had ended before whom began, in which one caller after the
//! other would have had the same answers (Wing and Gong).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::idempotency::{Answer, Effect, Failure, Operation, Record, Resolution, apply};

use super::{PATIENCE, begin, benches, claim, complete, outcome};

struct Done {
    operation: Operation,
    answer: Answer,
    began: u64,
    ended: u64,
}

fn has_an_order(history: &[Done], done: u32, state: Option<&Record>, now: u64) -> bool {
    if done.count_ones() as usize == history.len() {
        return true;
    }
    let open = |index: usize| done & (1 << index) == 0;
    history.iter().enumerate().filter(|(index, _)| open(*index)).any(|(index, candidate)| {
        let first = history
            .iter()
            .enumerate()
            .all(|(other, earlier)| !open(other) || other == index || earlier.ended >= candidate.began);
        if !first {
            return false;
        }
        let mut next = state.cloned();
        let (answer, _) = apply(&mut next, &candidate.operation, now);
        answer == candidate.answer && has_an_order(history, done | 1 << index, next.as_ref(), now)
    })
}

fn random_operation(rng: &mut SmallRng, number: u8) -> Operation {
    let fence = rng.random_range(1..3);
    match rng.random_range(0..10) {
        0..5 => begin(number, Effect::Idempotent, true),
        5 | 6 => complete(number, fence, "r"),
        7 => Operation::Fail { claim: claim(number, fence), failure: Failure::NoEffect },
        8 => Operation::Fail { claim: claim(number, fence), failure: Failure::Unknown },
        _ => {
            let resolution =
                if rng.random() { Resolution::NotDone } else { Resolution::Done(outcome(true, "d")) };
            Operation::Resolve { fence: None, resolution }
        }
    }
}

#[test]
fn concurrent_histories_are_linearizable() {
    const CALLERS: u8 = 4;
    const EACH: usize = 2;
    for bench in benches() {
        let now = bench.now.load(Ordering::SeqCst);
        let rounds = if bench.name == "sqlite" { 100 } else { 300 };
        for round in 0..rounds {
            let key = format!("concurrent{round}");
            let clock = Arc::new(AtomicU64::new(0));
            let history = bench.runtime.block_on(async {
                let callers: Vec<_> = (0..CALLERS)
                    .map(|number| {
                        let (store, key, clock) = (Arc::clone(&bench.store), key.clone(), Arc::clone(&clock));
                        let mut rng = SmallRng::seed_from_u64(round * 10 + u64::from(number));
                        tokio::spawn(async move {
                            let mut done = Vec::new();
                            for _ in 0..EACH {
                                let operation = random_operation(&mut rng, number);
                                let began = clock.fetch_add(1, Ordering::SeqCst);
                                let answer = store.apply(&key, &operation, PATIENCE).await.unwrap();
                                let ended = clock.fetch_add(1, Ordering::SeqCst);
                                done.push(Done { operation, answer, began, ended });
                            }
                            done
                        })
                    })
                    .collect();
                let mut history = Vec::new();
                for caller in callers {
                    history.extend(caller.await.unwrap());
                }
                history
            });
            let told: Vec<_> =
                history.iter().map(|done| (done.began, done.ended, &done.operation, &done.answer)).collect();
            assert!(has_an_order(&history, 0, None, now), "{} has no order for {told:#?}", bench.name);
        }
    }
}

#[test]
fn the_checker_refuses_what_no_order_explains() {
    let acquired = || Answer::Acquired { fence: 1, attempts: 1 };
    let twice = [1, 2].map(|number| Done {
        operation: begin(number, Effect::AtMostOnce, true),
        answer: acquired(),
        began: 0,
        ended: 9,
    });
    assert!(!has_an_order(&twice, 0, None, 1));
    let late = |began, ended, answer| Done { operation: complete(1, 1, "r"), answer, began, ended };
    let first =
        || Done { operation: begin(1, Effect::AtMostOnce, true), answer: acquired(), began: 2, ended: 3 };
    assert!(has_an_order(&[late(0, 1, Answer::Stale), first()], 0, None, 1));
    assert!(!has_an_order(&[late(0, 1, Answer::Held), first()], 0, None, 1), "it ended before the claim");
}
