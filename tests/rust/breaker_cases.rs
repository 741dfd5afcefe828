//! Faults seen in the field: breakers stuck half-open, floods of probes, cancellations counted as failures.
//!
//! The cases assume a breaker that opens with the fifth failure. Ours judges at the end of a bucket, so the
//! failures come just before the end of the first one, which is t = 0 here.

use std::time::Duration;

use tidegate::breaker::{Breaker, Outcome, Rejection, State, Ticket};
use tidegate::clock::Instant;
use tidegate::config::BreakerPolicy;

use crate::breaker::{at, call};

/// Seconds from the epoch to t = 0: one bucket of a window of 30 s.
const BUCKET: f64 = 3.0;

fn t(seconds: f64) -> Instant {
    at(BUCKET + seconds)
}

fn breaker() -> Breaker {
    let policy = BreakerPolicy {
        window: Duration::from_secs(30),
        minimum_calls: 5,
        failure_rate_threshold: 0.5,
        consecutive_hits: 1,
        open_for: Duration::from_secs(2),
        reopen_for: Duration::from_secs(2),
        half_open_max_calls: 1,
        half_open_successes: 1,
        ..BreakerPolicy::default()
    };
    Breaker::new(&policy, at(0.0))
}

fn many(breaker: &mut Breaker, count: usize, outcome: Outcome) {
    for _ in 0..count {
        call(breaker, t(-0.1), outcome);
    }
}

fn opened() -> Breaker {
    let mut breaker = breaker();
    many(&mut breaker, 5, Outcome::Failure);
    let rejection = breaker.peek(t(0.0)).unwrap_err();
    assert_eq!(rejection.retry_after, Some(Duration::from_secs(2)));
    breaker
}

fn probe(breaker: &mut Breaker, seconds: f64) -> Ticket {
    let ticket = breaker.acquire(t(seconds), None).expect("admitted");
    assert!(ticket.is_probe());
    ticket
}

/// B79 `probe_hangs` and `probe_task_destroyed`: either way nobody ever records.
#[test]
fn a_probe_without_a_result_does_not_block_the_next() {
    let policy_of_the_case = |probe_timeout, reopen_for| BreakerPolicy {
        minimum_calls: 5,
        failure_rate_threshold: 0.5,
        consecutive_hits: 1,
        open_for: Duration::from_secs(2),
        half_open_max_calls: 1,
        half_open_successes: 1,
        probe_timeout,
        reopen_for,
        ..BreakerPolicy::default()
    };
    let second = Duration::from_secs(1);
    let mut breaker = Breaker::new(&policy_of_the_case(second, second), at(0.0));
    many(&mut breaker, 5, Outcome::Failure);
    assert!(breaker.peek(t(0.0)).is_err());
    drop(probe(&mut breaker, 2.0));
    assert_eq!(breaker.peek(t(2.9)).unwrap_err().state, State::HalfOpen);
    drop(probe(&mut breaker, 4.1));
    // Nor does a second one that dies, however long nobody calls.
    drop(probe(&mut breaker, 7.0));
    drop(probe(&mut breaker, 6.0 * 86_400.0));
}

/// B79 `probe_stream_dropped`.
#[test]
fn a_dropped_stream_gives_its_probe_back() {
    let mut breaker = opened();
    let ticket = probe(&mut breaker, 2.0);
    breaker.record(t(2.3), ticket, Outcome::Neutral);
    drop(probe(&mut breaker, 2.5));
}

/// B80 `flood`.
#[test]
fn a_flood_at_half_open_reaches_the_server_once() {
    let mut breaker = opened();
    let (admitted, refused): (Vec<_>, Vec<_>) =
        (0..100).map(|_| breaker.acquire(t(2.0), None)).partition(Result::is_ok);
    assert_eq!((admitted.len(), refused.len()), (1, 99));
    for ticket in admitted.into_iter().flatten() {
        breaker.record(t(2.2), ticket, Outcome::Success);
    }
    assert_eq!(breaker.state(), State::Closed);
}

/// B80 `probe_fails`.
#[test]
fn a_failed_probe_opens_it_whatever_the_rate() {
    let mut breaker = opened();
    let ticket = probe(&mut breaker, 2.0);
    breaker.record(t(2.0), ticket, Outcome::Failure);
    for tenths in 21..40 {
        let refused: Rejection = breaker.acquire(t(f64::from(tenths) / 10.0), None).unwrap_err();
        assert_eq!(refused.state, State::Open);
    }
    let ticket = probe(&mut breaker, 4.05);
    breaker.record(t(4.05), ticket, Outcome::Success);
    assert_eq!(breaker.state(), State::Closed);
}

/// B82: cancellations are neither failures nor part of the denominator.
#[test]
fn cancelled_calls_do_not_count() {
    let refused = |failures, cancelled| {
        let mut breaker = breaker();
        many(&mut breaker, cancelled, Outcome::Neutral);
        many(&mut breaker, failures, Outcome::Failure);
        breaker.peek(t(0.0)).is_err()
    };
    assert!(!refused(0, 50), "fifty_cancels");
    assert!(!refused(4, 50), "cancel_mixed");
    assert!(refused(5, 50), "cancel_not_in_denominator");
    assert!(refused(5, 0), "server_timeout_counts");
}

/// B82 `cancelled_probe`, B83 `probe_400`, `probe_404`, `probe_422`, `probe_401`, `probe_refused_locally`: all
/// are neutral, so the next call is the new probe.
#[test]
fn a_neutral_probe_is_followed_by_another() {
    let mut breaker = opened();
    for seconds in [2.0, 2.1, 2.2] {
        let ticket = probe(&mut breaker, seconds);
        breaker.record(t(seconds), ticket, Outcome::Neutral);
        assert_eq!(breaker.state(), State::HalfOpen);
    }
    let ticket = probe(&mut breaker, 2.3);
    breaker.record(t(2.4), ticket, Outcome::Success);
    assert_eq!(breaker.state(), State::Closed);
}

/// B83 `closed_400s`.
#[test]
fn errors_of_the_request_do_not_open_it() {
    let mut breaker = breaker();
    many(&mut breaker, 50, Outcome::Neutral);
    assert_eq!(breaker.peek(t(0.0)), Ok(()));
}
