//! Functions of Python's behind the gates, and the calls that are made in them.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::blocking::{self, Mailbox};
use super::bridge::{self, Ticket};
use super::ended::{Finished, PyAttempt};
use super::engine::PyEngine;
use super::errors::config_error;
use super::exchange::listener;
use super::outcome::{Delivery, NOTHING, Promise, Sink};
use super::runtime;
use super::trace;
use crate::call::Raised;
use crate::classify::Class;
use crate::config;
use crate::drive::{self, Guarded, Order, Stepped};
use crate::event::{SpanId, Tags, TraceId};
use crate::lock::Mutex;

/// Trace id, span id, and the seconds that are left of a call.
pub(super) type OuterGiven = (String, String, Option<f64>);

/// The guarded call that another one is made in: it alone retries, and its time is all there is.
#[derive(Debug, Clone)]
pub(super) struct Outer {
    trace_id: TraceId,
    span_id: SpanId,
    left: Option<Duration>,
}

impl Outer {
    pub(super) fn read((trace_id, span_id, left): OuterGiven) -> PyResult<Self> {
        let ids = TraceId::parse(&trace_id).zip(SpanId::parse(&span_id));
        let (trace_id, span_id) = ids.ok_or_else(|| PyValueError::new_err("ids are hex digits"))?;
        let left = left.map(|left| Duration::try_from_secs_f64(left).unwrap_or_default());
        Ok(Self { trace_id, span_id, left })
    }

    #[allow(clippy::unnecessary_wraps, reason = "ends a chain of what may fail")]
    pub(super) fn around(&self, order: &mut Order) -> PyResult<()> {
        order.trace_id.get_or_insert(self.trace_id);
        order.parent = Some(self.span_id);
        order.max_attempts = 1;
        order.timeouts.total = self.shortens(order.timeouts.total);
        Ok(())
    }

    fn shortens(&self, total: Option<Duration>) -> Option<Duration> {
        match (total, self.left) {
            (Some(total), Some(left)) => Some(total.min(left)),
            (one, other) => one.or(other),
        }
    }
}

/// One call of a function.
#[pyclass(frozen, name = "Guard", module = "tidegate._core")]
pub(crate) struct PyGuard {
    log_level: i32,
    ids: (TraceId, SpanId),
    /// Away while it waits for its place, so that stopping the wait is leaving the call.
    stepped: Arc<Mutex<Option<Stepped>>>,
}

#[pymethods]
impl PyGuard {
    #[new]
    #[pyo3(signature = (
        engine, name, *, tokens=0, timeout=None, total_timeout=None, max_attempts=None, tags=None, outer=None,
        counted_elsewhere=false, log_level=NOTHING,
    ))]
    #[allow(clippy::too_many_arguments, reason = "what a function's call may set, by name")]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, PyEngine>,
        name: &str,
        tokens: u64,
        timeout: Option<f64>,
        total_timeout: Option<f64>,
        max_attempts: Option<u32>,
        tags: Option<Tags>,
        outer: Option<OuterGiven>,
        counted_elsewhere: bool,
        log_level: i32,
    ) -> PyResult<Self> {
        let _inside = runtime::enter(py);
        let engine = engine.get().current(py)?;
        let seconds = |field: &str, value: Option<f64>| {
            value
                .map(|value| config::seconds(field, value))
                .transpose()
                .map_err(|error| config_error(py, &error))
        };
        let outer = outer.map(Outer::read).transpose()?;
        let total = seconds("call.total_timeout", total_timeout)?.or(engine.timeouts().total);
        let attempts = max_attempts.unwrap_or(engine.retry_policy().max_attempts).max(1);
        let guarded = Guarded {
            name: name.into(),
            tokens,
            attempt: seconds("call.timeout", timeout)?,
            total: outer.as_ref().map_or(total, |outer| outer.shortens(total)),
            max_attempts: if outer.is_some() { 1 } else { attempts },
            tags: tags.map(Arc::new),
            trace_id: match &outer {
                Some(outer) => Some(outer.trace_id),
                None => trace::ambient(py)?,
            },
            counted_elsewhere,
            parent: outer.map(|outer| outer.span_id),
        };
        let stepped = Stepped::of_function(&engine, guarded, None);
        Ok(Self { log_level, ids: stepped.ids(), stepped: Arc::new(Mutex::new(Some(stepped))) })
    }

    #[getter]
    fn trace_id(&self) -> String {
        self.ids.0.to_string()
    }

    #[getter]
    fn span_id(&self) -> String {
        self.ids.1.to_string()
    }

    /// Passes the gates on the running loop.
    #[pyo3(signature = (*, context=None))]
    fn submit(&self, py: Python<'_>, context: Option<Py<PyAny>>) -> PyResult<Ticket> {
        let _inside = runtime::enter(py);
        bridge::submit(py, context, |courier| self.admission(courier))
    }

    /// The same, waited for without the GIL.
    fn call(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        blocking::wait(py, &mut inside, |mailbox| self.admission(mailbox))
    }

    /// Tells that the function has returned, and used so many tokens.
    #[pyo3(signature = (tokens=None))]
    fn returned(&self, py: Python<'_>, tokens: Option<u64>) -> PyResult<PyAttempt> {
        self.told(py, |stepped| stepped.returned(tokens))
    }

    /// Tells what the function has raised.
    #[pyo3(signature = (class, transient, repeatable, hint, outcome_unknown, message, /))]
    #[allow(clippy::too_many_arguments, reason = "what is known of a failure")]
    fn raised(
        &self,
        py: Python<'_>,
        class: &str,
        transient: bool,
        repeatable: bool,
        hint: Option<f64>,
        outcome_unknown: bool,
        message: String,
    ) -> PyResult<PyAttempt> {
        let known = Class::REPEATABLE.into_iter().find(|known| known.as_str() == class);
        let class = known.unwrap_or(Class::InvalidRequest);
        let hint = hint.and_then(|hint| Duration::try_from_secs_f64(hint).ok());
        let raised = Raised { class, transient, repeatable, hint, outcome_unknown, message };
        self.told(py, |stepped| stepped.raised(raised))
    }

    /// Tells that the call's deadline came while the function ran.
    fn cut(&self, py: Python<'_>) -> PyResult<PyAttempt> {
        self.told(py, Stepped::cut)
    }

    /// Gives up the call; what it holds goes back.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let _inside = runtime::enter(py);
        let mailbox = Arc::new(Mailbox::default());
        if let Some(mut stepped) = self.stepped.lock().take() {
            stepped.listen(listener(&mailbox, self.log_level));
        }
        mailbox.log(py)
    }
}

impl PyGuard {
    fn admission<S: Sink>(&self, sink: S) -> PyResult<impl Future<Output = ()> + Send + use<S>> {
        let lost = || PyRuntimeError::new_err("this call is over, or waits already");
        let mut stepped = self.stepped.lock().take().ok_or_else(lost)?;
        let (home, log_level) = (Arc::clone(&self.stepped), self.log_level);
        let mut promise = Promise::new(sink);
        Ok(async move {
            stepped.listen(listener(&promise.sink, log_level));
            let finished = Finished::admitted(stepped.admit().await);
            stepped.listen(None);
            if finished.may_go_on() {
                *home.lock() = Some(stepped);
            }
            promise.keep(Delivery::Attempt(Box::new(finished)));
        })
    }

    fn told(&self, py: Python<'_>, what: impl FnOnce(&mut Stepped) -> drive::Ended) -> PyResult<PyAttempt> {
        let _inside = runtime::enter(py);
        let lost = || PyRuntimeError::new_err("the function is not being called");
        let mailbox = Arc::new(Mailbox::default());
        let mut stepped = self.stepped.lock().take().ok_or_else(lost)?;
        stepped.listen(listener(&mailbox, self.log_level));
        let finished = Finished::Ended(what(&mut stepped));
        stepped.listen(None);
        if finished.may_go_on() {
            *self.stepped.lock() = Some(stepped);
        }
        mailbox.log(py)?;
        PyAttempt::new(py, finished)
    }
}
