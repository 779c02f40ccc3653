//! One byte budget for all frames that are buffered whole, so that peers cannot make memory grow.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: a coarse grain keeps a 16 MiB frame within the semaphore's counts.
const GRAIN: usize = 1024;

/// Clones share the budget.
#[derive(Debug, Clone)]
pub struct Budget {
    permits: Arc<Semaphore>,
    total: u32,
}

/// Bytes taken from the budget; given back on drop.
#[derive(Debug)]
pub struct Spent {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes / GRAIN).unwrap_or(u32::MAX).max(1);
        Self { permits: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits until `bytes` are free. One request over the whole budget takes all of it.
    pub async fn take(&self, bytes: usize) -> Spent {
        let grains = u32::try_from(bytes.div_ceil(GRAIN)).unwrap_or(u32::MAX).min(self.total);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_many_owned(grains).await.ok();
        Spent { _permit: permit }
    }

    /// Bytes in use, to the grain.
    pub fn used(&self) -> usize {
        (self.total as usize).saturating_sub(self.permits.available_permits()) * GRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_dropped_is_free_again() {
        let budget = Budget::new(4 * GRAIN);
        let first = budget.take(3 * GRAIN + 1).await;
        assert_eq!(budget.used(), 4 * GRAIN);
        let second = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(100 * GRAIN).await }
        });
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(budget.used(), 0);
    }
}
