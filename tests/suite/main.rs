//! The integration tests, as one binary.

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod decide;
mod dispatch;
mod peer;
mod session;
mod tidy;
mod upstream;
