//! What must be true before clients are sent here, as named latches.
//!
//! Set by whoever knows: the composition root, the store's and the name servers' tasks. Read by
//! `/ready`. A latch may fall back (a store that failed), which `/ready` shows at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A condition of being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latch {
    /// All listeners are bound.
    Ports,
    /// Held messages have been read from disk; holds are accepted.
    Recovered,
    /// A name server has told the brokers' addresses.
    NameServer,
    /// Writes and syncs work.
    StoreHealthy,
}

impl Latch {
    /// All conditions.
    pub const ALL: [Self; 4] = [Self::Ports, Self::Recovered, Self::NameServer, Self::StoreHealthy];

    /// What `/ready` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Recovered => "recovered",
            Self::NameServer => "nameServer",
            Self::StoreHealthy => "storeHealthy",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The latches; clones share them. At first none is set.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    set: Arc<AtomicU8>,
}

impl Readiness {
    /// With no latch set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that `latch` holds now.
    pub fn set(&self, latch: Latch) {
        self.set.fetch_or(latch.bit(), Ordering::Relaxed);
    }

    /// Says that `latch` no longer holds.
    pub fn clear(&self, latch: Latch) {
        self.set.fetch_and(!latch.bit(), Ordering::Relaxed);
    }

    /// Names of the latches that do not hold; empty when ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let set = self.set.load(Ordering::Relaxed);
        Latch::ALL.into_iter().filter(|latch| set & latch.bit() == 0).map(Latch::name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_all_latches_hold() {
        let readiness = Readiness::new();
        let names = ["ports", "recovered", "nameServer", "storeHealthy"];
        assert_eq!(readiness.missing(), names);
        for latch in Latch::ALL {
            readiness.clone().set(latch);
        }
        assert!(readiness.missing().is_empty());
        readiness.clear(Latch::StoreHealthy);
        assert_eq!(readiness.missing(), ["storeHealthy"]);
    }
}
