//! Breakers in an operator's hands, and what is told of it.

use std::sync::Arc;

use tidegate::breaker::State;
use tidegate::clock;
use tidegate::config::BreakerPolicy;
use tidegate::engine::{Decision, Engine, GateConfig};
use tidegate::scope::{Scope, ScopeKey};

fn engine() -> Engine {
    Engine::new(GateConfig { breaker: Some(BreakerPolicy::default()), ..GateConfig::default() })
        .expect("valid")
}

fn scope(engine: &Engine, origin: &str, model: &str) -> Arc<Scope> {
    let key = ScopeKey { origin: origin.into(), credential: 0, model: model.into() };
    engine.scope_of(key, true, clock::now())
}

fn state(scope: &Scope) -> State {
    scope.breaker.as_ref().expect("there is one").lock().state()
}

#[test]
fn the_latest_decision_about_a_scope_holds_for_those_there_are_and_those_to_come() {
    let engine = engine();
    let there = scope(&engine, "https://a.test", "gpt-5-mini");
    assert_eq!(engine.decide("*", "gpt-5*", Decision::ForceOpen).expect("patterns").len(), 1);
    assert_eq!(state(&there), State::ForcedOpen);
    assert_eq!(state(&scope(&engine, "https://b.test", "gpt-5-pro")), State::ForcedOpen);
    assert_eq!(state(&scope(&engine, "https://b.test", "gpt-4")), State::Closed);
    engine.decide("https://b.test", "*", Decision::Disable).expect("patterns");
    assert_eq!(state(&scope(&engine, "https://b.test", "gpt-5-nano")), State::Disabled);
    assert_eq!(state(&there), State::ForcedOpen);
    engine.decide("*", "gpt-5*", Decision::Reset).expect("patterns");
    assert_eq!(state(&there), State::Closed);
    assert_eq!(state(&scope(&engine, "https://b.test", "gpt-5-new")), State::Closed);
}

#[test]
fn decisions_that_are_changed_all_day_do_not_pile_up() {
    let engine = engine();
    for _ in 0..1_000 {
        engine.decide("*", "m", Decision::ForceOpen).expect("patterns");
        engine.decide("*", "m", Decision::Reset).expect("patterns");
    }
    assert!(!format!("{engine:?}").contains("ForceOpen"), "the last one is all that is kept");
}
