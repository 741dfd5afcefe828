//! A function of the caller's as the attempt of a call: the gates stand before it as before a request, and the same
//! state machine says whether it is called again, and when.

use std::sync::Arc;
use std::time::Duration;

use super::bill::Asked;
use super::report::{Identity, Teller, Told};
use super::stepped::{Ended, Stepped};
use crate::call::{Call, Plan, Raised};
use crate::clock;
use crate::engine::Engine;
use crate::event::{FUNCTION, Listener, SpanId, Tags, TraceId};
use crate::scope::ScopeKey;

/// A function to be guarded.
#[derive(Debug, Clone)]
pub struct Guarded {
    pub name: Arc<str>,
    /// What it is expected to use.
    pub tokens: u64,
    pub attempt: Option<Duration>,
    pub total: Option<Duration>,
    pub max_attempts: u32,
    pub tags: Option<Arc<Tags>>,
    /// `None` draws one.
    pub trace_id: Option<TraceId>,
    /// Whoever calls it counts it.
    pub counted_elsewhere: bool,
    /// The guarded call that it is called in.
    pub parent: Option<SpanId>,
}

impl Stepped {
    /// A call of a function, of which nothing has been done yet.
    pub fn of_function(engine: &Arc<Engine>, guarded: Guarded, listener: Option<Arc<dyn Listener>>) -> Self {
        let key = ScopeKey { origin: FUNCTION.into(), credential: 0, model: Arc::clone(&guarded.name) };
        let scope = engine.scope_of(key, false, clock::now());
        let plan = Plan {
            retry: engine.retry_policy(),
            max_attempts: guarded.max_attempts,
            total: guarded.total,
            attempt_timeout: guarded.attempt,
            cost: guarded.tokens,
            least_cost: guarded.tokens,
            replay_unsafe: false,
            stream: false,
            on_open: engine.on_open(),
            resent_after: None,
            // What it spends, the calls in it account for.
            spending: None,
        };
        let teller = Teller {
            engine: Arc::clone(engine),
            origin: Arc::clone(&scope.key.origin),
            model: guarded.name,
            trace_id: guarded.trace_id.unwrap_or_else(|| engine.draw_trace_id()),
            span_id: engine.draw_span_id(),
            parent: guarded.parent,
            tags: guarded.tags,
            identity: Identity::default(),
            notice: None,
            listener,
            counted_elsewhere: guarded.counted_elsewhere,
        };
        let call = Call::new(plan, Arc::clone(&scope), clock::now());
        let told = Told::new(teller, call, Asked { scope: Arc::clone(&scope), facts: None });
        Self::made(engine, scope, guarded.tokens, told)
    }

    /// By which what is called in the function names this call.
    pub fn ids(&self) -> (TraceId, SpanId) {
        (self.told.teller.trace_id, self.told.teller.span_id)
    }

    /// The function has returned, and used so many tokens; `None`: as many as were expected.
    pub fn returned(&mut self, tokens: Option<u64>) -> Ended {
        let step = self.told.call.returned(clock::now(), tokens);
        self.ended(step)
    }

    pub fn raised(&mut self, raised: Raised) -> Ended {
        let step = self.engine.with_rng(|rng| self.told.call.raised(clock::now(), raised, rng));
        self.ended(step)
    }
}
