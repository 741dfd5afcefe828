//! Attempts that are a function of the caller's, and no requests.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use rand::Rng;

use super::held::SPENT;
use super::{Call, Failure, Step};
use crate::admission::{Charge, Settlement};
use crate::classify::{Class, Health, Retry, Scope, Verdict};
use crate::clock::Instant;
use crate::error::Cause;

/// Functions have no status.
const NONE: u16 = 0;

/// What a function has failed with.
#[derive(Debug, Clone)]
pub struct Raised {
    pub class: Class,
    /// It may pass, and speaks of the health of what the function calls.
    pub transient: bool,
    /// Calling the function again does no harm.
    pub repeatable: bool,
    /// The wait that was asked for.
    pub hint: Option<Duration>,
    /// It may have acted all the same.
    pub outcome_unknown: bool,
    pub message: String,
}

impl Call {
    /// The function has returned, and used so many tokens; `None`: as many as it reserved.
    pub fn returned(&mut self, now: Instant, tokens: Option<u64>) -> Step {
        let settlement = tokens.map_or(SPENT, |tokens| Settlement::Used { tokens });
        self.settle(now, settlement);
        self.tell_attempt(now, Class::Success.as_str(), None, None);
        self.succeeded(now)
    }

    pub fn raised(&mut self, now: Instant, raised: Raised, rng: &mut impl Rng) -> Step {
        let Raised { class, transient, repeatable, hint, outcome_unknown, message } = raised;
        let plain = Verdict::plain(NONE, class, Scope::Endpoint, message.clone());
        let verdict = if transient {
            let health = if class == Class::RateLimit { Health::Neutral } else { Health::Failure };
            let retry = if repeatable { Retry::Yes } else { Retry::No };
            Verdict { retry, health, hint, ..plain }
        } else {
            Verdict { retry: Retry::No, health: Health::Neutral, hint, ..plain }
        };
        self.cool_down(now, &verdict);
        let charge = if class == Class::RateLimit || outcome_unknown { Charge::Keep } else { Charge::Refund };
        self.settle(now, Settlement::Failed { charge });
        self.tell_attempt(now, class.as_str(), None, None);
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let cause = Cause::Answer { class, status: NONE, headers, body, message, code: None };
        self.decide(now, Failure { verdict, cause, outcome_unknown }, rng)
    }
}
