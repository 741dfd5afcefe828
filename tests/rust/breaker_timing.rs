//! How soon the breaker opens in an outage and closes after it, with calls arriving at random in virtual time.

#![allow(clippy::print_stdout, reason = "the figures are worth reading beside their bounds")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::breaker::{Breaker, Outcome, State, Ticket};
use tidegate::clock::Instant;
use tidegate::config::BreakerPolicy;

use crate::breaker::at;

/// Long enough for the window to be full and the first-byte latency to be known.
const HEALTHY: f64 = 60.0;
const LATENCY: f64 = 0.1;
const ATTEMPT_TIMEOUT: f64 = 600.0;
const SEEDS: u64 = 40;
const PHASES: u64 = 12;

#[derive(Clone, Copy, PartialEq)]
enum Outage {
    /// Calls fail at once.
    Errors,
    /// Calls give no byte until the attempt timeout.
    Hang,
}

impl Outage {
    /// How long a call takes, and how it ends.
    fn answer(self, down: bool) -> (f64, Outcome) {
        match self {
            _ if !down => (LATENCY, Outcome::Success),
            Self::Errors => (LATENCY, Outcome::Failure),
            Self::Hang => (ATTEMPT_TIMEOUT, Outcome::Failure),
        }
    }
}

struct Run {
    policy: BreakerPolicy,
    /// Calls per second, arriving as a Poisson process.
    rate: f64,
    outage: Outage,
    /// Seconds; infinite for one that does not end.
    length: f64,
    horizon: f64,
    seed: u64,
    /// Where in a bucket the outage begins, from 0 to 1.
    phase: f64,
}

/// Seconds from the start of the outage.
#[derive(Debug, Default)]
struct Report {
    opened_at: Option<f64>,
    /// From the end of the outage until the breaker has closed; zero if it never opened.
    self_inflicted: f64,
    opened: u64,
}

enum Event {
    Arrival,
    Slow(usize),
    End(usize, Outcome),
}

impl Run {
    fn go(&self) -> Report {
        let rng = &mut StdRng::seed_from_u64(self.seed);
        let mut breaker = Breaker::new(&self.policy, at(0.0));
        let begin = HEALTHY + 3.0 * self.phase;
        let end = begin + self.length;
        let mut queue = BinaryHeap::from([Reverse((at(0.0), 0_usize))]);
        let mut events = vec![Some(Event::Arrival)];
        let mut calls: Vec<Option<(Ticket, Instant)>> = Vec::new();
        let mut report = Report::default();
        let push = |queue: &mut BinaryHeap<_>, events: &mut Vec<_>, time: Instant, event| {
            queue.push(Reverse((time, events.len())));
            events.push(Some(event));
        };
        while let Some(Reverse((now, event))) = queue.pop() {
            let t = now.since(at(0.0)).as_secs_f64();
            if t > begin + self.horizon {
                break;
            }
            match events[event].take().expect("each event happens once") {
                Event::Arrival => {
                    let gap = -(1.0 - rng.random::<f64>()).ln() / self.rate;
                    push(&mut queue, &mut events, now + Duration::from_secs_f64(gap), Event::Arrival);
                    if let Ok(ticket) = breaker.acquire(now, None) {
                        let index = calls.len();
                        let (latency, outcome) = self.outage.answer((begin..end).contains(&t));
                        calls.push(Some((ticket, now)));
                        let finish = now + Duration::from_secs_f64(latency);
                        push(&mut queue, &mut events, finish, Event::End(index, outcome));
                        if let Some(after) = breaker.slow_after(false) {
                            push(&mut queue, &mut events, now + after, Event::Slow(index));
                        }
                    }
                }
                Event::Slow(call) => {
                    if let Some((ticket, _)) = &mut calls[call] {
                        breaker.slow(now, ticket);
                    }
                }
                Event::End(call, outcome) => {
                    let (ticket, sent) = calls[call].take().expect("each call ends once");
                    breaker.record(now, ticket, outcome);
                    if outcome == Outcome::Success {
                        breaker.first_byte(false, now.since(sent));
                    }
                }
            }
            let state = breaker.state();
            if state != State::Closed {
                report.opened_at.get_or_insert(t - begin);
                report.self_inflicted = report.self_inflicted.max(t - end);
            }
        }
        report.opened = breaker.snapshot(at(begin + self.horizon)).opened_total;
        report
    }
}

fn hard_outage(rate: f64, seed: u64) -> Run {
    Run {
        policy: BreakerPolicy::default(),
        rate,
        outage: Outage::Errors,
        length: f64::INFINITY,
        horizon: 60.0,
        seed,
        phase: seed as f64 / SEEDS as f64,
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn detection(rate: f64) -> Vec<f64> {
    sorted((0..SEEDS).map(|seed| hard_outage(rate, seed).go().opened_at.unwrap_or(f64::INFINITY)))
}

#[test]
fn an_outage_is_detected_within_seconds() {
    for (rate, p95) in [(2.0, 19.0), (5.0, 14.5), (20.0, 14.5), (100.0, 14.5)] {
        let detection = detection(rate);
        println!("{rate} rps: median {:.1} s, p95 {:.1} s", detection[20], detection[37]);
        assert!((11.5..=13.5).contains(&detection[20]), "{rate} rps: median {}", detection[20]);
        assert!(detection[37] <= p95, "{rate} rps: p95 {}", detection[37]);
    }
}

#[test]
fn too_few_calls_never_open_it() {
    let quiet = detection(1.0).into_iter().filter(|seconds| seconds.is_infinite()).count();
    assert!(quiet >= 39, "{quiet} of 40");
}

#[test]
fn a_hanging_upstream_is_detected_while_calls_are_in_flight() {
    let run = |slow_after, seed| Run {
        policy: BreakerPolicy { slow_after, ..BreakerPolicy::default() },
        outage: Outage::Hang,
        ..hard_outage(5.0, seed)
    };
    let slow_after = BreakerPolicy::default().slow_after;
    let detection =
        sorted((0..SEEDS).map(|seed| run(slow_after, seed).go().opened_at.unwrap_or(f64::INFINITY)));
    println!("hang at 5 rps: median {:.1} s, last {:.1} s", detection[20], detection[39]);
    assert!((21.0..=25.0).contains(&detection[20]), "median {}", detection[20]);
    assert!((0..SEEDS).all(|seed| run(None, seed).go().opened_at.is_none()), "the control never notices");
}

fn recovery(policy: &BreakerPolicy, length: f64) -> impl Iterator<Item = Report> {
    (0..PHASES).map(move |seed| {
        Run {
            policy: policy.clone(),
            length,
            horizon: length + 60.0,
            phase: seed as f64 / PHASES as f64,
            ..hard_outage(100.0, seed)
        }
        .go()
    })
}

#[test]
fn a_short_outage_does_not_open_it_after_the_fact() {
    let policy = BreakerPolicy::default();
    let seed_policy = BreakerPolicy { recency: 0, ..policy.clone() };
    for length in [5.0, 8.0, 9.0, 10.0] {
        let trips = |policy| recovery(policy, length).filter(|report| report.opened > 0).count();
        println!("{length} s: {} trips, {} without recency", trips(&policy), trips(&seed_policy));
        assert_eq!(trips(&policy), 0, "{length} s");
        if length >= 8.0 {
            assert_eq!(trips(&seed_policy), 12, "{length} s, the control");
        }
    }
}

#[test]
fn it_closes_soon_after_a_long_outage() {
    let policy = BreakerPolicy::default();
    let slow_policy = BreakerPolicy { reopen_for: Duration::from_secs(20), ..policy.clone() };
    let mean = |policy, length| {
        recovery(policy, length).map(|report| report.self_inflicted).sum::<f64>() / PHASES as f64
    };
    let (half_minute, minute) = (mean(&policy, 30.0), mean(&policy, 60.0));
    let slow_minute = mean(&slow_policy, 60.0);
    println!("30 s: +{half_minute:.1} s; 60 s: +{minute:.1} s, +{slow_minute:.1} s with reopen 20");
    assert!(half_minute <= 4.0 && minute <= 4.0);
    assert!(slow_minute > 8.0, "the control");
}
