//! The integration tests, as one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod decide;
mod dispatch;
mod fixtures;
mod namesrv;
mod peer;
mod session;
mod tidy;
mod upstream;
mod whole;
