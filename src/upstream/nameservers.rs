//! The upstream name servers: one is used while it answers, the others stand by.

use super::UpstreamError;
use crate::remoting::command::Command;

/// Several name servers behind one `request`; clones share the choice.
#[derive(Debug, Clone)]
pub struct NameServers {}

impl NameServers {
    /// Asks the current name server, and the next ones when it does not answer.
    pub async fn request(&self, request: Command) -> Result<Command, UpstreamError> {
        let _ = request;
        todo!()
    }
}
