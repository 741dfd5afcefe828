//! The breaker's boundaries and its half-open state, step by step.

use std::time::Duration;

use tidegate::breaker::{Breaker, Counts, OpenReason, Outcome, Rejection, State, Ticket};
use tidegate::clock::Instant;
use tidegate::config::BreakerPolicy;

pub(crate) const EPOCH: Instant = Instant::from_nanos(3_600_000_000_000);

pub(crate) fn at(seconds: f64) -> Instant {
    EPOCH + Duration::from_secs_f64(seconds)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(crate) fn call(breaker: &mut Breaker, now: Instant, outcome: Outcome) {
    let ticket = breaker.acquire(now, None).expect("admitted");
    breaker.record(now, ticket, outcome);
}

fn calls(breaker: &mut Breaker, now: Instant, successes: u32, failures: u32) {
    for _ in 0..successes {
        call(breaker, now, Outcome::Success);
    }
    for _ in 0..failures {
        call(breaker, now, Outcome::Failure);
    }
}

fn new(policy: &BreakerPolicy) -> Breaker {
    Breaker::new(policy, EPOCH)
}

/// Open since 6 s after the epoch; probes from 26 s on.
fn tripped(policy: &BreakerPolicy) -> Breaker {
    let mut breaker = new(policy);
    calls(&mut breaker, at(1.0), 0, 50);
    assert_eq!(breaker.peek(at(5.9)), Ok(()));
    assert!(breaker.peek(at(6.0)).is_err());
    breaker
}

const UNTIL: f64 = 26.0;

fn probes(breaker: &mut Breaker, now: Instant) -> [Ticket; 3] {
    [(); 3].map(|()| breaker.acquire(now, None).expect("a probe"))
}

fn opens_with(successes: u32, failures: u32) -> bool {
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(1.0), successes, failures);
    breaker.peek(at(6.0)).is_err()
}

#[test]
fn trips_from_fifty_calls_and_a_quarter_failed() {
    assert!(!opens_with(0, 49));
    assert!(opens_with(0, 50));
    assert!(!opens_with(38, 12));
    assert!(opens_with(37, 13));
    assert!(!opens_with(76, 24) && opens_with(75, 25), "exactly 25 % is a hit");
    assert!(!opens_with(301, 100) && opens_with(300, 100));
}

#[test]
fn two_hits_in_a_row_open_it() {
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(1.0), 37, 13);
    assert_eq!(breaker.peek(at(3.0)), Ok(()), "one hit");
    calls(&mut breaker, at(3.1), 3, 0);
    assert_eq!(breaker.peek(at(6.0)), Ok(()), "13 of 53 is a miss");
    calls(&mut breaker, at(6.1), 0, 1);
    assert_eq!(breaker.peek(at(9.0)), Ok(()), "14 of 54: the first hit again");
    assert_eq!(
        breaker.peek(at(12.0)),
        Err(Rejection {
            state: State::Open,
            reason: OpenReason::FailureRate,
            retry_after: Some(seconds(20.0))
        })
    );
    assert_eq!(breaker.snapshot(at(12.0)).opened_total, 1);
}

#[test]
fn outcomes_leave_the_window_after_thirty_seconds() {
    // 25 failures at 0.1 s and 25 at 29.9 s: together they reach 50 only at the boundary of 30 s.
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(0.1), 0, 25);
    calls(&mut breaker, at(29.9), 0, 25);
    assert_eq!(breaker.snapshot(at(29.9)).window, Counts { total: 50, failures: 50 });
    assert_eq!(breaker.peek(at(30.0)), Ok(()));
    assert_eq!(breaker.snapshot(at(30.0)).window, Counts { total: 25, failures: 25 });
    assert_eq!(breaker.peek(at(33.0)), Ok(()), "the first 25 are out, so the second look is a miss");
    calls(&mut breaker, at(33.1), 0, 25);
    assert_eq!(breaker.peek(at(36.0)), Ok(()));
    assert!(breaker.peek(at(39.0)).is_err(), "50 within 30 s, seen twice");
}

#[test]
fn boundaries_without_traffic_are_judged_afterwards() {
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(1.0), 0, 50);
    assert!(breaker.peek(at(20.0)).is_err());
    assert_eq!(breaker.snapshot(at(20.0)).next_probe_in, Some(seconds(20.0)), "open from now on");
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(1.0), 0, 50);
    assert_eq!(breaker.peek(at(33.0)), Ok(()), "all of it is history");
    assert!(breaker.peek(at(39.0)).is_ok());
}

#[test]
fn an_upstream_that_has_recovered_is_not_cut_off() {
    let policy = BreakerPolicy::default();
    let blip = |policy: &BreakerPolicy| {
        let mut breaker = new(policy);
        calls(&mut breaker, at(1.0), 40, 60);
        calls(&mut breaker, at(5.9), 20, 0);
        breaker.peek(at(6.0)).is_err()
    };
    assert!(!blip(&policy), "the last 20 outcomes are successes");
    assert!(blip(&BreakerPolicy { recency: 0, ..policy }), "without the condition it trips");
}

#[test]
fn exactly_three_probes_pass_when_a_hundred_ask() {
    let mut breaker = tripped(&BreakerPolicy::default());
    let before = breaker.peek(at(UNTIL - 0.001)).unwrap_err();
    assert_eq!(before.retry_after, Some(seconds(0.001)));
    for _ in 0..100 {
        assert_eq!(breaker.peek(at(UNTIL)), Ok(()), "asking takes nothing");
    }
    let answers: Vec<_> = (0..100).map(|_| breaker.acquire(at(UNTIL), None)).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    for rejection in answers.into_iter().filter_map(Result::err) {
        assert_eq!(
            rejection,
            Rejection {
                state: State::HalfOpen,
                reason: OpenReason::FailureRate,
                retry_after: Some(seconds(1.0))
            }
        );
    }
}

#[test]
fn two_successful_probes_close_it() {
    let mut breaker = tripped(&BreakerPolicy::default());
    let [first, second, third] = probes(&mut breaker, at(UNTIL));
    breaker.record(at(27.0), first, Outcome::Success);
    assert_eq!(breaker.state(), State::HalfOpen);
    breaker.record(at(27.5), second, Outcome::Success);
    assert_eq!(breaker.state(), State::Closed);
    breaker.record(at(28.0), third, Outcome::Failure);
    let snapshot = breaker.snapshot(at(28.0));
    assert_eq!((snapshot.window, snapshot.late_total), (Counts::default(), 1));
    // 50 failures before the trip are forgotten: 49 new ones are not enough.
    calls(&mut breaker, at(28.0), 0, 49);
    assert_eq!(breaker.peek(at(40.0)), Ok(()));
}

#[test]
fn a_failed_probe_opens_it_for_the_shorter_time() {
    let mut breaker = tripped(&BreakerPolicy::default());
    let [first, second, third] = probes(&mut breaker, at(UNTIL));
    breaker.record(at(27.0), first, Outcome::Failure);
    let rejection = breaker.peek(at(27.0)).unwrap_err();
    assert_eq!((rejection.reason, rejection.retry_after), (OpenReason::ProbeFailed, Some(seconds(5.0))));
    breaker.record(at(28.0), second, Outcome::Success);
    breaker.record(at(28.0), third, Outcome::Failure);
    let snapshot = breaker.snapshot(at(28.0));
    assert_eq!(snapshot.next_probe_in, Some(seconds(4.0)), "late results neither close nor extend");
    assert_eq!((snapshot.opened_total, snapshot.reopened_total, snapshot.late_total), (1, 1, 2));
    assert!(breaker.acquire(at(32.0), None).unwrap().is_probe());
}

#[test]
fn a_hung_probe_is_a_failure_when_its_lease_ends() {
    let policy = BreakerPolicy::default();
    let mut breaker = tripped(&policy);
    let [hung, ..] = probes(&mut breaker, at(UNTIL));
    assert_eq!(breaker.peek(at(55.9)).unwrap_err().state, State::HalfOpen);
    let rejection = breaker.peek(at(57.0)).unwrap_err();
    assert_eq!((rejection.state, rejection.reason), (State::Open, OpenReason::ProbeTimedOut));
    assert_eq!(rejection.retry_after, Some(seconds(4.0)), "5 s from the end of the lease");
    breaker.record(at(58.0), hung, Outcome::Success);
    assert_eq!(breaker.state(), State::Open);
    // A shorter attempt timeout shortens the lease.
    let mut breaker = tripped(&policy);
    let _hung = breaker.acquire(at(UNTIL), Some(seconds(2.0))).unwrap();
    assert_eq!(breaker.peek(at(28.0)).unwrap_err().state, State::Open);
    // After a long pause a lease that ran out is no reason to refuse.
    assert!(breaker.acquire(at(600.0), None).unwrap().is_probe());
}

#[test]
fn a_neutral_probe_gives_its_place_back() {
    let mut breaker = tripped(&BreakerPolicy::default());
    let [first, _second, _third] = probes(&mut breaker, at(UNTIL));
    assert!(breaker.peek(at(UNTIL)).is_err());
    breaker.record(at(UNTIL), first, Outcome::Neutral);
    assert_eq!(breaker.state(), State::HalfOpen);
    assert!(breaker.acquire(at(UNTIL), None).unwrap().is_probe());
    assert!(breaker.acquire(at(UNTIL), None).is_err());
}

#[test]
fn a_throttled_probe_opens_it_for_the_hint() {
    for (hint, open_for) in [(0.0, 1.0), (0.5, 1.0), (7.0, 7.0), (3600.0, 20.0)] {
        let mut breaker = tripped(&BreakerPolicy::default());
        let [first, ..] = probes(&mut breaker, at(UNTIL));
        breaker.record(at(27.0), first, Outcome::Throttled(seconds(hint)));
        let rejection = breaker.peek(at(27.0)).unwrap_err();
        assert_eq!((rejection.state, rejection.reason), (State::Open, OpenReason::ProbeThrottled));
        assert_eq!(rejection.retry_after, Some(seconds(open_for)));
    }
}

#[test]
fn results_of_an_earlier_generation_change_nothing() {
    let mut breaker = new(&BreakerPolicy::default());
    let old: Vec<_> = (0..200).map(|_| breaker.acquire(at(0.5), None).unwrap()).collect();
    calls(&mut breaker, at(1.0), 0, 50);
    assert!(breaker.peek(at(6.0)).is_err());
    let mut old = old.into_iter();
    let mut late = |breaker: &mut Breaker, now, outcome| {
        for ticket in old.by_ref().take(50) {
            breaker.record(now, ticket, outcome);
        }
    };
    late(&mut breaker, at(10.0), Outcome::Failure);
    assert_eq!(breaker.snapshot(at(10.0)).next_probe_in, Some(seconds(16.0)), "not extended");
    let [first, second, _third] = probes(&mut breaker, at(UNTIL));
    late(&mut breaker, at(26.1), Outcome::Success);
    assert_eq!(breaker.state(), State::HalfOpen, "late successes do not close");
    late(&mut breaker, at(26.1), Outcome::Failure);
    assert_eq!(breaker.state(), State::HalfOpen, "late failures do not open");
    breaker.record(at(26.2), first, Outcome::Success);
    breaker.record(at(26.2), second, Outcome::Success);
    late(&mut breaker, at(26.3), Outcome::Failure);
    let snapshot = breaker.snapshot(at(26.3));
    assert_eq!((snapshot.state, snapshot.window), (State::Closed, Counts::default()));
    assert_eq!(snapshot.late_total, 200);
}

#[test]
fn a_slow_call_is_counted_once_while_in_flight() {
    let mut breaker = new(&BreakerPolicy::default());
    let mut ticket = breaker.acquire(at(0.0), None).unwrap();
    breaker.slow(at(0.0), &mut ticket);
    breaker.slow(at(0.1), &mut ticket);
    let next = breaker.acquire(at(0.2), None).unwrap().after(&ticket);
    breaker.record(at(0.3), ticket, Outcome::Failure);
    breaker.record(at(0.4), next, Outcome::Success);
    let snapshot = breaker.snapshot(at(1.0));
    assert_eq!((snapshot.window, snapshot.late_total), (Counts { total: 1, failures: 1 }, 0));
}

#[test]
fn a_slow_call_of_an_earlier_generation_is_late_once() {
    let mut breaker = new(&BreakerPolicy::default());
    let mut ticket = breaker.acquire(at(0.0), None).unwrap();
    breaker.reset();
    breaker.slow(at(0.1), &mut ticket);
    breaker.record(at(0.2), ticket, Outcome::Failure);
    let snapshot = breaker.snapshot(at(1.0));
    assert_eq!((snapshot.window, snapshot.late_total), (Counts::default(), 1));
}

#[test]
fn a_probe_of_an_earlier_slow_call_still_decides() {
    let mut breaker = tripped(&BreakerPolicy::default());
    breaker.reset();
    let mut earlier = breaker.acquire(at(7.0), None).unwrap();
    breaker.slow(at(22.0), &mut earlier);
    calls(&mut breaker, at(22.0), 0, 49);
    assert!(breaker.peek(at(27.0)).is_err());
    let probe = breaker.acquire(at(47.0), None).unwrap().after(&earlier);
    breaker.record(at(48.0), probe, Outcome::Failure);
    assert_eq!(breaker.peek(at(48.0)).unwrap_err().reason, OpenReason::ProbeFailed);
}

#[test]
fn the_first_content_of_a_stream_is_a_probes_verdict() {
    let mut breaker = tripped(&BreakerPolicy::default());
    let [mut first, mut second, _third] = probes(&mut breaker, at(UNTIL));
    breaker.stream_began(at(26.5), &mut first);
    breaker.stream_began(at(26.6), &mut first);
    assert_eq!(breaker.state(), State::HalfOpen, "one stream is one success");
    breaker.stream_began(at(27.0), &mut second);
    assert_eq!(breaker.state(), State::Closed);
    breaker.record(at(80.0), second, Outcome::Failure);
    assert_eq!(breaker.snapshot(at(80.0)).window, Counts { total: 1, failures: 1 });
}

#[test]
fn rate_limits_count_where_the_policy_says_so() {
    for (count_429, expected) in [(false, 0), (true, 1)] {
        let mut breaker = new(&BreakerPolicy { count_429, ..Default::default() });
        call(&mut breaker, at(0.0), Outcome::Throttled(seconds(3.0)));
        assert_eq!(breaker.snapshot(at(0.0)).window, Counts { total: expected, failures: expected });
    }
}

#[test]
fn the_operator_overrides_and_gives_back() {
    let mut breaker = new(&BreakerPolicy::default());
    breaker.force_open();
    let rejection = breaker.acquire(at(1e6), None).unwrap_err();
    assert_eq!(
        rejection,
        Rejection { state: State::ForcedOpen, reason: OpenReason::Operator, retry_after: None }
    );
    breaker.disable();
    calls(&mut breaker, at(1e6), 0, 200);
    assert_eq!(breaker.peek(at(1e6 + 6.0)), Ok(()));
    assert_eq!(breaker.state(), State::Disabled);
    breaker.reset();
    assert_eq!(breaker.peek(at(1e6 + 12.0)), Ok(()));
    calls(&mut breaker, at(1e6 + 12.0), 0, 50);
    assert!(breaker.peek(at(1e6 + 20.0)).is_err());
}

#[test]
fn a_clock_that_goes_back_neither_panics_nor_opens() {
    let mut breaker = new(&BreakerPolicy::default());
    calls(&mut breaker, at(3600.0), 25, 25);
    calls(&mut breaker, Instant::ZERO, 0, 1);
    assert_eq!(breaker.snapshot(at(3600.0)).window, Counts { total: 51, failures: 26 });
    assert_eq!(breaker.peek(Instant::FAR_FUTURE), Ok(()));
    assert_eq!(breaker.peek(at(0.0)), Ok(()));
}
