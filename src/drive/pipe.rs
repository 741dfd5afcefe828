//! Between the task that receives a stream and whoever reads it: a bounded store that is emptied in one go.

use std::sync::Arc;

use crate::lock::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

use super::live::{Stream, StreamOver};
use crate::clock;
use crate::stream::Item;

/// Bytes received ahead of the reader. Beyond it the socket is not read, and TCP slows the server down.
pub const READ_AHEAD: usize = 256 << 10;

type Waiter = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    items: Vec<Item>,
    bytes: usize,
    over: Option<Arc<StreamOver>>,
    /// Nothing more will come, with or without a word on how it ended.
    done: bool,
    closed: bool,
    waiter: Option<Waiter>,
    /// Those who wait for the end.
    awaiting_end: Vec<Waiter>,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
    /// There is room again.
    room: Notify,
    /// The reader has left.
    closed: Notify,
}

/// What a reader finds.
#[derive(Debug)]
pub enum Found {
    Items(Vec<Item>),
    /// Nothing yet.
    Nothing,
    /// All has been taken, and the stream ended so.
    Over(Arc<StreamOver>),
    /// All has been taken. The reader closed it, or the engine was shut down: [`Tap::is_closed`] tells.
    Gone,
}

/// The receiving end; to be run by a task.
pub struct Pump {
    stream: Stream,
    pipe: Arc<Pipe>,
}

/// The reading end. Dropping the last one stops the stream.
pub struct Tap {
    pipe: Arc<Pipe>,
}

pub fn pipe(stream: Stream) -> (Pump, Tap) {
    let pipe = Arc::new(Pipe::default());
    (Pump { stream, pipe: Arc::clone(&pipe) }, Tap { pipe })
}

impl std::fmt::Debug for Pump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pump").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

impl Pump {
    /// Receives until the stream ends, or the reader leaves.
    pub async fn run(mut self) {
        let pipe = Arc::clone(&self.pipe);
        let mut items = Vec::new();
        loop {
            let more = tokio::select! {
                biased;
                () = pipe.closed.notified() => {
                    self.stream.cancel();
                    // The connection is a task of its own, woken by that. It goes first, so that whoever waits for
                    // the end of the stream finds it closed.
                    tokio::task::yield_now().await;
                    false
                }
                more = self.stream.read(&mut items) => more,
            };
            pipe.push(&mut items);
            if !more {
                break;
            }
            // At its deadline the stream ends, read or not.
            let room = async {
                while pipe.is_full() {
                    pipe.room.notified().await;
                }
            };
            if pipe.is_full() {
                clock::until(self.stream.deadline(), room).await;
            }
        }
        pipe.finish(self.stream.over().cloned());
        self.stream.drain().await;
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stream.cancel();
        self.pipe.finish(self.stream.over().cloned());
    }
}

impl Pipe {
    fn push(&self, items: &mut Vec<Item>) {
        if items.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.closed {
            items.clear();
            return;
        }
        state.bytes += items.iter().map(Item::len).sum::<usize>();
        state.items.append(items);
        self.wake(state);
    }

    fn finish(&self, over: Option<Arc<StreamOver>>) {
        let mut state = self.state.lock();
        if state.done {
            return;
        }
        state.done = true;
        state.over = over;
        let waiting = std::mem::take(&mut state.awaiting_end);
        self.wake(state);
        for waiter in waiting {
            waiter();
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waiter = state.waiter.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waiter) = waiter {
            waiter();
        }
    }

    fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.bytes >= READ_AHEAD && !state.closed
    }
}

impl Tap {
    /// Everything that is ready.
    pub fn take(&self) -> Found {
        let mut state = self.pipe.state.lock();
        if !state.items.is_empty() {
            let was_full = state.bytes >= READ_AHEAD;
            state.bytes = 0;
            let items = std::mem::take(&mut state.items);
            drop(state);
            if was_full {
                self.pipe.room.notify_one();
            }
            return Found::Items(items);
        }
        match &state.over {
            Some(over) if !state.closed => Found::Over(Arc::clone(over)),
            _ if state.done || state.closed => Found::Gone,
            _ => Found::Nothing,
        }
    }

    /// Calls `waiter` once there is something to take: at once if there is, else from the receiving task. There
    /// is one at a time; one that is replaced is called too.
    pub fn when_ready(&self, waiter: impl FnOnce() + Send + 'static) {
        let mut state = self.pipe.state.lock();
        if state.is_ready() {
            drop(state);
            return waiter();
        }
        let replaced = state.waiter.replace(Box::new(waiter));
        drop(state);
        if let Some(replaced) = replaced {
            replaced();
        }
    }

    /// Waits on this thread until there is something to take, for at most `patience`.
    pub fn wait(&self, patience: Option<Duration>) {
        let state = self.pipe.state.lock();
        if state.is_ready() {
            return;
        }
        drop(match patience {
            Some(patience) => self.pipe.changed.wait_for(state, patience),
            None => self.pipe.changed.wait(state),
        });
    }

    /// Stops the stream and forgets what was not read. It is settled a moment later: [`Tap::over`] tells.
    pub fn close(&self) {
        let mut state = self.pipe.state.lock();
        if state.closed {
            return;
        }
        state.closed = true;
        state.items = Vec::new();
        state.bytes = 0;
        self.pipe.wake(state);
        self.pipe.closed.notify_one();
        self.pipe.room.notify_one();
    }

    /// Calls `waiter` once the stream is settled.
    pub fn when_done(&self, waiter: impl FnOnce() + Send + 'static) {
        let mut state = self.pipe.state.lock();
        if state.done {
            drop(state);
            return waiter();
        }
        state.awaiting_end.push(Box::new(waiter));
    }

    /// Waits on this thread until the stream is settled, for at most `patience`.
    pub fn wait_done(&self, patience: Duration) {
        let state = self.pipe.state.lock();
        drop(self.pipe.changed.wait_while_for(state, |state| !state.done, patience));
    }

    /// The reader has left.
    pub fn is_closed(&self) -> bool {
        self.pipe.state.lock().closed
    }

    /// How the stream ended, once it has.
    pub fn over(&self) -> Option<Arc<StreamOver>> {
        self.pipe.state.lock().over.clone()
    }

    /// Nothing is left to be read, nor will be.
    pub fn is_spent(&self) -> bool {
        let state = self.pipe.state.lock();
        state.items.is_empty() && (state.done || state.closed)
    }

    /// The stream is settled.
    pub fn is_done(&self) -> bool {
        self.pipe.state.lock().done
    }
}

impl State {
    const fn is_ready(&self) -> bool {
        !self.items.is_empty() || self.done || self.closed
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}
