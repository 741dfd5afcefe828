//! The engine as a transport: requests that were made elsewhere, complete with URL, headers and body.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::Mutex;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use url::Url;

use super::blocking::{self, Mailbox};
use super::bridge::{self, Ticket};
use super::ended::{Finished, PyAttempt};
use super::engine::PyEngine;
use super::errors::config_error;
use super::guard::{Outer, OuterGiven};
use super::outcome::{Delivery, LogListener, NOTHING, Promise, Sink};
use super::receipt::PyReceipt;
use super::runtime;
use super::stream::hand_on;
use crate::config::{self, Timeouts};
use crate::drive::{self, Deliver, Ended, Next, Order, Reply, Stepped, StreamEndRule};
use crate::engine::{Engine, Upstream};
use crate::error::{ConfigError, TransportError, TransportErrorKind};
use crate::event::{Digest, Level, Listener, Tags};
use crate::stream::Form;
use crate::transport::TransportOptions;

/// How requests leave: the pool's settings.
#[pyclass(frozen, name = "Transport", module = "tidegate._core")]
pub(crate) struct PyTransport {
    engine: Py<PyEngine>,
    options: TransportOptions,
}

#[pymethods]
impl PyTransport {
    #[new]
    #[pyo3(signature = (engine, *, ca_bundle, http2, proxy))]
    fn new(
        py: Python<'_>,
        engine: Py<PyEngine>,
        ca_bundle: Option<String>,
        http2: bool,
        proxy: Option<String>,
    ) -> PyResult<Self> {
        let _inside = runtime::enter(py);
        let options = TransportOptions { ca_bundle, http2, proxy, ..TransportOptions::default() };
        // What is wrong with the settings is said here, not by the first call.
        engine.get().current(py)?.transport(options.clone()).map_err(|error| config_error(py, &error))?;
        Ok(Self { engine, options })
    }

    /// A call, of which nothing is sent yet.
    #[pyo3(signature = (*, max_attempts=None, tags=None, log_level=NOTHING, failed_before=None, outer=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of a call, by name")]
    fn exchange(
        &self,
        py: Python<'_>,
        max_attempts: Option<u32>,
        tags: Option<Tags>,
        log_level: i32,
        failed_before: Option<(u64, u32)>,
        outer: Option<OuterGiven>,
    ) -> PyResult<PyExchange> {
        let _inside = runtime::enter(py);
        let engine = self.engine.get().current(py)?;
        Ok(PyExchange {
            gate: self.engine.clone_ref(py),
            max_attempts: max_attempts.unwrap_or(engine.retry_policy().max_attempts).max(1),
            engine,
            options: self.options.clone(),
            tags: tags.map(Arc::new),
            log_level,
            failed_before: failed_before.map(|(request, attempts)| (Digest(request), attempts)),
            outer: outer.map(Outer::read).transpose()?,
            stepped: Arc::default(),
        })
    }
}

impl PyTransport {
    pub(super) fn parts(&self, py: Python<'_>) -> (Py<PyEngine>, TransportOptions) {
        (self.engine.clone_ref(py), self.options.clone())
    }
}

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errand {
    /// One attempt: the gates, the request, its answer.
    Attempt,
    /// The gates alone; the caller sends.
    Admit,
    /// The call with all its attempts and waits.
    Whole,
}

impl Errand {
    fn parse(name: &str) -> PyResult<Self> {
        match name {
            "attempt" => Ok(Self::Attempt),
            "admit" => Ok(Self::Admit),
            "whole" => Ok(Self::Whole),
            _ => Err(PyValueError::new_err("an errand is attempt, admit or whole")),
        }
    }
}

/// Connect, read, write and pool: seconds, as in the SDK's `Timeout`.
pub(super) type Phases = (Option<f64>, Option<f64>, Option<f64>, Option<f64>);

/// Method, URL, raw headers, body and the bounds on its phases.
type Request<'py> =
    (String, String, Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>, Bound<'py, PyBytes>, Option<Phases>);

/// A call whose attempts are asked for one by one, or as a whole.
#[pyclass(frozen, name = "Exchange", module = "tidegate._core")]
pub(crate) struct PyExchange {
    gate: Py<PyEngine>,
    engine: Arc<Engine>,
    options: TransportOptions,
    max_attempts: u32,
    tags: Option<Arc<Tags>>,
    log_level: i32,
    failed_before: Option<(Digest, u32)>,
    outer: Option<Outer>,
    /// Away while an attempt is in flight, so that stopping the attempt is leaving the call.
    stepped: Arc<Mutex<Option<Stepped>>>,
}

#[pymethods]
impl PyExchange {
    /// Starts an errand on the running loop.
    #[pyo3(signature = (errand, request, *, context=None))]
    fn submit(
        &self,
        py: Python<'_>,
        errand: &str,
        request: Request<'_>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<Ticket> {
        let _inside = runtime::enter(py);
        let job = self.job(py, errand, request)?;
        bridge::submit(py, context, |courier| Ok(job.deliver(courier)))
    }

    /// The same, waited for without the GIL.
    fn call(&self, py: Python<'_>, errand: &str, request: Request<'_>) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let job = self.job(py, errand, request)?;
        blocking::wait(py, &mut inside, |mailbox| Ok(job.deliver(mailbox)))
    }

    /// Tells of the answer to an attempt that the caller sent after `admit`.
    fn answered(
        &self,
        py: Python<'_>,
        request: Request<'_>,
        status: u16,
        headers: Vec<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>,
        content: &Bound<'_, PyBytes>,
        first_byte: f64,
    ) -> PyResult<PyAttempt> {
        let order = self.order(py, request)?;
        let reply =
            Reply { status, headers: header_map(headers)?, body: Bytes::copy_from_slice(content.as_bytes()) };
        let first_byte = Duration::try_from_secs_f64(first_byte).unwrap_or_default();
        self.told(py, |stepped| stepped.answered(&order, reply, first_byte))
    }

    /// Tells of the head of such an answer. A receipt for the rest, if it is to be handed on as it comes; else the
    /// caller reads it and tells of all of it.
    fn streamed(
        &self,
        py: Python<'_>,
        request: Request<'_>,
        status: u16,
        headers: Vec<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>,
    ) -> PyResult<Option<PyReceipt>> {
        let _inside = runtime::enter(py);
        let order = self.order(py, request)?;
        let headers = header_map(headers)?;
        let mailbox = Arc::new(Mailbox::default());
        let mut stepped = self.stepped.lock().take().ok_or_else(lost)?;
        stepped.listen(listener(&mailbox, self.log_level));
        match stepped.streamed(&order, status, &headers) {
            Ok(stream) => Ok(Some(PyReceipt::new(stream, failures_are_events(&order), mailbox))),
            Err(mut stepped) => {
                stepped.listen(None);
                *self.stepped.lock() = Some(*stepped);
                Ok(None)
            }
        }
    }

    /// Tells that an attempt that the caller sent after `admit` got no answer.
    fn failed(&self, py: Python<'_>, kind: &str, message: String) -> PyResult<PyAttempt> {
        let kind = failure_kind(kind);
        self.told(py, |stepped| stepped.failed(TransportError { kind, message }))
    }

    /// Tells that the call's deadline came during an attempt that the caller sent.
    fn cut(&self, py: Python<'_>) -> PyResult<PyAttempt> {
        self.told(py, Stepped::cut)
    }
}

impl PyExchange {
    fn told(&self, py: Python<'_>, what: impl FnOnce(&mut Stepped) -> drive::Ended) -> PyResult<PyAttempt> {
        let _inside = runtime::enter(py);
        let mailbox = Arc::new(Mailbox::default());
        let mut stepped = self.stepped.lock().take().ok_or_else(lost)?;
        stepped.listen(listener(&mailbox, self.log_level));
        let ended = what(&mut stepped);
        stepped.listen(None);
        let finished = Finished::Ended(ended);
        if finished.may_go_on() {
            *self.stepped.lock() = Some(stepped);
        }
        mailbox.log(py)?;
        PyAttempt::new(py, finished)
    }

    fn job(&self, py: Python<'_>, errand: &str, request: Request<'_>) -> PyResult<Job> {
        let errand = Errand::parse(errand)?;
        let mut order = self.order(py, request)?;
        let log_level = if self.gate.get().observer.place(py, &mut order)? {
            Level::Debug as i32
        } else {
            self.log_level
        };
        let options = TransportOptions { connect_timeout: order.timeouts.connect, ..self.options.clone() };
        let upstream = Upstream::of_request(
            &self.engine,
            &order.url,
            &order.headers,
            order.timeouts.clone(),
            order.max_attempts,
            options,
        )
        .map_err(|error| config_error(py, &error))?;
        let home = Arc::clone(&self.stepped);
        Ok(Job { engine: Arc::clone(&self.engine), upstream, order, errand, home, log_level })
    }

    fn order(&self, py: Python<'_>, request: Request<'_>) -> PyResult<Order> {
        let (method, url, headers, content, phases) = request;
        let config = |error: ConfigError| config_error(py, &error);
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| config(ConfigError::new("method", method, "must be an HTTP method")))?;
        let url = target(&url).map_err(config)?;
        let body = Bytes::copy_from_slice(content.as_bytes());
        let mut order = Order {
            method,
            url,
            headers: Arc::new(header_map(headers)?),
            timeouts: timeouts(self.engine.timeouts(), phases, body.len()),
            body,
            numbered: false,
            foreign: true,
            max_attempts: self.max_attempts,
            tags: self.tags.clone(),
            failed_before: self.failed_before,
            parent: None,
            notice: None,
            trace_id: None,
            span_id: None,
            deliver: Deliver::Stream(Form::AsItCame),
            stream_end: StreamEndRule::Learned,
        };
        self.outer.as_ref().map_or(Ok(()), |outer| outer.around(&mut order))?;
        Ok(order)
    }
}

/// An errand ready to be run.
struct Job {
    engine: Arc<Engine>,
    upstream: Upstream,
    order: Order,
    errand: Errand,
    home: Arc<Mutex<Option<Stepped>>>,
    log_level: i32,
}

impl Job {
    fn deliver(self, sink: impl Sink) -> impl Future<Output = ()> + Send + 'static {
        let mut promise = Promise::new(sink);
        async move {
            let listener = listener(&promise.sink, self.log_level);
            let failures_are_events = failures_are_events(&self.order);
            let finished = self.run(listener).await;
            promise.kept = true;
            match finished {
                Finished::Ended(Ended { next: Next::Stream(stream), .. }) => {
                    hand_on(*stream, Form::AsItCame, failures_are_events, &promise.sink).await;
                }
                finished => promise.sink.deliver(Delivery::Attempt(Box::new(finished))),
            }
        }
    }

    async fn run(self, listener: Option<Arc<dyn Listener>>) -> Finished {
        let Self { engine, upstream, mut order, errand, home, .. } = self;
        if errand == Errand::Whole {
            const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
            // Another number is the caller's own, and so is the absence of one.
            order.numbered = order.headers.get(RETRY_COUNT).is_some_and(|count| count == "0");
            return Finished::Ended(drive::whole(&engine, &upstream, order, listener).await);
        }
        let earlier = home.lock().take();
        let mut stepped =
            earlier.unwrap_or_else(|| Stepped::new(&engine, &upstream, &order, listener.clone()));
        stepped.listen(listener);
        let (finished, left) = if errand == Errand::Admit {
            let finished = Finished::admitted(stepped.admit().await);
            let goes_on = finished.may_go_on();
            (finished, goes_on.then_some(stepped))
        } else {
            let (ended, left) = stepped.attempt(&upstream, &order).await;
            (Finished::Ended(ended), left)
        };
        if let Some(mut stepped) = left {
            stepped.listen(None);
            *home.lock() = Some(stepped);
        }
        finished
    }
}

/// What kept an answer from coming, by the word that the Python side has for it.
pub(super) fn failure_kind(kind: &str) -> TransportErrorKind {
    match kind {
        "connect" => TransportErrorKind::Connect,
        "connect_timeout" => TransportErrorKind::ConnectTimeout,
        "read_timeout" => TransportErrorKind::IdleTimeout,
        "body" => TransportErrorKind::Body,
        "request" => TransportErrorKind::Request,
        _ => TransportErrorKind::Reset,
    }
}

/// The SDK yields these events of a response and raises nothing.
fn failures_are_events(order: &Order) -> bool {
    order.url.path().trim_end_matches('/').ends_with("/responses")
}

fn lost() -> PyErr {
    PyRuntimeError::new_err("no attempt of this call is under way")
}

pub(super) fn listener<S: Sink>(sink: &S, log_level: i32) -> Option<Arc<dyn Listener>> {
    (log_level < NOTHING)
        .then(|| Arc::new(LogListener { sink: sink.clone(), lowest: log_level }) as Arc<dyn Listener>)
}

/// The URL of a request as it is to be sent. Parsers resolve `..` and its escaped forms, and take a backslash for a
/// slash: the request would go elsewhere than its maker meant, with the credential.
pub(super) fn target(text: &str) -> Result<Url, ConfigError> {
    let rule = |rule: String| ConfigError::new("url", "***", rule);
    let url = Url::parse(text).map_err(|error| {
        rule(format!(
            "must be a URL such as https://host/v1/… ({error}): look at base_url or OPENAI_BASE_URL"
        ))
    })?;
    let address = text.split(['?', '#']).next().unwrap_or_default();
    let path =
        address.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let moves = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if path.contains('\\') || path.split('/').any(moves) {
        return Err(rule(String::from(
            "must have no backslash and no segment . or .. in its path, escaped or not",
        )));
    }
    Ok(url)
}

/// Headers as bytes, in order. Their values may be secrets and are not shown.
pub(super) fn header_map(pairs: Vec<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>) -> PyResult<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(pairs.len());
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| PyValueError::new_err("a header's name is not valid"))?;
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| PyValueError::new_err(format!("the value of the header {name} is not valid")))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// The SDK's phases in the engine's terms. `read` bounds the wait for the answer and each gap in it, as there;
/// the gate's own bounds hold where they are tighter. What the SDK waits for in its pool is the queue here, which
/// the total timeout bounds.
pub(super) fn timeouts(gate: &Timeouts, phases: Option<Phases>, body: usize) -> Timeouts {
    /// A larger body may take its time to be written before the answer can begin.
    const SMALL: usize = 64 << 10;
    let Some((connect, read, write, _)) = phases else { return gate.clone() };
    let seconds = |value: Option<f64>| value.and_then(|value| config::seconds("timeout", value).ok());
    let (read, write) = (seconds(read), seconds(write));
    let first_byte = if body > SMALL { read.zip(write).map(|(read, write)| read + write) } else { read };
    let tighter = |own: Option<Duration>, gates: Option<Duration>| match (own, gates) {
        (Some(own), Some(gates)) => Some(own.min(gates)),
        (one, other) => one.or(other),
    };
    // The SDK knows no such bound: the gate's holds only if somebody has set it.
    let attempt = gate.attempt.filter(|attempt| Some(*attempt) != Timeouts::default().attempt);
    Timeouts {
        connect: pooled_connect(gate.connect, seconds(connect)),
        first_byte: tighter(first_byte, gate.first_byte),
        idle: tighter(read, gate.idle),
        attempt,
        total: gate.total,
    }
}

/// Each connect timeout is a pool of its own, so only few are told apart. A shorter one ends with the wait for
/// the answer, which includes it.
fn pooled_connect(gate: Duration, asked: Option<Duration>) -> Duration {
    const STEPS: [u64; 3] = [15, 60, 600];
    let longest = Duration::from_secs(600);
    match asked.unwrap_or(longest) {
        asked if asked <= gate => gate,
        asked => STEPS.into_iter().map(Duration::from_secs).find(|step| asked <= *step).unwrap_or(longest),
    }
}
