//! Processes that know nothing of each other, nor of the provider's quota before the first answer, work through
//! a batch against a provider that enforces its quota and announces it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidegate::admission::{Admission, Announced, Charge, Entry, Settlement, Ticket};
use tidegate::clock::Instant;
use tidegate::config::Limits;

const RPM: f64 = 6_000.0;
const TPM: f64 = 1_200_000.0;
const COST: f64 = 200.0;

/// How the provider counts a minute.
#[derive(Clone, Copy, Debug)]
enum Enforcement {
    /// A bucket that holds so many seconds of the quota.
    Bucket(f64),
    /// A counter that is reset every 60 s.
    FixedWindow,
    /// A log of the last 60 s.
    SlidingWindow,
}

struct Provider {
    enforcement: Enforcement,
    requests: f64,
    tokens: f64,
    last: f64,
    log: VecDeque<f64>,
}

impl Provider {
    fn new(enforcement: Enforcement) -> Self {
        let seconds = if let Enforcement::Bucket(seconds) = enforcement { seconds } else { 60.0 };
        let (requests, tokens) = (RPM / 60.0 * seconds, TPM / 60.0 * seconds);
        Self { enforcement, requests, tokens, last: 0.0, log: VecDeque::new() }
    }

    /// Whether the request is let in or how long to stay away, and what remains.
    fn ask(&mut self, now: f64) -> (Result<(), f64>, Announced) {
        match self.enforcement {
            Enforcement::Bucket(seconds) => {
                let earned = (now - self.last) / 60.0;
                self.requests = (self.requests + earned * RPM).min(RPM / 60.0 * seconds);
                self.tokens = (self.tokens + earned * TPM).min(TPM / 60.0 * seconds);
            }
            Enforcement::FixedWindow => {
                if (now / 60.0).floor() > (self.last / 60.0).floor() {
                    (self.requests, self.tokens) = (RPM, TPM);
                }
            }
            Enforcement::SlidingWindow => {
                while self.log.front().is_some_and(|&at| at <= now - 60.0) {
                    self.log.pop_front();
                    self.requests += 1.0;
                    self.tokens += COST;
                }
            }
        }
        self.last = now;
        let granted = self.requests >= 1.0 && self.tokens >= COST;
        if granted {
            self.requests -= 1.0;
            self.tokens -= COST;
            self.log.push_back(now);
        }
        let announced = Announced {
            limit_requests: Some(RPM as u64),
            limit_tokens: Some(TPM as u64),
            remaining_requests: Some(self.requests as u64),
            remaining_tokens: Some(self.tokens as u64),
        };
        let wait = match self.enforcement {
            Enforcement::Bucket(_) => 1.0,
            Enforcement::FixedWindow => 60.0 - now % 60.0,
            Enforcement::SlidingWindow => self.log.front().map_or(1.0, |at| at + 60.0 - now),
        };
        (if granted { Ok(()) } else { Err(wait.ceil()) }, announced)
    }
}

enum Event {
    Wake,
    Arrival(Ticket),
    Answer(Ticket, Result<(), f64>, Announced),
}

struct Outcome {
    seconds: f64,
    answers: u32,
    rejected: u32,
}

struct Process {
    admission: Admission,
    wake: Option<Instant>,
}

struct World {
    processes: Vec<Process>,
    provider: Provider,
    events: BinaryHeap<Reverse<(Instant, usize, usize)>>,
    payloads: Vec<Option<Event>>,
    rng: SmallRng,
    latency: f64,
}

impl World {
    fn schedule(&mut self, at: Instant, process: usize, event: Event) {
        self.events.push(Reverse((at, self.payloads.len(), process)));
        self.payloads.push(Some(event));
    }

    fn send(&mut self, now: Instant, process: usize, ticket: Ticket) {
        let network = Duration::from_secs_f64(0.001 + 0.004 * self.rng.random::<f64>());
        self.schedule(now + network, process, Event::Arrival(ticket));
    }

    fn enqueue(&mut self, now: Instant, process: usize) {
        let entry = self.processes[process].admission.enqueue(now, COST as u64, Instant::FAR_FUTURE);
        if let Entry::Granted(ticket) = entry.expect("no limit") {
            self.send(now, process, ticket);
        }
    }

    fn advance(&mut self, now: Instant, process: usize) {
        let mut resolved = Vec::new();
        self.processes[process].admission.advance(now, &mut resolved);
        for one in resolved {
            one.outcome.expect("no limit");
            self.send(now, process, one.ticket);
        }
        let wake = self.processes[process].admission.next_wake(now);
        if wake != self.processes[process].wake {
            self.processes[process].wake = wake;
            if let Some(at) = wake {
                self.schedule(at, process, Event::Wake);
            }
        }
    }
}

fn run(
    limits: &Limits,
    enforcement: Enforcement,
    processes: usize,
    calls_each: u32,
    latency: f64,
) -> Outcome {
    let mut world = World {
        processes: (0..processes)
            .map(|_| Process { admission: Admission::new(limits, Instant::ZERO), wake: None })
            .collect(),
        provider: Provider::new(enforcement),
        events: BinaryHeap::new(),
        payloads: Vec::new(),
        rng: SmallRng::seed_from_u64(1),
        latency,
    };
    for process in 0..processes {
        for _ in 0..calls_each {
            world.enqueue(Instant::ZERO, process);
        }
        world.advance(Instant::ZERO, process);
    }
    let (mut done, mut rejected, mut answers) = (0, 0, 0);
    while let Some(Reverse((now, payload, process))) = world.events.pop() {
        match world.payloads[payload].take().expect("taken once") {
            Event::Wake => {
                if world.processes[process].wake == Some(now) {
                    world.processes[process].wake = None;
                }
            }
            Event::Arrival(ticket) => {
                let (granted, announced) = world.provider.ask(now.as_nanos() as f64 / 1e9);
                let work =
                    if granted.is_ok() { world.latency * (0.5 + world.rng.random::<f64>()) } else { 0.005 };
                world.schedule(
                    now + Duration::from_secs_f64(work),
                    process,
                    Event::Answer(ticket, granted, announced),
                );
                continue;
            }
            Event::Answer(ticket, granted, announced) => {
                answers += 1;
                let admission = &mut world.processes[process].admission;
                admission.learn(now, ticket, &announced);
                let Err(wait) = granted else {
                    done += 1;
                    admission.settle(now, ticket, Settlement::Used { tokens: COST as u64 });
                    if done == calls_each * processes as u32 {
                        return Outcome { seconds: now.as_nanos() as f64 / 1e9, answers, rejected };
                    }
                    world.advance(now, process);
                    continue;
                };
                rejected += 1;
                admission.settle(now, ticket, Settlement::Failed { charge: Charge::Keep });
                admission.cool_down(now, now + Duration::from_secs_f64(wait));
                world.enqueue(now, process);
            }
        }
        world.advance(now, process);
    }
    panic!("stuck with {done} calls done");
}

const PROVIDERS: [Enforcement; 5] = [
    Enforcement::Bucket(1.0),
    Enforcement::Bucket(6.0),
    Enforcement::Bucket(60.0),
    Enforcement::FixedWindow,
    Enforcement::SlidingWindow,
];

/// Share of the answers that were refusals, and the time taken as a multiple of what the rate alone needs.
fn measure(provider: Enforcement, processes: usize, calls_each: u32, latency: f64) -> (f64, f64) {
    let outcome = run(&Limits::default(), provider, processes, calls_each, latency);
    let calls = f64::from(calls_each) * processes as f64;
    (f64::from(outcome.rejected) / f64::from(outcome.answers), outcome.seconds / (calls / RPM * 60.0))
}

#[test]
fn alone_the_announced_speed_is_reached_without_refusals() {
    for provider in PROVIDERS {
        for latency in [0.005, 0.05] {
            let (refused, time) = measure(provider, 1, 2_000, latency);
            assert!(refused <= 0.001, "{provider:?}, {latency} s: {refused}");
            assert!((0.9..=1.05).contains(&time), "{provider:?}, {latency} s: {time}");
        }
    }
}

#[test]
fn four_processes_share_it() {
    for provider in PROVIDERS {
        for latency in [0.005, 0.05] {
            let (refused, time) = measure(provider, 4, 500, latency);
            assert!(refused <= 0.01, "{provider:?}, {latency} s: {refused}");
            assert!(time <= 1.15, "{provider:?}, {latency} s: {time}");
        }
    }
}

/// Where the answers take longer than the provider's whole burst lasts, what remains comes too late to steer by;
/// refusals do it then. Most fall into the start, before the first answer.
#[test]
fn slow_answers_cost_few_refusals() {
    for latency in [0.5, 2.0] {
        let (refused, time) = measure(Enforcement::Bucket(1.0), 4, 2_000, latency);
        assert!(refused <= 0.03, "{latency} s: {refused}");
        assert!(time <= 1.25, "{latency} s: {time}");
    }
}

/// Four that each go at the full announced rate, as if it were theirs alone.
#[test]
fn the_control_that_knows_the_limits_alone_is_refused() {
    let limits = Limits {
        rpm: Some(RPM as u64),
        tpm: Some(TPM as u64),
        headroom: 0.0,
        learn: false,
        ..Limits::default()
    };
    let outcome = run(&limits, Enforcement::Bucket(1.0), 4, 500, 0.05);
    let refused = f64::from(outcome.rejected) / f64::from(outcome.answers);
    assert!(refused > 0.1, "{refused}");
}
