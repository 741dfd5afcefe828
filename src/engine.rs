//! The gate: all state that calls share, and the settings they start from.

mod operator;
mod upstream;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use globset::{Glob, GlobMatcher};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use self::operator::Decision;
pub use self::upstream::{Upstream, UpstreamConfig, header};

use crate::account::Account;
use crate::clock::{self, Instant};
use crate::config::{
    BreakerPolicy, Degrade, Limits, OnOpen, RetryBudgetPolicy, RetryPolicy, SpendCap, Timeouts,
};
use crate::drive::Reply;
use crate::error::ConfigError;
use crate::event::{Digest, Event, SpanId, TraceId};
use crate::last_good::LastGood;
use crate::lock::Mutex;
use crate::log_file::{LogFile, Rotation};
use crate::metrics::{Label, Metrics, MetricsOptions};
use crate::money::Pico;
use crate::price::PriceBook;
use crate::scope::{Scope, ScopeKey};
use crate::spend::SpendLedger;
use crate::stream::Habits;
use crate::transport::reqwest::ReqwestTransport;
use crate::transport::{Transport, TransportOptions};
use crate::usage::Usage;

/// Everything a gate can be told. `None` turns a mechanism off.
#[derive(Debug, Default)]
pub struct GateConfig {
    pub retry: RetryPolicy,
    pub timeouts: Timeouts,
    /// Glob on the model, limits; the first that matches counts. No match: no limits.
    pub limits: Vec<(String, Limits)>,
    pub breaker: Option<BreakerPolicy>,
    pub retry_budget: Option<RetryBudgetPolicy>,
    pub spend: Vec<SpendCap>,
    /// In order.
    pub fallbacks: Vec<Fallback>,
    pub degrade: Option<Degrade>,
    pub prices: PriceBook,
    pub log_file: Option<PathBuf>,
    pub log_rotation: Option<Rotation>,
    /// Makes jitter and trace ids reproducible.
    pub seed: Option<u64>,
}

/// Scopes kept at once. Beyond it, idle ones are let go: a caller's invented model names must not fill memory.
const SCOPES: usize = 1024;

/// Largest decoded answer: a batch of 2,048 embeddings of 3,072 numbers needs half of it; a compressed bomb
/// ends at it.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub struct Engine {
    retry: Arc<RetryPolicy>,
    timeouts: Timeouts,
    limits: Vec<(GlobMatcher, Limits)>,
    breaker: Option<BreakerPolicy>,
    retry_budget: Option<RetryBudgetPolicy>,
    /// `None` where there is no cap.
    spend: Option<Arc<SpendLedger>>,
    stand_ins: Vec<StandIn>,
    last_good: Option<Mutex<LastGood<Reply>>>,
    prices: PriceBook,
    log_file: Option<LogFile>,
    log_failed: AtomicBool,
    warned_of_stacking: AtomicBool,
    metrics: Metrics,
    account: Account,
    rng: Mutex<SmallRng>,
    /// Keys the hashes of credentials and requests, which are thus worth nothing outside this process.
    hasher: RandomState,
    scopes: Mutex<HashMap<ScopeKey, Arc<Scope>>>,
    /// The latest last.
    decisions: Mutex<Vec<operator::Standing>>,
    transports: Mutex<HashMap<TransportOptions, Arc<dyn Transport>>>,
    habits: Habits,
}

impl Engine {
    pub fn new(config: GateConfig) -> Result<Self, ConfigError> {
        config.retry.validate()?;
        config.timeouts.validate()?;
        let metrics = Metrics::new(MetricsOptions::default());
        let mut limits = Vec::with_capacity(config.limits.len());
        for (pattern, policy) in config.limits {
            policy.validate()?;
            if !pattern.contains(['*', '?', '[', '{']) {
                metrics.know(Label::Model, &pattern);
            }
            limits.push((self::pattern("limits", &pattern)?, policy));
        }
        config.breaker.as_ref().map_or(Ok(()), BreakerPolicy::validate)?;
        config.retry_budget.as_ref().map_or(Ok(()), RetryBudgetPolicy::validate)?;
        config.spend.iter().try_for_each(SpendCap::validate)?;
        config.degrade.as_ref().map_or(Ok(()), Degrade::validate)?;
        let mut engine = Self {
            retry: Arc::new(config.retry),
            timeouts: config.timeouts,
            limits,
            breaker: config.breaker,
            retry_budget: config.retry_budget,
            spend: (!config.spend.is_empty()).then(|| SpendLedger::new(config.spend, clock::now())),
            stand_ins: Vec::new(),
            last_good: config.degrade.as_ref().map(|policy| Mutex::new(LastGood::new(policy))),
            prices: config.prices,
            log_file: config.log_file.map(|path| LogFile::open(&path, config.log_rotation)).transpose()?,
            log_failed: AtomicBool::new(false),
            warned_of_stacking: AtomicBool::new(false),
            metrics,
            account: Account::default(),
            rng: Mutex::new(config.seed.map_or_else(entropy, SmallRng::seed_from_u64)),
            hasher: RandomState::new(),
            scopes: Mutex::default(),
            decisions: Mutex::default(),
            transports: Mutex::default(),
            habits: Habits::default(),
        };
        let stand_ins = config.fallbacks.into_iter().map(|fallback| StandIn::new(&engine, fallback));
        engine.stand_ins = stand_ins.collect::<Result<_, _>>()?;
        Ok(engine)
    }

    pub fn retry_policy(&self) -> Arc<RetryPolicy> {
        Arc::clone(&self.retry)
    }

    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    pub fn on_open(&self) -> OnOpen {
        self.breaker.as_ref().map_or(OnOpen::Fail, |breaker| breaker.on_open)
    }

    pub fn spend(&self) -> Option<&Arc<SpendLedger>> {
        self.spend.as_ref()
    }

    /// Whether a call can end with anything but its own upstream's answer.
    pub fn degrades(&self) -> bool {
        !self.stand_ins.is_empty() || self.last_good.is_some()
    }

    /// What stands in for `model`, in order.
    pub fn stand_ins(&self, model: &str) -> impl Iterator<Item = &StandIn> {
        self.stand_ins.iter().filter(move |stand_in| stand_in.models.is_match(model))
    }

    pub fn last_good(&self) -> Option<&Mutex<LastGood<Reply>>> {
        self.last_good.as_ref()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    pub fn log_file(&self) -> Option<&LogFile> {
        self.log_file.as_ref()
    }

    /// What streams have shown of the servers they came from.
    pub const fn habits(&self) -> &Habits {
        &self.habits
    }

    pub const fn max_response_bytes(&self) -> usize {
        MAX_RESPONSE_BYTES
    }

    /// Writes to the log file, if there is one. A full disk must not fail calls: it is remembered and shown by
    /// `snapshot()`.
    pub fn write_log(&self, event: &Event) {
        if let Some(file) = &self.log_file
            && file.write(event).is_err()
        {
            self.log_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a record could not be written.
    pub fn log_failed(&self) -> bool {
        self.log_failed.load(Ordering::Relaxed)
    }

    /// Whether this was called before.
    pub fn warned_of_stacking(&self) -> bool {
        self.warned_of_stacking.swap(true, Ordering::Relaxed)
    }

    pub fn with_rng<T>(&self, f: impl FnOnce(&mut SmallRng) -> T) -> T {
        f(&mut self.rng.lock())
    }

    pub fn draw_trace_id(&self) -> TraceId {
        TraceId::random(&mut *self.rng.lock())
    }

    /// A keyed hash, for the log: worth nothing outside this gate.
    pub fn digest(&self, secret: impl Hash) -> Digest {
        Digest(self.hasher.hash_one(secret))
    }

    /// Tells this gate from all others in a log.
    pub fn id(&self) -> Digest {
        self.digest(())
    }

    pub fn draw_span_id(&self) -> SpanId {
        SpanId::random(&mut *self.rng.lock())
    }

    /// What an answer costs, by the name the server gave the model, else by the one that was asked for.
    pub fn cost(&self, asked: &str, served: Option<&str>, tier: Option<&str>, usage: &Usage) -> Option<Pico> {
        let wall = clock::wall();
        served
            .and_then(|served| self.prices.cost(served, tier, usage, wall))
            .or_else(|| self.prices.cost(asked, tier, usage, wall))
    }

    pub fn scope(&self, upstream: &Upstream, model: &Arc<str>, now: Instant) -> Arc<Scope> {
        let origin = Arc::clone(&upstream.origin);
        self.scope_of(
            ScopeKey { origin, credential: upstream.credential, model: Arc::clone(model) },
            true,
            now,
        )
    }

    /// `announced`: those who answer there may announce a quota.
    pub fn scope_of(&self, key: ScopeKey, announced: bool, now: Instant) -> Arc<Scope> {
        let mut scopes = self.scopes.lock();
        if let Some(scope) = scopes.get(&key) {
            return Arc::clone(scope);
        }
        if scopes.len() >= SCOPES {
            scopes.retain(|_, scope| Arc::strong_count(scope) > 1);
        }
        let limits = self.limits.iter().find(|(glob, _)| glob.is_match(key.model.as_ref()));
        let unlimited = Limits { concurrency: None, learn: false, ..Limits::default() };
        let limits = limits.map_or(&unlimited, |(_, limits)| limits);
        let limits = Limits { learn: limits.learn && announced, ..limits.clone() };
        let scope = Scope::new(key.clone(), &limits, self.breaker.as_ref(), self.retry_budget.as_ref(), now);
        self.as_decided(&scope);
        scopes.insert(key, Arc::clone(&scope));
        scope
    }

    pub fn scopes(&self) -> Vec<Arc<Scope>> {
        self.scopes.lock().values().cloned().collect()
    }

    pub fn transport(&self, options: TransportOptions) -> Result<Arc<dyn Transport>, ConfigError> {
        let mut transports = self.transports.lock();
        if let Some(transport) = transports.get(&options) {
            return Ok(Arc::clone(transport));
        }
        let transport: Arc<dyn Transport> = Arc::new(ReqwestTransport::new(&options)?);
        transports.insert(options, Arc::clone(&transport));
        Ok(transport)
    }
}

fn entropy() -> SmallRng {
    let state = RandomState::new();
    SmallRng::seed_from_u64(state.hash_one(clock::now().as_nanos()))
}

/// Another model, another endpoint, or both, for calls that their own upstream cannot take.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// Glob on the models that it stands in for.
    pub models: String,
    /// `None`: the model that was asked for.
    pub model: Option<String>,
    /// `None`: where the call was to go.
    pub upstream: Option<UpstreamConfig>,
}

/// A fallback, ready to be called.
#[derive(Debug)]
pub struct StandIn {
    models: GlobMatcher,
    pub model: Option<String>,
    pub upstream: Option<Upstream>,
}

impl StandIn {
    fn new(engine: &Engine, fallback: Fallback) -> Result<Self, ConfigError> {
        let Fallback { models, model, upstream } = fallback;
        if model.is_none() && upstream.is_none() {
            return Err(ConfigError::new("fallbacks", "Fallback()", "must name a model or a base_url"));
        }
        let upstream = upstream.map(|upstream| Upstream::new(engine, upstream)).transpose()?;
        Ok(Self { models: pattern("fallbacks", &models)?, model, upstream })
    }
}

fn pattern(field: &str, text: &str) -> Result<GlobMatcher, ConfigError> {
    let glob = Glob::new(text).map_err(|error| {
        ConfigError::new(field, text, format!("must be a pattern such as gpt-4.1* ({error})"))
    })?;
    Ok(glob.compile_matcher())
}
