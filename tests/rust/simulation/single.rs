//! Retry storm B: one busy process, with retry budget and breaker, loses its upstream for half a minute.

use super::controls::Policy;
use super::upstream::{Down, Outage};
use super::{Client, Fleet, Guards, Report};

pub(crate) const RATE: f64 = 100.0;
pub(crate) const LENGTH: f64 = 150.0;
pub(crate) const OUTAGE: (f64, f64) = (60.0, 90.0);

const SEEDS: u64 = 8;

/// Of the seeds the worst; for the control, the best.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Attempts per request.
    pub(crate) outage: f64,
    pub(crate) overall: f64,
    /// Seconds from the start of the outage until the breaker opens.
    pub(crate) first_trip: f64,
    /// The most attempts in one second, as a multiple of the usual.
    pub(crate) peak: f64,
    pub(crate) peak_four_attempts: f64,
}

pub(crate) fn ours() -> Client {
    Client::Guarded(Box::new(Guards::with_concurrency(100)))
}

pub(crate) fn run(client: Client, seed: u64) -> Report {
    Fleet { processes: 1, rate: RATE, length: LENGTH, attempt_timeout: None, client, seed }.run(Outage::new(
        OUTAGE.0,
        OUTAGE.1 - OUTAGE.0,
        Down::Errors,
    ))
}

pub(crate) fn measure() -> Figures {
    let reports: Vec<_> = (0..SEEDS).map(|seed| run(ours(), seed)).collect();
    let controls = (0..SEEDS).map(|seed| run(Client::Control(Policy::four_attempts), seed));
    let worst = |of: fn(&Report) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    let peak = |report: &Report| report.peak(OUTAGE.0, LENGTH) as f64 / RATE;
    Figures {
        outage: worst(|report| report.amplification(OUTAGE.0, OUTAGE.1)),
        overall: worst(|report| report.amplification(0.0, LENGTH)),
        first_trip: worst(|report| report.open.map_or(f64::INFINITY, |(first, _)| first - OUTAGE.0)),
        peak: reports.iter().map(peak).fold(0.0, f64::max),
        peak_four_attempts: controls.map(|report| peak(&report)).fold(f64::INFINITY, f64::min),
    }
}

#[test]
fn a_breaker_sheds_most_of_an_outage() {
    let figures = measure();
    assert!(figures.outage <= 0.50, "{figures:?}");
    assert!(figures.overall < 1.0, "{figures:?}");
    assert!(figures.first_trip <= 14.0, "{figures:?}");
    assert!(figures.peak <= 1.5, "{figures:?}");
    assert!(figures.peak_four_attempts >= 4.0, "the control: {figures:?}");
}
