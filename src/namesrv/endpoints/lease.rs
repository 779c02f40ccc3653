//! Whether anybody still uses a pair of ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio_util::sync::CancellationToken;

/// Shared by the table, which frees what nobody used for long, and the sessions on the pair. Clones
/// are the same lease.
#[derive(Debug, Clone, Default)]
pub struct Lease(Arc<Uses>);

#[derive(Debug, Default)]
struct Uses {
    connections: AtomicUsize,
    /// A route named it, or a connection came or went, since somebody last looked.
    touched: AtomicBool,
    freed: CancellationToken,
}

/// A connection on the pair, until it is dropped.
#[derive(Debug)]
pub struct InUse(Lease);

impl Lease {
    /// A client has connected.
    pub fn connected(&self) -> InUse {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        self.touch();
        InUse(self.clone())
    }

    /// Returns when the pair is no longer this broker's: its listeners have to be closed.
    pub async fn freed(&self) {
        self.0.freed.cancelled().await;
    }

    /// A route has named the pair.
    pub(crate) fn touch(&self) {
        self.0.touched.store(true, Ordering::Relaxed);
    }

    /// Whether anybody used it since this was last asked, or uses it now.
    pub(crate) fn was_used(&self) -> bool {
        let touched = self.0.touched.swap(false, Ordering::Relaxed);
        touched || self.0.connections.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn free(&self) {
        self.0.freed.cancel();
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
