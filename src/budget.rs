//! One byte budget for all frames that are buffered whole, so that peers cannot make memory grow.
//!
//! A frame pays before it is complete, so one whose sender stops keeps what it paid for a while.
//! Large frames never have all of it: a few that stop must not stop the small ones of everybody.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: a coarse grain keeps a 16 MiB frame within the semaphore's counts.
const GRAIN: usize = 1024;
/// Frames beyond this are large.
const SMALL: usize = 64 * 1024;

/// Clones share the budget.
#[derive(Debug, Clone)]
pub struct Budget {
    all: Pot,
    /// What large frames may have of it: three quarters.
    large: Pot,
}

/// Bytes taken from the budget; given back on drop.
#[derive(Debug)]
pub struct Spent {
    _all: Option<OwnedSemaphorePermit>,
    _large: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self { all: Pot::new(bytes), large: Pot::new(bytes - bytes / 4) }
    }

    /// Waits until `bytes` are free. One request over the whole budget takes all that it may.
    pub async fn take(&self, bytes: usize) -> Spent {
        if bytes <= SMALL {
            return Spent { _all: self.all.take(bytes).await, _large: None };
        }
        let bytes = bytes.min(self.large.total * GRAIN);
        let large = self.large.take(bytes).await;
        Spent { _all: self.all.take(bytes).await, _large: large }
    }

    /// Bytes in use, to the grain.
    pub fn used(&self) -> usize {
        self.all.total.saturating_sub(self.all.permits.available_permits()) * GRAIN
    }
}

#[derive(Debug, Clone)]
struct Pot {
    permits: Arc<Semaphore>,
    /// In grains.
    total: usize,
}

impl Pot {
    fn new(bytes: usize) -> Self {
        let total = (bytes / GRAIN).clamp(1, Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(total)), total }
    }

    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let grains = u32::try_from(bytes.div_ceil(GRAIN).min(self.total)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        Arc::clone(&self.permits).acquire_many_owned(grains).await.ok()
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
        let second = second.await.unwrap();
        assert_eq!(budget.used(), 3 * GRAIN);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn large_frames_that_stop_leave_room_for_small_ones() {
        let budget = Budget::new(4 * SMALL);
        let stopped = budget.take(2 * SMALL).await;
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(2 * SMALL).await }
        });
        // On one thread it has come to its wait by then.
        tokio::task::yield_now().await;
        for _ in 0..100 {
            drop(budget.take(SMALL).await);
        }
        assert!(!waiting.is_finished());
        drop(stopped);
        assert_eq!(budget.used(), 0);
        let large = waiting.await.unwrap();
        assert_eq!(budget.used(), 2 * SMALL);
        drop(large);
    }
}
