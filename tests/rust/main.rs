//! Integration tests: one binary, one module per part.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that meets the unexpected must fail; clippy exempts only the functions marked as tests"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "models draw small numbers as fractions; casts of floats saturate"
)]
#![allow(clippy::float_cmp, reason = "figures that are told or learned must come back to the bit")]

mod admission_announced;
mod admission_cases;
mod admission_learning;
mod admission_model;
mod admission_queue;
mod admission_rate;
mod admission_sim;
mod admission_usage;
mod backoff;
mod breaker;
mod breaker_cases;
mod breaker_model;
mod breaker_timing;
mod call;
mod call_abandoned;
mod call_function;
mod call_gates;
mod call_limits;
mod call_streamed;
mod doctor;
mod idempotency;
mod metrics;
mod mock_answers;
mod mock_client;
mod mock_faults;
mod mock_ledger;
mod mock_quota;
mod operators;
mod retry_budget;
mod simulation;
mod spend;
mod sse;
mod vectors;
