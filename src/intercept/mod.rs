//! What to do with a send: relay, hold or refuse; and how a send becomes a held record.
//!
//! Pure except for handing the record to the store. Called by [`crate::session`] for frames that
//! may ask for a delay; never waits for the network.

pub mod decide;
pub mod delay;
pub mod hold;
mod number;
