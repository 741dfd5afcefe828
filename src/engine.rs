//! The gate: all state that calls share, and the settings they start from.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Mutex;
use globset::{Glob, GlobMatcher};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use url::Url;

use crate::account::Account;
use crate::clock::{self, Instant};
use crate::config::{
    BreakerPolicy, Degrade, Limits, OnOpen, RetryBudgetPolicy, RetryPolicy, SpendCap, Timeouts,
};
use crate::drive::Reply;
use crate::error::ConfigError;
use crate::event::{Digest, Event, SpanId, TraceId};
use crate::last_good::LastGood;
use crate::log_file::{LogFile, Rotation};
use crate::metrics::{Label, Metrics, MetricsOptions};
use crate::money::Pico;
use crate::price::PriceBook;
use crate::scope::{Scope, ScopeKey};
use crate::spend::SpendLedger;
use crate::stream::Habits;
use crate::transport::reqwest::ReqwestTransport;
use crate::transport::{Transport, TransportOptions, redirect};
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
        let key = ScopeKey {
            origin: Arc::clone(&upstream.origin),
            credential: upstream.credential,
            model: Arc::clone(model),
        };
        let mut scopes = self.scopes.lock();
        if let Some(scope) = scopes.get(&key) {
            return Arc::clone(scope);
        }
        if scopes.len() >= SCOPES {
            scopes.retain(|_, scope| Arc::strong_count(scope) > 1);
        }
        let limits = self.limits.iter().find(|(glob, _)| glob.is_match(model.as_ref()));
        let unlimited = Limits { concurrency: None, learn: false, ..Limits::default() };
        let limits = limits.map_or(&unlimited, |(_, limits)| limits);
        let scope = Scope::new(key.clone(), limits, self.breaker.as_ref(), self.retry_budget.as_ref(), now);
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

/// How to reach one base URL.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    pub base_url: String,
    pub api_key: Option<String>,
    /// Sent with every request; these win over what tidegate sets itself.
    pub headers: Vec<(String, String)>,
    /// `None` takes the gate's.
    pub timeouts: Option<Timeouts>,
    /// `None` takes the gate's.
    pub max_attempts: Option<u32>,
    pub transport: TransportOptions,
}

/// A base URL with its credential, its pool and its defaults.
pub struct Upstream {
    pub origin: Arc<str>,
    pub base: Url,
    pub headers: HeaderMap,
    pub credential: u64,
    pub transport: Arc<dyn Transport>,
    pub timeouts: Timeouts,
    pub max_attempts: u32,
    /// Parsed URLs by path: a client calls few paths, many times.
    paths: Mutex<HashMap<Box<str>, Url>>,
}

/// Paths remembered by an upstream; a caller that puts ids into its paths must not fill memory.
const PATHS: usize = 64;

/// Headers hold the key, so they are not shown.
impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Upstream {
    pub fn new(engine: &Engine, config: UpstreamConfig) -> Result<Self, ConfigError> {
        let base = base_url(&config.base_url)?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &config.api_key {
            headers.insert(AUTHORIZATION, bearer(key)?);
        }
        for (name, value) in &config.headers {
            let (name, value) = header(name, value)?;
            headers.insert(name, value);
        }
        let timeouts = config.timeouts.unwrap_or_else(|| engine.timeouts.clone());
        timeouts.validate()?;
        let max_attempts = config.max_attempts.unwrap_or(engine.retry.max_attempts);
        if max_attempts == 0 {
            return Err(ConfigError::new("max_attempts", 0, "must be 1 or more"));
        }
        let transport =
            engine.transport(TransportOptions { connect_timeout: timeouts.connect, ..config.transport })?;
        Ok(Self {
            origin: redirect::origin(&base).into(),
            credential: engine.hasher.hash_one(config.api_key.as_deref().unwrap_or_default()),
            base,
            headers,
            transport,
            timeouts,
            max_attempts,
            paths: Mutex::default(),
        })
    }

    /// Where a request goes that was made elsewhere, complete with its credential.
    pub fn of_request(
        engine: &Engine,
        url: &Url,
        headers: &HeaderMap,
        timeouts: Timeouts,
        max_attempts: u32,
        transport: TransportOptions,
    ) -> Result<Self, ConfigError> {
        const CREDENTIALS: [&str; 4] = ["authorization", "api-key", "x-api-key", "x-goog-api-key"];
        let key =
            CREDENTIALS.iter().find_map(|name| headers.get(*name)).map_or(&b""[..], |value| value.as_bytes());
        // The same key is the same credential, whichever client sends it.
        let key = String::from_utf8_lossy(key.strip_prefix(b"Bearer ").unwrap_or(key));
        Ok(Self {
            origin: redirect::origin(url).into(),
            credential: engine.hasher.hash_one(key.as_ref()),
            base: url.clone(),
            headers: HeaderMap::new(),
            transport: engine.transport(transport)?,
            timeouts,
            max_attempts,
            paths: Mutex::default(),
        })
    }

    /// The URL of `path` below the base URL, with `query` pairs appended.
    pub fn url(&self, path: &str, query: &[(String, String)]) -> Result<Url, ConfigError> {
        if query.is_empty()
            && let Some(url) = self.paths.lock().get(path)
        {
            return Ok(url.clone());
        }
        let mut url = self.join(path)?;
        if query.is_empty() {
            let mut paths = self.paths.lock();
            if paths.len() < PATHS {
                paths.insert(path.into(), url.clone());
            }
        } else {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn join(&self, path: &str) -> Result<Url, ConfigError> {
        const RULE: &str = "must be a path below the base URL, such as /chat/completions";
        let mut url = self.base.clone();
        let (path, own_query) =
            path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        // URL parsers resolve `..` and its escaped forms, which would leave the base URL with its credential.
        let climbs =
            path.to_ascii_lowercase().replace("%2e", ".").split(['/', '\\']).any(|part| part == "..");
        if climbs || path.contains("://") || path.contains('#') {
            return Err(ConfigError::new("path", path, RULE));
        }
        let joined = format!("{}/{}", self.base.path().trim_end_matches('/'), path.trim_start_matches('/'));
        url.set_path(&joined);
        if own_query.is_some() {
            url.set_query(own_query);
        }
        Ok(url)
    }
}

fn base_url(text: &str) -> Result<Url, ConfigError> {
    const RULE: &str = "must be an absolute URL with a host, such as https://api.openai.com/v1";
    // A password before the host and a query may be secrets; neither is shown.
    let shown = text.rsplit('@').next().and_then(|rest| rest.split(['?', '#']).next()).unwrap_or_default();
    let url =
        Url::parse(text).map_err(|error| ConfigError::new("base_url", shown, format!("{RULE} ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ConfigError::new("base_url", shown, "must start with http:// or https://"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(ConfigError::new("base_url", shown, RULE));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ConfigError::new("base_url", shown, "must not hold a user name or password"));
    }
    Ok(url)
}

fn bearer(key: &str) -> Result<HeaderValue, ConfigError> {
    if key.is_empty() {
        return Err(ConfigError::new("api_key", "''", "must not be empty"));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        ConfigError::new(
            "api_key",
            "***",
            "must be printable ASCII without line breaks; was it read from a file with its newline?",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A header from outside. Its value may be a secret and is never shown.
pub fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), ConfigError> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| ConfigError::new("headers", format!("{name:?}"), "must be a valid header name"))?;
    let value = HeaderValue::from_str(value).map_err(|_| {
        ConfigError::new(format!("headers[{name:?}]"), "***", "must be printable without line breaks")
    })?;
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream() -> Upstream {
        let engine = Engine::new(GateConfig::default()).unwrap();
        let config = UpstreamConfig {
            base_url: String::from("http://a.test/v1"),
            api_key: None,
            headers: Vec::new(),
            timeouts: None,
            max_attempts: None,
            transport: TransportOptions::default(),
        };
        Upstream::new(&engine, config).unwrap()
    }

    #[test]
    fn a_path_stays_below_the_base_url() {
        let upstream = upstream();
        for path in
            ["/../b", "a/../../b", "/%2e%2E/b", "/.%2e/b", "/a/..", "\\..\\b", "http://b.test/", "/a#b"]
        {
            assert_eq!(upstream.url(path, &[]).unwrap_err().field, "path", "{path}");
        }
        for (path, full) in [("/a/b", "/v1/a/b"), ("a..b", "/v1/a..b"), ("/a?b=..", "/v1/a?b=..")] {
            let url = upstream.url(path, &[]).unwrap();
            assert_eq!(url.as_str(), format!("http://a.test{full}"));
        }
    }
}
