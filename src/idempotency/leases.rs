//! Leases that are being renewed. One task looks after all of a store's: nearly every execution ends before its
//! first renewal is due, and should not pay for a task and a timer of its own.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::protocol::{Answer, Operation};
use super::record::Claim;
use super::store::{Store, StoreError};
use crate::clock::{self, Instant};
use crate::lock::Mutex;

/// Called once, when a lease is lost.
pub type OnLoss = Box<dyn FnOnce() + Send>;

/// The leases of one store.
pub struct Leases {
    shared: Arc<Shared>,
    is_kept: AtomicBool,
}

/// A lease that is renewed three times in its length, until it is let go or this is dropped.
pub struct Held {
    shared: Arc<Shared>,
    id: u64,
    lost: Arc<AtomicBool>,
}

struct Shared {
    store: Arc<Store>,
    table: Mutex<Table>,
    /// Something is due before the task would look.
    sooner: Arc<Notify>,
}

/// Who holds what, and when it is to be renewed.
struct Table {
    count: u64,
    leases: HashMap<u64, Lease>,
    /// Without those that are being renewed at the moment.
    due: BTreeSet<(Instant, u64)>,
    /// When the task looks next, if it is not called.
    next_look: Instant,
}

struct Lease {
    renewal: Renewal,
    /// The last renewal that was sent; over or not.
    sent: Option<AbortHandle>,
    due: Instant,
    held_until: Instant,
    lost: Arc<AtomicBool>,
    on_loss: Option<OnLoss>,
}

#[derive(Clone)]
struct Renewal {
    key: Arc<str>,
    claim: Claim,
    length: Duration,
}

impl Leases {
    pub fn new(store: Store) -> Self {
        let shared = Shared { store: Arc::new(store), table: Mutex::default(), sooner: Arc::default() };
        Self { shared: Arc::new(shared), is_kept: AtomicBool::new(false) }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// What a task has to run, given to the first who asks: it renews what is due, for as long as there is a
    /// lease or this.
    pub fn renewing(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        if self.is_kept.load(Ordering::Relaxed) || self.is_kept.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(keep(Arc::downgrade(&self.shared), Arc::clone(&self.shared.sooner)))
    }

    /// Keeps a lease that was acquired just now.
    pub fn hold(&self, key: &str, claim: Claim, length: Duration, on_loss: Option<OnLoss>) -> Held {
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = Renewal { key: key.into(), claim, length };
        let (id, is_sooner) = self.shared.table.lock().add(renewal, Arc::clone(&lost), on_loss, clock::now());
        self.shared.call(is_sooner);
        Held { shared: Arc::clone(&self.shared), id, lost }
    }
}

impl Held {
    /// Whether the lease is another's, or can no longer be vouched for.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub fn let_go(&self) {
        let let_go = self.shared.table.lock().remove(self.id);
        // It would give a lease to a record that is done with.
        if let Some(sent) = let_go.and_then(|lease| lease.sent) {
            sent.abort();
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("store", &self.shared.store).finish_non_exhaustive()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Shared {
    fn call(&self, is_sooner: bool) {
        if is_sooner {
            self.sooner.notify_one();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sooner.notify_one();
    }
}

async fn keep(shared: Weak<Shared>, sooner: Arc<Notify>) {
    loop {
        let next_look = {
            let Some(shared) = shared.upgrade() else { return };
            let (due, next_look) = shared.table.lock().take_due(clock::now());
            for (id, renewal) in due {
                let sent = tokio::spawn(renew(Arc::clone(&shared), id, renewal)).abort_handle();
                shared.table.lock().sent(id, sent);
            }
            next_look
        };
        clock::until(next_look, sooner.notified()).await;
    }
}

async fn renew(shared: Arc<Shared>, id: u64, renewal: Renewal) {
    let Renewal { key, claim, length } = renewal;
    let asked = clock::now();
    let heartbeat = Operation::Heartbeat { claim, lease: length, note: None };
    let answer = shared.store.apply(&key, &heartbeat, length / 3).await;
    let (lost, is_sooner) = shared.table.lock().renewed(id, &answer, asked, clock::now());
    shared.call(is_sooner);
    if let Some(on_loss) = lost.and_then(|lease| lease.on_loss) {
        on_loss();
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { count: 0, leases: HashMap::new(), due: BTreeSet::new(), next_look: Instant::FAR_FUTURE }
    }
}

impl Table {
    /// The number of a new lease, and whether it is due before the next look.
    fn add(
        &mut self,
        renewal: Renewal,
        lost: Arc<AtomicBool>,
        on_loss: Option<OnLoss>,
        now: Instant,
    ) -> (u64, bool) {
        self.count += 1;
        let (id, due, held_until) = (self.count, now + renewal.length / 3, now + renewal.length);
        self.leases.insert(id, Lease { renewal, sent: None, due, held_until, lost, on_loss });
        (id, self.put(due, id))
    }

    fn sent(&mut self, id: u64, sent: AbortHandle) {
        match self.leases.get_mut(&id) {
            Some(lease) => lease.sent = Some(sent),
            None => sent.abort(),
        }
    }

    fn remove(&mut self, id: u64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.due.remove(&(lease.due, id));
        Some(lease)
    }

    /// What is to be renewed now, and when to look again.
    fn take_due(&mut self, now: Instant) -> (Vec<(u64, Renewal)>, Instant) {
        let mut taken = Vec::new();
        // A look that was promised stays so, though its lease may be gone: else the next lease would have to call.
        if self.next_look <= now {
            self.next_look = Instant::FAR_FUTURE;
        }
        while let Some((due, id)) = self.due.pop_first() {
            if due > now {
                self.put(due, id);
                break;
            }
            if let Some(lease) = self.leases.get(&id) {
                taken.push((id, lease.renewal.clone()));
            }
        }
        (taken, self.next_look)
    }

    /// Takes the store's answer to a renewal. Returns the lease if it is lost, and whether the next renewal is
    /// due before the next look. A store that does not answer takes a lease only when it has run out.
    fn renewed(
        &mut self,
        id: u64,
        answer: &Result<Answer, StoreError>,
        asked: Instant,
        now: Instant,
    ) -> (Option<Lease>, bool) {
        let Some(lease) = self.leases.get_mut(&id) else { return (None, false) };
        match answer {
            Ok(Answer::Held) => lease.held_until = asked + lease.renewal.length,
            Err(_) if now < lease.held_until => {}
            Ok(_) | Err(_) => {
                lease.lost.store(true, Ordering::Release);
                return (self.leases.remove(&id), false);
            }
        }
        lease.due = (now + lease.renewal.length / 3).min(lease.held_until);
        let due = lease.due;
        (None, self.put(due, id))
    }

    fn put(&mut self, due: Instant, id: u64) -> bool {
        self.due.insert((due, id));
        let is_sooner = due < self.next_look;
        self.next_look = self.next_look.min(due);
        is_sooner
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::idempotency::{Begin, Effect, Failure, Fingerprint, Memory, Owner, Time};

    const LENGTH: Duration = Duration::from_millis(30);

    fn claim() -> Claim {
        Claim { owner: Owner::from_bytes([7; 16]), fence: 1 }
    }

    fn renewal(length: Duration) -> Renewal {
        Renewal { key: "key".into(), claim: claim(), length }
    }

    #[derive(Debug, Clone)]
    enum Move {
        Add(u64),
        LetGo(usize),
        Pass(u64),
        Answer { kept: Option<bool> },
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            (3..100_u64).prop_map(Move::Add),
            (0..8_usize).prop_map(Move::LetGo),
            (0..60_u64).prop_map(Move::Pass),
            proptest::option::of(any::<bool>()).prop_map(|kept| Move::Answer { kept }),
        ];
        proptest::collection::vec(one, 1..80)
    }

    /// A lease as the model has it: `due` is `None` while it is being renewed.
    #[derive(Debug, Clone, Copy)]
    struct Plain {
        id: u64,
        length: Duration,
        due: Option<Instant>,
        held_until: Instant,
    }

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn what_is_due_is_what_a_search_finds(moves in moves()) {
            let (mut table, mut model) = (Table::default(), Vec::<Plain>::new());
            let (mut now, mut asked) = (Instant::from_nanos(1), Vec::<(u64, Instant)>::new());
            for step in moves {
                match step {
                    Move::Add(length) => {
                        let length = Duration::from_nanos(length);
                        let expected = table.next_look > now + length / 3;
                        let (id, is_sooner) = table.add(renewal(length), Arc::default(), None, now);
                        prop_assert_eq!(is_sooner, expected);
                        model.push(Plain { id, length, due: Some(now + length / 3), held_until: now + length });
                    }
                    Move::LetGo(place) if place < model.len() => {
                        let id = model.remove(place).id;
                        prop_assert!(table.remove(id).is_some());
                        prop_assert!(table.remove(id).is_none());
                    }
                    Move::LetGo(_) => {}
                    Move::Pass(nanos) => {
                        now = now + Duration::from_nanos(nanos);
                        let mut due: Vec<u64> = table.take_due(now).0.into_iter().map(|(id, _)| id).collect();
                        due.sort_unstable();
                        let is_due = |plain: &&mut Plain| plain.due.is_some_and(|due| due <= now);
                        let mut expected = Vec::new();
                        for plain in model.iter_mut().filter(is_due) {
                            plain.due = None;
                            expected.push(plain.id);
                        }
                        prop_assert_eq!(&due, &expected);
                        asked.extend(due.into_iter().map(|id| (id, now)));
                        let next = model.iter().filter_map(|plain| plain.due).min();
                        prop_assert!(table.next_look > now);
                        prop_assert!(table.next_look <= next.unwrap_or(Instant::FAR_FUTURE));
                    }
                    Move::Answer { kept } => {
                        let Some((id, when)) = asked.pop() else { continue };
                        let answer = match kept {
                            Some(true) => Ok(Answer::Held),
                            Some(false) => Ok(Answer::Stale),
                            None => Err(StoreError { store: "redis", problem: "is away".into() }),
                        };
                        let (lost, _) = table.renewed(id, &answer, when, now);
                        let Some(place) = model.iter().position(|plain| plain.id == id) else {
                            prop_assert!(lost.is_none(), "it was let go");
                            continue;
                        };
                        let plain = &mut model[place];
                        if kept == Some(true) {
                            plain.held_until = when + plain.length;
                        }
                        let is_kept = kept == Some(true) || (kept.is_none() && now < plain.held_until);
                        prop_assert_eq!(lost.is_none(), is_kept);
                        if is_kept {
                            plain.due = Some((now + plain.length / 3).min(plain.held_until));
                        } else {
                            prop_assert!(lost.unwrap().lost.load(Ordering::Acquire));
                            model.remove(place);
                        }
                    }
                }
            }
        }
    }

    fn leases() -> (Leases, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(1_000));
        let store = Memory::new(Time::Manual(Arc::clone(&time)));
        (Leases::new(Store::Memory(Box::new(store))), time)
    }

    async fn begin(store: &Arc<Store>) {
        let begin = Operation::Begin(Begin {
            fingerprint: Fingerprint([1; 32]),
            owner: claim().owner,
            effect: Effect::AtMostOnce,
            tool: "t".into(),
            lease: LENGTH,
            retention: Duration::from_secs(900),
            start: true,
        });
        let answer = store.apply("key", &begin, LENGTH).await;
        assert!(matches!(answer, Ok(Answer::Acquired { fence: 1, .. })), "{answer:?}");
    }

    async fn leased_until(store: &Arc<Store>) -> u64 {
        store.get("key").await.unwrap().unwrap().lease_until
    }

    #[test]
    fn leases_that_end_before_they_are_due_call_the_task_once() {
        let mut table = Table::default();
        let mut calls = 0;
        for now in (0..1_000).map(Instant::from_nanos) {
            let (id, is_sooner) = table.add(renewal(Duration::from_secs(30)), Arc::default(), None, now);
            calls += u32::from(is_sooner);
            table.remove(id);
            if is_sooner {
                table.take_due(now);
            }
        }
        assert_eq!(calls, 1);
    }

    #[tokio::test]
    async fn a_lease_is_renewed_until_it_is_let_go() {
        let (leases, time) = leases();
        let store = Arc::clone(leases.store());
        begin(&store).await;
        let task = tokio::spawn(leases.renewing().unwrap());
        assert!(leases.renewing().is_none());
        let held = leases.hold("key", claim(), LENGTH, None);
        for _ in 0..3 {
            let now = time.fetch_add(10, Ordering::SeqCst) + 10;
            while leased_until(&store).await < now + 30 {
                tokio::task::yield_now().await;
            }
        }
        assert!(!held.is_lost());
        held.let_go();
        let due = leases.shared.table.lock().due.len();
        assert_eq!(due, 0);
        drop((held, leases));
        task.await.unwrap();
    }

    #[tokio::test]
    async fn the_loss_of_a_lease_is_told_once() {
        let (leases, _) = leases();
        let store = Arc::clone(leases.store());
        begin(&store).await;
        let _task = tokio::spawn(leases.renewing().unwrap());
        let (told, loss) = tokio::sync::oneshot::channel();
        let held = leases.hold("key", claim(), LENGTH, Some(Box::new(move || told.send(()).unwrap())));
        let fail = Operation::Fail { claim: claim(), failure: Failure::NoEffect };
        assert_eq!(store.apply("key", &fail, LENGTH).await, Ok(Answer::Held));
        loss.await.unwrap();
        assert!(held.is_lost());
    }

    #[tokio::test]
    async fn a_renewal_under_way_ends_with_its_hold() {
        let (leases, _) = leases();
        let held = leases.hold("key", claim(), LENGTH, None);
        let sent = || tokio::spawn(std::future::pending::<()>());
        let (before, after) = (sent(), sent());
        leases.shared.table.lock().sent(held.id, before.abort_handle());
        held.let_go();
        leases.shared.table.lock().sent(held.id, after.abort_handle());
        assert!(before.await.unwrap_err().is_cancelled());
        assert!(after.await.unwrap_err().is_cancelled());
    }
}
