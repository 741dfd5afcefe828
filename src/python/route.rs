//! One method of an API as a client of the openai package calls it: its requests differ in nothing but their body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use url::Url;

use super::blocking;
use super::bridge::{self, Ticket};
use super::ended::Finished;
use super::engine::PyEngine;
use super::errors::config_error;
use super::exchange::{self, Phases, PyTransport};
use super::official;
use super::options::apply;
use super::outcome::{Delivery, NOTHING, Promise, Sink};
use super::per_process::PerProcess;
use super::runtime;
use super::stream;
use crate::config::Timeouts;
use crate::drive::{self, Deliver, Delivered, Ended, Order, StreamEndRule};
use crate::engine::{Engine, Upstream};
use crate::error::ConfigError;
use crate::stream::Form;
use crate::transport::TransportOptions;

const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// URL, headers, bounds and number of attempts, read once.
#[pyclass(frozen, name = "Route", module = "tidegate._core")]
pub(crate) struct PyRoute {
    engine: Py<PyEngine>,
    options: TransportOptions,
    url: Url,
    headers: Arc<HeaderMap>,
    phases: Option<Phases>,
    numbered: bool,
    max_attempts: u32,
    upstream: PerProcess<Upstream>,
}

#[pymethods]
impl PyRoute {
    #[new]
    #[pyo3(signature = (transport, url, headers, phases, max_attempts))]
    #[allow(clippy::needless_pass_by_value, reason = "arguments of Python are made for the call")]
    fn new(
        py: Python<'_>,
        transport: &Bound<'_, PyTransport>,
        url: &str,
        headers: Vec<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>,
        phases: Option<Phases>,
        max_attempts: u32,
    ) -> PyResult<Self> {
        let _inside = runtime::enter(py);
        let config = |error: ConfigError| config_error(py, &error);
        let url = exchange::target(url).map_err(config)?;
        let headers = Arc::new(exchange::header_map(headers)?);
        let (engine, options) = transport.get().parts(py);
        let current = engine.get().current(py)?;
        let timeouts = exchange::timeouts(current.timeouts(), phases, 0);
        let options = TransportOptions { connect_timeout: timeouts.connect, ..options };
        let upstream = upstream(&current, &url, &headers, &options, max_attempts).map_err(config)?;
        // Another number is the caller's own, and so is the absence of one.
        let numbered = headers.get(RETRY_COUNT).is_some_and(|count| count == "0");
        let upstream = PerProcess::new(upstream);
        Ok(Self { engine, options, url, headers, phases, numbered, max_attempts, upstream })
    }

    /// Starts a call on the running loop. Returns `None`, and starts none, if an argument is not plain.
    #[pyo3(signature = (arguments, options=None, *, stream=false, log_level=NOTHING, context=None))]
    fn submit(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyDict>,
        options: Option<&Bound<'_, PyDict>>,
        stream: bool,
        log_level: i32,
        context: Option<Py<PyAny>>,
    ) -> PyResult<Option<Ticket>> {
        let _inside = runtime::enter(py);
        let Some(job) = self.job(py, arguments, options, stream)? else { return Ok(None) };
        bridge::submit(py, context, |courier| Ok(job.run(courier, log_level))).map(Some)
    }

    /// The same, waited for without the GIL.
    #[pyo3(signature = (arguments, options=None, *, stream=false, log_level=NOTHING))]
    fn call(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyDict>,
        options: Option<&Bound<'_, PyDict>>,
        stream: bool,
        log_level: i32,
    ) -> PyResult<Option<Py<PyAny>>> {
        let mut inside = runtime::enter(py);
        let Some(job) = self.job(py, arguments, options, stream)? else { return Ok(None) };
        blocking::wait(py, &mut inside, |mailbox| Ok(job.run(mailbox, log_level))).map(Some)
    }
}

impl PyRoute {
    fn job(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyDict>,
        options: Option<&Bound<'_, PyDict>>,
        stream: bool,
    ) -> PyResult<Option<Job>> {
        let Some(json) = official::to_json(arguments)? else { return Ok(None) };
        let body = Bytes::from(json);
        let engine = self.engine.get().current(py)?;
        let build = || upstream(&engine, &self.url, &self.headers, &self.options, self.max_attempts);
        let upstream = self.upstream.get(build).map_err(|error| config_error(py, &error))?;
        let mut order = Order {
            method: Method::POST,
            url: self.url.clone(),
            headers: Arc::clone(&self.headers),
            timeouts: exchange::timeouts(engine.timeouts(), self.phases, body.len()),
            body,
            numbered: self.numbered,
            foreign: true,
            max_attempts: self.max_attempts,
            tags: None,
            failed_before: None,
            parent: None,
            notice: None,
            trace_id: None,
            span_id: None,
            deliver: if stream { Deliver::Stream(Form::Events) } else { Deliver::Whole },
            stream_end: StreamEndRule::Learned,
        };
        if let Some(options) = options {
            apply(&mut order, &upstream, self.url.path(), options)?;
        }
        Ok(Some(Job { engine, upstream, order }))
    }
}

fn upstream(
    engine: &Engine,
    url: &Url,
    headers: &HeaderMap,
    options: &TransportOptions,
    max_attempts: u32,
) -> Result<Upstream, ConfigError> {
    Upstream::of_request(engine, url, headers, Timeouts::default(), max_attempts, options.clone())
}

/// A call ready to be started.
struct Job {
    engine: Arc<Engine>,
    upstream: Arc<Upstream>,
    order: Order,
}

impl Job {
    /// A success is delivered as it is, a failure with its answer.
    fn run(self, sink: impl Sink, log_level: i32) -> impl Future<Output = ()> + Send + 'static {
        let Self { engine, upstream, order } = self;
        let mut promise = Promise::new(sink);
        async move {
            let listener = exchange::listener(&promise.sink, log_level);
            // The official client yields these events of a response and raises nothing.
            let failures_are_events = order.url.path().trim_end_matches('/').ends_with("/responses");
            let delivered = drive::call(&engine, &upstream, order, listener).await;
            promise.kept = true;
            match delivered {
                Delivered::Outcome(outcome) if outcome.result.is_ok() => {
                    promise.sink.deliver(Delivery::Outcome(outcome));
                }
                Delivered::Outcome(outcome) => {
                    let ended = Finished::Ended(Ended::over(*outcome));
                    promise.sink.deliver(Delivery::Attempt(Box::new(ended)));
                }
                Delivered::Stream(stream) => {
                    stream::hand_on(*stream, Form::Events, failures_are_events, &promise.sink).await;
                }
            }
        }
    }
}
