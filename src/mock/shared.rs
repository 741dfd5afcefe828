//! What all connections share, and the order in which a request is judged: credential, quota, script,
//! default.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lock::Mutex;
use http::{HeaderName, HeaderValue};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::announce;
use super::answer::{Answer, Body};
use super::config::Config;
use super::exchange::{self, Exchange};
use super::ledger::{Credential, Ledger};
use super::quota::Quota;
use super::reply::{Manner, refusal};
use super::request::Call;
use super::script::Script;
use crate::clock::{self, Instant};

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) port: u16,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) quota: Option<Mutex<Quota>>,
    script: Mutex<(Script, Instant)>,
    latency: Mutex<StdRng>,
    answers: AtomicU64,
}

impl Shared {
    pub(super) fn new(config: Config, script: Script, port: u16) -> Self {
        let now = clock::now();
        Self {
            port,
            ledger: Mutex::new(Ledger::new(now, config.ledger.entries)),
            quota: config.quota.clone().map(|quota| Mutex::new(Quota::new(quota, now))),
            script: Mutex::new((script, now)),
            latency: Mutex::new(StdRng::seed_from_u64(config.seed)),
            answers: AtomicU64::new(1),
            config,
        }
    }

    /// Replaces the script, or adds to it if the new one says so.
    pub(super) fn set_script(&self, script: Script) {
        let mut current = self.script.lock();
        if script.extend {
            current.0.add(script);
        } else {
            *current = (script, clock::now());
        }
    }

    pub(super) fn answer(&self, call: &Call, exchange: &mut Exchange, now: Instant) -> Answer {
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let mut answer = self.judge(call, exchange, now, number);
        if let Some(quota) = &self.quota
            && !matches!(answer.body, Body::Raw(_) | Body::Silence)
        {
            announce::announce(&quota.lock(), clock::wall(), &mut answer.headers);
        }
        let id = HeaderName::from_static("x-request-id");
        if let Ok(value) = HeaderValue::try_from(format!("req_{number:016x}")) {
            answer.headers.entry(id).or_insert(value);
        }
        answer
    }

    fn judge(&self, call: &Call, exchange: &mut Exchange, now: Instant, number: u64) -> Answer {
        if let Some(key) = &self.config.api_key
            && exchange::credential(&call.headers, Some(key)) != Credential::Right
        {
            return refusal("invalid_api_key", "Incorrect API key provided.");
        }
        if let Some(quota) = &self.quota {
            let mut quota = quota.lock();
            let tokens = call.asked.as_ref().map_or(0, |asked| {
                if call.body.is_empty() {
                    0
                } else {
                    quota.estimate(asked.prompt_estimate(), asked.max_tokens)
                }
            });
            if let Err(refusal) = quota.admit(now, tokens) {
                let model = call.model().map_or("the model", AsRef::as_ref);
                return announce::refuse(&quota, &refusal, model);
            }
            drop(quota);
            exchange.admitted(tokens);
        }
        let scripted = {
            let (script, since) = &mut *self.script.lock();
            script.choose(call, now.since(*since))
        };
        let mut answer = match scripted {
            Some(scripted) => scripted.answer(call, number, &self.config.replies, self.port),
            None => self.config.replies.answer(call, number, &Manner::default()),
        };
        if answer.delay.is_zero() {
            answer.delay = self.latency();
        }
        answer
    }

    fn latency(&self) -> Duration {
        let (least, most) = self.config.latency;
        if least == most { least } else { self.latency.lock().random_range(least..=most) }
    }
}
