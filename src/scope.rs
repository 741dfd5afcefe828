//! What calls to one (origin, credential, model) share: admission, breaker, retry budget, and what was learnt
//! about sizes. The mechanisms are pure; this adds the locks and the waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::admission::{Admission, Entry, Grant, Refusal, Resolved, Settlement, WaiterId};
use crate::breaker::Breaker;
use crate::clock::{self, Instant};
use crate::config::{BreakerPolicy, Limits, RetryBudgetPolicy};
use crate::retry_budget::RetryBudget;

/// What tells two scopes apart. The credential is a keyed hash, never the secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    pub origin: Arc<str>,
    pub credential: u64,
    pub model: Arc<str>,
}

#[derive(Debug)]
pub struct Scope {
    pub key: ScopeKey,
    pub breaker: Option<Mutex<Breaker>>,
    pub budget: Option<Mutex<RetryBudget>>,
    pub sizes: Mutex<Sizes>,
    queue: Mutex<Queue>,
    /// Tells the timer task that the head, or its ready time, may have changed.
    changed: Notify,
    timer_runs: AtomicBool,
}

#[derive(Debug)]
struct Queue {
    admission: Admission,
    waiters: HashMap<WaiterId, oneshot::Sender<Result<Grant, Refusal>>>,
    resolved: Vec<Resolved>,
}

/// The answer to a request for a place.
#[derive(Debug)]
pub enum Place {
    Admitted(Permit),
    Waiting(Waiting),
}

impl Scope {
    pub fn new(
        key: ScopeKey,
        limits: &Limits,
        breaker: Option<&BreakerPolicy>,
        budget: Option<&RetryBudgetPolicy>,
        now: Instant,
    ) -> Arc<Self> {
        let queue = Queue {
            admission: Admission::new(limits, now),
            waiters: HashMap::new(),
            resolved: Vec::new(),
        };
        Arc::new(Self {
            key,
            breaker: breaker.map(|policy| Mutex::new(Breaker::new(policy, now))),
            budget: budget
                .map(|policy| Mutex::new(RetryBudget::new(policy, limits.concurrency, now))),
            sizes: Mutex::default(),
            queue: Mutex::new(queue),
            changed: Notify::new(),
            timer_runs: AtomicBool::new(false),
        })
    }

    /// Asks for a place in flight for `cost` tokens, to be had by `limit`.
    pub fn enqueue(self: &Arc<Self>, now: Instant, cost: u64, limit: Instant) -> Result<Place, Refusal> {
        let mut queue = self.queue.lock();
        match queue.admission.enqueue(now, cost, limit)? {
            Entry::Granted(grant) => Ok(Place::Admitted(Permit::new(Arc::clone(self), grant))),
            Entry::Queued(id) => {
                let (sender, receiver) = oneshot::channel();
                queue.waiters.insert(id, sender);
                Ok(Place::Waiting(Waiting { scope: Arc::clone(self), id, receiver }))
            }
        }
    }

    /// Waits for that place. Dropping the future leaves the queue.
    pub async fn admit(self: &Arc<Self>, cost: u64, limit: Instant) -> Result<Permit, Refusal> {
        let mut waiting = match self.enqueue(clock::now(), cost, limit)? {
            Place::Admitted(permit) => return Ok(permit),
            Place::Waiting(waiting) => waiting,
        };
        self.ensure_timer();
        match (&mut waiting.receiver).await {
            Ok(Ok(grant)) => Ok(Permit::new(Arc::clone(self), grant)),
            Ok(Err(refusal)) => Err(refusal),
            // The sender is dropped by `Waiting` alone, which we hold.
            Err(_) => Err(Refusal::Deadline { eta: std::time::Duration::ZERO }),
        }
    }

    /// Admits whoever may enter, refuses whoever waited too long; returns when to look again.
    pub fn advance(&self, now: Instant) -> Option<Instant> {
        let mut queue = self.queue.lock();
        queue.advance(now);
        queue.admission.next_wake(now)
    }

    /// No attempt starts before `until`: the server asked for it.
    pub fn cool_down(&self, now: Instant, until: Instant) {
        self.queue.lock().admission.cool_down(now, until);
        self.changed.notify_one();
    }

    /// Gives the admission controller what only it can use: quota facts, new limits.
    pub fn with_admission<T>(&self, now: Instant, f: impl FnOnce(&mut Admission) -> T) -> T {
        let mut queue = self.queue.lock();
        let result = f(&mut queue.admission);
        queue.advance(now);
        drop(queue);
        self.changed.notify_one();
        result
    }

    /// One timer per scope, alive only while somebody waits.
    fn ensure_timer(self: &Arc<Self>) {
        if self.timer_runs.swap(true, Ordering::AcqRel) {
            self.changed.notify_one();
            return;
        }
        let scope = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                match scope.advance(clock::now()) {
                    Some(wake) => {
                        clock::until(wake, scope.changed.notified()).await;
                    }
                    None if scope.queue.lock().waiters.is_empty() => {
                        scope.timer_runs.store(false, Ordering::Release);
                        // Whoever queued before the store was visible did not start a timer.
                        if scope.queue.lock().waiters.is_empty() || scope.timer_runs.swap(true, Ordering::AcqRel)
                        {
                            return;
                        }
                    }
                    None => scope.changed.notified().await,
                }
            }
        });
    }

    fn settle(&self, now: Instant, grant: Grant, settlement: Settlement) {
        let mut queue = self.queue.lock();
        queue.admission.settle(now, grant, settlement);
        if queue.waiters.is_empty() {
            return;
        }
        queue.advance(now);
        drop(queue);
        self.changed.notify_one();
    }
}

impl Queue {
    fn advance(&mut self, now: Instant) {
        self.admission.advance(now, &mut self.resolved);
        let mut resolved = std::mem::take(&mut self.resolved);
        for resolution in resolved.drain(..) {
            match resolution {
                Resolved::Granted(id, grant) => {
                    let receiver = self.waiters.remove(&id);
                    // Whoever left between the grant and this line sent nothing.
                    if receiver.is_none_or(|receiver| receiver.send(Ok(grant)).is_err()) {
                        self.admission.settle(now, grant, Settlement::NeverSent);
                    }
                }
                Resolved::Expired(id, refusal) => {
                    if let Some(receiver) = self.waiters.remove(&id) {
                        let _ = receiver.send(Err(refusal));
                    }
                }
            }
        }
        self.resolved = resolved;
    }
}

/// A place in the queue. Dropping it leaves the queue, or returns the grant that came meanwhile.
#[derive(Debug)]
pub struct Waiting {
    scope: Arc<Scope>,
    id: WaiterId,
    receiver: oneshot::Receiver<Result<Grant, Refusal>>,
}

impl Waiting {
    /// What has been decided so far; for drivers that poll.
    pub fn poll(&mut self) -> Option<Result<Permit, Refusal>> {
        let decided = self.receiver.try_recv().ok()?;
        Some(decided.map(|grant| Permit::new(Arc::clone(&self.scope), grant)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let now = clock::now();
        let mut queue = self.scope.queue.lock();
        if queue.waiters.remove(&self.id).is_some() {
            queue.admission.cancel(now, self.id);
            queue.advance(now);
        } else if let Ok(Ok(grant)) = self.receiver.try_recv() {
            queue.admission.settle(now, grant, Settlement::NeverSent);
            queue.advance(now);
        }
        drop(queue);
        self.scope.changed.notify_one();
    }
}

/// Leave to have one attempt in flight. Settled once; if dropped unsettled, it is given back in full before the
/// request was sent, and with the tokens kept as spent after.
#[derive(Debug)]
pub struct Permit {
    scope: Arc<Scope>,
    grant: Option<Grant>,
    sent: bool,
}

impl Permit {
    fn new(scope: Arc<Scope>, grant: Grant) -> Self {
        Self { scope, grant: Some(grant), sent: false }
    }

    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    pub fn settle(mut self, now: Instant, settlement: Settlement) {
        if let Some(grant) = self.grant.take() {
            self.scope.settle(now, grant, settlement);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let settlement = if self.sent { Settlement::Unknown } else { Settlement::NeverSent };
            self.scope.settle(clock::now(), grant, settlement);
        }
    }
}

/// Sizes seen lately, from which the cost of the next call is estimated.
#[derive(Debug)]
pub struct Sizes {
    bytes_per_token: f64,
    outputs: [u32; Self::KEPT],
    seen: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { bytes_per_token: 4.0, outputs: [0; Self::KEPT], seen: 0 }
    }
}

impl Sizes {
    const KEPT: usize = 64;
    /// Reserved for an answer where nothing is known of its size.
    const UNKNOWN_OUTPUT: u64 = 512;

    pub const fn bytes_per_token(&self) -> f64 {
        self.bytes_per_token
    }

    /// The 95th percentile of recent outputs, in tokens.
    pub fn output(&self) -> u64 {
        let mut seen = self.outputs;
        let Some(seen) = seen.get_mut(..self.seen.min(Self::KEPT)).filter(|seen| !seen.is_empty()) else {
            return Self::UNKNOWN_OUTPUT;
        };
        let rank = (seen.len() * 95).div_ceil(100).saturating_sub(1);
        u64::from(*seen.select_nth_unstable(rank).1)
    }

    /// Learns from a bill. Only prompts that are mostly text say something about bytes per token.
    pub fn record(&mut self, prompt_bytes: u64, text_tokens: u64, output_tokens: u64) {
        const WEIGHT: f64 = 0.1;
        const SHORTEST: u64 = 64;
        if text_tokens > 0 && prompt_bytes >= SHORTEST {
            let seen = (prompt_bytes as f64 / text_tokens as f64).clamp(1.0, 8.0);
            self.bytes_per_token += WEIGHT * (seen - self.bytes_per_token);
        }
        if let Some(slot) = self.outputs.get_mut(self.seen % Self::KEPT) {
            *slot = u32::try_from(output_tokens).unwrap_or(u32::MAX);
            self.seen += 1;
        }
    }
}
