//! Connections to the real brokers and name servers, under the proxy's own name: no heartbeats, no
//! user's group, ever.

pub mod client;
pub mod cluster;
pub mod nameservers;
pub mod opaque;
pub mod pool;

use std::time::Duration;

/// Why a request got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UpstreamError {
    /// No connection could be made.
    #[error("cannot connect to {address}: {why}")]
    Connect {
        /// Who was asked.
        address: String,
        /// The system's words.
        why: String,
    },
    /// The connection ended before the answer.
    #[error("connection to {address} closed: {why}")]
    Closed {
        /// Who was asked.
        address: String,
        /// End of stream, a reset, or what could not be read.
        why: String,
    },
    /// No answer in time.
    #[error("no answer from {address} within {after:?}")]
    Timeout {
        /// Who was asked.
        address: String,
        /// How long we waited.
        after: Duration,
    },
}
