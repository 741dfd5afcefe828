//! Integration tests: one binary, one module per part.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that meets the unexpected must fail; clippy exempts only the functions marked as tests"
)]

mod breaker;
mod breaker_cases;
mod breaker_model;
mod breaker_timing;
mod metrics;
mod mock_answers;
mod mock_client;
mod mock_faults;
mod mock_ledger;
mod mock_quota;
mod retry_budget;
mod spend;
mod sse;
mod vectors;
