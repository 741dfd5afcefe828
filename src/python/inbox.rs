//! What tasks hold of a loop: where they leave what they have for it. Knows nothing of Python.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::outcome::{Delivery, Sink};

/// What a loop is handed in one turn, so that timers and other tasks get theirs however many calls come back
/// together.
const PER_TURN: usize = 16;

/// A loop that waits for so much at once is busy: what crosses does so in batches.
const BUSY: usize = 4;

/// Names one pending future; the serial tells a reused slot from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) slot: usize,
    pub(crate) serial: u64,
}

pub(crate) struct Inbox {
    held: Mutex<Held>,
    /// How much the loop waits for.
    expected: AtomicUsize,
    /// For the loop's agent on the runtime.
    some: Notify,
    wake: Wake,
}

#[derive(Default)]
struct Held {
    deliveries: VecDeque<(Key, Delivery)>,
    has_agent: bool,
}

pub(crate) enum Wake {
    Socket(UnixStream),
    Thread(Bell),
}

/// Rung for the thread that wakes a loop without `add_reader`.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<Ring>,
    rung: Condvar,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Ring {
    #[default]
    Silent,
    Rung,
    /// The loop is gone.
    Last,
}

impl Bell {
    /// Ends whoever waits for a ring.
    pub(crate) fn ring_the_last(&self) {
        self.ring(Ring::Last);
    }

    fn ring(&self, ring: Ring) {
        let mut state = self.state.lock();
        if *state != Ring::Last {
            *state = ring;
        }
        self.rung.notify_one();
    }

    /// Whether there will be another ring.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.rung.wait_while(self.state.lock(), |state| *state == Ring::Silent);
        let last = *state == Ring::Last;
        if !last {
            *state = Ring::Silent;
        }
        !last
    }
}

impl Inbox {
    pub(crate) fn new(wake: Wake) -> Self {
        Self { held: Mutex::default(), expected: AtomicUsize::new(0), some: Notify::new(), wake }
    }

    /// What to listen to where the loop cannot watch a socket.
    pub(crate) fn bell(&self) -> Option<&Bell> {
        match &self.wake {
            Wake::Socket(_) => None,
            Wake::Thread(bell) => Some(bell),
        }
    }

    fn push(&self, key: Key, delivery: Delivery) {
        let (was_empty, has_agent) = {
            let mut held = self.held.lock();
            held.deliveries.push_back((key, delivery));
            (held.deliveries.len() == 1, held.has_agent)
        };
        if !was_empty {
            return;
        }
        // Threads of Python's wake the loop themselves: the agent would have to be woken for it.
        if has_agent && self.is_busy() && Handle::try_current().is_ok() {
            self.some.notify_one();
        } else {
            self.wake();
        }
    }

    pub(crate) fn expect(&self, number: usize) {
        self.expected.store(number, Ordering::Relaxed);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.expected.load(Ordering::Relaxed) >= BUSY
    }

    /// Tells the loop that there is something.
    fn wake(&self) {
        match &self.wake {
            // A full socket means that the loop has been told; a closed one, that it is gone.
            Wake::Socket(socket) => drop((&*socket).write(&[1])),
            Wake::Thread(bell) => bell.ring(Ring::Rung),
        }
    }

    /// The next deliveries, and a call to come back if there are more.
    pub(crate) fn take(&self) -> Vec<(Key, Delivery)> {
        let mut held = self.held.lock();
        let now = held.deliveries.len().min(PER_TURN);
        let taken = held.deliveries.drain(..now).collect();
        let are_more = !held.deliveries.is_empty();
        drop(held);
        if are_more {
            self.wake();
        }
        taken
    }
}

/// What the loop's agent on the runtime has of it: news of what tasks have left, to tell the loop of.
pub(crate) struct News {
    inbox: Arc<Inbox>,
}

impl News {
    pub(crate) fn of(inbox: &Arc<Inbox>) -> Self {
        inbox.held.lock().has_agent = true;
        Self { inbox: Arc::clone(inbox) }
    }

    /// Waits until tasks have left something of which the loop has not been told.
    pub(crate) async fn arrived(&self) {
        self.inbox.some.notified().await;
    }

    pub(crate) fn tell(&self) {
        self.inbox.wake();
    }
}

impl Drop for News {
    /// Without an agent, whoever leaves something tells the loop.
    fn drop(&mut self) {
        let has_some = {
            let mut held = self.inbox.held.lock();
            held.has_agent = false;
            !held.deliveries.is_empty()
        };
        if has_some {
            self.inbox.wake();
        }
    }
}

/// Hands a call's deliveries to the loop that waits for them.
#[derive(Clone)]
pub(crate) struct Courier {
    inbox: Arc<Inbox>,
    key: Key,
}

impl Courier {
    pub(crate) fn new(inbox: &Arc<Inbox>, key: Key) -> Self {
        Self { inbox: Arc::clone(inbox), key }
    }

    pub(crate) fn ready(&self) {
        self.deliver(Delivery::Ready);
    }
}

impl Sink for Courier {
    fn deliver(&self, delivery: Delivery) {
        self.inbox.push(self.key, delivery);
    }
}
