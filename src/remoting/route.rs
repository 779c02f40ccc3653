//! Broker addresses in name-server answers: found and replaced, with every other byte kept.
//!
//! Covers the bodies of GET_ROUTEINFO_BY_TOPIC (105), GET_BROKER_CLUSTER_INFO (106) and
//! GET_SYSTEM_TOPIC_LIST_FROM_NS (304). Keys come quoted or not, by the request's version; since
//! only address strings are replaced, the answer keeps the form the client asked for.

use std::collections::BTreeMap;

/// Which broker a listener stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerId {
    /// Cluster name.
    pub cluster: String,
    /// Broker name: the identity of its queues.
    pub name: String,
    /// 0 is the master.
    pub id: i64,
}

/// An answer that does not have the shape its code promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unreadable route body: {0}")]
pub struct RouteError(pub String);

/// Every broker address in a 105 or 106 body.
pub fn broker_addresses(body: &[u8]) -> Result<BTreeMap<BrokerId, String>, RouteError> {
    let _ = body;
    todo!()
}

/// The body with every real address replaced by what `ours` says: the values of `brokerAddrs`
/// (105, 106), the keys of `filterServerTable` (105) and `brokerAddr` (304). Addresses that stand
/// for a broker are looked up by its id, the others by the address itself. An address that `ours`
/// does not know is an error: a real address is never handed out.
pub fn rewrite(body: &[u8], ours: &dyn Ours) -> Result<Vec<u8>, RouteError> {
    let _ = (body, ours);
    todo!()
}

/// Who stands for a real broker on our side.
pub trait Ours {
    /// `host:port` of the listener for this broker.
    fn by_id(&self, broker: &BrokerId) -> Option<String>;
    /// `host:port` of the listener for this real address.
    fn by_address(&self, address: &str) -> Option<String>;
}

/// One entry of `queueDatas`: what a topic looks like on one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueData {
    /// Broker name.
    pub broker: String,
    /// Queues for writing.
    pub write_queues: i32,
    /// Permission bits: 4 read, 2 write.
    pub perm: i32,
}

/// The queues of a topic, from a 105 body.
pub fn queues(body: &[u8]) -> Result<Vec<QueueData>, RouteError> {
    let _ = body;
    todo!()
}
