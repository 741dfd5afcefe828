//! The controller against a list that recomputes everything.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::admission::{Admission, Charge, Entry, Refusal, Resolved, Settlement, Ticket};
use tidegate::clock::Instant;
use tidegate::config::Limits;

/// Millionths of a token times nanoseconds of a minute: no division, no rounding.
const TOKEN: i128 = 1_000_000 * 60_000_000_000;

#[derive(Clone, Debug)]
struct NaiveBucket {
    /// Millionths of a token per minute.
    rate: i128,
    capacity: i128,
    level: i128,
}

impl NaiveBucket {
    fn new(limit: u64, burst_seconds: u64) -> Self {
        let capacity = i128::from((limit * burst_seconds).div_ceil(60).max(1)) * TOKEN;
        Self { rate: i128::from(limit) * 900_000, capacity, level: capacity }
    }

    fn wait_for(&self, needed: i128) -> i128 {
        let missing = (needed - self.level).max(0);
        (missing + self.rate - 1) / self.rate
    }
}

#[derive(Clone, Debug)]
struct Model {
    now: Instant,
    concurrency: usize,
    requests: NaiveBucket,
    tokens: NaiveBucket,
    blocked_until: Instant,
    waiting: Vec<(Ticket, u64, Instant)>,
    granted: Vec<(Ticket, u64)>,
}

impl Model {
    fn pass(&mut self, now: Instant) {
        let elapsed = i128::try_from(now.since(self.now).as_nanos()).unwrap();
        for bucket in [&mut self.requests, &mut self.tokens] {
            bucket.level = (bucket.level + elapsed * bucket.rate).min(bucket.capacity);
        }
        self.now = self.now.max(now);
    }

    fn eta(&self, ahead: &[(Ticket, u64, Instant)], cost: u64) -> Duration {
        let ahead_cost: i128 = ahead.iter().map(|&(_, cost, _)| i128::from(cost) * TOKEN).sum();
        let requests = self.requests.wait_for((ahead.len() as i128 + 1) * TOKEN);
        let tokens = self.tokens.wait_for(ahead_cost + (i128::from(cost) * TOKEN).min(self.tokens.capacity));
        let wait = Duration::from_nanos(u64::try_from(requests.max(tokens)).unwrap());
        wait.max(self.blocked_until.since(self.now))
    }

    fn may_enter(&self, cost: u64) -> bool {
        self.granted.len() < self.concurrency && self.eta(&[], cost).is_zero()
    }

    fn take(&mut self, ticket: Ticket, cost: u64) {
        self.requests.level -= TOKEN;
        self.tokens.level -= i128::from(cost) * TOKEN;
        self.granted.push((ticket, cost));
    }

    fn settle(&mut self, index: usize, settlement: Settlement) {
        let (_, cost) = self.granted.remove(index);
        let used = match settlement {
            Settlement::NeverSent => {
                self.requests.level = (self.requests.level + TOKEN).min(self.requests.capacity);
                0
            }
            Settlement::Failed { charge: Charge::Refund } => 0,
            Settlement::Failed { charge: Charge::Keep } => cost,
            Settlement::Used { tokens } | Settlement::Estimated { tokens } => tokens,
        };
        let correction = (i128::from(cost) - i128::from(used)) * TOKEN;
        self.tokens.level = (self.tokens.level + correction).min(self.tokens.capacity);
    }

    /// Who enters, in order, and who is refused.
    fn advance(&mut self) -> (Vec<Ticket>, Vec<Ticket>) {
        let (mut entered, mut refused) = (Vec::new(), Vec::new());
        loop {
            let passed = self.now.max(self.blocked_until);
            self.waiting.retain(|&(ticket, _, limit)| {
                if limit < passed {
                    refused.push(ticket);
                }
                limit >= passed
            });
            let Some(&(ticket, cost, limit)) = self.waiting.first() else { break };
            if self.may_enter(cost) {
                self.waiting.remove(0);
                self.take(ticket, cost);
                entered.push(ticket);
            } else if self.now + self.eta(&[], cost) > limit {
                self.waiting.remove(0);
                refused.push(ticket);
            } else {
                break;
            }
        }
        refused.sort_by_key(|ticket| format!("{ticket:?}"));
        (entered, refused)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Back(u64),
    ToTimer,
    Enqueue { cost: u64, patience: Option<u64> },
    Cancel(prop::sample::Index),
    Settle(prop::sample::Index, u8, u64),
    CoolDown(u64),
    Concurrency(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let second = 1_000_000_000_u64;
    prop_oneof![
        2 => (0..3 * second).prop_map(Step::Pass),
        1 => (0..3600 * second).prop_map(Step::Back),
        4 => Just(Step::ToTimer),
        8 => (0..400_u64, prop::option::of(0..20 * second))
            .prop_map(|(cost, patience)| Step::Enqueue { cost, patience }),
        3 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        6 => (any::<prop::sample::Index>(), 0..4_u8, 0..500_u64).prop_map(|(i, how, tokens)| Step::Settle(i, how, tokens)),
        1 => (0..3 * second).prop_map(Step::CoolDown),
        1 => (1..6_u32).prop_map(Step::Concurrency),
    ]
}

fn outcome(resolved: &[Resolved]) -> (Vec<Ticket>, Vec<Ticket>) {
    let entered = resolved.iter().filter(|one| one.outcome.is_ok()).map(|one| one.ticket).collect();
    let mut refused: Vec<Ticket> =
        resolved.iter().filter(|one| one.outcome.is_err()).map(|one| one.ticket).collect();
    refused.sort_by_key(|ticket| format!("{ticket:?}"));
    (entered, refused)
}

fn check_timer(admission: &Admission, model: &Model) {
    let quiet = |until: Instant| {
        let mut later = model.clone();
        later.pass(until);
        later.advance() == (vec![], vec![])
    };
    match admission.next_wake(model.now) {
        None => assert!(quiet(model.now + Duration::from_secs(3600)) || model.waiting.is_empty()),
        Some(wake) => {
            assert!(wake.since(model.now) >= Duration::from_micros(1));
            assert!(!quiet(wake), "woken for nothing at {wake:?}");
            if wake.since(model.now) > Duration::from_micros(1) {
                assert!(quiet(Instant::from_nanos(wake.as_nanos() - 1)), "woken too late");
            }
        }
    }
}

fn run(steps: Vec<Step>) {
    let mut limits =
        Limits { concurrency: Some(3), rpm: Some(120), tpm: Some(2_000), learn: false, ..Limits::default() };
    let start = Instant::from_nanos(1 << 50);
    let mut admission = Admission::new(&limits, start);
    let mut model = Model {
        now: start,
        concurrency: 3,
        requests: NaiveBucket::new(120, 1),
        tokens: NaiveBucket::new(2_000, 6),
        blocked_until: Instant::ZERO,
        waiting: Vec::new(),
        granted: Vec::new(),
    };
    for step in steps {
        let mut now = model.now;
        match step {
            Step::Pass(nanos) => now = now + Duration::from_nanos(nanos),
            Step::Back(nanos) => now = Instant::from_nanos(now.as_nanos() - nanos),
            Step::ToTimer => now = admission.next_wake(now).unwrap_or(now),
            Step::Enqueue { cost, patience } => {
                let limit = patience.map_or(Instant::FAR_FUTURE, |nanos| now + Duration::from_nanos(nanos));
                let eta = model.eta(&model.waiting, cost);
                match admission.enqueue(now, cost, limit) {
                    Ok(Entry::Granted(ticket)) => {
                        assert!(model.waiting.is_empty() && model.may_enter(cost));
                        model.take(ticket, cost);
                    }
                    Ok(Entry::Queued(ticket)) => {
                        assert!(!(model.waiting.is_empty() && model.may_enter(cost)));
                        assert!(now + eta <= limit);
                        model.waiting.push((ticket, cost, limit));
                    }
                    Err(refusal) => {
                        assert_eq!(refusal, Refusal::Deadline { eta });
                        assert!(now + eta > limit);
                    }
                }
            }
            Step::Cancel(index) => {
                let all: Vec<Ticket> =
                    model.waiting.iter().map(|w| w.0).chain(model.granted.iter().map(|g| g.0)).collect();
                if !all.is_empty() {
                    let ticket = all[index.index(all.len())];
                    admission.cancel(now, ticket);
                    model.waiting.retain(|waiter| waiter.0 != ticket);
                    if let Some(i) = model.granted.iter().position(|grant| grant.0 == ticket) {
                        model.settle(i, Settlement::NeverSent);
                    }
                }
            }
            Step::Settle(index, how, tokens) => {
                if !model.granted.is_empty() {
                    let i = index.index(model.granted.len());
                    let settlement = match how {
                        0 => Settlement::NeverSent,
                        1 => Settlement::Failed { charge: Charge::Keep },
                        2 => Settlement::Failed { charge: Charge::Refund },
                        _ => Settlement::Estimated { tokens },
                    };
                    admission.settle(now, model.granted[i].0, settlement);
                    model.settle(i, settlement);
                }
            }
            Step::CoolDown(nanos) => {
                let until = now + Duration::from_nanos(nanos);
                admission.cool_down(now, until);
                model.blocked_until = model.blocked_until.max(until);
            }
            Step::Concurrency(concurrency) => {
                limits.concurrency = Some(concurrency);
                admission.set_limits(now, &limits);
                model.concurrency = concurrency as usize;
            }
        }
        model.pass(now);
        let mut resolved = Vec::new();
        admission.advance(now, &mut resolved);
        assert_eq!(outcome(&resolved), model.advance());
        let snapshot = admission.snapshot(model.now);
        assert_eq!((snapshot.in_flight, snapshot.queued), (model.granted.len(), model.waiting.len()));
        check_timer(&admission, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_list_does(steps in prop::collection::vec(step(), 1..120)) {
        run(steps);
    }
}
