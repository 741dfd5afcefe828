//! The line: order, leaving it, the gate, and the grants that come back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::admission::{Charge, Entry, Refusal, Settlement, Ticket};
use tidegate::clock::{self, Instant};
use tidegate::config::{Limits, Start};

use crate::admission_sim::{Sim, at, limits, seconds};

enum Crowd {
    Arrive { leaves_after: Option<f64> },
    Leave(Ticket),
}

/// Arrivals for 1.6 times the rate besides those who will leave; share of the rate that was used.
fn used_with_leavers(share_leaving: f64, seed: u64) -> f64 {
    const HORIZON: f64 = 120.0;
    let mut rng = SmallRng::seed_from_u64(seed);
    let limits = Limits { headroom: 0.0, ..limits(Some(600), None) };
    let mut sim = Sim::new(&limits);
    let mut time = 0.0;
    while time < HORIZON {
        let leaves_after = (rng.random::<f64>() < share_leaving).then(|| 2.0 * rng.random::<f64>());
        sim.schedule(at(time), Crowd::Arrive { leaves_after });
        time += 2.0 * rng.random::<f64>() * (1.0 - share_leaving) / 16.0;
    }
    let mut granted = 0_u32;
    while let Some(event) = sim.step(at(HORIZON)) {
        match event {
            Some(Crowd::Arrive { leaves_after }) => match sim.enqueue(1) {
                Entry::Granted(_) => granted += 1,
                Entry::Queued(ticket) => {
                    if let Some(patience) = leaves_after {
                        sim.schedule(sim.now + Duration::from_secs_f64(patience), Crowd::Leave(ticket));
                    }
                }
            },
            Some(Crowd::Leave(ticket)) => sim.admission.cancel(sim.now, ticket),
            None => {}
        }
        granted += sim.granted().len() as u32;
    }
    f64::from(granted) / (HORIZON * 10.0)
}

/// The same crowd before a limiter that debits at arrival and gives back only what no later arrival has built on,
/// as golang.org/x/time/rate does.
fn used_with_leavers_and_reservations(share_leaving: f64, seed: u64) -> f64 {
    const HORIZON: f64 = 120.0;
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut tokens, mut last, mut last_act) = (10.0_f64, 0.0, 0.0);
    let mut leaving: Vec<(f64, f64)> = Vec::new();
    let (mut time, mut granted) = (0.0, 0_u32);
    while time < HORIZON {
        leaving.retain(|&(leaves, acts)| {
            if leaves <= time {
                let built_on = (last_act - acts) * 10.0;
                tokens += (1.0 - built_on).max(0.0);
            }
            leaves > time
        });
        tokens = (tokens + (time - last) * 10.0).min(10.0) - 1.0;
        last = time;
        let acts = time + (-tokens / 10.0).max(0.0);
        last_act = acts;
        let leaves = (rng.random::<f64>() < share_leaving).then(|| time + 2.0 * rng.random::<f64>());
        match leaves {
            Some(leaves) if leaves < acts => leaving.push((leaves, acts)),
            _ => granted += u32::from(acts <= HORIZON),
        }
        time += 2.0 * rng.random::<f64>() * (1.0 - share_leaving) / 16.0;
    }
    f64::from(granted) / (HORIZON * 10.0)
}

#[test]
fn those_who_leave_cost_nothing() {
    for (share, control) in [(0.0, 1.0), (0.1, 0.9), (0.3, 0.72), (0.5, 0.53), (0.7, 0.34)] {
        let used = used_with_leavers(share, 7);
        assert!(used >= 0.99, "{share} leave: {used}");
        let reserved = used_with_leavers_and_reservations(share, 7);
        assert!((reserved - control).abs() < 0.06, "control with {share} leaving: {reserved}");
    }
}

struct Small {
    waits: Vec<(f64, f64)>,
    in_order: bool,
}

/// 500-token requests at `load`, one of 8,000 among them at 60 s. Waits of the large one and what stood ahead.
fn large_among_small(load: f64, seed: u64) -> Small {
    const HORIZON: f64 = 1_500.0;
    let mut rng = SmallRng::seed_from_u64(seed);
    let limits =
        Limits { headroom: 0.0, tpm_burst_seconds: 60.0, start: Start::Empty, ..limits(None, Some(10_000)) };
    let mut sim = Sim::new(&limits);
    let mut time = 0.0;
    while time < HORIZON {
        sim.schedule(at(time), 500);
        time += 2.0 * rng.random::<f64>() * 3.0 / load;
    }
    sim.schedule(at(60.0), 8_000);
    let mut line: VecDeque<(Ticket, u64, f64, u64)> = VecDeque::new();
    let mut small = Small { waits: Vec::new(), in_order: true };
    while let Some(event) = sim.step(at(HORIZON)) {
        if let Some(cost) = event {
            let ahead = line.iter().map(|waiter| waiter.1).sum();
            if let Entry::Queued(ticket) = sim.enqueue(cost) {
                line.push_back((ticket, cost, seconds(sim.now), ahead));
            } else {
                small.in_order &= line.is_empty();
                if cost == 8_000 {
                    small.waits.push((0.0, 0.0));
                }
            }
        }
        for ticket in sim.granted() {
            let (first, cost, arrived, ahead) = line.pop_front().expect("somebody waits");
            small.in_order &= first == ticket;
            if cost == 8_000 {
                small.waits.push((seconds(sim.now) - arrived, ahead as f64 / 10_000.0 * 60.0));
            }
        }
    }
    small
}

/// The same, where whoever finds enough tokens takes them. How long the large request waits.
fn large_among_small_barging(load: f64, seed: u64) -> f64 {
    const HORIZON: f64 = 1_500.0;
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut level, mut last, mut time, mut waiting) = (0.0_f64, 0.0, 0.0, 0_u32);
    while time < HORIZON {
        level = (level + (time - last) * 10_000.0 / 60.0).min(10_000.0);
        last = time;
        if time >= 60.0 && level >= 8_000.0 {
            return time - 60.0;
        }
        waiting += 1;
        while waiting > 0 && level >= 500.0 {
            (waiting, level) = (waiting - 1, level - 500.0);
        }
        time += 2.0 * rng.random::<f64>() * 3.0 / load;
    }
    HORIZON - 60.0
}

#[test]
fn a_large_request_waits_its_turn_and_no_longer() {
    for (seed, load) in [0.95, 0.975, 1.0, 1.025, 1.05, 1.075, 1.1].into_iter().enumerate() {
        let small = large_among_small(load, seed as u64);
        assert!(small.in_order, "load {load}");
        let &[(wait, ahead)] = small.waits.as_slice() else { panic!("load {load}: the large one starves") };
        assert!(wait <= ahead + 48.0 + 0.001, "load {load}: waited {wait} s behind {ahead} s");
        assert!(large_among_small_barging(1.1, seed as u64) > 1_200.0, "the control is to starve");
    }
}

enum Gate {
    Ended { call: u32, ok: bool },
    Again(u32),
}

/// 5 slots, calls of 1 s, of which 30 % are told to come back in 5 s. Successes per second.
fn goodput(held_while_waiting: bool) -> f64 {
    const HORIZON: f64 = 600.0;
    let mut rng = SmallRng::seed_from_u64(11);
    let mut sim = Sim::new(&Limits { concurrency: Some(5), ..limits(None, None) });
    let (mut calls, mut tickets) = (HashMap::new(), HashMap::new());
    let mut done = 0_u32;
    for call in 0..4_000 {
        sim.schedule(Instant::ZERO, Gate::Again(call));
    }
    while let Some(event) = sim.step(at(HORIZON)) {
        let mut started = Vec::new();
        match event {
            Some(Gate::Again(call)) if held_while_waiting && tickets.contains_key(&call) => {
                started.push(call);
            }
            Some(Gate::Again(call)) => match sim.enqueue(0) {
                Entry::Granted(ticket) => {
                    tickets.insert(call, ticket);
                    started.push(call);
                }
                Entry::Queued(ticket) => drop(calls.insert(ticket, call)),
            },
            Some(Gate::Ended { call, ok }) => {
                done += u32::from(ok);
                if ok || !held_while_waiting {
                    let ticket = tickets.remove(&call).expect("granted");
                    let settlement = if ok {
                        Settlement::Used { tokens: 0 }
                    } else {
                        Settlement::Failed { charge: Charge::Refund }
                    };
                    sim.admission.settle(sim.now, ticket, settlement);
                }
                if !ok {
                    sim.schedule(sim.now + Duration::from_secs(5), Gate::Again(call));
                }
            }
            None => {}
        }
        for ticket in sim.granted() {
            let call = calls.remove(&ticket).expect("waited");
            tickets.insert(call, ticket);
            started.push(call);
        }
        assert!(sim.admission.snapshot(sim.now).in_flight <= 5);
        for call in started {
            let ok = rng.random::<f64>() >= 0.3;
            sim.schedule(sim.now + Duration::from_secs(1), Gate::Ended { call, ok });
        }
    }
    f64::from(done) / HORIZON
}

#[test]
fn a_slot_is_not_held_while_a_call_waits_to_retry() {
    let (free, held) = (goodput(false), goodput(true));
    assert!(free >= 3.4, "{free}/s");
    assert!((1.2..=1.7).contains(&held), "the control holds its slots: {held}/s");
}

#[test]
fn random_cancels_leave_nothing_behind() {
    let mut rng = SmallRng::seed_from_u64(5);
    let limits = Limits { concurrency: Some(3), headroom: 0.0, ..limits(Some(6_000), Some(600_000)) };
    let mut sim = Sim::<()>::new(&limits);
    let mut out = Vec::new();
    for i in 0..10_000_u64 {
        sim.now = sim.now + Duration::from_micros(rng.random_range(0..20_000));
        let limit = sim.now + Duration::from_millis(rng.random_range(0..500));
        if let Ok(Entry::Granted(ticket) | Entry::Queued(ticket)) = sim.enqueue_until(i % 900, limit) {
            out.push(ticket);
        }
        sim.advance();
        while out.len() > rng.random_range(0..12) {
            let ticket = out.swap_remove(rng.random_range(0..out.len()));
            sim.admission.cancel(sim.now, ticket);
            sim.admission.cancel(sim.now, ticket);
        }
        assert!(sim.admission.snapshot(sim.now).in_flight <= 3);
    }
    for ticket in out {
        sim.admission.cancel(sim.now, ticket);
    }
    sim.now = sim.now + Duration::from_secs(60);
    let after = sim.admission.snapshot(sim.now);
    assert_eq!((after.in_flight, after.queued), (0, 0));
    assert_eq!(sim.admission.next_wake(sim.now), None);
    for _ in 0..3 {
        assert!(matches!(sim.enqueue(900), Entry::Granted(_)), "three run at once");
    }
}

#[test]
fn a_cancelled_grant_is_returned_in_full() {
    let mut sim = Sim::<()>::new(&Limits { headroom: 0.0, ..limits(Some(60), Some(60_000)) });
    let before = sim.admission.snapshot(sim.now);
    let Entry::Granted(ticket) = sim.enqueue(50_000) else { panic!("full") };
    assert_eq!(sim.admission.snapshot(sim.now).in_flight, 1);
    sim.admission.cancel(sim.now, ticket);
    assert_eq!(sim.admission.snapshot(sim.now), before);
    sim.admission.settle(sim.now, ticket, Settlement::Used { tokens: 9 });
    assert_eq!(sim.admission.snapshot(sim.now), before, "a ticket ends once");
}

#[test]
fn ten_thousand_waiters_come_and_go() {
    const WAITERS: u64 = 10_000;
    let mut rng = SmallRng::seed_from_u64(9);
    let mut sim = Sim::<()>::new(&Limits { concurrency: Some(1), ..limits(None, None) });
    assert!(matches!(sim.enqueue(1), Entry::Granted(_)));
    let started = clock::now();
    let mut out: Vec<Ticket> = (0..WAITERS)
        .map(|i| match sim.enqueue_until(1, at(10.0 + i as f64)) {
            Ok(Entry::Queued(ticket)) => ticket,
            other => panic!("{other:?}"),
        })
        .collect();
    while !out.is_empty() {
        let ticket = out.swap_remove(rng.random_range(0..out.len()));
        sim.admission.cancel(sim.now, ticket);
        assert!(sim.granted().is_empty());
    }
    // Expected: a few milliseconds; a quadratic queue takes seconds.
    let took = clock::now().since(started);
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(sim.admission.snapshot(sim.now).queued, 0);
}

#[test]
fn a_shared_cool_down_stops_all_and_refuses_those_it_outlasts() {
    let mut sim = Sim::<()>::new(&Limits { concurrency: Some(1), ..limits(None, None) });
    let Entry::Granted(first) = sim.enqueue(0) else { panic!("free") };
    let Ok(Entry::Queued(hasty)) = sim.enqueue_until(0, at(1.0)) else { panic!("taken") };
    let Ok(Entry::Queued(patient)) = sim.enqueue_until(0, at(9.0)) else { panic!("taken") };
    sim.admission.settle(sim.now, first, Settlement::Failed { charge: Charge::Keep });
    sim.admission.cool_down(sim.now, at(2.0));
    sim.admission.cool_down(sim.now, at(1.0));
    let resolved = sim.advance();
    assert_eq!(resolved.len(), 1);
    assert_eq!(resolved[0].ticket, hasty);
    assert_eq!(resolved[0].outcome, Err(Refusal::Deadline { eta: Duration::from_secs(2) }));
    assert_eq!(
        sim.enqueue_until(0, at(1.9)),
        Err(Refusal::Deadline { eta: Duration::from_secs(2) }),
        "told at once"
    );
    assert_eq!(sim.step(at(60.0)), Some(None));
    assert_eq!((sim.now, sim.granted()), (at(2.0), vec![patient]));
}

#[test]
fn a_larger_gate_lets_waiters_in() {
    let mut sim = Sim::<()>::new(&Limits { concurrency: Some(1), ..limits(None, None) });
    assert!(matches!(sim.enqueue(0), Entry::Granted(_)));
    for _ in 0..4 {
        assert!(matches!(sim.enqueue(0), Entry::Queued(_)));
    }
    assert_eq!(sim.admission.next_wake(sim.now), None, "only the end of a call can help");
    sim.admission.set_limits(sim.now, &Limits { concurrency: Some(3), ..limits(None, None) });
    assert_eq!(sim.granted().len(), 2);
    let snapshot = sim.admission.snapshot(at(4.0));
    assert_eq!((snapshot.queued, snapshot.longest_wait), (2, Duration::from_secs(4)));
}
