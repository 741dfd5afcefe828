//! Tools that run once: what a store remembers of an execution, and how it changes.
//!
//! A record has two clocks: a short lease, which its owner renews while it works, and a long retention, for which
//! the outcome is kept. They differ because a process may die at any point: its lease ends soon, so that others
//! can go on, but what it had started must not be forgotten, or a retry would do it again.
//!
//! ```text
//! absent ──begin──▶ claimed ──start──▶ started ──complete──▶ done ──retention──▶ absent
//!                      │                  │
//!                 lease ends         lease ends, or the effect is unknown:
//!                      │                  ├─ read, idempotent, transactional: may be taken over
//!                may be taken over        └─ at most once: in doubt ──resolve──▶ done, or absent
//! ```
//!
//! [`apply`] is all of it, without I/O; `now` comes from the store. Each store applies it in one atomic step:
//! under a lock, in a transaction, or on the server. One suite of tests holds the three equal.

mod fingerprint;
pub mod key;
mod leases;
mod memory;
mod protocol;
mod record;
mod redis;
mod sqlite;
mod store;

pub use self::fingerprint::{Fingerprint, digest, fingerprint, sha256};
pub use self::leases::{Held, Leases, OnLoss};
pub use self::memory::Memory;
pub use self::protocol::{Answer, Begin, Failure, Operation, Resolution, apply};
pub use self::record::{Claim, Effect, NEVER, Outcome, Owner, Record, State};
pub use self::redis::Redis;
pub use self::sqlite::{Sqlite, Unfinished};
pub use self::store::{Store, StoreError, Time};
