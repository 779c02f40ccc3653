//! The integration tests, as one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what fails here fails the test, in functions outside of #[test] too"
)]

#[path = "../support/mod.rs"]
mod support;

mod namesrv;
mod peer;
mod upstream;
