//! A stream as Python reads it: all that is ready at a time, with or without an event loop.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::Mutex;
use http::HeaderMap;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use super::blocking::{self, Mailbox};
use super::bridge::{self, Ticket};
use super::errors;
use super::inbox::Courier;
use super::outcome::{Delivery, Sink, lost};
use super::response::PyCallInfo;
use super::runtime;
use crate::classify;
use crate::drive::{self, CallInfo, Found, Stream, Tap};
use crate::error::Cause;
use crate::stream::{Form, Item};

/// A stream on its way to whoever asked for it.
pub(crate) struct Opened {
    pub(crate) tap: Tap,
    pub(crate) form: Form,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) partial: CallInfo,
    /// A failure that the server tells is an event for the caller, and the end of the stream an end.
    pub(crate) failures_are_events: bool,
}

/// An answer that is read while it comes.
#[pyclass(frozen, weakref, name = "Stream", module = "tidegate._core")]
pub(crate) struct PyStream {
    /// Gone after a fork: its locks are the parent's.
    tap: Option<Tap>,
    form: Form,
    #[pyo3(get)]
    status: u16,
    headers: HeaderMap,
    partial: CallInfo,
    failures_are_events: bool,
    generation: u64,
    /// Where the log records of a call without a loop arrive.
    mailbox: Option<Arc<Mailbox>>,
    names: Mutex<Option<(String, Py<PyString>)>>,
}

/// Hands a stream to whoever asked for it, and keeps it going until its end.
pub(crate) async fn hand_on(stream: Stream, form: Form, failures_are_events: bool, sink: &impl Sink) {
    let (status, headers) = (stream.status(), stream.headers().clone());
    let partial = stream.partial().clone();
    let (pump, tap) = drive::pipe(stream);
    let opened = Opened { tap, form, status, headers, partial, failures_are_events };
    sink.deliver(Delivery::Stream(Box::new(opened)));
    pump.run().await;
    sink.deliver(Delivery::Over);
}

impl PyStream {
    pub(crate) fn new(opened: Opened, mailbox: Option<Arc<Mailbox>>) -> Self {
        let Opened { tap, form, status, headers, partial, failures_are_events } = opened;
        Self {
            tap: Some(tap),
            form,
            status,
            headers,
            partial,
            failures_are_events,
            generation: runtime::generation(),
            mailbox,
            names: Mutex::default(),
        }
    }

    fn tap(&self) -> PyResult<&Tap> {
        self.tap.as_ref().filter(|_| self.generation == runtime::generation()).ok_or_else(|| {
            PyRuntimeError::new_err(
                "the stream belongs to the process that was forked: make the call again here",
            )
        })
    }

    /// What is ready, as a list; empty at the end; `None` if nothing is.
    pub(crate) fn collect<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tap = self.tap()?;
        match tap.take() {
            Found::Items(items) => self.list(py, items).map(|list| Some(list.into_any())),
            Found::Nothing => Ok(None),
            Found::Over(over) => match &over.result {
                Ok(()) => Ok(Some(PyList::empty(py).into_any())),
                Err(error) if self.failures_are_events && matches!(error.cause, Cause::Answer { .. }) => {
                    Ok(Some(PyList::empty(py).into_any()))
                }
                Err(error) => Err(errors::stream_error(py, error, &over)),
            },
            Found::Gone if tap.is_closed() => Ok(Some(PyList::empty(py).into_any())),
            Found::Gone => Err(lost()),
        }
    }

    fn list<'py>(&self, py: Python<'py>, items: Vec<Item>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for item in items {
            let data = PyBytes::new(py, &item.data);
            match self.form {
                Form::Bytes | Form::AsItCame => list.append(data)?,
                Form::Events => {
                    let name = item.event.map(|name| self.name(py, name));
                    list.append(PyTuple::new(py, [name.into_bound_py_any(py)?, data.into_any()])?)?;
                }
            }
        }
        Ok(list)
    }

    /// Most events of a stream have the same few names, one after the other.
    fn name(&self, py: Python<'_>, name: String) -> Py<PyString> {
        let mut last = self.names.lock();
        match &*last {
            Some((known, text)) if *known == name => text.clone_ref(py),
            _ => {
                let text = PyString::new(py, &name).unbind();
                *last = Some((name, text.clone_ref(py)));
                text
            }
        }
    }
}

#[pymethods]
impl PyStream {
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pairs = self.headers.iter().map(|(name, value)| {
            let name = PyBytes::new(py, name.as_str().as_bytes());
            PyTuple::new(py, [name, PyBytes::new(py, value.as_bytes())])
        });
        PyList::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn request_id(&self) -> Option<String> {
        classify::request_id(&self.headers)
    }

    #[getter]
    fn info(&self) -> PyCallInfo {
        let over = self.tap().ok().and_then(Tap::over);
        PyCallInfo::new(over.map_or_else(|| self.partial.clone(), |over| over.info.clone()))
    }

    /// Whether the stream has ended and all of it was read, or it was closed.
    #[getter]
    fn ended(&self) -> bool {
        self.tap().map_or(true, Tap::is_spent)
    }

    /// What is ready now; `None` if one has to wait for it.
    fn ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let _inside = runtime::enter(py);
        self.collect(py)
    }

    /// On the running loop: the next pieces, in line with everybody whom the loop is to wake, also where they are
    /// there already: a reader that never waited would keep the loop to itself.
    fn read(slf: &Bound<'_, Self>) -> PyResult<Ticket> {
        let py = slf.py();
        let _inside = runtime::enter(py);
        let tap = slf.get().tap()?;
        let wait = |courier: Courier| tap.when_ready(move || courier.ready());
        Ok(bridge::wait_for(py, Some(slf.clone().unbind()), wait)?.0)
    }

    /// The next pieces, waited for without the GIL.
    fn read_blocking<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut inside = runtime::enter(py);
        let patience = blocking::patience(py)?;
        loop {
            if let Some(mailbox) = &self.mailbox {
                mailbox.log(py)?;
            }
            if let Some(found) = self.collect(py)? {
                return Ok(found);
            }
            let tap = self.tap()?;
            runtime::detached(py, &mut inside, || tap.wait(patience));
            py.check_signals()?;
        }
    }

    /// Stops the stream, and waits without the GIL until it is settled.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut inside = runtime::enter(py);
        let Ok(tap) = self.tap() else { return Ok(()) };
        tap.close();
        runtime::detached(py, &mut inside, || tap.wait_done(SETTLING));
        self.mailbox.as_ref().map_or(Ok(()), |mailbox| mailbox.log(py))
    }

    /// Stops the stream; the future is done once it is settled.
    fn aclose(&self, py: Python<'_>) -> PyResult<Ticket> {
        let _inside = runtime::enter(py);
        let Ok(tap) = self.tap() else { return bridge::resolved(py, Ok(py.None().into_bound(py))) };
        tap.close();
        if tap.is_done() {
            return bridge::resolved(py, Ok(py.None().into_bound(py)));
        }
        let wait = |courier: Courier| tap.when_done(move || courier.ready());
        Ok(bridge::wait_for(py, None, wait)?.0)
    }

    fn __repr__(&self) -> String {
        format!("<Stream status={} ended={}>", self.status, self.ended())
    }
}

/// A task that is told to stop does so at once; on a machine that is overloaded it may have to wait for a thread.
const SETTLING: Duration = Duration::from_secs(5);

impl Drop for PyStream {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.tap.take());
        }
    }
}
