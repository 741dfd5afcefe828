//! The receipt of a stream that the caller receives: it is told what comes, and settles the call at its end.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::blocking::Mailbox;
use super::ended::left_until;
use super::errors;
use super::exchange::failure_kind;
use super::response::PyCallInfo;
use super::runtime;
use crate::drive::Stream;
use crate::error::{Cause, Reason, TransportError};
use crate::lock::Mutex;

/// Dropping it is leaving the stream.
#[pyclass(frozen, name = "Receipt", module = "tidegate._core")]
pub(crate) struct PyReceipt {
    /// Gone after a fork: its locks are the parent's.
    stream: Mutex<Option<Stream>>,
    #[pyo3(get)]
    status: u16,
    headers: HeaderMap,
    failures_are_events: bool,
    generation: u64,
    mailbox: Arc<Mailbox>,
}

impl PyReceipt {
    pub(super) fn new(stream: Stream, failures_are_events: bool, mailbox: Arc<Mailbox>) -> Self {
        Self {
            status: stream.status(),
            headers: stream.headers().clone(),
            stream: Mutex::new(Some(stream)),
            failures_are_events,
            generation: runtime::generation(),
            mailbox,
        }
    }

    fn with<T>(&self, py: Python<'_>, what: impl FnOnce(&mut Stream) -> T) -> PyResult<T> {
        let _inside = runtime::enter(py);
        if self.generation != runtime::generation() {
            return Err(PyRuntimeError::new_err(
                "the stream belongs to the process that was forked: make the call again here",
            ));
        }
        let mut stream = self.stream.lock();
        let done = stream.as_mut().map(what);
        drop(stream);
        self.mailbox.log(py)?;
        done.ok_or_else(|| PyRuntimeError::new_err("the stream is gone"))
    }
}

#[pymethods]
impl PyReceipt {
    /// Raw pairs, names in lower case.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pairs = self.headers.iter().map(|(name, value)| {
            (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes()))
        });
        PyList::new(py, pairs.collect::<Vec<_>>())
    }

    /// How the call went, as far as it has.
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<PyCallInfo> {
        let info = self.with(py, |stream| {
            stream.over().map_or_else(|| stream.partial().clone(), |over| over.info.clone())
        })?;
        Ok(PyCallInfo::new(info))
    }

    /// Seconds within which the stream has to end, 0 once they are over; `None` if it has for ever.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let left = self.with(py, |stream| left_until(stream.deadline()))?;
        Ok(left.map(|left| left.as_secs_f64()))
    }

    /// Tells of a piece that came, decompressed, or with `None` of the end.
    fn feed(&self, py: Python<'_>, piece: Option<&[u8]>) -> PyResult<()> {
        let piece = piece.map(Bytes::copy_from_slice);
        self.with(py, |stream| stream.feed(piece))
    }

    /// Tells that it broke off.
    fn fail(&self, py: Python<'_>, kind: &str, message: String) -> PyResult<()> {
        let error = TransportError { kind: failure_kind(kind), message };
        self.with(py, |stream| stream.broke_off(error))
    }

    /// Tells that the call's deadline came first.
    fn cut(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Stream::cut)
    }

    /// Tells that nobody wants the rest.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Stream::cancel)
    }

    /// Raises what the stream ended with, if it has and failed. What its reader finds in it is left to the reader.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let over = self.with(py, |stream| stream.over().cloned())?;
        let Some(over) = over else { return Ok(()) };
        match &over.result {
            Ok(()) => Ok(()),
            // Who has closed it may look whether there is more.
            Err(error) if error.reason == Reason::Cancelled => Ok(()),
            Err(error) if self.failures_are_events && matches!(error.cause, Cause::Answer { .. }) => Ok(()),
            Err(error) => Err(errors::stream_error(py, error, &over)),
        }
    }
}

impl Drop for PyReceipt {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.stream.lock().take());
        }
    }
}
