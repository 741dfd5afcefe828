//! How much longer than the upstream's outage ours is: a window that looks back opens the breaker after a short
//! one, and closes it late after a long one.

use std::time::Duration;

use tidegate::config::BreakerPolicy;

use super::upstream::{Down, Outage};
use super::{Client, Fleet, Guards, Report, mean};

const PHASES: u64 = 12;
const RATE: f64 = 100.0;
const HEALTHY: f64 = 40.0;
pub(crate) const SHORT: [f64; 4] = [5.0, 8.0, 9.0, 10.0];

/// With each run the end of its outage.
fn runs(policy: &BreakerPolicy, length: f64) -> Vec<(f64, Report)> {
    let run = |seed: u64| {
        let begin = HEALTHY + 3.0 * seed as f64 / PHASES as f64;
        let end = begin + length;
        let guards = Guards { breaker: Some(policy.clone()), ..Guards::with_concurrency(1000) };
        let fleet = Fleet {
            processes: 1,
            rate: RATE,
            length: end + 40.0,
            attempt_timeout: None,
            client: Client::Guarded(Box::new(guards)),
            seed,
        };
        (end, fleet.run(Outage::new(begin, length, Down::Errors)))
    };
    (0..PHASES).map(run).collect()
}

/// Of the twelve phases, those in which an outage of this length opened the breaker.
pub(crate) fn trips(policy: &BreakerPolicy, length: f64) -> usize {
    runs(policy, length).iter().filter(|(_, report)| report.trips > 0).count()
}

/// Mean seconds from the end of the outage until the breaker has closed.
pub(crate) fn extra(policy: &BreakerPolicy, length: f64) -> f64 {
    let extra = |(end, report): &(f64, Report)| report.open.map_or(0.0, |(_, last)| (last - end).max(0.0));
    mean(&runs(policy, length).iter().map(extra).collect::<Vec<_>>())
}

/// As the breaker was without a look at the latest outcomes.
pub(crate) fn without_recency() -> BreakerPolicy {
    BreakerPolicy { recency: 0, ..BreakerPolicy::default() }
}

/// As long open after a failed probe as after a trip.
pub(crate) fn slow_reopen() -> BreakerPolicy {
    BreakerPolicy { reopen_for: Duration::from_secs(20), ..BreakerPolicy::default() }
}

#[test]
fn a_short_outage_does_not_open_the_breaker_after_the_fact() {
    for length in SHORT {
        assert_eq!(trips(&BreakerPolicy::default(), length), 0, "{length} s");
        if length >= 8.0 {
            assert_eq!(trips(&without_recency(), length), 12, "{length} s, the control");
        }
    }
    let lost = extra(&without_recency(), 9.0);
    assert!(lost >= 19.0, "the control loses {lost} s");
}

#[test]
fn the_breaker_closes_soon_after_a_long_outage() {
    let (half_minute, minute) =
        (extra(&BreakerPolicy::default(), 30.0), extra(&BreakerPolicy::default(), 60.0));
    assert!(half_minute <= 4.0, "{half_minute}");
    assert!(minute <= 4.0, "{minute}");
    let control = extra(&slow_reopen(), 60.0);
    assert!(control >= 8.0, "the control: {control}");
}
