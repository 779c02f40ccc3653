//! Due records leave: lane by lane, pipelined, retried until a broker has stored them.
//!
//! ```text
//! store ─ due ─► dispatcher ─ lanes ─ jobs ─► courier (one per broker) ─► broker
//!                    ▲                           │ reads bodies, checks the clock, sends
//! store ◄─ complete ─┴──────── reports ──────────┘
//! ```
//!
//! The dispatcher owns every lane and never waits for a disk or a network; a courier waits for
//! those of its own broker alone. Fed by the store's wheel; never decides what is due.

mod alone;
pub mod answer;
mod attempt;
mod bodies;
mod broker;
mod controls;
mod courier;
pub mod dispatcher;
pub mod forward;
pub mod lane;
pub mod source;
mod suspects;
