//! The integration tests, as one binary.

#[path = "../support/mod.rs"]
mod support;

mod dispatch;
mod peer;
mod upstream;
