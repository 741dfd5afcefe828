//! tidegate: guarded calls to OpenAI-compatible APIs.
//!
//! The modules stand in order of level; a module uses only those above it.

// level 0: vocabulary
pub mod clock;
pub mod config;
pub mod error;
pub mod lock;
pub mod money;

// level 1: pure mechanisms
pub mod admission;
pub mod backoff;
pub mod breaker;
pub mod classify;
pub mod event;
pub mod idempotency;
mod json;
pub mod last_good;
pub mod log_file;
pub mod metrics;
pub mod price;
pub mod request;
pub mod retry_budget;
pub mod spend;
pub mod sse;
pub mod stream;
mod timestamp;
pub mod usage;

// level 2: what calls share
pub mod account;
pub mod scope;

// level 3: the order of the gates, and the network
pub mod call;
pub mod transport;

// level 4: calls with sockets and timers
pub mod drive;

// level 5: the gate
pub mod engine;
pub mod snapshot;

// the fault server
pub mod mock;

// reads what gates wrote
pub mod doctor;

// level 6: Python
#[cfg(feature = "python")]
mod python;
