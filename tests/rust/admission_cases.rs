//! Public bug reports about limiters, as cases under `tests/vectors/cases`.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tidegate::admission::{Entry, Refusal};
use tidegate::clock::Instant;
use tidegate::config::Limits;

use crate::admission_sim::{Sim, at, limits, seconds};

fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("valid JSON")
}

/// The whole limit is used, and a minute of it may be used at once where the case says so.
fn of_case(sim: &Value, burst_seconds: Option<f64>) -> Limits {
    let given = &sim["limits"];
    let per_period = given["requests"].as_u64().zip(given["period_s"].as_u64());
    let rpm = given["rpm"].as_u64().or(per_period.map(|(requests, period)| requests * 60 / period));
    let default = Limits::default();
    Limits {
        headroom: 0.0,
        tpm_burst_seconds: burst_seconds.unwrap_or(default.tpm_burst_seconds),
        ..limits(rpm, given["tpm"].as_u64())
    }
}

#[derive(Debug, PartialEq)]
enum Told {
    Granted(f64),
    TooLarge,
    Wait(f64),
    Nothing,
}

/// What each arrival of a case was told, in order.
fn play(limits: &Limits, case: &Value) -> Vec<(u64, Told)> {
    let mut sim = Sim::new(limits);
    let arrivals = case["arrivals"].as_array().expect("arrivals");
    for (i, arrival) in arrivals.iter().enumerate() {
        sim.schedule(at(arrival[0].as_f64().expect("time")), (i, arrival[1].as_u64().expect("cost")));
    }
    let mut told: Vec<(u64, Told)> = arrivals.iter().map(|_| (0, Told::Nothing)).collect();
    let mut waiting = HashMap::new();
    while let Some(event) = sim.step(at(case["horizon_s"].as_f64().unwrap_or(60.0))) {
        if let Some((i, cost)) = event {
            let answer = match sim.enqueue_until(cost, Instant::FAR_FUTURE) {
                Ok(Entry::Granted(_)) => Told::Granted(seconds(sim.now)),
                Ok(Entry::Queued(ticket)) => {
                    waiting.insert(ticket, i);
                    Told::Nothing
                }
                Err(Refusal::TooLarge { .. }) => Told::TooLarge,
                Err(Refusal::Deadline { eta }) => Told::Wait(eta.as_secs_f64()),
            };
            told[i] = (cost, answer);
        }
        for ticket in sim.granted() {
            told[waiting[&ticket]].1 = Told::Granted(seconds(sim.now));
        }
    }
    told
}

#[test]
fn case_b68_no_window_holds_more_than_the_limit() {
    let case = read(include_str!("../vectors/cases/B68_burst_window.json"));
    for sim in case["sims"].as_array().expect("sims") {
        let name = sim["name"].as_str().expect("name");
        let window = &case["expect"][name]["max_in_any_window"];
        let length = window["window_s"].as_f64().expect("window");
        let full = of_case(sim, None);
        let limit = full.rpm.expect("a request limit") as f64 / 60.0 * length;
        for (limits, bound, used) in [
            // As set by default, nothing exceeds the limit.
            (Limits { headroom: Limits::default().headroom, ..full.clone() }, limit, 0.9),
            (Limits { strict_minute: true, ..full.clone() }, limit, 0.9),
            // With no headroom, the documented burst comes on top: a second's worth, at least one.
            (full, limit + 1.0, 1.0),
        ] {
            let times: Vec<f64> = play(&limits, sim)
                .into_iter()
                .map(|(_, told)| if let Told::Granted(at) = told { at } else { panic!("{name}: {told:?}") })
                .collect();
            for (i, start) in times.iter().enumerate() {
                let within = times[i..].iter().take_while(|&&end| end < start + length).count();
                assert!(within as f64 <= bound, "{name}: {within} within {length} s");
            }
            let took = times[times.len() - 1] - times[0];
            let rate = (times.len() - 1) as f64 / took;
            assert!(rate >= 0.95 * used * limit / length, "{name}: {rate}/s");
        }
    }
}

#[test]
fn case_b69_concurrent_calls_cannot_overdraw() {
    let case = read(include_str!("../vectors/cases/B69_concurrent_tpm.json"));
    let sim = &case["sims"][0];
    let told = play(&of_case(sim, Some(60.0)), sim);
    let expected = &case["expect"]["five_at_once"];
    let [first, later, rest @ ..] = told.as_slice() else { panic!("five calls") };
    assert_eq!(*first, (expected["granted_at_0"][0].as_u64().expect("cost"), Told::Granted(0.0)));
    let (80, Told::Granted(when)) = *later else { panic!("{later:?}") };
    let bounds = &expected["granted_later"][0]["at_s"];
    assert!(
        when >= bounds[0].as_f64().expect("from") - 1e-6 && when <= bounds[1].as_f64().expect("to"),
        "{when}"
    );
    assert!(rest.len() == 3 && rest.iter().all(|one| *one == (175, Told::TooLarge)), "{rest:?}");
}

#[test]
fn case_b76_no_wait_longer_than_the_caller_has() {
    let case = read(include_str!("../vectors/cases/B76_cost_over_capacity.json"));
    let [over, longer, cut] = case["sims"].as_array().expect("sims").as_slice() else { panic!("three sims") };
    assert_eq!(play(&of_case(over, None), over), [(1_001, Told::TooLarge)]);

    let mut sim = Sim::<()>::new(&of_case(longer, Some(60.0)));
    for step in longer["steps"].as_array().expect("steps") {
        let cost = step["cost"].as_u64().expect("cost");
        let before = sim.admission.snapshot(sim.now);
        let Some(budget) = step["budget_s"].as_f64() else {
            assert!(matches!(sim.enqueue(cost), Entry::Granted(_)));
            continue;
        };
        let Err(Refusal::Deadline { eta }) = sim.enqueue_until(cost, at(budget)) else {
            panic!("to be refused")
        };
        assert!((49.0..=51.0).contains(&eta.as_secs_f64()), "{eta:?}");
        assert_eq!(sim.admission.snapshot(sim.now), before, "nothing was taken");
    }

    let (steps, limits) = (&cut["steps"], of_case(cut, None));
    let (tpm, cost) = (steps[0]["tpm"].as_u64(), steps[1]["cost"].as_u64().expect("cost"));
    let mut sim = Sim::<()>::new(&limits);
    assert!(matches!(sim.enqueue(6_000), Entry::Granted(_)));
    let Entry::Queued(waiter) = sim.enqueue(cost) else { panic!("the burst is spent") };
    sim.admission.set_limits(sim.now, &Limits { tpm, ..limits });
    let too_large = Refusal::TooLarge { cost, limit: tpm.expect("a limit") };
    let limit = sim.now + Duration::from_secs(30);
    assert_eq!(sim.enqueue_until(cost, limit), Err(too_large));
    let resolved = sim.advance();
    assert_eq!((resolved[0].ticket, resolved[0].outcome), (waiter, Err(too_large)), "waiters are told too");
}
