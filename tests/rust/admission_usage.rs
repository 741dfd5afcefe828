//! Requests reserve what they may use and settle what they did.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::admission::{Charge, Entry, Refusal, Settlement, Ticket};
use tidegate::clock::Instant;

use crate::admission_sim::{Sim, at, limits};

const PROMPT: u64 = 100;
const RESERVED: u64 = PROMPT + 4_096;
const HORIZON: f64 = 600.0;

struct Run {
    /// (time, tokens used) at each grant.
    used: Vec<(Instant, u64)>,
}

/// As many callers as it takes to use the quota, 100,000 TPM, each asking again at once.
fn saturated(reconciled: bool) -> Run {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut sim = Sim::new(&limits(None, Some(100_000)));
    let mut run = Run { used: Vec::new() };
    let mut waiting = HashMap::new();
    let ask = |sim: &mut Sim<(Ticket, u64)>, waiting: &mut HashMap<Ticket, u64>, rng: &mut SmallRng| {
        // Output of 300 tokens on average, sometimes far more, never above the maximum.
        let output = (-300.0 * (1.0 - rng.random::<f64>()).ln()).min(4_096.0) as u64;
        match sim.enqueue(RESERVED) {
            Entry::Granted(ticket) => Some((ticket, PROMPT + output)),
            Entry::Queued(ticket) => {
                waiting.insert(ticket, PROMPT + output);
                None
            }
        }
    };
    let mut started = Vec::new();
    for _ in 0..40 {
        started.extend(ask(&mut sim, &mut waiting, &mut rng));
    }
    loop {
        for ticket in sim.granted() {
            started.push((ticket, waiting.remove(&ticket).expect("waited")));
        }
        for (ticket, used) in started.drain(..) {
            run.used.push((sim.now, used));
            let latency = Duration::from_secs_f64(1.0 + rng.random::<f64>());
            sim.schedule(sim.now + latency, (ticket, used));
        }
        let Some(event) = sim.step(at(HORIZON)) else { return run };
        if let Some((ticket, used)) = event {
            let tokens = if reconciled { used } else { RESERVED };
            sim.admission.settle(sim.now, ticket, Settlement::Used { tokens });
            started.extend(ask(&mut sim, &mut waiting, &mut rng));
        }
    }
}

#[test]
fn reconciled_reservations_use_the_whole_quota() {
    // 90,000 per minute after the headroom, and one burst of 10,000.
    let (rate, burst) = (1_500.0, 10_000.0);
    let run = saturated(true);
    let total: u64 = run.used.iter().map(|&(_, tokens)| tokens).sum();
    let share = total as f64 / (burst + rate * HORIZON);
    assert!(share >= 0.95, "{share}");
    for (i, &(start, _)) in run.used.iter().enumerate() {
        let mut sum = 0;
        for &(end, tokens) in &run.used[i..] {
            sum += tokens;
            let bound = burst + rate * end.since(start).as_secs_f64();
            // A request may use up to its reservation in the instant that it is granted.
            assert!(sum as f64 <= bound + RESERVED as f64, "{sum} tokens within {:?}", end.since(start));
        }
    }
    let unreconciled: u64 = saturated(false).used.iter().map(|&(_, tokens)| tokens).sum();
    let control = unreconciled as f64 / (burst + rate * HORIZON);
    assert!(control < 0.2, "the control keeps its reservations: {control}");
}

#[test]
fn tokens_are_conserved() {
    let mut rng = SmallRng::seed_from_u64(2);
    // A bucket that neither fills nor earns: ten million tokens, of which few are out at a time.
    let mut limits = limits(None, Some(10_000_000));
    (limits.tpm_burst_seconds, limits.headroom) = (60.0, 0.0);
    let mut sim = Sim::<()>::new(&limits);
    let level = |sim: &Sim<()>| sim.admission.snapshot(sim.now).tokens.expect("limited").level;
    let (mut spent, mut out) = (0_u64, Vec::new());
    for _ in 0..2_000 {
        let cost = rng.random_range(1..2_000);
        let Entry::Granted(ticket) = sim.enqueue(cost) else { panic!("enough for all") };
        out.push((ticket, cost));
        if rng.random::<bool>() {
            let (ticket, cost) = out.swap_remove(rng.random_range(0..out.len()));
            let tokens = rng.random_range(0..4_000);
            let (settlement, used) = match rng.random_range(0..5) {
                0 => (Settlement::NeverSent, 0),
                1 => (Settlement::Failed { charge: Charge::Keep }, cost),
                2 => (Settlement::Failed { charge: Charge::Refund }, 0),
                3 => (Settlement::Estimated { tokens }, tokens),
                _ => (Settlement::Used { tokens }, tokens),
            };
            sim.admission.settle(sim.now, ticket, settlement);
            spent += used;
        }
        let reserved: u64 = out.iter().map(|&(_, cost)| cost).sum();
        assert_eq!(level(&sim), (10_000_000 - spent - reserved) as f64);
    }
}

#[test]
fn a_request_that_used_more_leaves_a_debt() {
    let mut sim = Sim::<()>::new(&limits(None, Some(60_000)));
    let Entry::Granted(ticket) = sim.enqueue(5_000) else { panic!("full") };
    sim.admission.settle(sim.now, ticket, Settlement::Used { tokens: 8_700 });
    let tokens = sim.admission.snapshot(sim.now).tokens.expect("limited");
    assert_eq!((tokens.level, tokens.rate, tokens.capacity), (-2_700.0, 54_000.0, 6_000.0));
    // 2,700 of debt and 900 more at 900 per second.
    let refused = sim.enqueue_until(900, at(3.9));
    assert_eq!(refused, Err(Refusal::Deadline { eta: Duration::from_secs(4) }));
    assert!(matches!(sim.enqueue_until(900, at(4.0)), Ok(Entry::Queued(_))));
}

/// Requests use a tenth of what they reserve, so a queue that reservations alone would make a minute long is not
/// refused.
#[test]
fn the_promised_wait_counts_on_refunds() {
    let mut sim = Sim::<()>::new(&limits(None, Some(60_000)));
    let limit = |sim: &Sim<()>| sim.now + Duration::from_secs(10);
    let admitted = |sim: &mut Sim<()>| {
        let limit = limit(sim);
        (0..12).filter(|_| sim.enqueue_until(4_000, limit).is_ok()).count()
    };
    let before = admitted(&mut sim);
    for _ in 0..8 {
        sim.now = sim.now + Duration::from_secs(60);
        sim.advance();
        let Entry::Granted(ticket) = sim.enqueue(4_000) else { panic!("full") };
        sim.admission.settle(sim.now, ticket, Settlement::Used { tokens: 400 });
    }
    sim.now = sim.now + Duration::from_secs(60);
    assert_eq!((before, admitted(&mut sim)), (3, 12));
}
