//! tidegate: guarded calls to OpenAI-compatible APIs.
//!
//! The modules stand in order of level; a module uses only those above it.

// level 0: vocabulary
pub mod clock;
pub mod config;
pub mod error;

// level 1: pure mechanisms
pub mod classify;
pub mod event;

// level 3: the network
pub mod transport;
