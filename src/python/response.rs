//! What a call returns to Python.

use bytes::Bytes;
use http::HeaderMap;
use jiter::{PythonParse, StringCacheMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::call::RetryMade;
use crate::classify;
use crate::drive::{CallInfo, Reply, UsageSource};
use crate::money::Pico;
use crate::usage::Usage;

/// A successful answer.
#[pyclass(frozen, name = "Response", module = "tidegate._core")]
pub(crate) struct PyResponse {
    reply: Reply,
    info: CallInfo,
    /// Made when asked for: most callers never look.
    shown: PyOnceLock<Py<PyCallInfo>>,
}

impl PyResponse {
    pub(crate) fn new(reply: Reply, info: CallInfo) -> Self {
        Self { reply, info, shown: PyOnceLock::new() }
    }
}

#[pymethods]
impl PyResponse {
    #[getter]
    fn status(&self) -> u16 {
        self.reply.status
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers_dict(py, &self.reply.headers)
    }

    /// The value of one header; `None` without it.
    fn header(&self, name: &str) -> Option<String> {
        self.reply.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.reply.body)
    }

    #[getter]
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.reply.body).into_owned()
    }

    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        parse(py, &self.reply.body)
    }

    #[getter]
    fn usage(&self) -> Option<PyUsage> {
        usage(&self.info)
    }

    #[getter]
    fn cost_usd<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        cost_usd(py, &self.info)
    }

    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<Py<PyCallInfo>> {
        let make = || Py::new(py, PyCallInfo::new(self.info.clone()));
        self.shown.get_or_try_init(py, make).map(|info| info.clone_ref(py))
    }

    #[getter]
    fn request_id(&self) -> Option<String> {
        classify::request_id(&self.reply.headers)
    }

    fn __repr__(&self) -> String {
        format!("<Response status={} bytes={}>", self.reply.status, self.reply.body.len())
    }
}

/// JSON bytes → Python objects. Raises `ValueError` that says where the text is wrong.
pub(crate) fn parse<'py>(py: Python<'py>, json: &Bytes) -> PyResult<Bound<'py, PyAny>> {
    let parser = PythonParse { cache_mode: StringCacheMode::Keys, ..PythonParse::default() };
    parser
        .python_parse(py, json)
        .map_err(|error| PyValueError::new_err(format!("the body is no JSON: {}", error.description(json))))
}

/// Lower-case names; repeated headers are joined as RFC 9110, section 5.3, allows.
pub(crate) fn headers_dict<'py>(py: Python<'py>, headers: &HeaderMap) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for name in headers.keys() {
        let mut values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let first = values.next().unwrap_or_default().into_owned();
        let joined = values.fold(first, |joined, value| joined + ", " + &value);
        dict.set_item(name.as_str(), joined)?;
    }
    Ok(dict)
}

/// How a call went: attempts, retries, usage, cost and times.
#[pyclass(frozen, name = "CallInfo", module = "tidegate._core")]
pub(crate) struct PyCallInfo(CallInfo);

/// Rebuilds a `CallInfo`; for pickle.
#[pyfunction]
pub(crate) fn _restore_call_info(json: &str) -> PyResult<PyCallInfo> {
    serde_json::from_str(json).map(PyCallInfo).map_err(|error| PyValueError::new_err(error.to_string()))
}

impl PyCallInfo {
    pub(crate) fn new(info: CallInfo) -> Self {
        Self(info)
    }
}

#[pymethods]
impl PyCallInfo {
    #[getter]
    fn trace_id(&self) -> String {
        self.0.trace_id.to_string()
    }

    #[getter]
    fn model(&self) -> &str {
        &self.0.model
    }

    #[getter]
    fn attempts(&self) -> u32 {
        self.0.attempts
    }

    #[getter]
    fn retries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.retries.iter().cloned().map(PyRetry))
    }

    #[getter]
    fn usage(&self) -> Option<PyUsage> {
        usage(&self.0)
    }

    #[getter]
    fn cost_usd<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        cost_usd(py, &self.0)
    }

    #[getter]
    fn queue_s(&self) -> f64 {
        self.0.queue.as_secs_f64()
    }

    #[getter]
    fn latency_s(&self) -> f64 {
        self.0.latency.as_secs_f64()
    }

    #[getter]
    fn first_byte_s(&self) -> Option<f64> {
        self.0.first_byte.map(|first_byte| first_byte.as_secs_f64())
    }

    #[getter]
    fn first_chunk_s(&self) -> Option<f64> {
        self.0.first_chunk.map(|first_chunk| first_chunk.as_secs_f64())
    }

    #[getter]
    fn degraded(&self) -> bool {
        self.0.notice.is_some()
    }

    #[getter]
    fn notice(&self) -> Option<&str> {
        self.0.notice.as_deref()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let json =
            serde_json::to_string(&self.0).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((py.import("tidegate._core")?.getattr("_restore_call_info")?, (json,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        format!(
            "<CallInfo trace_id={} attempts={} latency_s={:.3}>",
            self.0.trace_id,
            self.0.attempts,
            self.0.latency.as_secs_f64()
        )
    }
}

/// One retry that was made: why, and after what wait.
#[pyclass(frozen, name = "Retry", module = "tidegate._core")]
pub(crate) struct PyRetry(RetryMade);

#[pymethods]
impl PyRetry {
    #[getter]
    fn reason(&self) -> &str {
        &self.0.reason
    }

    #[getter]
    fn delay_s(&self) -> f64 {
        self.0.delay.as_secs_f64()
    }

    fn __repr__(&self) -> String {
        format!("<Retry reason={} delay_s={:.3}>", self.0.reason, self.0.delay.as_secs_f64())
    }
}

/// The tokens of a call, and where the figures come from.
#[pyclass(frozen, name = "Usage", module = "tidegate._core")]
pub(crate) struct PyUsage {
    usage: Usage,
    source: UsageSource,
}

#[pymethods]
impl PyUsage {
    #[getter]
    fn prompt_tokens(&self) -> u64 {
        self.usage.input
    }

    #[getter]
    fn completion_tokens(&self) -> u64 {
        self.usage.output
    }

    #[getter]
    fn total_tokens(&self) -> u64 {
        self.usage.input + self.usage.output
    }

    #[getter]
    fn cached_tokens(&self) -> u64 {
        self.usage.cache_read
    }

    #[getter]
    fn cache_write_tokens(&self) -> u64 {
        self.usage.cache_write
    }

    #[getter]
    fn reasoning_tokens(&self) -> u64 {
        self.usage.reasoning
    }

    #[getter]
    fn source(&self) -> &'static str {
        self.source.as_str()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Usage prompt_tokens={} completion_tokens={} source={}>",
            self.usage.input,
            self.usage.output,
            self.source.as_str()
        )
    }
}

fn usage(info: &CallInfo) -> Option<PyUsage> {
    info.usage.map(|usage| PyUsage { usage, source: info.usage_source })
}

fn cost_usd<'py>(py: Python<'py>, info: &CallInfo) -> PyResult<Option<Bound<'py, PyAny>>> {
    info.cost.map(|cost| decimal(py, cost)).transpose()
}

pub(crate) fn decimal(py: Python<'_>, cost: Pico) -> PyResult<Bound<'_, PyAny>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECIMAL.import(py, "decimal", "Decimal")?.call1((cost.to_string(),))
}
