//! `Engine` and `Upstream`: from a Python call to a running task.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::value::RawValue;

use super::arguments::{Content, MethodName, Path};
use super::blocking;
use super::bridge::{self, Ticket};
use super::errors::config_error;
use super::options::{self, apply};
use super::outcome::{Delivery, LogListener, LogRecord, NOTHING, Promise, Sink};
use super::per_process::PerProcess;
use super::response::parse;
use super::runtime;
use super::stream::hand_on;
use super::trace::Observer;
use super::{encode, policy};
use crate::clock;
use crate::config::{self, Limits};
use crate::drive::{self, Deliver, Delivered, Order, StreamEndRule};
use crate::engine::{Decision, Engine, Fallback, GateConfig, Upstream, UpstreamConfig};
use crate::error::ConfigError;
use crate::event::{Level, Listener};
use crate::log_file::Rotation;
use crate::price::PriceBook;
use crate::stream::Form;
use crate::transport::TransportOptions;

/// The gate's core: all state that calls share.
#[pyclass(frozen, name = "Engine", module = "tidegate._core")]
pub(crate) struct PyEngine {
    settings: Settings,
    engine: PerProcess<Engine>,
    pub(super) observer: Observer,
}

/// The settings in the core's terms, kept for the next process.
struct Settings {
    retry: config::RetryPolicy,
    timeouts: config::Timeouts,
    limits: Vec<(String, Limits)>,
    breaker: Option<config::BreakerPolicy>,
    retry_budget: Option<config::RetryBudgetPolicy>,
    spend: Vec<config::SpendCap>,
    fallbacks: Vec<Fallback>,
    degrade: Option<config::Degrade>,
    prices: PriceBook,
    log_file: Option<String>,
    log_rotation: Option<Rotation>,
    seed: Option<u64>,
}

impl Settings {
    fn build(&self) -> Result<Engine, ConfigError> {
        Engine::new(GateConfig {
            retry: self.retry.clone(),
            timeouts: self.timeouts.clone(),
            limits: self.limits.clone(),
            breaker: self.breaker.clone(),
            retry_budget: self.retry_budget.clone(),
            spend: self.spend.clone(),
            fallbacks: self.fallbacks.clone(),
            degrade: self.degrade.clone(),
            prices: self.prices.clone(),
            log_file: self.log_file.as_ref().map(Into::into),
            log_rotation: self.log_rotation,
            seed: self.seed,
        })
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (*, retry, timeouts, limits, breaker, retry_budget, spend, fallbacks, degrade, prices, log_file, log_rotation, seed))]
    #[allow(clippy::too_many_arguments, reason = "the settings of a gate, by name")]
    fn new(
        py: Python<'_>,
        retry: &Bound<'_, PyAny>,
        timeouts: &Bound<'_, PyAny>,
        limits: Vec<(String, Bound<'_, PyAny>)>,
        breaker: Option<&Bound<'_, PyAny>>,
        retry_budget: Option<&Bound<'_, PyAny>>,
        spend: Vec<Bound<'_, PyAny>>,
        fallbacks: Vec<(String, Bound<'_, PyAny>)>,
        degrade: Option<&Bound<'_, PyAny>>,
        prices: Option<&str>,
        log_file: Option<String>,
        log_rotation: Option<(u64, u32)>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let _inside = runtime::enter(py);
        let config = |error: ConfigError| config_error(py, &error);
        let limits = limits
            .into_iter()
            .map(|(pattern, limits)| Ok((pattern, policy::limits(&limits)?)))
            .collect::<PyResult<_>>()?;
        let settings = Settings {
            retry: policy::retry(retry)?,
            timeouts: policy::timeouts(timeouts)?,
            limits,
            breaker: breaker.map(policy::breaker).transpose()?,
            retry_budget: retry_budget.map(policy::retry_budget).transpose()?,
            spend: spend.into_iter().map(|cap| policy::spend(&cap)).collect::<PyResult<_>>()?,
            fallbacks: fallbacks.into_iter().map(fallback).collect::<PyResult<_>>()?,
            degrade: degrade.map(policy::degrade).transpose()?,
            prices: prices.map(price_book).transpose().map_err(config)?.unwrap_or_default(),
            log_file,
            log_rotation: log_rotation.map(|(max_bytes, backups)| Rotation { max_bytes, backups }),
            seed,
        };
        let engine = PerProcess::new(settings.build().map_err(config)?);
        Ok(Self { settings, engine, observer: Observer::default() })
    }

    #[pyo3(signature = (*, base_url, api_key, headers, timeouts, max_attempts, ca_bundle, http2, proxy))]
    #[allow(clippy::too_many_arguments, reason = "the settings of a client, by name")]
    fn upstream(
        slf: &Bound<'_, Self>,
        base_url: String,
        api_key: Option<String>,
        headers: &Bound<'_, PyAny>,
        timeouts: Option<&Bound<'_, PyAny>>,
        max_attempts: Option<u32>,
        ca_bundle: Option<String>,
        http2: bool,
        proxy: Option<String>,
    ) -> PyResult<PyUpstream> {
        let _inside = runtime::enter(slf.py());
        let config = UpstreamConfig {
            base_url,
            api_key,
            headers: options::headers(headers)?,
            timeouts: timeouts.map(policy::timeouts).transpose()?,
            max_attempts,
            transport: TransportOptions { ca_bundle, http2, proxy, ..TransportOptions::default() },
        };
        let engine = slf.get().current(slf.py())?;
        let upstream =
            Upstream::new(&engine, config.clone()).map_err(|error| config_error(slf.py(), &error))?;
        Ok(PyUpstream { engine: slf.clone().unbind(), config, upstream: PerProcess::new(upstream) })
    }

    /// The gate's state and counters as plain data.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let json = self.current(py)?.snapshot(clock::now());
        parse(py, &Bytes::from(json))
    }

    fn metrics_text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.current(py)?.metrics_text(clock::now()))
    }

    /// The metrics as plain data.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let json = self.current(py)?.metrics_plain(clock::now());
        parse(py, &Bytes::from(json))
    }

    /// What calls used and cost, a row per hour, model and tags.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let json = self.current(py)?.usage();
        parse(py, &Bytes::from(json))
    }

    /// Has the breakers whose origin and model match do as an operator says: `open`, `disabled`, or `reset`.
    fn decide(&self, py: Python<'_>, decision: &str, origin: &str, model: &str) -> PyResult<()> {
        let config = |error: ConfigError| config_error(py, &error);
        let _inside = runtime::enter(py);
        let decision = match decision {
            "open" => Decision::ForceOpen,
            "disabled" => Decision::Disable,
            "reset" => Decision::Reset,
            other => return Err(config(ConfigError::new("state", other, "must be open or disabled"))),
        };
        for (level, event) in self.current(py)?.decide(origin, model, decision).map_err(config)? {
            LogRecord::new(level, &event).log(py, None)?;
        }
        Ok(())
    }

    /// Who is asked for the place of each call in a trace, and then hears of it; see `tidegate._trace`.
    fn observe(&self, py: Python<'_>, observer: Option<Py<PyAny>>) {
        self.observer.set(py, observer);
    }
}

impl PyEngine {
    pub(super) fn current(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        self.engine.get(|| self.settings.build()).map_err(|error| config_error(py, &error))
    }
}

/// A base URL with its credential and defaults.
#[pyclass(frozen, name = "Upstream", module = "tidegate._core")]
pub(crate) struct PyUpstream {
    engine: Py<PyEngine>,
    config: UpstreamConfig,
    upstream: PerProcess<Upstream>,
}

#[pymethods]
impl PyUpstream {
    #[getter]
    fn base_url(&self) -> &str {
        &self.config.base_url
    }

    /// Starts a call on the running loop.
    #[pyo3(signature = (
        method, path, options, *, json=None, content=None, log_level=NOTHING, context=None, stream=None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "the parts of a request, by name")]
    #[allow(clippy::similar_names, reason = "they are Python's keywords")]
    fn submit(
        &self,
        py: Python<'_>,
        method: MethodName<'_>,
        path: Path<'_>,
        options: Option<&Bound<'_, PyDict>>,
        json: Option<&Bound<'_, PyAny>>,
        content: Option<Content<'_>>,
        log_level: i32,
        context: Option<Py<PyAny>>,
        stream: Option<&str>,
    ) -> PyResult<Ticket> {
        let _inside = runtime::enter(py);
        let job = self.job(py, method, path, options, json, content)?.delivering(py, stream)?;
        bridge::submit(py, context, |courier| Ok(job.run(courier, log_level)))
    }

    /// Makes a call and waits for it without the GIL.
    #[pyo3(signature = (method, path, options, *, json=None, content=None, log_level=NOTHING, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "the parts of a request, by name")]
    fn call(
        &self,
        py: Python<'_>,
        method: MethodName<'_>,
        path: Path<'_>,
        options: Option<&Bound<'_, PyDict>>,
        json: Option<&Bound<'_, PyAny>>,
        content: Option<Content<'_>>,
        log_level: i32,
        stream: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let job = self.job(py, method, path, options, json, content)?.delivering(py, stream)?;
        blocking::wait(py, &mut inside, |mailbox| Ok(job.run(mailbox, log_level)))
    }
}

/// A call ready to be started.
struct Job {
    engine: Arc<Engine>,
    upstream: Arc<Upstream>,
    order: Order,
    /// Somebody waits for all of its events.
    observed: bool,
}

impl Job {
    fn delivering(mut self, py: Python<'_>, stream: Option<&str>) -> PyResult<Self> {
        self.order.deliver = match stream {
            None => Deliver::Whole,
            Some("events") => Deliver::Stream(Form::Events),
            Some("bytes") => Deliver::Stream(Form::Bytes),
            Some(other) => {
                let rule = "must be \"events\", \"bytes\" or None";
                return Err(config_error(py, &ConfigError::new("stream", other, rule)));
            }
        };
        Ok(self)
    }

    fn run(self, sink: impl Sink, log_level: i32) -> impl Future<Output = ()> + Send + 'static {
        let Self { engine, upstream, order, observed } = self;
        let log_level = if observed { Level::Debug as i32 } else { log_level };
        let form = if let Deliver::Stream(form) = order.deliver { form } else { Form::Events };
        let mut promise = Promise::new(sink);
        async move {
            let listener = (log_level < NOTHING).then(|| {
                Arc::new(LogListener { sink: promise.sink.clone(), lowest: log_level }) as Arc<dyn Listener>
            });
            let delivered = drive::call(&engine, &upstream, order, listener).await;
            promise.kept = true;
            match delivered {
                Delivered::Outcome(outcome) => promise.sink.deliver(Delivery::Outcome(outcome)),
                Delivered::Stream(stream) => hand_on(*stream, form, false, &promise.sink).await,
            }
        }
    }
}

impl PyUpstream {
    fn job(
        &self,
        py: Python<'_>,
        method: MethodName<'_>,
        path: Path<'_>,
        options: Option<&Bound<'_, PyDict>>,
        json: Option<&Bound<'_, PyAny>>,
        content: Option<Content<'_>>,
    ) -> PyResult<Job> {
        let config = |error: ConfigError| config_error(py, &error);
        let engine = self.engine.get().current(py)?;
        let build = || Upstream::new(&engine, self.config.clone());
        let upstream = self.upstream.get(build).map_err(config)?;
        let body = match (json, content) {
            (Some(json), _) => Bytes::from(encode::to_json(json, "json", "")?),
            (None, Some(content)) => Bytes::copy_from_slice(content.0),
            (None, None) => Bytes::new(),
        };
        let method = Method::from_bytes(method.0.as_bytes())
            .map_err(|_| config(ConfigError::new("method", method.0, "must be an HTTP method")))?;
        let mut order = Order {
            method,
            url: upstream.url(path.0, &[]).map_err(config)?,
            headers: Arc::clone(&upstream.headers),
            body,
            numbered: true,
            foreign: false,
            timeouts: upstream.timeouts.clone(),
            max_attempts: upstream.max_attempts,
            tags: None,
            failed_before: None,
            parent: None,
            notice: None,
            trace_id: None,
            span_id: None,
            deliver: Deliver::Whole,
            stream_end: StreamEndRule::Learned,
        };
        if let Some(options) = options {
            apply(&mut order, &upstream, path.0, options)?;
        }
        let observed = self.engine.get().observer.place(py, &mut order)?;
        Ok(Job { engine, upstream, order, observed })
    }
}

/// What `tidegate.Fallback` names.
fn fallback((models, object): (String, Bound<'_, PyAny>)) -> PyResult<Fallback> {
    let base_url: Option<String> = object.getattr("base_url")?.extract()?;
    let upstream = base_url.map(|base_url| {
        Ok::<_, PyErr>(UpstreamConfig {
            base_url,
            api_key: object.getattr("api_key")?.extract()?,
            headers: options::headers(&object.getattr("headers")?)?,
            timeouts: None,
            max_attempts: None,
            transport: TransportOptions::default(),
        })
    });
    Ok(Fallback { models, model: object.getattr("model")?.extract()?, upstream: upstream.transpose()? })
}

/// The table of `tidegate.Prices`: our own form, or one of the public tables under its marker.
fn price_book(json: &str) -> Result<PriceBook, ConfigError> {
    #[derive(serde::Deserialize)]
    struct Marked<'a> {
        #[serde(borrow, rename = "__litellm__")]
        litellm: Option<&'a RawValue>,
        #[serde(borrow, rename = "__genai_prices__")]
        genai: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Marked<'_>>(json) {
        Ok(Marked { litellm: Some(table), .. }) => PriceBook::from_litellm(table.get()),
        Ok(Marked { genai: Some(table), .. }) => PriceBook::from_genai_prices(table.get(), None),
        _ => PriceBook::from_json(json),
    }
}
