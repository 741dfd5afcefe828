//! How soon the breaker opens when calls with all their retries go through it.

use std::time::Duration;

use tidegate::config::BreakerPolicy;

use super::upstream::{Down, Outage};
use super::{Client, Fleet, Guards};

pub(crate) const RATES: [f64; 4] = [2.0, 5.0, 20.0, 100.0];
const SEEDS: u64 = 40;
/// Long enough for the window to be full and the first-byte latency to be known.
const HEALTHY: f64 = 60.0;
const OBSERVED: f64 = 60.0;
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Figure {
    /// Seconds, over the seeds.
    pub(crate) median: f64,
    pub(crate) p95: f64,
    pub(crate) last: f64,
}

/// Seconds from the start of an outage at a random phase of the buckets; infinite if never. Sorted.
fn delays(guards: &Guards, rate: f64, down: Down) -> Vec<f64> {
    let delay = |seed: u64| {
        let begin = HEALTHY + 3.0 * seed as f64 / SEEDS as f64;
        let report = Fleet {
            processes: 1,
            rate,
            length: begin + OBSERVED,
            attempt_timeout: Some(ATTEMPT_TIMEOUT),
            client: Client::Guarded(Box::new(guards.clone())),
            seed,
        }
        .run(Outage::new(begin, f64::INFINITY, down));
        report.open.map_or(f64::INFINITY, |(first, _)| first - begin)
    };
    let mut delays: Vec<_> = (0..SEEDS).map(delay).collect();
    delays.sort_by(f64::total_cmp);
    delays
}

fn figure(delays: &[f64]) -> Figure {
    Figure { median: delays[20], p95: delays[37], last: delays[39] }
}

pub(crate) fn errors(rate: f64) -> Figure {
    figure(&delays(&Guards::with_concurrency(1000), rate, Down::Errors))
}

/// An upstream that takes requests and never answers, at 5 calls a second.
pub(crate) fn hang(slow_after: Option<Duration>) -> Figure {
    let guards = Guards {
        breaker: Some(BreakerPolicy { slow_after, ..BreakerPolicy::default() }),
        ..Guards::with_concurrency(1000)
    };
    figure(&delays(&guards, 5.0, Down::Hang))
}

#[test]
fn an_outage_opens_the_breaker_within_seconds() {
    for (rate, p95) in RATES.into_iter().zip([19.0, 14.5, 14.5, 14.5]) {
        let figure = errors(rate);
        assert!((11.5..=13.5).contains(&figure.median), "{rate} rps: {figure:?}");
        assert!(figure.p95 <= p95, "{rate} rps: {figure:?}");
    }
}

#[test]
fn one_call_a_second_does_not_open_it() {
    let delays = delays(&Guards::with_concurrency(1000), 1.0, Down::Errors);
    assert!(delays[1].is_infinite(), "39 of 40 runs at least: {delays:?}");
}

#[test]
fn a_hang_opens_it_while_the_calls_are_in_flight() {
    let figure = hang(BreakerPolicy::default().slow_after);
    assert!(figure.median <= 25.0 && figure.last <= 27.0, "{figure:?}");
    let control = hang(None);
    assert!(control.median.is_infinite(), "the control: {control:?}");
}
