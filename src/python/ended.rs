//! What an attempt made for a transport hands back to Python.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::errors::call_error;
use super::response::PyCallInfo;
use crate::clock::{self, Instant};
use crate::drive::{Ended, Go, Next, Outcome};

/// How an errand ended.
pub(crate) enum Finished {
    Ended(Ended),
    /// The caller may send, until then.
    Admitted(Option<Duration>),
}

impl Finished {
    pub(crate) fn admitted(result: Result<Go, Box<Outcome>>) -> Self {
        match result {
            Ok(go) => Self::Admitted(left_until(go.until)),
            Err(outcome) => Self::Ended(Ended::over(*outcome)),
        }
    }

    /// Whether the call is still to be ended by its caller.
    pub(crate) fn may_go_on(&self) -> bool {
        match self {
            Self::Ended(ended) => matches!(ended.next, Next::Retry(_)),
            Self::Admitted(_) => true,
        }
    }
}

/// How long it is until then; `None` if that is no bound at all.
pub(super) fn left_until(deadline: Instant) -> Option<Duration> {
    const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    let left = deadline.since(clock::now());
    (left < FOR_EVER).then_some(left)
}

/// What became of an attempt, or of a whole call.
#[pyclass(frozen, name = "Attempt", module = "tidegate._core")]
pub(crate) struct PyAttempt {
    /// HTTP status of the answer, in the sense that it has; `None` without an answer.
    #[pyo3(get)]
    status: Option<u16>,
    headers: HeaderMap,
    body: Bytes,
    /// What kept the answer from coming: kind and words.
    #[pyo3(get)]
    failure: Option<(&'static str, String)>,
    /// Seconds to wait before another attempt; `None` if the call is over.
    #[pyo3(get)]
    retry_in: Option<f64>,
    /// What the call ended with, if it is over and failed.
    #[pyo3(get)]
    error: Option<Py<PyAny>>,
    /// How the call went, if it is over.
    #[pyo3(get)]
    info: Option<Py<PyCallInfo>>,
    /// Whether the answer is a stream that failed before its first content, for the caller to read.
    #[pyo3(get)]
    as_it_came: bool,
    /// Seconds within which the caller's own attempt has to end.
    #[pyo3(get)]
    limit: Option<f64>,
}

impl PyAttempt {
    pub(crate) fn new(py: Python<'_>, finished: Finished) -> PyResult<Self> {
        let mut attempt = Self {
            status: None,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            failure: None,
            retry_in: None,
            error: None,
            info: None,
            limit: None,
            as_it_came: false,
        };
        let ended = match finished {
            Finished::Ended(ended) => ended,
            Finished::Admitted(limit) => {
                attempt.limit = limit.map(|limit| limit.as_secs_f64());
                return Ok(attempt);
            }
        };
        if let Some(reply) = ended.reply {
            (attempt.status, attempt.headers, attempt.body) = (Some(reply.status), reply.headers, reply.body);
        }
        attempt.as_it_came = ended.as_it_came;
        attempt.failure = ended.failure.map(|failure| (failure.kind.as_str(), failure.message));
        match ended.next {
            // Handed on where it is read, not here.
            Next::Stream(_) => {}
            Next::Retry(wait) => attempt.retry_in = Some(wait.as_secs_f64()),
            Next::Over(outcome) => {
                let Outcome { result, info } = *outcome;
                attempt.info = Some(Py::new(py, PyCallInfo::new(info.clone()))?);
                if let Err(error) = result {
                    attempt.error = Some(call_error(py, &error, info).into_value(py).into_any());
                }
            }
        }
        Ok(attempt)
    }
}

#[pymethods]
impl PyAttempt {
    /// Raw pairs, names in lower case.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pairs = self.headers.iter().map(|(name, value)| {
            (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes()))
        });
        PyList::new(py, pairs.collect::<Vec<_>>())
    }

    /// The body, decompressed.
    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.body)
    }
}
