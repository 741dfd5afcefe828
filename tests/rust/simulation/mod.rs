//! The fleet simulator: many processes with the real gates, or with a policy to compare them with, in front of a
//! model of an upstream, in virtual time.
//!
//! Each scenario measures its figures in one function, which the tests hold to their bounds and `make simulate`
//! prints. The figures are relative: they compare policies, they predict no production system.

pub(crate) mod brownout;
pub(crate) mod controls;
pub(crate) mod detection;
pub(crate) mod driver;
pub(crate) mod fleet;
pub(crate) mod harmless;
pub(crate) mod metastable;
pub(crate) mod recovery;
pub(crate) mod single;
pub(crate) mod upstream;

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::breaker::State;
use tidegate::call::{Call, Plan, Step};
use tidegate::clock::Instant;
use tidegate::config::{BreakerPolicy, Limits, OnOpen, RetryBudgetPolicy, RetryPolicy};
use tidegate::error::Reason;
use tidegate::scope::{Scope, ScopeKey};

use controls::{Control, Policy};
use driver::{Caller, Driver, Served, World};
use upstream::Upstream;

pub(crate) fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

fn seconds(instant: Instant) -> f64 {
    instant.since(Instant::ZERO).as_secs_f64()
}

/// The policies of one guarded process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guards {
    pub(crate) limits: Limits,
    pub(crate) retry: RetryPolicy,
    pub(crate) breaker: Option<BreakerPolicy>,
    pub(crate) budget: Option<RetryBudgetPolicy>,
}

impl Guards {
    /// The defaults, for a process that may have so many requests in flight.
    pub(crate) fn with_concurrency(limit: u32) -> Self {
        Self {
            limits: Limits { concurrency: Some(limit), ..Limits::default() },
            retry: RetryPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            budget: Some(RetryBudgetPolicy::default()),
        }
    }

    pub(crate) fn scope(&self) -> Arc<Scope> {
        let key = ScopeKey { origin: "https://upstream".into(), credential: 0, model: "m".into() };
        Scope::new(key, &self.limits, self.breaker.as_ref(), self.budget.as_ref(), Instant::ZERO)
    }

    pub(crate) fn plan(&self, attempt_timeout: Option<Duration>) -> Plan {
        Plan {
            max_attempts: self.retry.max_attempts,
            retry: Arc::new(self.retry.clone()),
            total: None,
            attempt_timeout,
            cost: 0,
            least_cost: 0,
            replay_unsafe: false,
            stream: false,
            on_open: self.breaker.as_ref().map_or(OnOpen::Fail, |breaker| breaker.on_open),
            resent_after: None,
            spending: None,
        }
    }
}

/// What a process does for its calls.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    Guarded(Box<Guards>),
    /// Makes the policy of one process.
    Control(fn() -> Policy),
}

/// Processes of the same kind, each called at random times of its own.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    pub(crate) processes: usize,
    /// Calls per second and process.
    pub(crate) rate: f64,
    pub(crate) length: f64,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) client: Client,
    pub(crate) seed: u64,
}

/// When what happened, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) requests: Vec<f64>,
    pub(crate) attempts: Vec<f64>,
    pub(crate) successes: Vec<f64>,
    pub(crate) failures: usize,
    /// First and last time at which a breaker was seen to be other than closed.
    pub(crate) open: Option<(f64, f64)>,
    pub(crate) trips: u64,
}

pub(crate) fn count(times: &[f64], from: f64, to: f64) -> usize {
    times.iter().filter(|&&time| from <= time && time < to).count()
}

impl Report {
    /// Attempts per request, of those that began in this time.
    pub(crate) fn amplification(&self, from: f64, to: f64) -> f64 {
        count(&self.attempts, from, to) as f64 / count(&self.requests, from, to) as f64
    }

    /// Of the calls that ended.
    pub(crate) fn success_rate(&self) -> f64 {
        self.successes.len() as f64 / (self.successes.len() + self.failures) as f64
    }

    /// The most attempts in one second, on a grid of seconds.
    pub(crate) fn peak(&self, from: f64, to: f64) -> usize {
        per_second(&self.attempts, from, to).into_iter().max().unwrap_or_default()
    }
}

pub(crate) fn per_second(times: &[f64], from: f64, to: f64) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut begin = from;
    while begin < to {
        counts.push(count(times, begin, begin + 1.0));
        begin += 1.0;
    }
    counts
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

struct Observed<U> {
    upstream: U,
    rng: StdRng,
    breakers: Vec<Arc<Scope>>,
    report: Report,
}

impl<U: Upstream> World for Observed<U> {
    fn serve(&mut self, now: Instant, _call: usize, _number: u32) -> Served {
        self.report.attempts.push(seconds(now));
        self.upstream.serve(now, &mut self.rng)
    }

    fn watch(&mut self, now: Instant, _call: usize, step: &Step) {
        match step {
            Step::Done(Ok(())) => self.report.successes.push(seconds(now)),
            Step::Done(Err(error)) if error.reason != Reason::Cancelled => self.report.failures += 1,
            _ => {}
        }
        for scope in &self.breakers {
            let closed = scope.breaker.as_ref().is_none_or(|breaker| breaker.lock().state() == State::Closed);
            if !closed {
                let first = self.report.open.map_or(seconds(now), |(first, _)| first);
                self.report.open = Some((first, seconds(now)));
            }
        }
    }
}

enum Process {
    Guarded { scope: Arc<Scope>, plan: Plan },
    Control(Policy),
}

impl Process {
    fn new(client: &Client, attempt_timeout: Option<Duration>) -> Self {
        match client {
            Client::Guarded(guards) => {
                Self::Guarded { scope: guards.scope(), plan: guards.plan(attempt_timeout) }
            }
            Client::Control(policy) => Self::Control(policy()),
        }
    }

    fn caller(&self, now: Instant) -> Caller {
        match self {
            Self::Guarded { scope, plan } => {
                let call = Box::new(Call::new(plan.clone(), Arc::clone(scope), now));
                Caller::Guarded { call, scope: Arc::clone(scope) }
            }
            Self::Control(policy) => Caller::Control(Control::new(policy.clone())),
        }
    }
}

impl Fleet {
    pub(crate) fn run(&self, upstream: impl Upstream) -> Report {
        let processes: Vec<_> = std::iter::repeat_with(|| Process::new(&self.client, self.attempt_timeout))
            .take(self.processes)
            .collect();
        let arrivals = self.arrivals();
        let world = Observed {
            upstream,
            rng: StdRng::seed_from_u64(self.seed ^ 0x5eed),
            breakers: Self::watched(&processes),
            report: Report {
                requests: arrivals.iter().map(|(time, _)| *time).collect(),
                ..Report::default()
            },
        };
        let mut driver = Driver::new(world, self.seed);
        for (time, process) in arrivals {
            let now = at(time);
            driver.run(now);
            if let Some(process) = processes.get(process) {
                driver.start(now, process.caller(now), self.attempt_timeout);
            }
        }
        let end = at(self.length);
        driver.run(end);
        driver.stop(end);
        let mut report = driver.world.report;
        report.trips = processes.iter().map(|process| trips(process, end)).sum();
        report
    }

    /// A Poisson process for each process.
    fn arrivals(&self) -> Vec<(f64, usize)> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut arrivals = Vec::new();
        for process in 0..self.processes {
            let mut time = 0.0;
            loop {
                time -= (1.0 - rng.random::<f64>()).ln() / self.rate;
                if time >= self.length {
                    break;
                }
                arrivals.push((time, process));
            }
        }
        arrivals.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        arrivals
    }

    /// The state of a breaker over time is of interest where there is one.
    fn watched(processes: &[Process]) -> Vec<Arc<Scope>> {
        match processes {
            [Process::Guarded { scope, .. }] => vec![Arc::clone(scope)],
            _ => Vec::new(),
        }
    }
}

fn trips(process: &Process, now: Instant) -> u64 {
    match process {
        Process::Guarded { scope, .. } => {
            scope.breaker.as_ref().map_or(0, |breaker| breaker.lock().snapshot(now).opened_total)
        }
        Process::Control(_) => 0,
    }
}
