//! One accepted client connection and its twin to the real broker.
//!
//! ```text
//! client ──► inbound ──┬──────────── relay ────────────► broker
//!                      └─► intercept ─► store ─► outbox
//! client ◄── outbound ◄─┬─ answers of held sends, between two frames ─┘
//!                       └──────────── relay ──────────── broker
//! ```
//!
//! A session is one task. Both directions run in it side by side, so relayed bytes never cross a
//! channel and nothing is spawned per frame. It parses no more than it must: the eight bytes before
//! each frame of the client, the length word of each frame of the broker, and whole frames only
//! where a delay may be asked for. Started by [`listener`]; nothing else opens sessions.

mod chunk;
mod inbound;
pub mod listener;
mod outbound;
mod outbox;
mod twin;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::Policy;
use crate::metrics::Metrics;
use crate::namesrv::endpoints::Lease;
use crate::quiet::Quiet;
use crate::remoting::route::BrokerId;
use crate::shutdown::Stopping;
use crate::store::{Hold, Receipt, Store};

/// Takes messages to hold. The store does; tests put other things in its place.
pub trait Holder: Send + Sync {
    /// Queues a message; the receipt tells what became of it. Must not block.
    fn hold(&self, hold: Hold, receipt: Receipt);
}

impl Holder for Store {
    fn hold(&self, hold: Hold, receipt: Receipt) {
        Self::hold(self, hold, receipt);
    }
}

/// What all sessions of the process share.
pub struct Shared {
    clock: Arc<dyn Clock>,
    policy: Policy,
    holder: Arc<dyn Holder>,
    budget: Budget,
    metrics: Metrics,
    stopping: Stopping,
    connections: Arc<Semaphore>,
    tasks: TaskTracker,
    log: Quiet,
}

/// What [`Shared`] is made of.
pub struct Parts {
    /// Wall time of arrivals.
    pub clock: Arc<dyn Clock>,
    /// The delay policy.
    pub policy: Policy,
    /// Where held messages go.
    pub holder: Arc<dyn Holder>,
    /// For frames that are buffered whole, until the store has them on disk.
    pub budget: Budget,
    /// The process's metrics.
    pub metrics: Metrics,
    /// The stages of stopping.
    pub stopping: Stopping,
    /// Client connections at the same time, over all listeners.
    pub max_connections: usize,
}

impl Shared {
    /// From its parts.
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            clock: parts.clock,
            policy: parts.policy,
            holder: parts.holder,
            budget: parts.budget,
            metrics: parts.metrics,
            stopping: parts.stopping,
            connections: Arc::new(Semaphore::new(parts.max_connections)),
            tasks: TaskTracker::new(),
            log: Quiet::default(),
        })
    }

    /// Returns when no listener and no session runs any more. To be awaited once stopping has
    /// reached [`crate::shutdown::Stage::Draining`].
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// What a listener stands for.
#[derive(Debug, Clone)]
pub struct Door {
    /// The broker behind it.
    pub broker: BrokerId,
    /// IP put into the ids of held messages; `None`: the address the client connected to.
    pub host: Option<IpAddr>,
    /// Port put into the ids of held messages: that of the listener in the routes, for the VIP
    /// listener too, since clients subtract two themselves.
    pub port: u16,
    /// Whether this is the VIP listener, two below the other.
    pub vip: bool,
    /// Counts the connections, and says when the port has to be closed.
    pub lease: Lease,
    /// `host:port` of the broker now; `None` while it has none.
    pub target: watch::Receiver<Option<String>>,
}

#[cfg(test)]
mod tests;
