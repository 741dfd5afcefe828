//! What a task hands back to the thread that asked, and its way into Python.

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::answered::Answered;
use super::ended::{Finished, PyAttempt};
use super::errors;
use super::response::PyResponse;
use super::stream::Opened;
use crate::drive::Outcome;
use crate::event::{Event, Level, Listener};

pub(crate) enum Delivery {
    Event(LogRecord),
    Outcome(Box<Outcome>),
    /// What a store of idempotency records answered.
    Store(Box<Answered>),
    /// The end of an attempt that was made for a transport.
    Attempt(Box<Finished>),
    /// The call goes on as a stream.
    Stream(Box<Opened>),
    /// What is waited for of a stream is there.
    Ready,
    /// The stream has ended, and so have its events.
    Over,
    /// The task ended without an outcome: it was stopped, or it panicked.
    Lost,
}

/// Takes deliveries on any thread, without Python.
pub(crate) trait Sink: Clone + Send + Sync + 'static {
    fn deliver(&self, delivery: Delivery);
}

/// A task that ends without an outcome says so, lest somebody wait for ever.
pub(crate) struct Promise<S: Sink> {
    pub(crate) sink: S,
    pub(crate) kept: bool,
}

impl<S: Sink> Promise<S> {
    pub(crate) fn new(sink: S) -> Self {
        Self { sink, kept: false }
    }

    pub(crate) fn keep(&mut self, delivery: Delivery) {
        self.kept = true;
        self.sink.deliver(delivery);
    }
}

impl<S: Sink> Drop for Promise<S> {
    fn drop(&mut self) {
        if !self.kept {
            self.sink.deliver(Delivery::Lost);
        }
    }
}

/// An event on its way to Python's `logging`.
pub(crate) struct LogRecord {
    level: Level,
    json: Vec<u8>,
}

impl LogRecord {
    pub(crate) fn new(level: Level, event: &Event) -> Self {
        Self { level, json: event.to_json() }
    }

    /// Emits the record, in `context` where one is given.
    ///
    /// No call fails because somebody's handler or filter does: such an error is reported as one that cannot be
    /// raised, unless `logging.raiseExceptions` is off, which is how `logging` treats its own. What is no
    /// `Exception` is no failure of theirs but Ctrl-C or the end of the program, and raised.
    pub(crate) fn log(&self, py: Python<'_>, context: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        match self.emit(py, context) {
            Err(error) if error.is_instance_of::<PyException>(py) => {
                let logging = py.import("logging")?;
                if logging.getattr("raiseExceptions")?.is_truthy()? {
                    error.write_unraisable(py, Some(&logging.call_method1("getLogger", ("tidegate",))?));
                }
                Ok(())
            }
            other => other,
        }
    }

    fn emit(&self, py: Python<'_>, context: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let emit = EMIT.import(py, "tidegate._log", "emit")?;
        let (level, json) = (self.level as i32, PyBytes::new(py, &self.json));
        match context {
            Some(context) => context.call_method1(pyo3::intern!(py, "run"), (emit, level, json))?,
            None => emit.call1((level, json))?,
        };
        Ok(())
    }
}

/// Passes on the events that somebody's logger wants.
pub(crate) struct LogListener<S> {
    pub(crate) sink: S,
    pub(crate) lowest: i32,
}

impl<S: Sink> Listener for LogListener<S> {
    fn wants(&self, level: Level) -> bool {
        level as i32 >= self.lowest
    }

    fn hear(&self, level: Level, event: &Event) {
        self.sink.deliver(Delivery::Event(LogRecord::new(level, event)));
    }
}

/// No event is at or above this level.
pub(crate) const NOTHING: i32 = Level::Warning as i32 + 1;

pub(crate) fn lost() -> PyErr {
    PyRuntimeError::new_err(
        "the call was stopped before it ended: the engine was shut down, or failed inside",
    )
}

pub(crate) fn into_python(py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match outcome.result {
        Ok(reply) => Py::new(py, PyResponse::new(reply, outcome.info)).map(Py::into_any),
        Err(error) => Err(errors::call_error(py, &error, outcome.info)),
    }
}

pub(crate) fn attempt_into_python(py: Python<'_>, finished: Finished) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, PyAttempt::new(py, finished)?)?.into_any())
}
