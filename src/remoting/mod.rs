//! The wire: bytes to values and back. Pure functions over byte slices; no I/O, no clock.
//!
//! ```text
//! u32 length │ u8 type │ u24 header length │ header (JSON or binary) │ body
//!            └──────────────── length bytes ─────────────────────────────┘
//! ```
//!
//! A [`frame::Frame`] is one complete frame as received; a [`command::Command`] is what it means.
//! What is relayed stays a frame and leaves byte for byte as it came. Integers are big-endian.

pub mod batch;
pub mod code;
pub mod command;
pub mod frame;
pub mod header;
pub mod json;
#[cfg(test)]
mod laws;
pub mod properties;
pub mod route;
pub mod scan;
pub mod send;
pub mod stored;
