//! The cautious start of a scope whose quota is not known yet.

use std::time::Duration;

use crate::clock::Instant;

/// Requests in flight at the start.
const FIRST_WINDOW: usize = 8;
/// The window doubles this often: 1,000 in flight after 0.35 s, 10,000 after 0.55 s.
const STEP: Duration = Duration::from_millis(50);

/// Lets few requests out until the first answer tells the quota, and more with time, so that an answer that takes
/// long delays nobody by more than half a second.
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
        let doublings = (in_flight / FIRST_WINDOW).ilog2() + 1;
        self.started.unwrap_or(now) + STEP * doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_until_the_first_answer() {
        let mut ramp = Ramp::new(true);
        let start = Instant::from_nanos(1_000_000_000);
        assert_eq!(ramp.opens_at(start, 7), Instant::ZERO);
        ramp.start(start);
        let after = |ramp: &Ramp, in_flight| ramp.opens_at(start, in_flight).since(start).as_millis();
        assert_eq!(
            [8, 15, 16, 31, 32, 999, 9_999].map(|n| after(&ramp, n)),
            [50, 50, 100, 100, 150, 350, 550]
        );
        ramp.finish();
        assert_eq!(after(&ramp, 9_999), 0);
    }
}
