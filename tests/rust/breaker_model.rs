//! The breaker against a model that keeps every outcome in a list and scans it at every boundary.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::breaker::{Breaker, Outcome, State, Ticket};
use tidegate::clock::Instant;
use tidegate::config::BreakerPolicy;

/// Times in nanoseconds.
struct Model {
    policy: BreakerPolicy,
    state: State,
    era: u64,
    epoch: u64,
    /// Boundaries up to this one have been judged.
    judged: u64,
    outcomes: Vec<(u64, bool)>,
    hits: u32,
    until: u64,
    probe_successes: u32,
    /// Era, lease end, resolved.
    tickets: Vec<ModelTicket>,
    late: u64,
    opened: u64,
    reopened: u64,
}

#[derive(Clone, Copy)]
struct ModelTicket {
    era: u64,
    lease: Option<u64>,
    resolved: bool,
    counted: bool,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

impl Model {
    fn new(policy: &BreakerPolicy, epoch: u64) -> Self {
        Self {
            policy: policy.clone(),
            state: State::Closed,
            era: 0,
            epoch,
            judged: 0,
            outcomes: Vec::new(),
            hits: 0,
            until: 0,
            probe_successes: 0,
            tickets: Vec::new(),
            late: 0,
            opened: 0,
            reopened: 0,
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.era += 1;
        self.outcomes.clear();
        self.hits = 0;
        self.probe_successes = 0;
    }

    fn open_until(&mut self, until: u64) {
        self.enter(State::Open);
        self.until = until;
    }

    fn enough(&self, outcomes: &[(u64, bool)]) -> bool {
        let failed = outcomes.iter().filter(|(_, failed)| *failed).count() as f64;
        failed >= outcomes.len() as f64 * self.policy.failure_rate_threshold
    }

    fn time_passes(&mut self, now: u64) {
        if self.state == State::HalfOpen {
            let era = self.era;
            let open = self.tickets.iter().filter(|ticket| ticket.era == era && !ticket.resolved);
            if let Some(lease) = open.filter_map(|ticket| ticket.lease).filter(|lease| *lease <= now).min() {
                self.reopened += 1;
                self.open_until(lease + nanos(self.policy.reopen_for));
            }
        }
        let window = nanos(self.policy.window);
        let boundary = (now - self.epoch) / (window / 10);
        if self.state == State::Closed && boundary - self.judged > 10 {
            self.outcomes.clear();
            self.hits = 0;
        }
        while self.judged < boundary {
            self.judged += 1;
            let end = self.epoch + self.judged * (window / 10);
            let seen: Vec<_> =
                self.outcomes.iter().copied().filter(|(at, _)| *at < end && at + window >= end).collect();
            let last = &self.outcomes[self.outcomes.len().saturating_sub(self.policy.recency as usize)..];
            let recent = self.policy.recency == 0 || self.enough(last);
            let hit = seen.len() >= self.policy.minimum_calls as usize && self.enough(&seen) && recent;
            self.hits = if hit { self.hits + 1 } else { 0 };
            if self.state == State::Closed && self.hits == self.policy.consecutive_hits {
                self.opened += 1;
                self.open_until(now + nanos(self.policy.open_for));
            }
        }
    }

    fn probes_out(&self) -> usize {
        let mine = |ticket: &&ModelTicket| ticket.era == self.era && ticket.lease.is_some();
        self.tickets.iter().filter(mine).filter(|ticket| !ticket.resolved).count()
    }

    fn would_admit(&mut self, now: u64) -> bool {
        self.time_passes(now);
        match self.state {
            State::Closed => true,
            State::Open => now >= self.until,
            State::HalfOpen => self.probes_out() < self.policy.half_open_max_calls as usize,
            State::ForcedOpen | State::Disabled => unreachable!(),
        }
    }

    fn acquire(&mut self, now: u64) -> bool {
        if !self.would_admit(now) {
            return false;
        }
        if self.state == State::Open {
            self.enter(State::HalfOpen);
        }
        let lease = (self.state == State::HalfOpen).then(|| now + nanos(self.policy.probe_timeout));
        self.tickets.push(ModelTicket { era: self.era, lease, resolved: false, counted: false });
        true
    }

    fn slow(&mut self, now: u64, index: usize) {
        self.time_passes(now);
        let ticket = &mut self.tickets[index];
        if ticket.lease.is_some() || ticket.counted {
            return;
        }
        ticket.counted = true;
        if ticket.era != self.era {
            self.late += 1;
        } else if self.state == State::Closed {
            self.outcomes.push((now, true));
        }
    }

    fn record(&mut self, now: u64, index: usize, outcome: Outcome) {
        self.time_passes(now);
        let ticket = self.tickets[index];
        self.tickets[index].resolved = true;
        if ticket.era != self.era {
            self.late += u64::from(!ticket.counted);
        } else if ticket.lease.is_some() {
            match outcome {
                Outcome::Success => {
                    self.probe_successes += 1;
                    if self.probe_successes == self.policy.half_open_successes {
                        self.enter(State::Closed);
                    }
                }
                Outcome::Failure => {
                    self.reopened += 1;
                    self.open_until(now + nanos(self.policy.reopen_for));
                }
                Outcome::Throttled(hint) => {
                    self.reopened += 1;
                    self.open_until(now + nanos(hint).clamp(1_000_000_000, 20_000_000_000));
                }
                Outcome::Neutral => {}
            }
        } else if !ticket.counted {
            match outcome {
                Outcome::Success => self.outcomes.push((now, false)),
                Outcome::Failure => self.outcomes.push((now, true)),
                Outcome::Neutral | Outcome::Throttled(_) => {}
            }
        }
    }
}

fn policy(rng: &mut StdRng) -> BreakerPolicy {
    BreakerPolicy {
        minimum_calls: rng.random_range(1..12),
        failure_rate_threshold: [0.25, 0.5, 0.1, 1.0][rng.random_range(0..4)],
        consecutive_hits: rng.random_range(1..4),
        recency: [0, 1, 4, 20][rng.random_range(0..4)],
        open_for: Duration::from_secs(rng.random_range(1..40)),
        half_open_max_calls: rng.random_range(1..4),
        half_open_successes: rng.random_range(1..4),
        ..BreakerPolicy::default()
    }
}

/// Often exactly on a boundary, sometimes none at all, rarely long.
fn step(rng: &mut StdRng, now: u64, epoch: u64) -> u64 {
    const BUCKET: u64 = 3_000_000_000;
    match rng.random_range(0..20) {
        0..9 => 0,
        9..13 => rng.random_range(0..1_500_000_000),
        13..16 => BUCKET - (now - epoch) % BUCKET,
        16 => BUCKET - (now - epoch) % BUCKET - 1,
        17 => BUCKET * rng.random_range(1..4),
        18 => rng.random_range(0..15_000_000_000),
        _ => rng.random_range(0..60_000_000_000),
    }
}

fn outcome(rng: &mut StdRng, failure_rate: f64) -> Outcome {
    if rng.random_bool(0.1) {
        return Outcome::Neutral;
    }
    if rng.random_bool(0.05) {
        return Outcome::Throttled(Duration::from_millis(rng.random_range(0..40_000)));
    }
    if rng.random_bool(failure_rate) { Outcome::Failure } else { Outcome::Success }
}

/// Returns how often the breaker opened, so that the caller can see that the histories are worth something.
fn history(seed: u64) -> (u64, u64, u64) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let policy = policy(rng);
    let epoch = rng.random_range(0..10_000_000_000);
    let mut now = epoch;
    let mut breaker = Breaker::new(&policy, Instant::from_nanos(epoch));
    let mut model = Model::new(&policy, epoch);
    let mut tickets: Vec<(usize, Ticket)> = Vec::new();
    let mut failure_rate = 0.5;
    for _ in 0..60 {
        now += step(rng, now, epoch);
        let at = Instant::from_nanos(now);
        match rng.random_range(0..20) {
            0 => failure_rate = [0.0, 0.2, 0.3, 1.0][rng.random_range(0..4)],
            1 => assert_eq!(breaker.peek(at).is_ok(), model.would_admit(now), "peek, seed {seed}"),
            2 if !tickets.is_empty() => {
                let chosen = rng.random_range(0..tickets.len());
                let (index, ticket) = &mut tickets[chosen];
                breaker.slow(at, ticket);
                model.slow(now, *index);
            }
            3..10 if !tickets.is_empty() => {
                let (index, ticket) = tickets.swap_remove(rng.random_range(0..tickets.len()));
                let outcome = outcome(rng, failure_rate);
                breaker.record(at, ticket, outcome);
                model.record(now, index, outcome);
            }
            _ => {
                let answer = breaker.acquire(at, None);
                assert_eq!(answer.is_ok(), model.acquire(now), "acquire, seed {seed}");
                if let Ok(ticket) = answer {
                    tickets.push((model.tickets.len() - 1, ticket));
                }
            }
        }
        let snapshot = breaker.snapshot(at);
        assert_eq!(snapshot.state, model.state, "seed {seed}");
        let counters = (snapshot.late_total, snapshot.opened_total, snapshot.reopened_total);
        assert_eq!(counters, (model.late, model.opened, model.reopened), "seed {seed}");
        if snapshot.state == State::Open {
            assert_eq!(
                snapshot.next_probe_in.map(nanos),
                Some(model.until.saturating_sub(now)),
                "seed {seed}"
            );
        }
        if snapshot.state == State::HalfOpen {
            assert_eq!(snapshot.probes_in_flight, model.probes_out(), "seed {seed}");
        }
    }
    (model.opened, model.reopened, model.late)
}

#[test]
fn does_what_the_list_does() {
    let mut sums = (0, 0, 0);
    for seed in 0..100_000 {
        let (opened, reopened, late) = history(seed);
        sums = (sums.0 + opened, sums.1 + reopened, sums.2 + late);
    }
    assert!(sums.0 > 20_000 && sums.1 > 5_000 && sums.2 > 5_000, "too few transitions: {sums:?}");
}
