//! A thread that waits for a call: without the GIL, and with an ear for Ctrl-C.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::outcome::{Delivery, Sink, into_python, lost};
use super::response::PyResponse;
use super::runtime::{self, Inside, Task};

/// How often the main thread looks for signals: well below what a person feels as a delay.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Mailbox {
    deliveries: Mutex<Vec<Delivery>>,
    arrived: Condvar,
}

impl Sink for Arc<Mailbox> {
    fn deliver(&self, delivery: Delivery) {
        self.deliveries.lock().push(delivery);
        self.arrived.notify_one();
    }
}

impl Mailbox {
    /// Everything that has arrived; waits for something to arrive, at most for `patience`.
    fn wait(&self, patience: Option<Duration>) -> Vec<Delivery> {
        let mut deliveries = self.deliveries.lock();
        if deliveries.is_empty() {
            match patience {
                Some(patience) => {
                    let _ = self.arrived.wait_for(&mut deliveries, patience);
                }
                None => self.arrived.wait(&mut deliveries),
            }
        }
        std::mem::take(&mut *deliveries)
    }
}

struct StopOnDrop(Task);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits for the task started by `start`. Raises what it failed with, or `KeyboardInterrupt` and the like from a
/// signal handler, in which case the call is stopped.
pub(crate) fn wait(
    py: Python<'_>,
    inside: &mut Inside,
    start: impl FnOnce(Arc<Mailbox>) -> PyResult<Task>,
) -> PyResult<Py<PyResponse>> {
    let mailbox = Arc::new(Mailbox::default());
    let _stop = StopOnDrop(start(Arc::clone(&mailbox))?);
    // Signal handlers run on the main thread alone.
    let patience = on_main_thread(py)?.then_some(SIGNAL_CHECK);
    loop {
        for delivery in runtime::detached(py, inside, || mailbox.wait(patience)) {
            match delivery {
                Delivery::Event(record) => record.log(py, None)?,
                Delivery::Outcome(outcome) => return into_python(py, *outcome),
                Delivery::Lost => return Err(lost()),
            }
        }
        py.check_signals()?;
    }
}

fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static MAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.import(py, "threading", "current_thread")?.call0()?;
    Ok(current.is(&MAIN.import(py, "threading", "main_thread")?.call0()?))
}
