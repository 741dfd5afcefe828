//! What operators have decided about breakers, for the scopes there are and for those that will be.

use globset::GlobMatcher;

use super::{Engine, pattern};
use crate::breaker::{Breaker, OpenReason};
use crate::clock;
use crate::error::ConfigError;
use crate::event::{self, Event, Facts, Kind, Level};
use crate::scope::Scope;

/// What an operator makes of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Refuse everything.
    ForceOpen,
    /// Admit everything, and count nothing.
    Disable,
    /// Closed, with nothing counted yet: the breaker decides again.
    Reset,
}

impl Decision {
    fn apply(self, breaker: &mut Breaker) {
        match self {
            Self::ForceOpen => breaker.force_open(),
            Self::Disable => breaker.disable(),
            Self::Reset => breaker.reset(),
        }
    }
}

/// A decision and the scopes it is about.
#[derive(Debug)]
pub(super) struct Standing {
    origin: GlobMatcher,
    model: GlobMatcher,
    decision: Decision,
}

impl Standing {
    fn is_about(&self, scope: &Scope) -> bool {
        self.origin.is_match(scope.key.origin.as_ref()) && self.model.is_match(scope.key.model.as_ref())
    }
}

impl Engine {
    /// Makes a decision for the breakers whose origin and model match these globs. It stands for scopes that are made
    /// later, until another decision about them. Returns what is to be told of it.
    pub fn decide(
        &self,
        origin: &str,
        model: &str,
        decision: Decision,
    ) -> Result<Vec<(Level, Event)>, ConfigError> {
        if self.breaker.is_none() {
            let rule = "this gate has no breakers: make it with Gate(breaker=BreakerPolicy())";
            return Err(ConfigError::new("breaker", "None", rule));
        }
        let standing =
            Standing { origin: pattern("origin", origin)?, model: pattern("model", model)?, decision };
        let about: Vec<_> = self.scopes().into_iter().filter(|scope| standing.is_about(scope)).collect();
        let mut decisions = self.decisions.lock();
        decisions.retain(|earlier| {
            earlier.origin.glob() != standing.origin.glob() || earlier.model.glob() != standing.model.glob()
        });
        decisions.push(standing);
        drop(decisions);
        let mut told = Vec::new();
        for scope in about {
            let Some(breaker) = &scope.breaker else { continue };
            let mut breaker = breaker.lock();
            decision.apply(&mut breaker);
            let facts = Facts {
                outcome: Some(breaker.state().as_str()),
                reason: Some(OpenReason::Operator.as_str()),
                ..Facts::default()
            };
            drop(breaker);
            let event = Event {
                schema: event::SCHEMA,
                ts: event::unix_seconds(clock::wall()),
                event: Kind::Breaker,
                gate: self.id(),
                trace_id: self.draw_trace_id(),
                span_id: self.draw_span_id(),
                parent_span_id: None,
                origin: scope.key.origin.clone(),
                model: scope.key.model.clone(),
                facts,
                tags: None,
            };
            self.write_log(&event);
            told.push((event.facts.level(Kind::Breaker), event));
        }
        Ok(told)
    }

    /// Applies the latest decision that is about a new scope.
    pub(super) fn as_decided(&self, scope: &Scope) {
        let decisions = self.decisions.lock();
        let standing = decisions.iter().rev().find(|standing| standing.is_about(scope));
        if let (Some(standing), Some(breaker)) = (standing, &scope.breaker) {
            standing.decision.apply(&mut breaker.lock());
        }
    }
}
