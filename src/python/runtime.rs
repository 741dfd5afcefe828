//! The tokio runtime's life inside a Python process: made on first use, replaced after a fork, stopped at exit.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

/// Locked only by threads that are attached to the interpreter and for a few instructions, so that no fork can
/// find it held.
static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static FORKS: AtomicU64 = AtomicU64::new(0);
static EXITING: AtomicBool = AtomicBool::new(false);
/// Threads between the end of a wait and their return to the interpreter.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// How many forks lie between this process and the one that imported the module. What belongs to another
/// number holds locks and threads that exist no longer: it must not be touched, nor dropped.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Acquire)
}

/// The runtime of this process.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = runtime.as_ref() {
        return Ok(runtime.handle().clone());
    }
    if EXITING.load(Ordering::Acquire) {
        return Err(PyRuntimeError::new_err(
            "the interpreter is shutting down: tidegate makes no more calls",
        ));
    }
    // The interpreter's thread does the decoding; one thread can feed it on a small machine.
    let threads = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4));
    let built = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("tidegate")
        .enable_all()
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("tidegate cannot start its threads: {error}")))?;
    let handle = built.handle().clone();
    *runtime = Some(built);
    Ok(handle)
}

/// For `os.register_at_fork`: the child starts without a runtime. The parent's threads are not here, so its
/// runtime can only be forgotten.
#[pyfunction]
pub(crate) fn _after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Release);
    std::mem::forget(RUNTIME.lock().take());
}

/// For `atexit`: stops the runtime within a second. Calls in flight are dropped, which closes their
/// connections; a daemon thread that waits for one is left waiting, because attaching to an interpreter that
/// is being finalised kills the process.
#[pyfunction]
pub(crate) fn _at_exit(py: Python<'_>) {
    EXITING.store(true, Ordering::SeqCst);
    let runtime = RUNTIME.lock().take();
    py.detach(|| {
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(EXIT_PATIENCE);
        }
        let deadline = crate::clock::now() + EXIT_PATIENCE;
        while RETURNING.load(Ordering::SeqCst) != 0 && crate::clock::now() < deadline {
            thread::yield_now();
        }
    });
}

/// Runs `wait` without the interpreter, and comes back only while there is one to come back to.
pub(crate) fn detached<T: Send>(py: Python<'_>, wait: impl FnOnce() -> T + Send) -> T {
    let result = py.detach(|| {
        let result = wait();
        RETURNING.fetch_add(1, Ordering::SeqCst);
        if EXITING.load(Ordering::SeqCst) {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        result
    });
    RETURNING.fetch_sub(1, Ordering::SeqCst);
    result
}
