//! What the gates cost a call that nothing stops: all of them on, through the state machine that every call
//! runs through, without network and without anybody else; then each mechanism for itself.

#![allow(clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use criterion::{Criterion, criterion_group, criterion_main};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tidegate::admission::{Admission, Announced, Entry, Settlement};
use tidegate::backoff::{self, BackoffClass};
use tidegate::breaker::{Breaker, Outcome};
use tidegate::call::{Answered, Call, Plan, Spending, Step};
use tidegate::classify::Verdict;
use tidegate::clock::Instant;
use tidegate::config::{BreakerPolicy, Limits, OnOpen, RetryBudgetPolicy, RetryPolicy, SpendCap};
use tidegate::error::Cause;
use tidegate::money::Pico;
use tidegate::retry_budget::{Cost, RetryBudget};
use tidegate::scope::{Place, Scope, ScopeKey};
use tidegate::spend::{Moment, SpendLedger};

const START: Instant = Instant::from_nanos(3_600_000_000_000);
/// Between one call and the next, so that windows slide and buckets refill.
const PAUSE: Duration = Duration::from_micros(100);
const TAKES: Duration = Duration::from_millis(800);
const RESERVED: u64 = 350;
const USED: u64 = 120;
const COST: Pico = Pico::new(144_000_000);
const MOST: Pico = Pico::new(288_000_000);

/// None of them is ever reached.
fn limits() -> Limits {
    let (rpm, tpm) = (Some(60_000_000), Some(60_000_000_000));
    Limits { concurrency: Some(20_000), rpm, tpm, ..Limits::default() }
}

fn ledger() -> Arc<SpendLedger> {
    SpendLedger::new(vec![SpendCap::new(Pico::new(u128::MAX))], START)
}

fn scope() -> Arc<Scope> {
    let key = ScopeKey { origin: "https://api.test".into(), credential: 1, model: "gpt-5.4-mini".into() };
    let (breaker, budget) = (BreakerPolicy::default(), RetryBudgetPolicy::default());
    Scope::new(key, &limits(), Some(&breaker), Some(&budget), START)
}

fn plan(spending: Option<Spending>) -> Plan {
    let retry = RetryPolicy::default();
    Plan {
        max_attempts: retry.max_attempts,
        retry: Arc::new(retry),
        total: Some(Duration::from_secs(60)),
        attempt_timeout: Some(Duration::from_secs(30)),
        cost: RESERVED,
        least_cost: RESERVED,
        replay_unsafe: false,
        stream: false,
        on_open: OnOpen::Fail,
        resent_after: None,
        spending,
    }
}

/// From the first gate to the last settlement, as `drive.rs` leads it.
fn one_call(scope: &Arc<Scope>, plan: &Plan, now: Instant, rng: &mut SmallRng) {
    let mut call = Call::new(plan.clone(), Arc::clone(scope), now);
    let Step::Admit { cost, limit } = call.begin(now) else { panic!("a gate is closed") };
    let Ok(Place::Admitted(permit)) = scope.enqueue(now, cost, limit) else { panic!("a limit is reached") };
    let Step::Send { .. } = call.admitted(now, permit) else { panic!("a gate is closed") };
    let answer = Answered {
        verdict: Verdict::success(200),
        cause: Cause::Local { message: String::new() },
        settlement: Settlement::Used { tokens: USED },
        cost: Some(COST),
        announced: Announced::default(),
        status: 200,
        request_id: None,
        first_byte: Some(TAKES),
    };
    let Step::Done(Ok(())) = call.answered(now + TAKES, answer, rng) else { panic!("not a success") };
    black_box(call.take_events());
}

fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("gates");
    let mut rng = SmallRng::seed_from_u64(1);
    let spending = Spending {
        ledger: ledger(),
        tags: vec![(String::from("route"), String::from("summarise"))],
        max_cost: Some(MOST),
        started: (START, UNIX_EPOCH),
    };
    for (name, spending) in [("one call, all on", None), ("one call, all on, spend cap too", Some(spending))]
    {
        let (scope, plan, mut now) = (scope(), plan(spending), START);
        group.bench_function(name, |b| {
            b.iter(|| {
                now = now + PAUSE;
                one_call(&scope, black_box(&plan), now, &mut rng);
            });
        });
    }
    group.finish();
}

fn parts(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate");
    let mut now = START;

    let mut breaker = Breaker::new(&BreakerPolicy::default(), now);
    group.bench_function("breaker: peek, acquire, record", |b| {
        b.iter(|| {
            now = now + PAUSE;
            breaker.peek(now).expect("closed");
            let ticket = breaker.acquire(now, Some(TAKES)).expect("closed");
            breaker.record(now, black_box(ticket), Outcome::Success);
        });
    });

    let mut admission = Admission::new(&limits(), now);
    group.bench_function("admission: enqueue, settle", |b| {
        b.iter(|| {
            now = now + PAUSE;
            let entry = admission.enqueue(now, black_box(RESERVED), Instant::FAR_FUTURE);
            let Ok(Entry::Granted(ticket)) = entry else { panic!("a limit is reached") };
            admission.settle(now, ticket, Settlement::Used { tokens: USED });
        });
    });

    let mut budget = RetryBudget::new(&RetryBudgetPolicy::default(), Some(1000), now);
    group.bench_function("retry budget: withdraw, refund", |b| {
        b.iter(|| {
            now = now + PAUSE;
            let paid = budget.withdraw(now, black_box(Cost::Plain)).expect("it was refunded");
            budget.deposit_success(now, Some(paid));
        });
    });

    let ledger = ledger();
    let tags = [("route", "summarise")];
    group.bench_function("spend ledger: check, reserve, settle", |b| {
        b.iter(|| {
            now = now + PAUSE;
            let at = Moment { now, wall: UNIX_EPOCH };
            ledger.check(at, &tags, Some(MOST)).expect("far from the cap");
            let mut held = ledger.reserve(at, &tags, black_box(Some(MOST))).expect("far from the cap");
            held.mark_sent();
            held.settle(Some(COST));
        });
    });

    let (policy, mut rng) = (RetryPolicy::default(), SmallRng::seed_from_u64(1));
    group.bench_function("backoff: one wait", |b| {
        b.iter(|| backoff::delay(&policy, black_box(2), BackoffClass::Throttle, None, &mut rng));
    });
    group.finish();
}

criterion_group!(benches, whole, parts);
criterion_main!(benches);
