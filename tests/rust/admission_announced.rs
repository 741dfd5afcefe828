//! What single announcements do, step by step.

use std::time::Duration;

use tidegate::admission::{Announced, Charge, Entry, QuotaSnapshot, Settlement, Ticket};
use tidegate::config::Limits;

use crate::admission_sim::{Sim, at, limits};

fn enter(sim: &mut Sim<()>, cost: u64) -> Ticket {
    let Entry::Granted(ticket) = sim.enqueue(cost) else { panic!("to be granted") };
    ticket
}

fn requests(sim: &Sim<()>) -> QuotaSnapshot {
    sim.admission.snapshot(sim.now).requests.expect("limited")
}

fn requests_left(limit: u64, remaining: u64) -> Announced {
    Announced { limit_requests: Some(limit), remaining_requests: Some(remaining), ..Announced::default() }
}

#[test]
fn remaining_only_lowers() {
    let mut sim = Sim::new(&Limits { burst_seconds: 60.0, ..limits(Some(600), None) });
    let ticket = enter(&mut sim, 1);
    for (remaining, level) in [(1_000, 599.0), (7, 7.0), (500, 7.0), (0, 0.0)] {
        sim.admission.learn(sim.now, ticket, &requests_left(600, remaining));
        assert_eq!(requests(&sim).level, level, "{remaining} announced");
    }
}

#[test]
fn limits_are_learned_where_none_are_given() {
    let announced = |tokens| Announced {
        limit_requests: Some(6_000),
        limit_tokens: Some(tokens),
        ..Announced::default()
    };
    let mut sim = Sim::new(&Limits { rpm: Some(60), ..Limits::default() });
    let ticket = enter(&mut sim, 10);
    sim.admission.learn(sim.now, ticket, &announced(0));
    let snapshot = sim.admission.snapshot(sim.now);
    assert_eq!(snapshot.tokens, None, "0 is no limit");
    assert_eq!(requests(&sim).rate, 54.0, "the user's own stays");
    for tokens in [120_000, 60_000] {
        sim.admission.learn(sim.now, ticket, &announced(tokens));
        let learned = sim.admission.snapshot(sim.now).tokens.expect("learned");
        let expected = tokens as f64;
        assert_eq!((learned.limit, learned.rate), (tokens, 0.9 * expected), "less the headroom");
        assert_eq!(learned.capacity, expected / 10.0);
    }
    assert!(sim.enqueue_until(60_001, at(9.0)).is_err(), "larger than the learned limit");

    let mut deaf = Sim::new(&Limits { learn: false, ..Limits::default() });
    let ticket = enter(&mut deaf, 10);
    deaf.admission.learn(deaf.now, ticket, &announced(60_000));
    let snapshot = deaf.admission.snapshot(deaf.now);
    assert_eq!((snapshot.requests, snapshot.tokens), (None, None));
}

#[test]
fn what_remains_sets_the_pace() {
    let mut sim = Sim::new(&Limits::default());
    let ticket = enter(&mut sim, 1);
    for (remaining, rate) in [(5_999, 6_000.0), (600, 6_000.0), (300, 3_000.0), (0, 93.75), (3_000, 6_000.0)]
    {
        sim.admission.learn(sim.now, ticket, &requests_left(6_000, remaining));
        assert_eq!(requests(&sim).rate, rate, "{remaining} remain");
    }
}

#[test]
fn an_overtaken_answer_does_not_set_the_pace() {
    let mut sim = Sim::new(&Limits::default());
    let first = enter(&mut sim, 1);
    sim.now = at(1.0);
    let second = enter(&mut sim, 1);
    sim.admission.learn(sim.now, second, &requests_left(6_000, 5_998));
    sim.admission.learn(sim.now, first, &requests_left(6_000, 60));
    assert_eq!(requests(&sim).rate, 6_000.0);
    assert_eq!(requests(&sim).level, 60.0, "but it lowers what may be taken at once");
}

#[test]
fn refusals_of_one_moment_slow_down_once() {
    let mut sim = Sim::new(&Limits::default());
    let cold = enter(&mut sim, 1);
    let told = enter(&mut sim, 1);
    sim.now = at(1.0);
    sim.admission.learn(sim.now, told, &requests_left(6_000, 5_990));
    let refused = Settlement::Failed { charge: Charge::Keep };
    sim.admission.settle(sim.now, cold, refused);
    assert_eq!(requests(&sim).rate, 6_000.0, "it was sent before anything was known");
    let together = [enter(&mut sim, 1), enter(&mut sim, 1)];
    sim.now = at(1.5);
    sim.admission.settle(sim.now, together[0], refused);
    sim.admission.settle(sim.now, together[1], refused);
    assert_eq!(requests(&sim).rate, 4_200.0);
    let later = enter(&mut sim, 1);
    sim.admission.settle(sim.now, later, refused);
    assert_eq!(requests(&sim).rate, 2_940.0);
}

#[test]
fn an_answer_without_an_announcement_ends_the_cautious_start() {
    let mut sim = Sim::new(&Limits::default());
    let first = enter(&mut sim, 1);
    for _ in 1..8 {
        enter(&mut sim, 1);
    }
    assert!(matches!(sim.enqueue(1), Entry::Queued(_)));
    assert!(sim.admission.next_wake(sim.now) < Some(at(0.05)));
    sim.admission.learn(sim.now, first, &Announced::default());
    assert_eq!(sim.granted().len(), 1);
    assert_eq!(sim.admission.snapshot(sim.now).in_flight, 9);
}

/// All who share a quota wait for the end of the same pause: what each has saved up must not go out at once by all.
#[test]
fn a_learned_quota_earns_nothing_in_a_pause_and_a_given_one_does() {
    let saved = |limits: &Limits| {
        let mut sim = Sim::<()>::new(limits);
        let ticket = enter(&mut sim, 1);
        sim.admission.learn(sim.now, ticket, &requests_left(6_000, 5_999));
        sim.admission.settle(sim.now, ticket, Settlement::Used { tokens: 1 });
        while requests(&sim).level >= 1.0 {
            enter(&mut sim, 1);
        }
        sim.admission.cool_down(sim.now, at(1.0));
        sim.now = at(1.0);
        assert!(sim.granted().is_empty());
        requests(&sim).level.round()
    };
    assert_eq!(saved(&Limits::default()), 1.0);
    let given = Limits { rpm: Some(6_000), headroom: 0.0, ..Limits::default() };
    assert_eq!(saved(&given), 100.0);
}

#[test]
fn whoever_comes_when_others_have_drained_it_goes_slowly() {
    let mut sim = Sim::<()>::new(&Limits::default());
    let ticket = enter(&mut sim, 1);
    sim.admission.learn(sim.now, ticket, &requests_left(6_000, 5));
    assert_eq!(requests(&sim).rate, 600.0, "5 of a reserve of half a second");
}

#[test]
fn a_wait_of_nanoseconds_is_rounded_up() {
    let mut sim = Sim::<()>::new(&Limits { headroom: 0.0, ..limits(Some(60), None) });
    enter(&mut sim, 0);
    assert!(matches!(sim.enqueue(0), Entry::Queued(_)));
    sim.now = at(0.999_999_999);
    assert!(sim.granted().is_empty());
    assert_eq!(sim.admission.next_wake(sim.now), Some(sim.now + Duration::from_micros(1)));
}
