//! A loop's agent on the runtime: what crosses between their threads crosses together.
//!
//! Waking a thread costs more than all that tidegate does for a call. So calls that a loop makes in one pass are
//! started by one wake-up, and what has come back for it is told of by one, when the runtime has run what else
//! was ready. With few calls under way there is nothing to gather: they cross at once.

use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task;

use super::inbox::{Inbox, News};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// With so many waiting, nothing is gained by waiting for more.
const TOGETHER: usize = 16;

/// The loop's end of it. The agent's task lives as long as this.
pub(crate) struct Batcher {
    inbox: Arc<Inbox>,
    waiting: Vec<Work>,
    begin: UnboundedSender<Vec<Work>>,
}

impl Batcher {
    pub(crate) fn new(runtime: &Handle, inbox: &Arc<Inbox>) -> Self {
        let (begin, mut batches) = mpsc::unbounded_channel::<Vec<Work>>();
        let news = News::of(inbox);
        runtime.spawn(async move {
            loop {
                tokio::select! {
                    batch = batches.recv() => match batch {
                        Some(batch) => spawn_in_order(batch),
                        None => return,
                    },
                    () = news.arrived() => {
                        task::yield_now().await;
                        news.tell();
                    }
                }
            }
        });
        Self { inbox: Arc::clone(inbox), waiting: Vec::new(), begin }
    }

    /// Starts `work` on the runtime, now or with what comes after it. Whether a call of `flush` has to be
    /// arranged for that: the first piece of a batch needs one.
    pub(crate) fn start(&mut self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        self.waiting.push(Box::pin(work));
        if !self.inbox.is_busy() || self.waiting.len() == TOGETHER {
            self.flush();
        }
        self.waiting.len() == 1
    }

    /// Starts all that waits.
    pub(crate) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.waiting);
        if !batch.is_empty() {
            // A runtime that is being shut down drops the work, which tells whoever waits for it.
            drop(self.begin.send(batch));
        }
    }
}

/// The runtime runs what a task spawned last before all else. Something has to be last.
fn spawn_in_order(batch: Vec<Work>) {
    for work in batch {
        task::spawn(work);
    }
    task::spawn(async {});
}
