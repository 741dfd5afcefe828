//! The tokio runtime's life inside a Python process: made on first use, replaced after a fork, stopped at exit.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::lock::Mutex;
use futures_util::FutureExt;
use futures_util::future::{self, AbortHandle};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

/// Locked only by threads that are attached to the interpreter and for a few instructions, so that no fork can
/// find it held.
static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static FORKS: AtomicU64 = AtomicU64::new(0);
static EXITING: AtomicBool = AtomicBool::new(false);
/// The thread that ends the process.
static EXITING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
/// Threads inside this module that run Python, or are about to.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How much of `INSIDE` is this thread's.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

const EXIT_PATIENCE: Duration = Duration::from_secs(1);
const EXIT_CHECK: Duration = Duration::from_millis(1);

/// How many forks lie between this process and the one that imported the module. What belongs to another
/// number holds locks and threads that exist no longer: it must not be touched, nor dropped.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Acquire)
}

/// The runtime of this process. While the process ends there is none: the thread that ends it is told so; a
/// daemon thread, which was inside already and ran Python in between, stays here, as it would a moment later.
pub(crate) fn handle(py: Python<'_>) -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = runtime.as_ref() {
        return Ok(runtime.handle().clone());
    }
    if EXITING.load(Ordering::SeqCst) {
        drop(runtime);
        if !is_welcome() {
            py.detach(|| {
                INSIDE.fetch_sub(DEPTH.replace(0), Ordering::SeqCst);
                wait_for_the_end();
            });
        }
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
    INSIDE.store(DEPTH.get(), Ordering::SeqCst);
    std::mem::forget(RUNTIME.lock().take());
}

/// For `atexit`: stops the runtime within a second. Calls in flight are dropped, which closes their
/// connections; a daemon thread that waits for one is left waiting.
#[pyfunction]
pub(crate) fn _at_exit(py: Python<'_>) {
    *EXITING_THREAD.lock() = Some(thread::current().id());
    EXITING.store(true, Ordering::SeqCst);
    let runtime = RUNTIME.lock().take();
    let own = DEPTH.get();
    py.detach(|| {
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(EXIT_PATIENCE);
        }
        let deadline = crate::clock::now() + EXIT_PATIENCE;
        while INSIDE.load(Ordering::SeqCst) > own && crate::clock::now() < deadline {
            thread::park_timeout(EXIT_CHECK);
        }
    });
}

/// Held by a thread while it runs Python from here. Until 3.14, an interpreter that is being finalised ends
/// other threads where they next ask for the GIL, by unwinding their stack, and a stack with Rust on it cannot
/// be unwound so: the process would abort. Hence `_at_exit` waits until nobody is inside, and then nobody gets
/// in: daemon threads that try are left waiting.
pub(crate) struct Inside {
    here: PhantomData<*const ()>,
}

/// Counts this thread in, or keeps it here for ever if the process is ending.
pub(crate) fn enter(py: Python<'_>) -> Inside {
    if !count_in() {
        py.detach(wait_for_the_end);
    }
    Inside { here: PhantomData }
}

impl Drop for Inside {
    fn drop(&mut self) {
        count_out();
    }
}

fn count_in() -> bool {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    DEPTH.set(DEPTH.get() + 1);
    let welcome = is_welcome();
    if !welcome {
        count_out();
    }
    welcome
}

fn is_welcome() -> bool {
    !EXITING.load(Ordering::SeqCst) || *EXITING_THREAD.lock() == Some(thread::current().id())
}

fn count_out() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

fn wait_for_the_end() {
    loop {
        thread::park();
    }
}

/// Runs `wait` without the interpreter, and comes back only while there is one to come back to.
pub(crate) fn detached<T: Send>(py: Python<'_>, inside: &mut Inside, wait: impl FnOnce() -> T + Send) -> T {
    let _: PhantomData<*const ()> = inside.here;
    py.detach(|| {
        count_out();
        let result = wait();
        if !count_in() {
            wait_for_the_end();
        }
        result
    })
}

/// Stops a piece of work. After a fork it can do nothing, nor be dropped: what it would wake is the parent's.
pub(crate) struct Task {
    abort: Option<AbortHandle>,
    generation: u64,
}

/// Work that is dropped when its task is stopped, be it before its first step.
pub(crate) fn stoppable<W>(work: W) -> (Task, impl Future<Output = ()> + Send + 'static)
where
    W: Future<Output = ()> + Send + 'static,
{
    let (work, abort) = future::abortable(work);
    (Task { abort: Some(abort), generation: generation() }, work.map(drop))
}

impl Task {
    pub(crate) fn stop(&self) {
        if self.generation == generation()
            && let Some(abort) = &self.abort
        {
            abort.abort();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.generation != generation() {
            std::mem::forget(self.abort.take());
        }
    }
}
