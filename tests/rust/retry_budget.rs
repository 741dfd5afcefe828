//! The retry budget: bounds under threads and random use, and no harm while the upstream is merely unreliable.

use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::clock::Instant;
use tidegate::config::RetryBudgetPolicy;
use tidegate::lock::Mutex;
use tidegate::retry_budget::{Cost, RetryBudget, Withdrawal};

const COSTS: [Cost; 3] = [Cost::Plain, Cost::OutcomeUnknown, Cost::Hinted];

#[test]
fn sixty_four_threads_cannot_overdraw_it() {
    const THREADS: u64 = 64;
    const OPERATIONS: u64 = 1_000_000 / THREADS;
    const CAPACITY: f64 = 32.0;
    let policy = RetryBudgetPolicy { trickle: 0.0, ..Default::default() };
    let budget = Mutex::new(RetryBudget::new(&policy, Some(32), Instant::ZERO));
    let work = |seed| {
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut held: Vec<Withdrawal> = Vec::new();
        let (mut paid, mut earned) = (0.0, 0.0);
        for _ in 0..OPERATIONS {
            let mut budget = budget.lock();
            match rng.random_range(0..6) {
                0 => {
                    if let Some(withdrawal) = held.pop() {
                        budget.refund(withdrawal);
                    }
                }
                1 => {
                    earned += 0.1;
                    budget.deposit_success(Instant::ZERO, None);
                }
                2 => {
                    earned += 0.1;
                    budget.deposit_success(Instant::ZERO, held.pop());
                }
                cost => {
                    let before = budget.snapshot(Instant::ZERO).balance;
                    if let Ok(withdrawal) = budget.withdraw(Instant::ZERO, COSTS[cost - 3]) {
                        paid += before - budget.snapshot(Instant::ZERO).balance;
                        if rng.random_bool(0.5) {
                            held.push(withdrawal);
                        } else {
                            drop(withdrawal);
                        }
                    }
                }
            }
            let balance = budget.snapshot(Instant::ZERO).balance;
            assert!((0.0..=CAPACITY).contains(&balance), "{balance}");
        }
        for withdrawal in held {
            budget.lock().refund(withdrawal);
        }
        (paid, earned)
    };
    let work = &work;
    let (paid, earned) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().fold((0.0, 0.0), |sums, thread| {
            let (paid, earned) = thread.join().unwrap();
            (sums.0 + paid, sums.1 + earned)
        })
    });
    assert!(paid > 10_000.0 && earned > 10_000.0, "the threads did meet the bounds: {paid} {earned}");
    assert!(budget.lock().snapshot(Instant::ZERO).refused_total > 1000);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(u64),
    Withdraw(usize),
    Refund,
    Lose,
    Success,
    SuccessOnRetry,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..20_000_u64).prop_map(Step::Wait),
        (0..3_usize).prop_map(Step::Withdraw),
        (0..3_usize).prop_map(Step::Withdraw),
        Just(Step::Refund),
        Just(Step::Lose),
        Just(Step::Success),
        Just(Step::SuccessOnRetry),
    ];
    prop::collection::vec(step, 1..200)
}

fn millis(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

proptest! {
    /// The model is a float between 0 and the capacity.
    #[test]
    fn does_what_a_float_does(concurrency in 0..100_u32, steps in steps()) {
        let policy = RetryBudgetPolicy::default();
        let mut budget = RetryBudget::new(&policy, Some(concurrency), Instant::ZERO);
        let capacity = f64::from(concurrency).clamp(3.0, 32.0);
        let mut balance = capacity;
        let mut held: Vec<(Withdrawal, f64)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Wait(wait) => {
                    now += wait;
                    balance += wait as f64 / 60_000.0;
                }
                Step::Withdraw(cost) => {
                    let price = [1.0, 2.0, 0.5][cost];
                    // Where the float is within rounding of the price either answer is right.
                    let clear = (balance - price).abs() > 0.001;
                    match budget.withdraw(millis(now), COSTS[cost]) {
                        Ok(withdrawal) => {
                            prop_assert!(balance >= price || !clear, "{balance} < {price}");
                            balance -= price;
                            held.push((withdrawal, price));
                        }
                        Err(empty) => {
                            prop_assert!(balance < price || !clear, "{balance} >= {price}");
                            let refill_in = empty.refill_in.unwrap().as_secs_f64();
                            prop_assert!((refill_in - (price - balance) * 60.0).abs() < 0.1);
                        }
                    }
                }
                Step::Refund => {
                    if let Some((withdrawal, price)) = held.pop() {
                        budget.refund(withdrawal);
                        balance += price;
                    }
                }
                Step::Lose => drop(held.pop()),
                Step::Success => {
                    budget.deposit_success(millis(now), None);
                    balance += 0.1;
                }
                Step::SuccessOnRetry => {
                    if let Some((withdrawal, price)) = held.pop() {
                        budget.deposit_success(millis(now), Some(withdrawal));
                        balance += price + 0.1;
                    }
                }
            }
            balance = balance.clamp(0.0, capacity);
            let snapshot = budget.snapshot(millis(now));
            prop_assert!((snapshot.balance - balance).abs() < 0.001, "{} {balance}", snapshot.balance);
            prop_assert!((0.0..=capacity).contains(&snapshot.balance));
        }
    }
}

/// 20 calls per second for 300 s, each attempt failing with probability `failing`; returns the share of calls
/// that succeed and the attempts per call.
fn service(failing: f64, mut budget: Option<RetryBudget>) -> (f64, f64) {
    const CALLS: u64 = 20 * 300;
    let rng = &mut StdRng::seed_from_u64(7);
    let (mut succeeded, mut attempts) = (0_u32, 0_u32);
    for call in 0..CALLS {
        let now = millis(call * 50);
        let mut paid = None;
        for attempt in 0..4 {
            attempts += 1;
            if !rng.random_bool(failing) {
                succeeded += 1;
                if let Some(budget) = &mut budget {
                    budget.deposit_success(now, paid.take());
                }
                break;
            }
            if attempt == 3 {
                break;
            }
            if let Some(budget) = &mut budget {
                match budget.withdraw(now, Cost::Plain) {
                    Ok(withdrawal) => paid = Some(withdrawal),
                    Err(_) => break,
                }
            }
        }
    }
    (f64::from(succeeded) / CALLS as f64, f64::from(attempts) / CALLS as f64)
}

#[test]
fn does_no_harm_up_to_one_failure_in_five() {
    for failing in [0.01, 0.05, 0.1, 0.2] {
        let budget = RetryBudget::new(&RetryBudgetPolicy::default(), None, Instant::ZERO);
        let (with, _) = service(failing, Some(budget));
        let (without, _) = service(failing, None);
        assert!(with >= 0.998 && (with - without).abs() <= 0.001, "{failing}: {with} against {without}");
    }
}

#[test]
fn holds_retries_down_in_an_outage() {
    let budget = RetryBudget::new(&RetryBudgetPolicy::default(), None, Instant::ZERO);
    let (_, attempts) = service(1.0, Some(budget));
    let (_, unbounded) = service(1.0, None);
    assert!(attempts < 1.01, "32 at once and 5 from the trickle on 6,000 calls: {attempts}");
    assert!(unbounded > 3.99, "the control");
}
