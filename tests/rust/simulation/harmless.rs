//! The retry budget must not cost success where an upstream fails now and then.

use super::upstream::Brownout;
use super::{Client, Fleet, Guards, Report};

const SHARES: [f64; 4] = [0.01, 0.05, 0.1, 0.2];
const SEEDS: u64 = 5;

#[derive(Debug)]
pub(crate) struct Figure {
    /// Of the attempts that fail.
    pub(crate) share: f64,
    /// Share of calls that succeed.
    pub(crate) success: f64,
    pub(crate) success_without_budget: f64,
    /// Attempts per request.
    pub(crate) attempts: f64,
}

fn run(guards: Guards, share: f64, seed: u64) -> Report {
    let client = Client::Guarded(Box::new(guards));
    Fleet { processes: 1, rate: 20.0, length: 300.0, attempt_timeout: None, client, seed }
        .run(Brownout::new(share))
}

/// One process that may have so many requests in flight, which sets the capacity of its budget.
pub(crate) fn measure(concurrency: u32) -> Vec<Figure> {
    let guards = Guards::with_concurrency(concurrency);
    let unbudgeted = Guards { budget: None, ..guards.clone() };
    let mean = |guards: &Guards, share: f64, of: fn(&Report) -> f64| {
        (0..SEEDS).map(|seed| of(&run(guards.clone(), share, seed))).sum::<f64>() / SEEDS as f64
    };
    let figure = |share| Figure {
        share,
        success: mean(&guards, share, Report::success_rate),
        success_without_budget: mean(&unbudgeted, share, Report::success_rate),
        attempts: mean(&guards, share, |report| report.amplification(0.0, 300.0)),
    };
    SHARES.map(figure).into()
}

#[test]
fn scattered_failures_are_retried_as_if_there_were_no_budget() {
    for figure in measure(20) {
        assert!(figure.success >= 0.998, "{figure:?}");
        assert!(figure.success >= figure.success_without_budget - 0.001, "{figure:?}");
        assert!(figure.attempts > 1.0 + 0.9 * figure.share, "failures are retried: {figure:?}");
    }
}

/// The price of a budget that is small enough for a fleet: it runs dry where a fifth of all attempts fail.
#[test]
fn a_small_budget_does_no_harm_up_to_a_tenth_of_failures() {
    for figure in measure(5) {
        let lost = figure.success_without_budget - figure.success;
        assert!(lost <= if figure.share <= 0.1 { 0.001 } else { 0.015 }, "{figure:?}");
    }
}
