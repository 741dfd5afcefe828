//! Metastability: an upstream loses most of its capacity for half a minute. Whether it ever comes back depends on
//! what its clients do meanwhile: it spends its capacity on requests that nobody waits for any more.

use std::time::Duration;

use super::controls::Policy;
use super::upstream::Queueing;
use super::{Client, Fleet, Guards, Report, count, mean};

pub(crate) const DIP: (f64, f64) = (60.0, 90.0);
/// Observed after the dip.
pub(crate) const OBSERVED: f64 = 145.0;
pub(crate) const LENGTH: f64 = DIP.1 + OBSERVED;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const RECOVERED: f64 = 95.0;
/// Goodput is averaged over so many seconds.
const WINDOW: f64 = 5.0;
/// Requests that the server lets wait; it turns away more.
const LONGEST_QUEUE: usize = 1000;
const SEEDS: u64 = 4;

/// Seconds from the end of the dip until goodput is back; infinite if it does not come back in [`OBSERVED`]. The
/// mean of the seeds; of those that are not expected back, the soonest.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) ours: f64,
    pub(crate) ours_worst: f64,
    /// All calls in one process.
    pub(crate) shared: f64,
    pub(crate) no_retry: f64,
    pub(crate) four_attempts: f64,
    pub(crate) deposit_budget: f64,
}

pub(crate) fn ours() -> Client {
    Client::Guarded(Box::new(Guards::with_concurrency(5)))
}

/// For one process that makes all the calls: its breaker has enough to judge.
pub(crate) fn shared() -> Client {
    Client::Guarded(Box::new(Guards::with_concurrency(1000)))
}

/// 100 requests a second, from so many processes.
pub(crate) fn run(processes: usize, client: Client, seed: u64) -> Report {
    let rate = 100.0 / processes as f64;
    Fleet { processes, rate, length: LENGTH, attempt_timeout: Some(CLIENT_TIMEOUT), client, seed }
        .run(Queueing::new(120.0, 20.0, DIP, LONGEST_QUEUE))
}

fn recovery(report: &Report) -> f64 {
    let mut after = 0.0;
    while after + WINDOW <= OBSERVED {
        let begin = DIP.1 + after;
        if count(&report.successes, begin, begin + WINDOW) as f64 >= RECOVERED * WINDOW {
            return after;
        }
        after += 1.0;
    }
    f64::INFINITY
}

pub(crate) fn measure() -> Figures {
    let recoveries = |processes, client: Client| -> Vec<f64> {
        (0..SEEDS).map(|seed| recovery(&run(processes, client.clone(), seed))).collect()
    };
    let soonest = |policy| recoveries(200, Client::Control(policy)).into_iter().fold(f64::INFINITY, f64::min);
    let ours = recoveries(200, ours());
    Figures {
        ours: mean(&ours),
        ours_worst: ours.iter().copied().fold(0.0, f64::max),
        shared: mean(&recoveries(1, shared())),
        no_retry: mean(&recoveries(200, Client::Control(Policy::no_retry))),
        four_attempts: soonest(Policy::four_attempts),
        deposit_budget: soonest(Policy::deposit_budget),
    }
}

#[test]
fn the_upstream_recovers_from_a_dip_in_its_capacity() {
    let figures = measure();
    assert!(figures.ours_worst <= 60.0, "{figures:?}");
    assert!(figures.ours >= 20.0, "the dip is deep enough to be felt: {figures:?}");
    assert!(figures.shared <= 15.0, "{figures:?}");
    assert!(figures.ours <= figures.no_retry + 15.0, "{figures:?}");
    assert!(figures.four_attempts.is_infinite(), "the control: {figures:?}");
    assert!(figures.deposit_budget.is_infinite(), "the control: {figures:?}");
}
