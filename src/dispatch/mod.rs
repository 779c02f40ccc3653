//! Due records leave: lane by lane, pipelined, retried until a broker has stored them.
//!
//! Fed by the store's wheel; never decides what is due.

pub mod answer;
pub mod dispatcher;
pub mod forward;
pub mod lane;
