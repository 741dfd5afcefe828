//! The rules, by example, on every store.

use std::sync::Arc;
use std::time::Duration;

use tidegate::idempotency::{Answer, Effect, Failure, NEVER, Operation, Resolution, State, Store};

use super::{Bench, LEASE, PATIENCE, RETENTION, begin, begin_with, benches, claim, complete, outcome};

const MOMENT: Duration = Duration::from_millis(1);

fn acquired(fence: u64) -> Answer {
    Answer::Acquired { fence, attempts: u32::try_from(fence).unwrap() }
}

type Rule = fn(&Bench, &str);

/// Every rule on a store of its own keys, so that one start of Redis serves all.
#[test]
fn every_store_keeps_the_rules() {
    let rules: &[(&str, Rule)] = &[
        ("done", a_result_is_replayed_until_its_retention_ends),
        ("error", a_permanent_error_is_replayed),
        ("mismatch", another_payload_is_a_mismatch_in_every_state),
        ("progress", a_live_lease_keeps_others_out),
        ("resent", what_is_sent_twice_counts_once),
        ("claimed", a_claim_without_a_start_may_be_taken_over),
        ("repeat", a_started_effect_that_may_repeat_is_taken_over_with_a_higher_fence),
        ("doubt", a_started_effect_that_may_not_is_in_doubt),
        ("stricter", the_stricter_declaration_holds),
        ("never", a_started_record_is_never_forgotten),
        ("stale", a_late_owner_changes_nothing),
        ("failed", failures_free_release_or_doubt),
        ("heartbeat", a_heartbeat_keeps_the_lease_and_the_note),
        ("resolve", a_decision_ends_doubt_once),
        ("steps", claim_and_start_may_be_two_steps),
        ("names", a_record_keeps_names_of_any_length),
        ("record", a_record_tells_what_happened_when),
        ("back", a_clock_set_back_lengthens_no_lease),
        ("list", listing_and_purging),
    ];
    for bench in benches() {
        for (key, rule) in rules {
            eprintln!("{}: {key}", bench.name);
            rule(&bench, key);
        }
    }
}

fn a_result_is_replayed_until_its_retention_ends(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    assert_eq!(bench.apply(key, &complete(1, 1, "\u{0}r\u{e9}sult")), Answer::Held);
    bench.pass(RETENTION.saturating_sub(MOMENT));
    let Answer::Replay(replayed) = bench.begin(key, 2, Effect::AtMostOnce) else { panic!("not replayed") };
    assert_eq!(replayed, outcome(true, "\u{0}r\u{e9}sult"));
    bench.pass(MOMENT);
    assert_eq!(bench.get(key), None);
    assert_eq!(bench.begin(key, 3, Effect::AtMostOnce), acquired(1));
}

fn a_permanent_error_is_replayed(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    let failed = Operation::Complete { claim: claim(1, 1), outcome: outcome(false, "no such account") };
    assert_eq!(bench.apply(key, &failed), Answer::Held);
    assert_eq!(bench.begin(key, 2, Effect::AtMostOnce), Answer::Replay(outcome(false, "no such account")));
}

fn another_payload_is_a_mismatch_in_every_state(bench: &Bench, key: &str) {
    let other = begin_with(2, Effect::AtMostOnce, true, 9);
    assert_eq!(bench.apply(key, &begin(1, Effect::AtMostOnce, false)), acquired(1));
    assert_eq!(bench.apply(key, &other), Answer::Mismatch);
    assert_eq!(bench.apply(key, &Operation::Start { claim: claim(1, 1), lease: LEASE }), Answer::Held);
    assert_eq!(bench.apply(key, &other), Answer::Mismatch);
    assert_eq!(bench.apply(key, &complete(1, 1, "r")), Answer::Held);
    assert_eq!(bench.apply(key, &other), Answer::Mismatch);
    assert_eq!(bench.begin(key, 3, Effect::AtMostOnce), Answer::Replay(outcome(true, "r")));
    bench.pass(RETENTION);
    assert_eq!(bench.begin(key, 4, Effect::AtMostOnce), acquired(1));
    bench.pass(LEASE);
    assert!(matches!(bench.begin(key, 5, Effect::AtMostOnce), Answer::InDoubt { .. }));
    assert_eq!(bench.apply(key, &other), Answer::Mismatch);
}

fn a_live_lease_keeps_others_out(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::Idempotent), acquired(1));
    bench.pass(LEASE.saturating_sub(MOMENT));
    assert_eq!(bench.begin(key, 2, Effect::Idempotent), Answer::InProgress { lease_left: MOMENT });
}

fn what_is_sent_twice_counts_once(bench: &Bench, key: &str) {
    for _ in 0..2 {
        assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    }
    for _ in 0..2 {
        assert_eq!(bench.apply(key, &complete(1, 1, "first")), Answer::Held);
    }
    assert_eq!(bench.apply(key, &complete(1, 1, "second")), Answer::Held);
    assert_eq!(bench.begin(key, 2, Effect::AtMostOnce), Answer::Replay(outcome(true, "first")));
    let gone = format!("{key}-gone");
    assert_eq!(bench.begin(&gone, 1, Effect::AtMostOnce), acquired(1));
    let fail = Operation::Fail { claim: claim(1, 1), failure: Failure::NoEffect };
    for _ in 0..2 {
        assert_eq!(bench.apply(&gone, &fail), Answer::Held);
    }
}

fn a_claim_without_a_start_may_be_taken_over(bench: &Bench, key: &str) {
    assert_eq!(bench.apply(key, &begin(1, Effect::AtMostOnce, false)), acquired(1));
    bench.pass(LEASE);
    assert_eq!(bench.begin(key, 2, Effect::AtMostOnce), acquired(2));
    let late = Operation::Start { claim: claim(1, 1), lease: LEASE };
    assert_eq!(bench.apply(key, &late), Answer::Stale, "what was taken over must not start");
}

fn a_started_effect_that_may_repeat_is_taken_over_with_a_higher_fence(bench: &Bench, key: &str) {
    for effect in [Effect::Read, Effect::Idempotent, Effect::Transactional] {
        let key = format!("{key}-{}", effect.as_str());
        for fence in 1..=3 {
            assert_eq!(bench.begin(&key, u8::try_from(fence).unwrap(), effect), acquired(fence));
            bench.pass(LEASE);
        }
        assert_eq!(bench.apply(&key, &complete(2, 2, "late")), Answer::Stale);
        assert_eq!(bench.apply(&key, &complete(3, 3, "late but last")), Answer::Held);
    }
}

fn a_started_effect_that_may_not_is_in_doubt(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    let started = bench.get(key).unwrap().started.unwrap();
    bench.pass(LEASE);
    for number in 2..4 {
        assert_eq!(bench.begin(key, number, Effect::AtMostOnce), Answer::InDoubt { fence: 1, started });
    }
    let late = Operation::Heartbeat { claim: claim(1, 1), lease: LEASE, note: None };
    assert_eq!(bench.apply(key, &late), Answer::Stale);
    assert_eq!(bench.apply(key, &complete(1, 1, "late")), Answer::Stale);
}

fn the_stricter_declaration_holds(bench: &Bench, key: &str) {
    for (first, second) in [(Effect::AtMostOnce, Effect::Read), (Effect::Read, Effect::AtMostOnce)] {
        let key = format!("{key}-{}", first.as_str());
        assert_eq!(bench.begin(&key, 1, first), acquired(1));
        bench.pass(LEASE);
        assert!(matches!(bench.begin(&key, 2, second), Answer::InDoubt { fence: 1, .. }));
    }
}

fn a_started_record_is_never_forgotten(bench: &Bench, key: &str) {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    bench.pass(YEAR);
    assert_eq!(bench.runtime.block_on(bench.store.purge()).map(|_| ()), Ok(()));
    assert!(matches!(bench.begin(key, 2, Effect::AtMostOnce), Answer::InDoubt { fence: 1, .. }));
    bench.pass(YEAR);
    let record = bench.get(key).unwrap();
    assert_eq!((record.state, record.expires), (State::InDoubt, NEVER));
}

fn a_late_owner_changes_nothing(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::Idempotent), acquired(1));
    bench.pass(LEASE);
    assert_eq!(bench.begin(key, 2, Effect::Idempotent), acquired(2));
    assert_eq!(bench.apply(key, &complete(2, 2, "r2")), Answer::Held);
    let before = bench.get(key);
    for late in [
        complete(1, 1, "r1"),
        Operation::Start { claim: claim(1, 1), lease: LEASE },
        Operation::Heartbeat { claim: claim(1, 1), lease: LEASE, note: Some("n".into()) },
        Operation::Fail { claim: claim(1, 1), failure: Failure::NoEffect },
        Operation::Fail { claim: claim(1, 1), failure: Failure::Unknown },
        Operation::Fail { claim: claim(2, 2), failure: Failure::NoEffect },
        complete(2, 1, "wrong fence"),
        complete(1, 2, "wrong owner"),
    ] {
        assert_eq!(bench.apply(key, &late), Answer::Stale, "{late:?}");
    }
    assert_eq!(bench.get(key), before);
}

fn failures_free_release_or_doubt(bench: &Bench, key: &str) {
    let fail = |failure| Operation::Fail { claim: claim(1, 1), failure };
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    assert_eq!(bench.apply(key, &fail(Failure::NoEffect)), Answer::Held);
    assert_eq!(bench.get(key), None);

    assert_eq!(bench.apply(key, &begin(1, Effect::AtMostOnce, false)), acquired(1));
    assert_eq!(bench.apply(key, &fail(Failure::Unknown)), Answer::Held, "it had not started");
    assert_eq!(bench.get(key), None);

    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    assert_eq!(bench.apply(key, &fail(Failure::Unknown)), Answer::Held);
    assert!(matches!(bench.begin(key, 2, Effect::AtMostOnce), Answer::InDoubt { .. }));

    for effect in [Effect::Read, Effect::Idempotent, Effect::Transactional] {
        let key = format!("{key}-{}", effect.as_str());
        assert_eq!(bench.begin(&key, 1, effect), acquired(1));
        assert_eq!(bench.apply(&key, &fail(Failure::Unknown)), Answer::Held);
        assert_eq!(bench.begin(&key, 2, effect), acquired(2), "released before its lease ends");
    }
}

fn a_heartbeat_keeps_the_lease_and_the_note(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    for beat in 0..9 {
        bench.pass(LEASE / 3);
        let note = (beat == 0).then(|| "half way".into());
        let heartbeat = Operation::Heartbeat { claim: claim(1, 1), lease: LEASE, note };
        assert_eq!(bench.apply(key, &heartbeat), Answer::Held);
        assert!(matches!(bench.begin(key, 2, Effect::AtMostOnce), Answer::InProgress { .. }));
    }
    assert_eq!(bench.get(key).unwrap().note.as_deref(), Some("half way"));
    assert_eq!(bench.apply(key, &complete(1, 1, "r")), Answer::Held);
}

fn a_decision_ends_doubt_once(bench: &Bench, key: &str) {
    let done = Operation::Resolve { fence: Some(1), resolution: Resolution::Done(outcome(true, "seen")) };
    let not_done = Operation::Resolve { fence: None, resolution: Resolution::NotDone };
    assert_eq!(bench.apply(key, &not_done), Answer::Stale, "nothing to decide");
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    assert_eq!(bench.apply(key, &done), Answer::Stale, "somebody is at it");
    bench.pass(LEASE);
    let other = Operation::Resolve { fence: Some(2), resolution: Resolution::NotDone };
    assert_eq!(bench.apply(key, &other), Answer::Stale, "another acquisition was judged");
    assert_eq!(bench.apply(key, &done), Answer::Held, "no caller need have seen that the lease ended");
    assert_eq!(bench.apply(key, &not_done), Answer::Stale, "decided");
    assert_eq!(bench.begin(key, 2, Effect::AtMostOnce), Answer::Replay(outcome(true, "seen")));

    let key = format!("{key}-not");
    assert_eq!(bench.begin(&key, 1, Effect::AtMostOnce), acquired(1));
    bench.pass(LEASE);
    assert!(matches!(bench.begin(&key, 2, Effect::AtMostOnce), Answer::InDoubt { .. }));
    assert_eq!(bench.apply(&key, &not_done), Answer::Held);
    assert_eq!(bench.begin(&key, 3, Effect::AtMostOnce), acquired(1));
}

fn claim_and_start_may_be_two_steps(bench: &Bench, key: &str) {
    assert_eq!(bench.apply(key, &begin(1, Effect::AtMostOnce, false)), acquired(1));
    assert_eq!(bench.get(key).unwrap().started, None);
    bench.pass(LEASE.saturating_sub(MOMENT));
    let start = Operation::Start { claim: claim(1, 1), lease: LEASE };
    assert_eq!(bench.apply(key, &start), Answer::Held);
    let started = bench.get(key).unwrap().started;
    bench.pass(LEASE.saturating_sub(MOMENT));
    assert!(matches!(bench.begin(key, 2, Effect::AtMostOnce), Answer::InProgress { .. }), "start renews");
    assert_eq!(bench.apply(key, &start), Answer::Held, "sent again");
    assert_eq!(bench.get(key).unwrap().started, started);
}

fn a_record_tells_what_happened_when(bench: &Bench, key: &str) {
    let begun = bench.now.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(bench.begin(key, 1, Effect::AtMostOnce), acquired(1));
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.apply(key, &complete(1, 1, "r")), Answer::Held);
    let record = bench.get(key).unwrap();
    assert_eq!((record.created, record.started, record.updated), (begun, Some(begun), begun + 2000));
    assert_eq!(record.expires, begun + 2000 + 900_000);
    assert_eq!((&*record.tool, record.effect, record.state), ("pay", Effect::AtMostOnce, State::Done));
    assert_eq!((record.attempts, record.claim()), (1, claim(1, 1)));
    assert_eq!(record.outcome, Some(outcome(true, "r")));
}

fn a_record_keeps_names_of_any_length(bench: &Bench, key: &str) {
    for length in [0, 1, 31, 32, 255, 256, 65_535, 65_536] {
        let key = format!("{key}-{length}");
        let name = "é".repeat(length / 2) + &"e".repeat(length % 2);
        let Operation::Begin(mut wish) = begin(1, Effect::AtMostOnce, true) else { unreachable!() };
        wish.tool = name.as_str().into();
        assert_eq!(bench.apply(&key, &Operation::Begin(wish)), acquired(1));
        assert_eq!(*bench.get(&key).unwrap().tool, *name);
        assert_eq!(bench.apply(&key, &complete(1, 1, "r")), Answer::Held);
        assert_eq!(*bench.get(&key).unwrap().tool, *name);
    }
}

fn a_clock_set_back_lengthens_no_lease(bench: &Bench, key: &str) {
    assert_eq!(bench.begin(key, 1, Effect::Idempotent), acquired(1));
    let day = 86_400_000;
    bench.now.fetch_sub(day, std::sync::atomic::Ordering::SeqCst);
    let left = bench.begin(key, 2, Effect::Idempotent);
    assert_eq!(left, Answer::InProgress { lease_left: LEASE });
    bench.now.fetch_add(day, std::sync::atomic::Ordering::SeqCst);
}

fn listing_and_purging(bench: &Bench, key: &str) {
    let list = |states: &[State], limit| {
        let prefix = format!("{key}[*]:");
        let found = bench.runtime.block_on(bench.store.list(&prefix, states, limit)).unwrap();
        found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    for number in 0..3 {
        let key = format!("{key}[*]:{number}");
        assert_eq!(bench.begin(&key, 1, Effect::AtMostOnce), acquired(1));
        if number > 0 {
            assert_eq!(bench.apply(&key, &complete(1, 1, "r")), Answer::Held);
        }
        bench.pass(MOMENT);
    }
    assert_eq!(bench.begin(&format!("{key}xx:0"), 1, Effect::AtMostOnce), acquired(1));
    assert_eq!(list(&[State::Done], 10), [format!("{key}[*]:1"), format!("{key}[*]:2")]);
    assert_eq!(list(&State::ALL, 2), [format!("{key}[*]:0"), format!("{key}[*]:1")]);
    bench.pass(RETENTION);
    let purged = bench.runtime.block_on(bench.store.purge()).unwrap();
    // Redis forgets by itself.
    assert!(purged >= 2 || bench.name == "redis", "{purged}");
    assert!(bench.get(&format!("{key}[*]:0")).is_some());
    assert_eq!(list(&State::ALL, 10), [format!("{key}[*]:0")]);
}

#[test]
fn of_many_callers_at_once_one_acquires() {
    for bench in benches() {
        for round in 0..10 {
            let key = format!("race{round}");
            let answers = bench.runtime.block_on(async {
                let calls: Vec<_> = (0..32)
                    .map(|number| {
                        let (store, key) = (Arc::clone(&bench.store), key.clone());
                        let begin = begin(number, Effect::AtMostOnce, true);
                        tokio::spawn(async move { store.apply(&key, &begin, PATIENCE).await.unwrap() })
                    })
                    .collect();
                let mut answers = Vec::new();
                for call in calls {
                    answers.push(call.await.unwrap());
                }
                answers
            });
            let won = answers.iter().filter(|answer| matches!(answer, Answer::Acquired { .. })).count();
            let rest = answers.iter().filter(|answer| matches!(answer, Answer::InProgress { .. })).count();
            assert_eq!((won, rest), (1, 31), "{}", bench.name);
        }
    }
}

#[test]
fn a_store_that_is_not_there_is_an_error_soon_and_shows_no_password() {
    let runtime = super::runtime();
    let nowhere = std::env::temp_dir().join("tidegate-no-such-directory").join("store.db");
    for url in [
        String::from("redis://user:hush@127.0.0.1:1/0"),
        String::from("redis+sentinel://user:hush@127.0.0.1:1/main"),
        String::from("redis+cluster://user:hush@127.0.0.1:1"),
        format!("sqlite:///{}", nowhere.display()),
    ] {
        let store = Arc::new(Store::open(&url).unwrap());
        let wait = Duration::from_millis(200);
        let error =
            runtime.block_on(store.apply("k", &begin(1, Effect::AtMostOnce, true), wait)).unwrap_err();
        assert_eq!(error.store, store.kind());
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
