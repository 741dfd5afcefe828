//! What calls to one (origin, credential, model) share: admission, breaker, retry budget, and what was learnt
//! about sizes. The mechanisms are pure; this adds the locks and the waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lock::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::admission::{self, Admission, Announced, Charge, Entry, Refusal, Resolved, Settlement, Ticket};
use crate::breaker::Breaker;
use crate::clock::{self, Instant};
use crate::config::{BreakerPolicy, Limits, RetryBudgetPolicy};
use crate::request::RequestFacts;
use crate::retry_budget::RetryBudget;
use crate::usage::Usage;

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
    waiters: HashMap<Ticket, oneshot::Sender<Result<(), Refusal>>>,
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
        let queue =
            Queue { admission: Admission::new(limits, now), waiters: HashMap::new(), resolved: Vec::new() };
        Arc::new(Self {
            key,
            breaker: breaker.map(|policy| Mutex::new(Breaker::new(policy, now))),
            budget: budget.map(|policy| Mutex::new(RetryBudget::new(policy, limits.concurrency, now))),
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
            Entry::Granted(ticket) => Ok(Place::Admitted(Permit::new(Arc::clone(self), ticket))),
            Entry::Queued(ticket) => {
                let (sender, receiver) = oneshot::channel();
                queue.waiters.insert(ticket, sender);
                Ok(Place::Waiting(Waiting { scope: Arc::clone(self), ticket: Some(ticket), receiver }))
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
        let decision = (&mut waiting.receiver).await;
        // The sender lives until `waiting` is gone, so there always is a decision.
        waiting.decided(decision.unwrap_or(Err(Refusal::Deadline { eta: Duration::ZERO })))
    }

    /// Admits whoever may enter, refuses whoever waited too long; returns when to look again.
    pub fn advance(&self, now: Instant) -> Option<Instant> {
        let mut queue = self.queue.lock();
        queue.advance(now);
        queue.admission.next_wake(now)
    }

    pub fn has_model(&self) -> bool {
        !self.key.model.is_empty()
    }

    /// No attempt starts before `until`: the server asked for it.
    pub fn cool_down(&self, now: Instant, until: Instant) {
        self.change(now, |admission| admission.cool_down(now, until));
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
                        if scope.queue.lock().waiters.is_empty()
                            || scope.timer_runs.swap(true, Ordering::AcqRel)
                        {
                            return;
                        }
                    }
                    None => scope.changed.notified().await,
                }
            }
        });
    }

    /// `origin model`, as people know it.
    pub fn name(&self) -> String {
        format!("{} {}", self.key.origin, self.key.model).trim_end().to_owned()
    }

    pub fn admission(&self, now: Instant) -> admission::Snapshot {
        self.queue.lock().admission.snapshot(now)
    }

    fn settle(&self, now: Instant, ticket: Ticket, settlement: Settlement) {
        self.change(now, |admission| admission.settle(now, ticket, settlement));
    }

    /// Changes the controller's state and lets in whoever may enter because of it.
    fn change(&self, now: Instant, change: impl FnOnce(&mut Admission)) {
        let mut queue = self.queue.lock();
        change(&mut queue.admission);
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
        let mut resolved = std::mem::take(&mut self.resolved);
        self.admission.advance(now, &mut resolved);
        for Resolved { ticket, outcome } in resolved.drain(..) {
            // Whoever left between the decision and this line sent nothing.
            let told = self.waiters.remove(&ticket).is_some_and(|waiter| waiter.send(outcome).is_ok());
            if !told && outcome.is_ok() {
                self.admission.cancel(now, ticket);
            }
        }
        self.resolved = resolved;
    }
}

/// A place in the queue. Dropping it leaves the queue, or returns what was granted meanwhile.
#[derive(Debug)]
pub struct Waiting {
    scope: Arc<Scope>,
    ticket: Option<Ticket>,
    receiver: oneshot::Receiver<Result<(), Refusal>>,
}

impl Waiting {
    /// What has been decided so far; for drivers that poll.
    pub fn poll(&mut self) -> Option<Result<Permit, Refusal>> {
        let decision = self.receiver.try_recv().ok()?;
        Some(self.decided(decision))
    }

    fn decided(&mut self, decision: Result<(), Refusal>) -> Result<Permit, Refusal> {
        let ticket = self.ticket.take();
        decision?;
        ticket
            .map(|ticket| Permit::new(Arc::clone(&self.scope), ticket))
            .ok_or(Refusal::Deadline { eta: Duration::ZERO })
    }

    /// Gives up the place at `now`.
    pub fn leave(&mut self, now: Instant) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut queue = self.scope.queue.lock();
        queue.waiters.remove(&ticket);
        queue.admission.cancel(now, ticket);
        queue.advance(now);
        drop(queue);
        self.scope.changed.notify_one();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave(clock::now());
    }
}

/// Leave to have one attempt in flight. Settled once; if dropped unsettled, it is given back in full before the
/// request was sent, and with its tokens kept as spent after.
#[derive(Debug)]
pub struct Permit {
    scope: Arc<Scope>,
    ticket: Option<Ticket>,
    sent: bool,
}

impl Permit {
    fn new(scope: Arc<Scope>, ticket: Ticket) -> Self {
        Self { scope, ticket: Some(ticket), sent: false }
    }

    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// What the answer to this attempt announced of the provider's quota.
    pub fn learn(&self, now: Instant, announced: &Announced) {
        if let Some(ticket) = self.ticket {
            self.scope.change(now, |admission| admission.learn(now, ticket, announced));
        }
    }

    pub fn settle(mut self, now: Instant, settlement: Settlement) {
        if let Some(ticket) = self.ticket.take() {
            self.scope.settle(now, ticket, settlement);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let settlement =
                if self.sent { Settlement::Failed { charge: Charge::Keep } } else { Settlement::NeverSent };
            self.scope.settle(clock::now(), ticket, settlement);
        }
    }
}

/// Sizes seen lately, from which the cost of the next call is estimated.
#[derive(Debug)]
pub struct Sizes {
    bytes_per_token: f64,
    prompts: u32,
    /// Tokens that were billed for each one that was counted in the text of a stream.
    billed_per_token: f64,
    streams: u32,
    outputs: [u32; Self::KEPT],
    seen: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            bytes_per_token: 4.0,
            prompts: 0,
            billed_per_token: 1.0,
            streams: 0,
            outputs: [0; Self::KEPT],
            seen: 0,
        }
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

    /// Learns from a bill. Only prompts that are text alone say something about bytes per token.
    pub fn record(&mut self, facts: &RequestFacts, usage: &Usage) {
        const SHORTEST: u64 = 64;
        if facts.media_tokens == 0 && facts.prompt_bytes >= SHORTEST && usage.input > 0 {
            let seen = (facts.prompt_bytes as f64 / usage.input as f64).clamp(1.0, 8.0);
            follow(&mut self.bytes_per_token, seen, &mut self.prompts);
        }
        if let Some(slot) = self.outputs.get_mut(self.seen % Self::KEPT) {
            *slot = u32::try_from(usage.output).unwrap_or(u32::MAX);
            self.seen = self.seen.wrapping_add(1);
        }
    }

    /// Learns from a stream that stated its usage what its text, counted as `tokens`, was billed as. Hidden
    /// reasoning is in no text.
    pub fn record_text(&mut self, tokens: u64, usage: &Usage) {
        const SHORTEST: u64 = 16;
        let billed = usage.output.saturating_sub(usage.reasoning);
        if tokens >= SHORTEST && billed > 0 {
            let seen = (billed as f64 / tokens as f64).clamp(0.25, 4.0);
            follow(&mut self.billed_per_token, seen, &mut self.streams);
        }
    }

    /// What text counted as `tokens` is likely to be billed as.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both factors are positive; `as` saturates"
    )]
    pub fn text_tokens(&self, tokens: u64) -> u64 {
        (tokens as f64 * self.billed_per_token).round() as u64
    }
}

/// Moves an average towards what was seen: the mean of the first ten, then a tenth of the way each time.
fn follow(average: &mut f64, seen: f64, count: &mut u32) {
    const WEIGHT: f64 = 0.1;
    *count = count.saturating_add(1);
    *average += (seen - *average) * WEIGHT.max(1.0 / f64::from(*count));
}
