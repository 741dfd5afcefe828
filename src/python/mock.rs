//! The fault server for Python: JSON in, JSON out.

use crate::lock::Mutex;
use pyo3::prelude::*;

use super::errors::config_error;
use super::runtime;
use crate::mock::MockServer;

/// The fault server.
#[pyclass(frozen, name = "MockServer", module = "tidegate._core")]
pub(crate) struct PyMockServer {
    /// The process that started it. A fork has no thread of the server's and must leave it alone.
    generation: u64,
    server: Mutex<Option<MockServer>>,
    port: u16,
    url: String,
}

#[pymethods]
impl PyMockServer {
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let server = py.detach(|| MockServer::start(config)).map_err(|error| config_error(py, &error))?;
        Ok(Self {
            generation: runtime::generation(),
            port: server.port(),
            url: server.url(),
            server: Mutex::new(Some(server)),
        })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    fn script(&self, py: Python<'_>, script: &str) -> PyResult<()> {
        self.with(|server| server.script(script)).unwrap_or(Ok(())).map_err(|error| config_error(py, &error))
    }

    fn ledger(&self) -> String {
        self.with(MockServer::ledger).unwrap_or_else(|| String::from("{}"))
    }

    fn reset_ledger(&self) {
        self.with(MockServer::reset_ledger);
    }

    fn stop(&self, py: Python<'_>) {
        if self.generation == runtime::generation() {
            py.detach(|| self.with(MockServer::stop));
        }
    }
}

impl PyMockServer {
    fn with<T>(&self, f: impl FnOnce(&MockServer) -> T) -> Option<T> {
        if self.generation != runtime::generation() {
            return None;
        }
        self.server.lock().as_ref().map(f)
    }
}

impl Drop for PyMockServer {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.server.get_mut().take());
        }
    }
}
