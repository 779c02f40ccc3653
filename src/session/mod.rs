//! One accepted client connection and its twin to the real broker.
//!
//! ```text
//! client ──► inbound ──┬──────────── relay ────────────► broker
//!                      └─► intercept ─► store
//! client ◄── outbound ◄─── answers of held sends, between two frames ─── broker's bytes
//! ```

pub mod inbound;
pub mod listener;
pub mod outbound;
pub mod twin;
