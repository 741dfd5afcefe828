//! Spend caps that hold under concurrency.
//!
//! Comparing what was spent with the cap before each call lets as many calls through as are in flight. Here a
//! call first reserves the most that it can cost, and settles what it did cost. A call counts in the window in
//! which it was admitted, however late it ends: what the calls admitted in a window cost together stays within
//! the cap, as long as none costs more than it reserved.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::Mutex;

use crate::clock::Instant;
use crate::config::{OnUnpriced, SpendCap, SpendWindow};
use crate::money::Pico;

const DAY: Duration = Duration::from_secs(86_400);

/// The call would go over a cap, or nobody can tell whether it would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// The first cap in the way.
    pub cap: Arc<SpendCap>,
    pub spent: Pico,
    /// Held by calls in flight.
    pub reserved: Pico,
    /// `None`: the model has no price.
    pub asked: Option<Pico>,
    /// When the window ends; `None` if it never does.
    pub resets_in: Option<Duration>,
}

/// One cap and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub cap: Arc<SpendCap>,
    pub spent: Pico,
    pub reserved: Pico,
    /// Calls without a price that were let through in this window.
    pub unpriced: u64,
    pub resets_in: Option<Duration>,
}

/// A point of time on both clocks: windows of so many seconds must not follow a step of the wall clock, days
/// must.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now: Instant,
    pub wall: SystemTime,
}

#[derive(Debug)]
struct Account {
    cap: Arc<SpendCap>,
    /// Number of the window that the sums below belong to; only grows.
    window: u64,
    spent: Pico,
    reserved: Pico,
    unpriced: u64,
}

/// What all calls of a gate have spent, under all its caps.
#[derive(Debug)]
pub struct SpendLedger {
    started: Instant,
    accounts: Mutex<Vec<Account>>,
}

#[derive(Debug)]
struct Hold {
    account: usize,
    window: u64,
}

/// Money set aside for one attempt. Dropped before [`mark_sent`](Self::mark_sent) it is free again; dropped
/// after, all of it counts as spent, for the provider may bill what nobody waited for.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    ledger: Arc<SpendLedger>,
    holds: Vec<Hold>,
    amount: Pico,
    sent: bool,
}

impl SpendLedger {
    /// Windows of so many seconds are counted from `now`.
    pub fn new(caps: Vec<SpendCap>, now: Instant) -> Arc<Self> {
        let account = |cap| Account {
            cap: Arc::new(cap),
            window: 0,
            spent: Pico::ZERO,
            reserved: Pico::ZERO,
            unpriced: 0,
        };
        Arc::new(Self { started: now, accounts: Mutex::new(caps.into_iter().map(account).collect()) })
    }

    /// Reserves `max_cost` under every cap that applies to a call with these `tags` (key, value), or under
    /// none.
    pub fn reserve(
        self: &Arc<Self>,
        at: Moment,
        tags: &[(&str, &str)],
        max_cost: Option<Pico>,
    ) -> Result<Reservation, Exceeded> {
        let amount = max_cost.unwrap_or_default();
        let mut accounts = self.accounts.lock();
        let mut holds = Vec::new();
        for (index, account) in accounts.iter_mut().enumerate() {
            account.roll(self.started, at);
            if !account.applies(tags) {
                continue;
            }
            if !account.has_room(max_cost, account.reserved) {
                return Err(account.exceeded(self.started, at, max_cost));
            }
            holds.push(Hold { account: index, window: account.window });
        }
        for hold in &holds {
            let Some(account) = accounts.get_mut(hold.account) else { continue };
            account.reserved = account.reserved.saturating_add(amount);
            account.unpriced = account.unpriced.saturating_add(u64::from(max_cost.is_none()));
        }
        Ok(Reservation { ledger: Arc::clone(self), holds, amount, sent: false })
    }

    /// Whether what was spent already leaves no room for `max_cost`, whatever calls in flight will give back.
    pub fn check(&self, at: Moment, tags: &[(&str, &str)], max_cost: Option<Pico>) -> Result<(), Exceeded> {
        for account in self.accounts.lock().iter_mut() {
            account.roll(self.started, at);
            if account.applies(tags) && !account.has_room(max_cost, Pico::ZERO) {
                return Err(account.exceeded(self.started, at, max_cost));
            }
        }
        Ok(())
    }

    pub fn snapshot(&self, at: Moment) -> Vec<Standing> {
        let mut accounts = self.accounts.lock();
        accounts
            .iter_mut()
            .map(|account| {
                account.roll(self.started, at);
                account.standing(self.started, at)
            })
            .collect()
    }

    fn release(&self, holds: &[Hold], amount: Pico, spent: Pico) {
        if holds.is_empty() {
            return;
        }
        let mut accounts = self.accounts.lock();
        for hold in holds {
            let Some(account) = accounts.get_mut(hold.account) else { continue };
            if account.window == hold.window {
                account.reserved = account.reserved.saturating_sub(amount);
                account.spent = account.spent.saturating_add(spent);
            }
        }
    }
}

impl Reservation {
    /// The most that the attempt can cost; zero where it has no price.
    pub const fn amount(&self) -> Pico {
        self.amount
    }

    /// From here on the provider may bill the attempt.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Books what the attempt did cost; with `None`, where nobody knows, all that was reserved.
    pub fn settle(mut self, real: Option<Pico>) {
        self.book(real.unwrap_or(self.amount));
    }

    fn book(&mut self, spent: Pico) {
        self.ledger.release(&std::mem::take(&mut self.holds), self.amount, spent);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.book(if self.sent { self.amount } else { Pico::ZERO });
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cap = &self.cap;
        write!(f, "the spend cap of ${} {}", cap.limit, cap.window)?;
        if let Some(tag) = &cap.tag {
            write!(f, " for {tag}")?;
        }
        let Some(asked) = self.asked else {
            return f.write_str(
                " needs prices, and the model has none: add it to the gate's prices, or set \
                 SpendCap(on_unpriced=\"allow\") to let such calls through uncounted",
            );
        };
        write!(
            f,
            " has no room: ${} is spent, ${} is reserved by calls in flight, and this call may cost ${}; ",
            self.spent, self.reserved, asked
        )?;
        f.write_str(match self.resets_in {
            Some(_) => "raise the cap, lower the call's output limit, or wait for the next window",
            None => "raise the cap, or lower the call's output limit",
        })
    }
}

impl fmt::Display for SpendWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total => f.write_str("in total"),
            Self::Day => f.write_str("a day"),
            Self::Every(window) => write!(f, "every {} s", window.as_secs_f64()),
        }
    }
}

impl Account {
    fn applies(&self, tags: &[(&str, &str)]) -> bool {
        let Some(tag) = &self.cap.tag else { return true };
        tags.iter().any(|(key, value)| {
            tag.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).is_some_and(|rest| rest == *value)
        })
    }

    fn has_room(&self, max_cost: Option<Pico>, reserved: Pico) -> bool {
        match max_cost {
            Some(amount) => self.spent.saturating_add(reserved).saturating_add(amount) <= self.cap.limit,
            None => self.cap.on_unpriced == OnUnpriced::Allow,
        }
    }

    fn roll(&mut self, started: Instant, at: Moment) {
        let window = self.cap.window.number(started, at);
        if window > self.window {
            (self.window, self.spent, self.reserved, self.unpriced) = (window, Pico::ZERO, Pico::ZERO, 0);
        }
    }

    fn standing(&self, started: Instant, at: Moment) -> Standing {
        Standing {
            cap: Arc::clone(&self.cap),
            spent: self.spent,
            reserved: self.reserved,
            unpriced: self.unpriced,
            resets_in: self.cap.window.resets_in(started, at, self.window),
        }
    }

    fn exceeded(&self, started: Instant, at: Moment, asked: Option<Pico>) -> Exceeded {
        let Standing { cap, spent, reserved, resets_in, .. } = self.standing(started, at);
        Exceeded { cap, spent, reserved, asked, resets_in }
    }
}

impl SpendWindow {
    /// Length, and how far into its windows this clock is; `None` for the one window without an end.
    fn position(self, started: Instant, at: Moment) -> Option<(u128, u128)> {
        match self {
            Self::Total => None,
            Self::Every(length) => Some((length.as_nanos().max(1), at.now.since(started).as_nanos())),
            Self::Day => {
                Some((DAY.as_nanos(), at.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()))
            }
        }
    }

    fn number(self, started: Instant, at: Moment) -> u64 {
        let number = self.position(started, at).map_or(0, |(length, position)| position / length);
        u64::try_from(number).unwrap_or(u64::MAX)
    }

    fn resets_in(self, started: Instant, at: Moment, window: u64) -> Option<Duration> {
        let (length, position) = self.position(started, at)?;
        let end = length.saturating_mul(u128::from(window).saturating_add(1));
        let nanos = u64::try_from(end.saturating_sub(position)).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(nanos))
    }
}
