//! tokio ↔ asyncio: the only file that names asyncio.
//!
//! A call is given to the runtime by the loop's batcher. Its task leaves the result in the loop's inbox, from where
//! the loop is woken by a byte on a socket that it watches with `add_reader`. The loop's own thread then drains the
//! inbox and resolves plain asyncio futures. No tokio thread touches the interpreter.
//!
//! A loop without `add_reader` (Windows' proactor) is woken by a thread of Python's with
//! `call_soon_threadsafe` instead; all else is the same.

use std::cell::RefCell;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::lock::Mutex;
use pyo3::exceptions::{PyException, PyNotImplementedError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit, intern};
use slab::Slab;

use super::answered;
use super::batcher::Batcher;
use super::inbox::{Bell, Courier, Inbox, Key, Wake};
use super::outcome::{Delivery, attempt_into_python, into_python, lost};
use super::runtime::{self, Task};
use super::stream::{Opened, PyStream};

struct Pending {
    serial: u64,
    /// `None` once a call goes on as a stream, whose log records still come.
    future: Option<Py<PyAny>>,
    /// The stream of which something is waited for.
    stream: Option<Py<PyStream>>,
    /// The caller's `contextvars`, in which its log records are made; `None` where nothing is logged.
    context: Option<Py<PyAny>>,
    task: Option<Task>,
}

#[derive(Default)]
struct Slots {
    slab: Slab<Pending>,
    serial: u64,
}

/// One per running loop; lives as long as the loop, which watches its socket or has it as an attribute.
#[pyclass(frozen, weakref, module = "tidegate._core")]
pub(crate) struct LoopQueue {
    event_loop: Py<PyAny>,
    inbox: Arc<Inbox>,
    slots: Mutex<Slots>,
    /// `None` before the first call.
    batcher: Mutex<Option<Batcher>>,
    readable: Option<UnixStream>,
    /// The process it belongs to. A fork shares its socket with the parent and must not read from it.
    generation: u64,
}

/// A call under way.
#[pyclass(frozen, module = "tidegate._core")]
pub(crate) struct Ticket {
    queue: Py<LoopQueue>,
    key: Key,
    /// What to await.
    #[pyo3(get)]
    future: Py<PyAny>,
}

#[pymethods]
impl Ticket {
    /// Stops the call if it still runs: its task is aborted, which closes the upstream connection and gives
    /// every permit back.
    pub(crate) fn cancel(&self) {
        self.queue.get().forget(self.key);
    }

    /// A task whose loop is gone is a cycle through its ticket.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queue)?;
        visit.call(&self.future)
    }
}

#[pymethods]
impl LoopQueue {
    /// Called by the loop when there is something to collect. Raises Ctrl-C and the like from a signal handler
    /// that ran meanwhile, when everything is delivered.
    fn _drain(&self, py: Python<'_>) -> PyResult<()> {
        let _inside = runtime::enter(py);
        if self.generation != runtime::generation() {
            return Ok(());
        }
        if let Some(mut socket) = self.readable.as_ref() {
            let mut bytes = [0; 64];
            while matches!(socket.read(&mut bytes), Ok(n) if n == bytes.len()) {}
        }
        let mut ended = Ok(());
        for (key, delivery) in self.inbox.take() {
            match self.deliver(py, key, delivery) {
                Err(error) if ended.is_err() || error.is_instance_of::<PyException>(py) => {
                    error.write_unraisable(py, Some(self.event_loop.bind(py)));
                }
                Err(interrupt) => ended = Err(interrupt),
                Ok(()) => {}
            }
        }
        ended
    }

    /// Called by the loop in the pass after the one in which calls were made.
    fn _flush(&self, py: Python<'_>) {
        let _inside = runtime::enter(py);
        if self.generation == runtime::generation() {
            self.flush();
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        if let Some(slots) = self.slots.try_lock() {
            for (_, pending) in &slots.slab {
                visit.call(&pending.future)?;
                visit.call(&pending.stream)?;
                visit.call(&pending.context)?;
            }
        }
        Ok(())
    }
}

impl Drop for LoopQueue {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.batcher.get_mut().take());
            return;
        }
        if let Some(bell) = self.inbox.bell() {
            bell.ring_the_last();
        }
        for (_, pending) in &self.slots.get_mut().slab {
            if let Some(task) = &pending.task {
                task.stop();
            }
        }
    }
}

impl LoopQueue {
    fn serves(&self, event_loop: &Bound<'_, PyAny>) -> bool {
        self.generation == runtime::generation() && self.event_loop.is(event_loop)
    }

    fn deliver(&self, py: Python<'_>, key: Key, delivery: Delivery) -> PyResult<()> {
        let result = match delivery {
            Delivery::Event(event) => {
                let context = {
                    let slots = self.slots.lock();
                    let pending = slots.slab.get(key.slot).filter(|pending| pending.serial == key.serial);
                    pending.and_then(|pending| pending.context.as_ref()).map(|context| context.clone_ref(py))
                };
                return event.log(py, context.as_ref().map(|context| context.bind(py)));
            }
            Delivery::Stream(opened) => return self.begin(py, key, *opened),
            Delivery::Ready => return self.resolve_read(py, key),
            Delivery::Over => {
                drop(self.take(key));
                return Ok(());
            }
            Delivery::Outcome(outcome) => into_python(py, *outcome),
            Delivery::Store(answered) => answered::into_python(py, *answered),
            Delivery::Attempt(finished) => attempt_into_python(py, *finished),
            Delivery::Lost => Err(lost()),
        };
        let Some(future) = self.take(key).and_then(|pending| pending.future) else { return Ok(()) };
        resolve(future.bind(py), result)
    }

    /// A call goes on as a stream: the future has it; the context stays for the records still to come.
    fn begin(&self, py: Python<'_>, key: Key, opened: Opened) -> PyResult<()> {
        let future = {
            let mut slots = self.slots.lock();
            let pending = slots.slab.get_mut(key.slot).filter(|pending| pending.serial == key.serial);
            pending.and_then(|pending| {
                pending.task = None;
                pending.future.take()
            })
        };
        // Where nobody waits, the stream is dropped here, which stops it.
        let Some(future) = future else { return Ok(()) };
        let stream = Py::new(py, PyStream::new(opened, None)).map(Py::into_any);
        resolve(future.bind(py), stream)
    }

    fn resolve_read(&self, py: Python<'_>, key: Key) -> PyResult<()> {
        let Some(Pending { future: Some(future), stream, .. }) = self.take(key) else { return Ok(()) };
        let future = future.bind(py);
        // What is taken for a reader that has left would be lost to the next one.
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let result = match stream.map(|stream| stream.get().collect(py)) {
            None => Ok(py.None()),
            Some(Ok(Some(list))) => Ok(list.unbind()),
            Some(Ok(None)) => Err(PyRuntimeError::new_err("the stream is being read by somebody else")),
            Some(Err(error)) => Err(error),
        };
        resolve(future, result)
    }

    fn start(slf: &Bound<'_, Self>, work: impl Future<Output = ()> + Send + 'static) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let runtime = runtime::handle(py)?;
        let needs_flush = {
            let mut batcher = this.batcher.lock();
            batcher.get_or_insert_with(|| Batcher::new(&runtime, &this.inbox)).start(work)
        };
        if !needs_flush {
            return Ok(());
        }
        let flush = slf.getattr(intern!(py, "_flush"))?;
        this.event_loop.bind(py).call_method1(intern!(py, "call_soon"), (flush,)).map(drop)
    }

    fn flush(&self) {
        if let Some(batcher) = &mut *self.batcher.lock() {
            batcher.flush();
        }
    }

    fn take(&self, key: Key) -> Option<Pending> {
        let mut slots = self.slots.lock();
        if slots.slab.get(key.slot)?.serial != key.serial {
            return None;
        }
        let pending = slots.slab.try_remove(key.slot);
        self.inbox.expect(slots.slab.len());
        pending
    }

    fn forget(&self, key: Key) {
        if let Some(task) = self.take(key).and_then(|pending| pending.task) {
            task.stop();
        }
    }

    /// Starts the thread that wakes the loop where the loop cannot watch a socket. It ends with the queue.
    fn start_waker(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let inbox = Arc::clone(&slf.get().inbox);
        let weak = PyWeakrefReference::new(slf.as_any())?.unbind();
        let wake = PyCFunction::new_closure(py, None, None, move |args, _| -> PyResult<()> {
            let py = args.py();
            let mut inside = runtime::enter(py);
            let Some(bell) = inbox.bell() else { return Ok(()) };
            while runtime::detached(py, &mut inside, || bell.wait()) {
                let Some(queue) = weak.bind(py).upgrade() else { return Ok(()) };
                let drain = queue.getattr(intern!(py, "_drain"))?;
                let event_loop = queue.cast::<Self>()?.get().event_loop.bind(py);
                match event_loop.call_method1(intern!(py, "call_soon_threadsafe"), (drain,)) {
                    // The loop is closed.
                    Err(error) if error.is_instance_of::<PyRuntimeError>(py) => return Ok(()),
                    other => drop(other?),
                }
            }
            Ok(())
        })?;
        let settings = PyDict::new(py);
        settings.set_item("target", wake)?;
        settings.set_item("name", "tidegate-waker")?;
        settings.set_item("daemon", true)?;
        let thread = py.import("threading")?.call_method("Thread", (), Some(&settings))?;
        thread.call_method0("start").map(drop)
    }
}

thread_local! {
    /// The queues of the loops that ran on this thread, the last one first. Weak, so that a closed loop takes
    /// its queue along.
    static QUEUES: RefCell<Vec<Py<PyWeakrefReference>>> = const { RefCell::new(Vec::new()) };
}

/// Has `work(courier)` done for the running loop.
///
/// Raises `RuntimeError` if no loop runs on this thread.
pub(crate) fn submit<W: Future<Output = ()> + Send + 'static>(
    py: Python<'_>,
    context: Option<Py<PyAny>>,
    work: impl FnOnce(Courier) -> PyResult<W>,
) -> PyResult<Ticket> {
    let (ticket, courier) = register(py, context, None)?;
    let started = work(courier).and_then(|work| {
        let (task, work) = runtime::stoppable(work);
        if let Some(pending) = ticket.queue.get().slots.lock().slab.get_mut(ticket.key.slot) {
            pending.task = Some(task);
        }
        LoopQueue::start(ticket.queue.bind(py), work)
    });
    match started {
        Ok(()) => Ok(ticket),
        Err(error) => {
            ticket.cancel();
            // Ctrl-C, say, while the flush was arranged: others must not wait for one that never comes.
            ticket.queue.get().flush();
            Err(error)
        }
    }
}

/// A ticket for what is ready later, which `start` arranges to be told to the courier: the next pieces of
/// `stream`, or nothing but the news. Beside it, what `start` returned.
pub(crate) fn wait_for<T>(
    py: Python<'_>,
    stream: Option<Py<PyStream>>,
    start: impl FnOnce(Courier) -> T,
) -> PyResult<(Ticket, T)> {
    let (ticket, courier) = register(py, None, stream)?;
    Ok((ticket, start(courier)))
}

/// A ticket for the caller's next turn on the running loop, behind all that waits to be handed over.
#[pyfunction]
pub(crate) fn turn(py: Python<'_>) -> PyResult<Ticket> {
    let _inside = runtime::enter(py);
    Ok(wait_for(py, None, |courier| courier.ready())?.0)
}

/// A ticket for what is there already.
pub(crate) fn resolved<'py>(py: Python<'py>, result: PyResult<Bound<'py, PyAny>>) -> PyResult<Ticket> {
    let event_loop = running_loop(py)?;
    let queue = queue_of(py, &event_loop)?.unbind();
    let future = event_loop.call_method0(intern!(py, "create_future"))?;
    resolve(&future, result.map(Bound::unbind))?;
    Ok(Ticket { queue, key: Key { slot: usize::MAX, serial: 0 }, future: future.unbind() })
}

fn register(
    py: Python<'_>,
    context: Option<Py<PyAny>>,
    stream: Option<Py<PyStream>>,
) -> PyResult<(Ticket, Courier)> {
    let event_loop = running_loop(py)?;
    let queue = queue_of(py, &event_loop)?;
    let future = event_loop.call_method0(intern!(py, "create_future"))?.unbind();
    let this = queue.get();
    let key = {
        let mut slots = this.slots.lock();
        slots.serial += 1;
        let serial = slots.serial;
        let pending = Pending { serial, future: Some(future.clone_ref(py)), stream, context, task: None };
        let slot = slots.slab.insert(pending);
        this.inbox.expect(slots.slab.len());
        Key { slot, serial }
    };
    let courier = Courier::new(&this.inbox, key);
    Ok((Ticket { queue: queue.unbind(), key, future }, courier))
}

fn resolve(future: &Bound<'_, PyAny>, result: PyResult<Py<PyAny>>) -> PyResult<()> {
    let py = future.py();
    let resolved = match result {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,)),
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error.into_value(py),)),
    };
    match resolved {
        // Whoever waited has given up.
        Err(_) if future.call_method0(intern!(py, "cancelled"))?.is_truthy()? => Ok(()),
        other => other.map(drop),
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET_RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET_RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()
}

fn queue_of<'py>(py: Python<'py>, event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, LoopQueue>> {
    let last = QUEUES.with_borrow(|queues| queues.first().and_then(|weak| alive(py, weak)));
    match last {
        Some(queue) if queue.get().serves(event_loop) => Ok(queue),
        _ => search(py, event_loop),
    }
}

fn alive<'py>(py: Python<'py>, weak: &Py<PyWeakrefReference>) -> Option<Bound<'py, LoopQueue>> {
    weak.bind(py).upgrade()?.cast_into::<LoopQueue>().ok()
}

/// Finds the queue of a loop, or makes it, and puts it first.
fn search<'py>(py: Python<'py>, event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, LoopQueue>> {
    let known = QUEUES.take();
    let mut kept = Vec::with_capacity(known.len());
    let mut found = None;
    for weak in known {
        let Some(queue) = alive(py, &weak) else { continue };
        if queue.get().serves(event_loop) {
            kept.insert(0, weak);
            found = Some(queue);
        } else {
            kept.push(weak);
        }
    }
    let queue = match found {
        Some(queue) => Ok(queue),
        None => new_queue(py, event_loop).and_then(|queue| {
            kept.insert(0, PyWeakrefReference::new(queue.as_any())?.unbind());
            Ok(queue)
        }),
    };
    QUEUES.set(kept);
    queue
}

fn new_queue<'py>(py: Python<'py>, event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, LoopQueue>> {
    let (readable, writable) = UnixStream::pair()?;
    readable.set_nonblocking(true)?;
    writable.set_nonblocking(true)?;
    let fd = readable.as_raw_fd();
    let build = |wake, readable| {
        let queue = LoopQueue {
            event_loop: event_loop.clone().unbind(),
            batcher: Mutex::new(None),
            inbox: Arc::new(Inbox::new(wake)),
            slots: Mutex::default(),
            readable,
            generation: runtime::generation(),
        };
        Bound::new(py, queue)
    };
    let queue = build(Wake::Socket(writable), Some(readable))?;
    let drain = queue.getattr(intern!(py, "_drain"))?;
    let add_reader = event_loop.getattr(intern!(py, "add_reader"))?;
    // A loop runs a reader in the context that added it, and keeps that: this one must not be the first call's.
    let context = py.import("contextvars")?.call_method0("Context")?;
    match context.call_method1(intern!(py, "run"), (add_reader, fd, drain)) {
        Ok(_) => Ok(queue),
        Err(error) if error.is_instance_of::<PyNotImplementedError>(py) => {
            let queue = build(Wake::Thread(Bell::default()), None)?;
            event_loop.setattr(intern!(py, "_tidegate_queue"), &queue)?;
            LoopQueue::start_waker(&queue)?;
            Ok(queue)
        }
        Err(error) => Err(error),
    }
}
