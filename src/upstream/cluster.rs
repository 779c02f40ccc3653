//! Which address each broker has now, learnt from the name servers (code 106 every 5 s); the last
//! answer survives a restart.

use std::collections::BTreeMap;

use crate::remoting::route::BrokerId;

/// The brokers' real addresses; clones share the table.
#[derive(Debug, Clone)]
pub struct Cluster {}

impl Cluster {
    /// Address of the master with this broker name.
    pub fn master(&self, broker_name: &str) -> Option<String> {
        let _ = broker_name;
        todo!()
    }

    /// The whole table, changed as the cluster changes.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<BTreeMap<BrokerId, String>> {
        todo!()
    }

    /// Adds what a route answer told us, ahead of the next 106.
    pub fn learn(&self, brokers: &BTreeMap<BrokerId, String>) {
        let _ = brokers;
        todo!()
    }
}
