//! Models of what is called.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tidegate::clock::Instant;

use super::at;
use super::driver::{Ended, Reply, Served};

pub(crate) trait Upstream {
    fn serve(&mut self, now: Instant, rng: &mut StdRng) -> Served;
}

const HEALTHY: Duration = Duration::from_millis(100);
const FAILING: Duration = Duration::from_millis(50);

fn replies(reply: &Arc<Reply>, takes: Duration) -> Served {
    Served { takes, ended: Ended::Answered(Arc::clone(reply)) }
}

fn unavailable() -> Arc<Reply> {
    Reply::new(503, &[], r#"{"error":{"message":"unavailable","type":"server_error"}}"#)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Down {
    /// Every request is answered 503 at once.
    Errors,
    /// No request is answered.
    Hang,
}

/// Healthy, but for one time in which nothing works.
#[derive(Debug)]
pub(crate) struct Outage {
    from: Instant,
    to: Instant,
    down: Down,
    good: Arc<Reply>,
    bad: Arc<Reply>,
}

impl Outage {
    pub(crate) fn new(from: f64, length: f64, down: Down) -> Self {
        let to = if length.is_finite() { at(from + length) } else { Instant::FAR_FUTURE };
        Self { from: at(from), to, down, good: Reply::ok(), bad: unavailable() }
    }
}

impl Upstream for Outage {
    fn serve(&mut self, now: Instant, _rng: &mut StdRng) -> Served {
        if now < self.from || now >= self.to {
            return replies(&self.good, HEALTHY);
        }
        match self.down {
            Down::Errors => replies(&self.bad, FAILING),
            Down::Hang => replies(&self.bad, Duration::from_secs(86_400)),
        }
    }
}

/// Every attempt fails with the same probability, whatever else happens.
#[derive(Debug)]
pub(crate) struct Brownout {
    share: f64,
    good: Arc<Reply>,
    bad: Arc<Reply>,
}

impl Brownout {
    pub(crate) fn new(share: f64) -> Self {
        Self { share, good: Reply::ok(), bad: unavailable() }
    }
}

impl Upstream for Brownout {
    fn serve(&mut self, _now: Instant, rng: &mut StdRng) -> Served {
        if rng.random::<f64>() < self.share {
            replies(&self.bad, FAILING)
        } else {
            replies(&self.good, HEALTHY)
        }
    }
}

/// A server that works off one queue in order of arrival, and does not notice who has stopped waiting. It
/// answers 503 while its queue is full.
#[derive(Debug)]
pub(crate) struct Queueing {
    /// Requests per second, and during the dip.
    capacity: f64,
    reduced: f64,
    dip: (Instant, Instant),
    longest: usize,
    /// When each of those in the queue will have been served.
    ends: VecDeque<Instant>,
    good: Arc<Reply>,
    full: Arc<Reply>,
}

impl Queueing {
    pub(crate) fn new(capacity: f64, reduced: f64, dip: (f64, f64), longest: usize) -> Self {
        Self {
            capacity,
            reduced,
            dip: (at(dip.0), at(dip.1)),
            longest,
            ends: VecDeque::new(),
            good: Reply::ok(),
            full: unavailable(),
        }
    }

    /// When one request will have been served that comes up at `start`.
    fn serve_from(&self, start: Instant) -> Instant {
        let mut now = start;
        let mut left = 1.0;
        loop {
            let (rate, change) = match now {
                now if now < self.dip.0 => (self.capacity, self.dip.0),
                now if now < self.dip.1 => (self.reduced, self.dip.1),
                _ => (self.capacity, Instant::FAR_FUTURE),
            };
            let end = now + Duration::from_secs_f64(left / rate);
            if end <= change {
                return end;
            }
            left -= change.since(now).as_secs_f64() * rate;
            now = change;
        }
    }
}

impl Upstream for Queueing {
    fn serve(&mut self, now: Instant, _rng: &mut StdRng) -> Served {
        while self.ends.front().is_some_and(|&end| end <= now) {
            self.ends.pop_front();
        }
        if self.ends.len() >= self.longest {
            return replies(&self.full, Duration::from_millis(10));
        }
        let start = self.ends.back().map_or(now, |&end| end.max(now));
        let end = self.serve_from(start);
        self.ends.push_back(end);
        replies(&self.good, end.since(now))
    }
}
