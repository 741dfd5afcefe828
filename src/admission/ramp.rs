//! The cautious start of a scope whose quota is not known yet.

use std::time::Duration;

use crate::clock::Instant;

/// Requests in flight at the start.
const FIRST_WINDOW: usize = 8;
/// The window doubles in this time: 100 in flight after 0.73 s, 1,000 after 1.4 s, 10,000 after 2.1 s.
const DOUBLING: Duration = Duration::from_millis(200);

/// Lets few requests out until the first answer tells the quota, and more with time, so that nobody waits much longer
/// for an answer that takes long.
///
/// The window grows without steps: a provider that grants little at once refuses then the one request that was too
/// many, and not a whole step of them before its word has come.
#[derive(Debug)]
pub(super) struct Ramp {
    finished: bool,
    started: Option<Instant>,
}

impl Ramp {
    pub(super) const fn new(wanted: bool) -> Self {
        Self { finished: !wanted, started: None }
    }

    pub(super) fn start(&mut self, now: Instant) {
        if !self.finished {
            self.started.get_or_insert(now);
        }
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// When one more than `in_flight` requests may be out; in the past if they may now.
    pub(super) fn opens_at(&self, now: Instant, in_flight: usize) -> Instant {
        if self.finished || in_flight < FIRST_WINDOW {
            return Instant::ZERO;
        }
        let doublings = ((in_flight + 1) as f64 / FIRST_WINDOW as f64).log2();
        self.started.unwrap_or(now) + DOUBLING.mul_f64(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_without_steps_until_the_first_answer() {
        let mut ramp = Ramp::new(true);
        let start = Instant::from_nanos(1_000_000_000);
        assert_eq!(ramp.opens_at(start, 7), Instant::ZERO);
        ramp.start(start);
        let after = |ramp: &Ramp, in_flight| ramp.opens_at(start, in_flight).since(start);
        assert_eq!(
            [8, 15, 31, 99, 999, 9_999].map(|n| after(&ramp, n).as_millis()),
            [33, 200, 400, 728, 1_393, 2_057]
        );
        for in_flight in 8..1_000 {
            let gap = after(&ramp, in_flight + 1).checked_sub(after(&ramp, in_flight)).unwrap();
            let even = 200_000_000.0 / 2_f64.ln() / (in_flight + 1) as f64;
            assert!((0.9..=1.0).contains(&(gap.as_nanos() as f64 / even)), "{in_flight}: {gap:?}");
        }
        ramp.finish();
        assert_eq!(after(&ramp, 9_999), Duration::ZERO);
    }
}
