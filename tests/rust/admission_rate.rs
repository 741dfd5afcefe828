//! What the buckets grant: never more than they say, never noticeably less, whatever the clock does.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::admission::{Admission, Entry, Settlement};
use tidegate::clock::Instant;
use tidegate::config::{Limits, Oversize, Start};

use crate::admission_sim::{SECOND, Sim, at, limits};

const MINUTE: u64 = 60 * SECOND;

/// (nanoseconds, tokens) of each grant.
type Grants = Vec<(u64, u64)>;

/// Random arrivals and costs for `length` ns.
fn random_run(limits: &Limits, largest: u64, load: f64, length: u64, rng: &mut SmallRng) -> Grants {
    let mut sim = Sim::new(limits);
    let per_second = limits.tpm.expect("a token limit") as f64 / 60.0 / (largest as f64 / 2.0);
    let mean_gap = 1e9 / (per_second * load);
    let mut time = 0.0;
    while time < length as f64 {
        let cost = rng.random_range(0..=largest);
        // Bursts and lulls: gaps from none to four times the mean.
        let gap = if rng.random::<bool>() { 0.0 } else { 4.0 * rng.random::<f64>() };
        time += gap * mean_gap;
        sim.schedule(Instant::from_nanos(time as u64), cost);
    }
    let mut grants = Vec::new();
    let mut costs = std::collections::HashMap::new();
    while let Some(event) = sim.step(Instant::from_nanos(length)) {
        if let Some(cost) = event {
            match sim.enqueue(cost) {
                Entry::Granted(_) => grants.push((sim.now.as_nanos(), cost)),
                Entry::Queued(ticket) => drop(costs.insert(ticket, cost)),
            }
        }
        for ticket in sim.granted() {
            grants.push((sim.now.as_nanos(), costs[&ticket]));
        }
    }
    grants
}

/// Every window from one grant to another, both included.
fn windows(grants: &Grants) -> impl Iterator<Item = (u64, u128)> {
    grants.iter().enumerate().flat_map(|(i, &(start, _))| {
        grants[i..].iter().scan(0_u128, move |sum, &(end, cost)| {
            *sum += u128::from(cost);
            Some((end - start, *sum))
        })
    })
}

#[test]
fn no_window_exceeds_burst_plus_rate() {
    let mut windows_seen = 0_u32;
    for seed in 0..1_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let tpm = rng.random_range(100..2_000_000_u64);
        let mut limits = limits(None, Some(tpm));
        limits.headroom = f64::from(rng.random_range(0..90_u32)) / 100.0;
        limits.tpm_burst_seconds = f64::from(rng.random_range(1..60_u32));
        let capacity = (u128::from(tpm) * limits.tpm_burst_seconds as u128).div_ceil(60);
        let rate = u128::from(tpm) * ((1.0 - limits.headroom) * 1e6).round() as u128;
        let grants =
            random_run(&limits, capacity as u64, 0.5 + 2.0 * rng.random::<f64>(), 2 * MINUTE, &mut rng);
        for (length, sum) in windows(&grants) {
            windows_seen += 1;
            let bound = capacity * 1_000_000 * u128::from(MINUTE) + rate * u128::from(length);
            assert!(
                sum * 1_000_000 * u128::from(MINUTE) <= bound,
                "seed {seed}: {sum} tokens in {length} ns"
            );
        }
    }
    assert!(windows_seen > 100_000, "{windows_seen}");
}

#[test]
fn strict_minute_keeps_every_minute_within_the_quota() {
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let tpm = rng.random_range(1..10_000_u64);
        let mut limits = limits(None, Some(tpm));
        (limits.strict_minute, limits.headroom) = (true, 0.0);
        limits.tpm_burst_seconds = f64::from(rng.random_range(1..30_u32));
        // Costs up to the whole quota: larger than the burst.
        let grants = random_run(&limits, tpm, 3.0, 10 * MINUTE, &mut rng);
        assert!(grants.len() > 1, "seed {seed}");
        for (length, sum) in windows(&grants) {
            assert!(length > MINUTE || sum <= u128::from(tpm), "seed {seed}: {sum} of {tpm} in {length} ns");
        }
    }
}

#[test]
fn a_saturated_minute_uses_all_that_was_promised() {
    for (rpm, tpm, cost) in
        [(Some(600), None, 1), (None, Some(90_000), 50), (Some(6_000), Some(1_200_000), 200)]
    {
        let limits = limits(rpm, tpm);
        let mut sim = Sim::<()>::new(&limits);
        let mut granted = 0_u64;
        for _ in 0..20_000 {
            granted += u64::from(matches!(sim.enqueue(cost), Entry::Granted(_)));
        }
        while sim.step(at(60.0)).is_some() {
            granted += sim.granted().len() as u64;
        }
        let promised = |limit: Option<u64>, burst: f64, unit: u64| {
            limit.map_or(f64::MAX, |limit| limit as f64 * (burst / 60.0 + 0.9) / unit as f64)
        };
        let promised = promised(rpm, 1.0, 1).min(promised(tpm, 6.0, cost));
        assert!(granted as f64 >= 0.999 * promised, "{granted} of {promised}");
        assert!(granted as f64 <= promised);
    }
}

#[test]
fn an_oversize_request_runs_into_debt() {
    let limits = limits(None, Some(100_000));
    let mut sim = Sim::<()>::new(&limits);
    assert!(matches!(sim.enqueue(1), Entry::Granted(_)));
    let Entry::Queued(large) = sim.enqueue(25_000) else { panic!("the bucket is not full") };
    let Entry::Queued(next) = sim.enqueue(600) else { panic!("not the first in line") };
    assert_eq!(sim.step(at(60.0)), Some(None));
    assert_eq!(sim.granted(), [large]);
    // 1 token at 1,500 per second, rounded up to the nanosecond.
    assert_eq!(sim.now.as_nanos(), 666_667);
    assert_eq!(sim.step(at(60.0)), Some(None));
    assert_eq!(sim.granted(), [next]);
    let wait = sim.now.as_nanos() - 666_667;
    // (15,000 + 600) / 1,500 s, less what the rounding had earned.
    assert!((10_400_000_000 - 1..=10_400_000_000).contains(&wait), "{wait}");
}

#[test]
fn oversize_requests_can_be_refused() {
    let limits = Limits { oversize: Oversize::Refuse, ..limits(None, Some(100_000)) };
    let mut sim = Sim::<()>::new(&limits);
    let refused = sim.enqueue_until(10_001, Instant::FAR_FUTURE);
    assert_eq!(refused, Err(tidegate::admission::Refusal::TooLarge { cost: 10_001, limit: 10_000 }));
    assert!(matches!(sim.enqueue(10_000), Entry::Granted(_)));
}

#[test]
fn a_fleet_can_start_empty() {
    let limits = Limits { start: Start::Empty, headroom: 0.0, ..limits(Some(60), None) };
    let mut sim = Sim::<()>::new(&limits);
    assert!(matches!(sim.enqueue(0), Entry::Queued(_)));
    assert_eq!(sim.step(at(60.0)), Some(None));
    assert_eq!((sim.now, sim.granted().len()), (at(1.0), 1));
}

#[test]
fn the_clock_may_jump() {
    const HOUR: Duration = Duration::from_secs(3600);
    let limits = Limits { headroom: 0.0, ..limits(Some(600), Some(60_000)) };
    let start = Instant::ZERO + HOUR + HOUR;
    let mut admission = Admission::new(&limits, start);
    let drain = |admission: &mut Admission, now: Instant| {
        let mut granted = 0;
        while let Ok(Entry::Granted(ticket)) = admission.enqueue(now, 100, now) {
            admission.settle(now, ticket, Settlement::Used { tokens: 100 });
            granted += 1;
        }
        granted
    };
    assert_eq!(drain(&mut admission, start), 10);
    assert_eq!(drain(&mut admission, start), 0, "equal times earn nothing");
    assert_eq!(drain(&mut admission, start + HOUR), 10, "an hour earns one burst");
    assert_eq!(drain(&mut admission, start), 0, "time that goes back earns nothing");
    assert_eq!(drain(&mut admission, start + HOUR), 0, "and what was passed is not earned again");
    assert_eq!(drain(&mut admission, start + HOUR + Duration::from_millis(200)), 2);
    let level = admission.snapshot(Instant::ZERO).requests.expect("limited").level;
    assert!((0.0..1.0).contains(&level), "{level}");
    let end = Instant::from_nanos(u64::MAX - 5);
    assert_eq!(drain(&mut admission, end), 10);
    assert!(matches!(admission.enqueue(end, 100, Instant::FAR_FUTURE), Ok(Entry::Queued(_))));
    assert!(admission.next_wake(end).is_none_or(|wake| wake > end));
    admission.cool_down(end, Instant::FAR_FUTURE);
    admission.advance(Instant::FAR_FUTURE, &mut Vec::new());
}
