//! Retry storm A: a hundred small processes lose their upstream for half a minute.

use super::controls::Policy;
use super::upstream::{Down, Outage};
use super::{Client, Fleet, Guards, Report, mean};

pub(crate) const LENGTH: f64 = 150.0;
pub(crate) const OUTAGE: (f64, f64) = (60.0, 90.0);
const SEEDS: u64 = 5;

/// Attempts per request.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) outage: f64,
    /// Of the seeds, the one with the most.
    pub(crate) outage_worst: f64,
    pub(crate) overall: f64,
    pub(crate) four_attempts: f64,
    pub(crate) deposit_budget: f64,
    pub(crate) nested: f64,
}

pub(crate) fn ours() -> Client {
    Client::Guarded(Box::new(Guards::with_concurrency(5)))
}

pub(crate) fn run(client: Client, seed: u64) -> Report {
    Fleet { processes: 100, rate: 1.0, length: LENGTH, attempt_timeout: None, client, seed }.run(Outage::new(
        OUTAGE.0,
        OUTAGE.1 - OUTAGE.0,
        Down::Errors,
    ))
}

pub(crate) fn measure() -> Figures {
    let reports: Vec<_> = (0..SEEDS).map(|seed| run(ours(), seed)).collect();
    let outage: Vec<_> = reports.iter().map(|report| report.amplification(OUTAGE.0, OUTAGE.1)).collect();
    let overall: Vec<_> = reports.iter().map(|report| report.amplification(0.0, LENGTH)).collect();
    let control = |policy| run(Client::Control(policy), 0).amplification(OUTAGE.0, OUTAGE.1);
    Figures {
        outage: mean(&outage),
        outage_worst: outage.iter().copied().fold(0.0, f64::max),
        overall: mean(&overall),
        four_attempts: control(Policy::four_attempts),
        deposit_budget: control(Policy::deposit_budget),
        nested: control(Policy::nested),
    }
}

#[test]
fn a_fleet_of_small_processes_does_not_amplify_an_outage() {
    let figures = measure();
    assert!(figures.outage_worst <= 1.20, "{figures:?}");
    assert!(figures.outage > 1.0, "the first failures are retried: {figures:?}");
    assert!(figures.overall <= 1.05, "{figures:?}");
    assert!(figures.four_attempts >= 3.9, "the control: {figures:?}");
    assert!(figures.deposit_budget >= 3.9, "the control: {figures:?}");
    assert!(figures.nested >= 8.0, "the control: {figures:?}");
}
