//! A breaker that is told of each attempt takes failures that retries would have mended for an outage.

use std::sync::Arc;
use std::time::Duration;

use tidegate::breaker::Breaker;
use tidegate::clock::Instant;
use tidegate::config::BreakerPolicy;
use tidegate::lock::Mutex;

use super::controls::{Ask, Policy};
use super::upstream::Brownout;
use super::{Client, Fleet, Guards, mean};

const SEEDS: u64 = 5;
const LENGTH: f64 = 300.0;

/// Share of calls that succeed.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) per_call: f64,
    pub(crate) per_attempt: f64,
}

/// A breaker as the text has it that the defaults come from.
fn breaker_per_attempt() -> Policy {
    let policy =
        BreakerPolicy { recency: 0, reopen_for: Duration::from_secs(20), ..BreakerPolicy::default() };
    let breaker = Breaker::new(&policy, Instant::ZERO);
    Policy { ask: Ask::Breaker(Arc::new(Mutex::new(breaker))), ..Policy::four_attempts() }
}

/// `share` of the attempts fail.
pub(crate) fn measure(share: f64) -> Figure {
    let success = |client: Client| {
        let run = |seed| {
            let client = client.clone();
            Fleet { processes: 1, rate: 20.0, length: LENGTH, attempt_timeout: None, client, seed }
                .run(Brownout::new(share))
                .success_rate()
        };
        mean(&(0..SEEDS).map(run).collect::<Vec<_>>())
    };
    Figure {
        per_call: success(Client::Guarded(Box::new(Guards::with_concurrency(1000)))),
        per_attempt: success(Client::Control(breaker_per_attempt)),
    }
}

#[test]
fn a_brownout_that_retries_mend_does_not_open_the_breaker() {
    let (quarter, third) = (measure(0.25), measure(0.3));
    assert!(quarter.per_call >= 0.99, "{quarter:?}");
    assert!(third.per_call >= 0.90, "{third:?}");
    assert!(quarter.per_attempt <= 0.5, "the control: {quarter:?}");
    assert!(third.per_attempt <= 0.2, "the control: {third:?}");
}
