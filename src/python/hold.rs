//! A lease that is renewed while a tool's body runs.

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::bridge::Ticket;
use super::runtime;
use crate::idempotency::Held;

/// A lease that is being renewed.
#[pyclass(frozen, name = "Hold", module = "tidegate._core")]
pub(crate) struct PyHold {
    /// Not to be touched after a fork: its locks are the parent's.
    held: Option<Held>,
    #[pyo3(get)]
    ticket: Option<Py<Ticket>>,
    generation: u64,
}

impl PyHold {
    pub(super) fn new(held: Held, ticket: Option<Py<Ticket>>) -> Self {
        Self { held: Some(held), ticket, generation: runtime::generation() }
    }
}

#[pymethods]
impl PyHold {
    /// Whether the lease is another's, or can no longer be vouched for.
    #[getter]
    fn lost(&self) -> bool {
        self.held.as_ref().is_some_and(Held::is_lost)
    }

    /// Of a loop that was closed, what waits is a cycle through the ticket.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ticket)
    }

    /// Stops renewing it.
    fn stop(&self) {
        if self.generation != runtime::generation() {
            return;
        }
        if let Some(held) = &self.held {
            held.let_go();
        }
        if let Some(ticket) = &self.ticket {
            ticket.get().cancel();
        }
    }
}

impl Drop for PyHold {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.held.take());
        }
    }
}
