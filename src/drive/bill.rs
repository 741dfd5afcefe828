//! What a call used, and who says so.

use std::sync::Arc;

use super::order::{CallInfo, UsageSource};
use crate::admission::Settlement;
use crate::classify::Reading;
use crate::engine::Engine;
use crate::money::Pico;
use crate::request::RequestFacts;
use crate::scope::Scope;
use crate::stream::{self, Observer};
use crate::usage::Usage;

#[derive(Debug, Default)]
pub(super) struct Bill {
    pub(super) usage: Option<Usage>,
    pub(super) source: UsageSource,
    /// Of what has a price; `None` if nothing has.
    pub(super) cost: Option<Pico>,
    /// Something that was used has no price.
    pub(super) unpriced: bool,
    /// Part of the cost that rests on an estimate.
    pub(super) estimated: Pico,
    /// Who answered, as far as told.
    pub(super) served: Option<Arc<str>>,
}

impl Bill {
    fn of_estimate(usage: Usage, cost: Option<Pico>, served: Option<Arc<str>>) -> Self {
        let (unpriced, estimated) = (cost.is_none(), cost.unwrap_or_default());
        Self { usage: Some(usage), source: UsageSource::Estimated, cost, unpriced, estimated, served }
    }

    /// What a call told that has ended.
    pub(super) fn of(info: &CallInfo) -> Self {
        Self { usage: info.usage, source: info.usage_source, cost: info.cost, ..Self::default() }
    }

    /// Together with what was used before. Of an answer that tells nothing, that is the least of it; one that
    /// `failed` so used nothing.
    pub(super) fn after(self, earlier: &Self, failed: bool) -> Self {
        let Some(theirs) = earlier.usage else { return self };
        let stated = match self.usage {
            Some(_) => self.source == UsageSource::Reported,
            None => failed,
        };
        Self {
            usage: Some(self.usage.map_or(theirs, |mine| mine.plus(&theirs))),
            source: if stated { earlier.source } else { UsageSource::Estimated },
            cost: match (self.cost, earlier.cost) {
                (Some(mine), Some(theirs)) => Some(mine.saturating_add(theirs)),
                (mine, theirs) => mine.or(theirs),
            },
            unpriced: self.unpriced || earlier.unpriced,
            estimated: self.estimated.saturating_add(earlier.estimated),
            served: self.served.or_else(|| earlier.served.clone()),
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
    /// Of an attempt that was left before its answer: the prompt, which the server has read.
    pub(super) fn estimate(&self, engine: &Engine) -> Bill {
        let asks_a_model = |facts: &&RequestFacts| facts.model.is_some();
        let Some(facts) = self.facts.as_ref().filter(asks_a_model) else { return Bill::default() };
        let input = facts.prompt_tokens(self.scope.sizes.lock().bytes_per_token());
        let usage = Usage { input, ..Usage::default() };
        let cost = self.cost(engine, &Reading::default(), &usage);
        Bill::of_estimate(usage, cost, None)
    }

    /// Of what an answer states.
    pub(super) fn stated(&self, engine: &Engine, reading: &Reading) -> Bill {
        let usage = reading.usage;
        let cost = usage.and_then(|usage| self.cost(engine, reading, &usage));
        Bill {
            usage,
            source: if usage.is_some() { UsageSource::Reported } else { UsageSource::Unknown },
            cost,
            unpriced: usage.is_some() && cost.is_none(),
            estimated: Pico::ZERO,
            served: reading.model.as_deref().map(Into::into),
        }
    }

    /// Of a whole answer: what it states, or else what the model has read and written.
    pub(super) fn answered(&self, engine: &Engine, reading: &Reading, body: &[u8]) -> Bill {
        let Some(facts) = &self.facts else { return self.stated(engine, reading) };
        if let Some(usage) = &reading.usage {
            self.scope.sizes.lock().record(facts, usage);
        } else if let Some(written) = stream::written(body) {
            return self.estimated(engine, reading, facts, written);
        }
        self.stated(engine, reading)
    }

    /// Of an answer that is a failure. Billed is what it states, what came of a stream, and the prompt behind a gateway
    /// that gave up waiting; an error is not.
    pub(super) fn failed(
        &self,
        engine: &Engine,
        status: u16,
        reading: Option<&Reading>,
        seen: Option<&Observer>,
    ) -> Bill {
        match (seen, reading) {
            (Some(seen), Some(reading))
                if !seen.is_complete() && (seen.has_content() || reading.usage.is_some()) =>
            {
                self.bill(engine, seen, false)
            }
            (_, Some(reading)) => self.stated(engine, reading),
            _ if matches!(status, 504 | 524) => self.estimate(engine),
            _ => Bill::default(),
        }
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
            return self.stated(engine, reading);
        }
        let Some(facts) = self.facts.as_ref().filter(|_| seen.tells_its_end()) else {
            return Bill { served: reading.model.as_deref().map(Into::into), ..Bill::default() };
        };
        self.estimated(engine, reading, facts, seen.tokens())
    }

    /// Of an answer in which `written` tokens of text were found; what it states is the least of it.
    fn estimated(&self, engine: &Engine, reading: &Reading, facts: &RequestFacts, written: u64) -> Bill {
        let stated = reading.usage.unwrap_or_default();
        let sizes = self.scope.sizes.lock();
        let input =
            if stated.input > 0 { stated.input } else { facts.prompt_tokens(sizes.bytes_per_token()) };
        let output = stated.output.max(sizes.text_tokens(written));
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
