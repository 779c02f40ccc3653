//! One multiplexed connection: our own opaques, a pending table, one writer, one reader.

use std::time::Duration;

use super::UpstreamError;
use crate::remoting::command::Command;

/// An open connection; clones share it. Dropping the last handle closes it.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// Connects, at most `within`; TCP_NODELAY on.
    pub async fn connect(address: &str, within: Duration) -> Result<Self, UpstreamError> {
        let _ = (address, within);
        todo!()
    }

    /// Sends a request under an opaque of ours and waits for its answer. When this returns, the
    /// pending entry is gone; a later answer is dropped and counted. A connection on which nothing
    /// at all was received for `within` while an answer was due is closed, so that half-dead peers
    /// are found.
    pub async fn request(
        &self,
        request: Command,
        within: Duration,
    ) -> Result<Command, UpstreamError> {
        let _ = (request, within);
        todo!()
    }

    /// Whether the connection has not ended yet.
    pub fn is_open(&self) -> bool {
        todo!()
    }
}
