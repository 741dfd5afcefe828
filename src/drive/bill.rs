//! What a call used, and who says so.

use std::sync::Arc;

use super::order::UsageSource;
use crate::admission::Settlement;
use crate::classify::Reading;
use crate::engine::Engine;
use crate::money::Pico;
use crate::request::RequestFacts;
use crate::scope::Scope;
use crate::stream::Observer;
use crate::usage::Usage;

#[derive(Debug)]
pub(super) struct Bill {
    pub(super) usage: Option<Usage>,
    pub(super) source: UsageSource,
    /// `None` where the price is not known.
    pub(super) cost: Option<Pico>,
    /// Part of the cost that rests on an estimate.
    pub(super) estimated: Pico,
    /// Who answered, as far as told.
    pub(super) served: Option<Arc<str>>,
}

impl Default for Bill {
    fn default() -> Self {
        Self { usage: None, source: UsageSource::Unknown, cost: None, estimated: Pico::ZERO, served: None }
    }
}

impl Bill {
    pub(super) fn stated(reading: &Reading, cost: Option<Pico>) -> Self {
        let usage = reading.usage;
        let source = if usage.is_some() { UsageSource::Reported } else { UsageSource::Unknown };
        let served = reading.model.as_deref().map(Into::into);
        Self { usage, source, cost, served, ..Self::default() }
    }

    fn of_estimate(usage: Usage, cost: Option<Pico>, served: Option<Arc<str>>) -> Self {
        let estimated = cost.unwrap_or_default();
        Self { usage: Some(usage), source: UsageSource::Estimated, cost, estimated, served }
    }

    /// Together with what an earlier attempt of the call used. Where this one tells nothing, that is the least of it.
    pub(super) fn after(self, earlier: &Self) -> Self {
        let stated = self.source == UsageSource::Reported && earlier.source == UsageSource::Reported;
        let cost = match &self.usage {
            Some(_) => self.cost.zip(earlier.cost).map(|(mine, theirs)| mine.saturating_add(theirs)),
            None => earlier.cost,
        };
        let sum = |theirs: Usage| self.usage.map_or(theirs, |mine| mine.plus(&theirs));
        Self {
            usage: earlier.usage.map(sum).or(self.usage),
            source: if stated { UsageSource::Reported } else { UsageSource::Estimated },
            cost,
            estimated: self.estimated.saturating_add(earlier.estimated),
            served: self.served,
        }
    }

    /// What becomes of the tokens that a stream reserved.
    pub(super) fn settlement(&self, reserved: u64) -> Settlement {
        match (&self.usage, self.source) {
            (Some(usage), UsageSource::Reported) => Settlement::Used { tokens: usage.total() },
            // One token may be on its way.
            (Some(usage), _) => {
                Settlement::Estimated { tokens: usage.input.saturating_add(usage.output.max(1)) }
            }
            (None, _) => Settlement::Estimated { tokens: reserved },
        }
    }
}

/// What was asked, kept for an estimate where nobody states what was used.
pub(super) struct Asked {
    pub(super) scope: Arc<Scope>,
    pub(super) facts: Option<RequestFacts>,
}

impl Asked {
    /// Of a call that was left before an answer: the prompt, which the server has read.
    pub(super) fn estimate(&self, engine: &Engine) -> Bill {
        let Some(facts) = &self.facts else { return Bill::default() };
        let input = facts.prompt_tokens(self.scope.sizes.lock().bytes_per_token());
        let usage = Usage { input, ..Usage::default() };
        let cost = self.cost(engine, &Reading::default(), &usage);
        Bill::of_estimate(usage, cost, None)
    }

    /// Of a stream, `complete` or not, of which `seen` has come. What a cut one stated so far is the least of it.
    pub(super) fn bill(&self, engine: &Engine, seen: &Observer, complete: bool) -> Bill {
        let reading = seen.reading();
        if let Some(usage) = &reading.usage
            && complete
        {
            if let Some(facts) = &self.facts {
                let mut sizes = self.scope.sizes.lock();
                sizes.record(facts, usage);
                sizes.record_text(seen.tokens(), usage);
            }
            return Bill::stated(reading, self.cost(engine, reading, usage));
        }
        let Some(facts) = self.facts.as_ref().filter(|_| seen.tells_its_end()) else {
            return Bill::default();
        };
        let stated = reading.usage.unwrap_or_default();
        let sizes = self.scope.sizes.lock();
        let input =
            if stated.input > 0 { stated.input } else { facts.prompt_tokens(sizes.bytes_per_token()) };
        let output = stated.output.max(sizes.text_tokens(seen.tokens()));
        drop(sizes);
        let usage = Usage { input, output, ..stated };
        let cost = self.cost(engine, reading, &usage);
        Bill::of_estimate(usage, cost, reading.model.as_deref().map(Into::into))
    }

    /// A server that does not say which tier served has served the one that was asked for.
    fn cost(&self, engine: &Engine, reading: &Reading, usage: &Usage) -> Option<Pico> {
        let asked = self.facts.as_ref().and_then(|facts| facts.service_tier.as_deref());
        let tier = reading.service_tier.as_deref().or(asked);
        engine.cost(&self.scope.key.model, reading.model.as_deref(), tier, usage)
    }
}
