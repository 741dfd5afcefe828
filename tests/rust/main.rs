//! Integration tests, one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected must fail"
)]

mod breaker;
mod breaker_cases;
mod breaker_model;
mod breaker_timing;
mod retry_budget;
mod spend;
