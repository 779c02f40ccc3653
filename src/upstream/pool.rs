//! One client per address, connected when first needed, kept alive, replaced when it ends.

use super::UpstreamError;
use super::client::Client;

/// Clients by address; clones share them.
#[derive(Debug, Clone)]
pub struct Pool {}

impl Pool {
    /// A client for `address`, connecting if there is none. Callers that arrive while a connect is
    /// under way share its outcome.
    pub async fn client(&self, address: &str) -> Result<Client, UpstreamError> {
        let _ = address;
        todo!()
    }
}
