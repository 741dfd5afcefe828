//! Failures → Python exceptions. The classes are written in Python (`tidegate._errors`) and imported once.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict};

use super::response::{PyCallInfo, headers_dict};
use crate::drive::{CallInfo, StreamOver};
use crate::error::{CallError, Cause, ConfigError};
use crate::idempotency::StoreError;

/// `ConfigError(field, value, rule)`.
pub(crate) fn config_error(py: Python<'_>, error: &ConfigError) -> PyErr {
    static FACTORY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raised(
        FACTORY
            .import(py, "tidegate._errors", "config_error")
            .and_then(|factory| factory.call1((&error.field, &error.value, &error.rule))),
    )
}

/// `EncodeError(path, problem)`.
pub(crate) fn encode_error(py: Python<'_>, path: &str, problem: &str) -> PyErr {
    static FACTORY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raised(
        FACTORY
            .import(py, "tidegate._errors", "encode_error")
            .and_then(|factory| factory.call1((path, problem))),
    )
}

/// `StoreUnavailableError(store, problem)`.
pub(crate) fn store_error(py: Python<'_>, error: &StoreError) -> PyErr {
    static FACTORY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raised(
        FACTORY
            .import(py, "tidegate._tool_errors", "store_error")
            .and_then(|factory| factory.call1((error.store, &error.problem))),
    )
}

/// The exception for a call that failed.
pub(crate) fn call_error(py: Python<'_>, error: &CallError, info: CallInfo) -> PyErr {
    static FACTORY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raised(fields(py, error, info).and_then(|fields| {
        FACTORY.import(py, "tidegate._errors", "build").and_then(|factory| factory.call1((fields,)))
    }))
}

/// The exception for a stream that ended wrongly.
pub(crate) fn stream_error(py: Python<'_>, error: &CallError, over: &StreamOver) -> PyErr {
    static FACTORY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raised(fields(py, error, over.info.clone()).and_then(|fields| {
        fields.set_item("partial_text", &over.text)?;
        FACTORY.import(py, "tidegate._errors", "build").and_then(|factory| factory.call1((fields,)))
    }))
}

fn raised(exception: PyResult<Bound<'_, PyAny>>) -> PyErr {
    match exception {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

fn fields<'py>(py: Python<'py>, error: &CallError, info: CallInfo) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("reason", error.reason.as_str())?;
    fields.set_item("attempts", error.attempts)?;
    fields.set_item("elapsed", error.elapsed.as_secs_f64())?;
    fields.set_item("retry_after", error.retry_after.map(|wait| wait.as_secs_f64()))?;
    fields.set_item("trace_id", info.trace_id.to_string())?;
    fields.set_item("error_class", error.kind())?;
    fields.set_item("status", error.status())?;
    fields.set_item("message", error.message())?;
    match &error.cause {
        Cause::Answer { headers, body, code, .. } => {
            fields.set_item("cause", "answer")?;
            fields.set_item("code", code)?;
            fields.set_item("headers", headers_dict(py, headers)?)?;
            fields.set_item("body", PyBytes::new(py, body))?;
        }
        Cause::Transport(_) => fields.set_item("cause", "transport")?,
        Cause::Local { .. } => fields.set_item("cause", "local")?,
    }
    fields.set_item("info", PyCallInfo::new(info))?;
    fields.set_item("request", error.request.map(|request| request.0))?;
    Ok(fields)
}
