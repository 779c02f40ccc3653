//! The binary as a process that dies, is stopped, and starts where it should not: under load, with
//! a ledger of what was promised, and canaries that show that the ledger sees a broken promise.
//!
//! `ROCKETMQ_TIMER_PROXY_TEST_KILLS` makes the storm longer (a soak takes 200), and
//! `ROCKETMQ_TIMER_PROXY_TEST_SEED` repeats the messages and the pauses of a run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

mod canary;
mod guard_rails;
mod ledger;
mod load;
mod plan;
mod rig;
mod stop;
mod storm;
mod upstream;
