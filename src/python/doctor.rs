//! The doctor for Python: paths in, JSON out.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use super::runtime;
use crate::clock;
use crate::doctor::{Diagnosis, Unreadable};
use crate::event;
use crate::lock::Mutex;

/// Clocks of machines differ; a record from tomorrow is broken.
const CLOCKS_DIFFER: Duration = Duration::from_secs(86_400);

/// A log in the course of being read.
#[pyclass(frozen, name = "Diagnosis", module = "tidegate._core")]
pub(crate) struct PyDiagnosis {
    diagnosis: Mutex<Option<Diagnosis>>,
}

impl PyDiagnosis {
    fn with<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&mut Diagnosis) -> T + Send) -> PyResult<T> {
        let done = runtime::detached(py, &mut runtime::enter(py), || self.diagnosis.lock().as_mut().map(f));
        done.ok_or_else(|| PyRuntimeError::new_err("the report was made already"))
    }
}

#[pymethods]
impl PyDiagnosis {
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        let latest = event::unix_seconds(clock::wall() + CLOCKS_DIFFER);
        let diagnosis =
            runtime::detached(py, &mut runtime::enter(py), move || Diagnosis::open(&paths, latest))
                .map_err(|error| unreadable(&error))?;
        Ok(Self { diagnosis: Mutex::new(Some(diagnosis)) })
    }

    fn bytes_in_all(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |diagnosis| diagnosis.bytes_in_all())
    }

    fn bytes_read(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |diagnosis| diagnosis.bytes_read())
    }

    fn advance(&self, py: Python<'_>, size: u64) -> PyResult<bool> {
        self.with(py, |diagnosis| diagnosis.advance(size))?.map_err(|error| unreadable(&error))
    }

    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let diagnosis = runtime::detached(py, &mut runtime::enter(py), || self.diagnosis.lock().take());
        let diagnosis = diagnosis.ok_or_else(|| PyRuntimeError::new_err("the report was made already"))?;
        let report =
            runtime::detached(py, &mut runtime::enter(py), || serde_json::to_string(&diagnosis.report()));
        report.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

fn unreadable(error: &Unreadable) -> PyErr {
    PyOSError::new_err(error.to_string())
}
