//! The place of a call in the trace of whoever makes it.

use std::sync::Arc;

use crate::lock::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::errors::config_error;
use crate::drive::Order;
use crate::engine;
use crate::event::{SpanId, TraceId};
use crate::request::RequestFacts;

/// Asked, on the caller's thread and in its context, for the place of each call. Where there is one, it hears all
/// of the call's events.
#[derive(Default)]
pub(crate) struct Observer(Mutex<Option<Py<PyAny>>>);

impl Observer {
    pub(crate) fn set(&self, py: Python<'_>, observer: Option<Py<PyAny>>) {
        let earlier = std::mem::replace(&mut *self.0.lock(), observer);
        // Python may run when it goes: not while the lock is held.
        drop(earlier.map(|earlier| earlier.into_bound(py)));
    }

    /// Gives the order its ids and headers; tells whether its events are waited for.
    pub(crate) fn place(&self, py: Python<'_>, order: &mut Order) -> PyResult<bool> {
        let observer = self.0.lock().as_ref().map(|observer| observer.clone_ref(py));
        let Some(observer) = observer else {
            if order.trace_id.is_none() {
                order.trace_id = ambient(py)?;
            }
            return Ok(false);
        };
        let facts = RequestFacts::read(&order.body);
        let model = facts.as_ref().and_then(|facts| facts.model.as_deref());
        let stream = facts.as_ref().is_some_and(|facts| facts.stream);
        let mut url = order.url.clone();
        // It may hold a key.
        url.set_query(None);
        let told = observer.call1(py, (order.method.as_str(), url.as_str(), model, stream))?;
        let (trace_id, span_id, headers): (Option<String>, Option<String>, Vec<(String, String)>) =
            told.extract(py)?;
        order.trace_id = order.trace_id.or_else(|| trace_id.as_deref().and_then(TraceId::parse));
        order.span_id = span_id.as_deref().and_then(SpanId::parse);
        for (name, value) in headers {
            let (name, value) = engine::header(&name, &value).map_err(|error| config_error(py, &error))?;
            Arc::make_mut(&mut order.headers).insert(name, value);
        }
        Ok(true)
    }
}

/// The trace that the caller is in. Nobody who does not use OpenTelemetry pays more than a look into a dict.
pub(super) fn ambient(py: Python<'_>) -> PyResult<Option<TraceId>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind())
    })?;
    if !modules.bind(py).contains(intern!(py, "opentelemetry.trace"))? {
        return Ok(None);
    }
    let current = CURRENT.import(py, "tidegate._trace", "current_trace_id")?.call0()?;
    Ok(current.extract::<Option<String>>()?.as_deref().and_then(TraceId::parse))
}
