//! A thread that waits for a call: without the GIL, and with an ear for Ctrl-C.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::{Condvar, Mutex};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::answered;
use super::outcome::{Delivery, Sink, attempt_into_python, into_python, lost};
use super::runtime::{self, Inside, Task};
use super::stream::PyStream;

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
            deliveries = match patience {
                Some(patience) => self.arrived.wait_for(deliveries, patience),
                None => self.arrived.wait(deliveries),
            };
        }
        std::mem::take(&mut *deliveries)
    }

    /// Logs what has arrived.
    pub(crate) fn log(&self, py: Python<'_>) -> PyResult<()> {
        let deliveries = std::mem::take(&mut *self.deliveries.lock());
        for delivery in deliveries {
            if let Delivery::Event(record) = delivery {
                record.log(py, None)?;
            }
        }
        Ok(())
    }
}

struct StopOnDrop(Option<Task>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.stop();
        }
    }
}

/// Has `work(mailbox)` done and waits for it. Raises what it failed with, or `KeyboardInterrupt` and the like from a
/// signal handler, in which case the call is stopped.
pub(crate) fn wait<W: Future<Output = ()> + Send + 'static>(
    py: Python<'_>,
    inside: &mut Inside,
    work: impl FnOnce(Arc<Mailbox>) -> PyResult<W>,
) -> PyResult<Py<PyAny>> {
    let mailbox = Arc::new(Mailbox::default());
    let runtime = runtime::handle(py)?;
    let (task, work) = runtime::stoppable(work(Arc::clone(&mailbox))?);
    runtime.spawn(work);
    let mut stop = StopOnDrop(Some(task));
    let patience = patience(py)?;
    loop {
        for delivery in runtime::detached(py, inside, || mailbox.wait(patience)) {
            match delivery {
                Delivery::Event(record) => record.log(py, None)?,
                Delivery::Outcome(outcome) => return into_python(py, *outcome),
                Delivery::Attempt(finished) => return attempt_into_python(py, *finished),
                Delivery::Stream(opened) => {
                    // From here on the stream stops its task.
                    stop.0 = None;
                    let stream = PyStream::new(*opened, Some(Arc::clone(&mailbox)));
                    return Py::new(py, stream).map(Py::into_any);
                }
                Delivery::Store(answered) => return answered::into_python(py, *answered),
                Delivery::Ready | Delivery::Over => {}
                Delivery::Lost => return Err(lost()),
            }
        }
        py.check_signals()?;
    }
}

/// How long to wait before a look at signals, whose handlers run on the main thread alone.
pub(crate) fn patience(py: Python<'_>) -> PyResult<Option<Duration>> {
    Ok(on_main_thread(py)?.then_some(SIGNAL_CHECK))
}

fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static MAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.import(py, "threading", "current_thread")?.call0()?;
    Ok(current.is(&MAIN.import(py, "threading", "main_thread")?.call0()?))
}
