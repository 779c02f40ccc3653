//! How many bytes of bodies may be in memory for brokers that have not answered yet.
//!
//! A broker that does not answer keeps its share until its tries time out, so no broker gets so
//! much that another would have to wait for it. Called by couriers before they read from disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each broker may always have, over the budget if need be: enough to keep a connection busy.
const FLOOR: usize = 1 << 20;

/// The budget of all brokers; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Bodies(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    used: AtomicUsize,
    /// Brokers that use some of it.
    active: AtomicUsize,
}

impl Bodies {
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { limit, used: AtomicUsize::new(0), active: AtomicUsize::new(0) }))
    }

    /// The account of one more broker.
    pub(super) fn share(&self) -> Share {
        Share { bodies: self.clone(), used: 0 }
    }
}

/// One broker's account.
#[derive(Debug)]
pub(super) struct Share {
    bodies: Bodies,
    used: usize,
}

impl Share {
    /// Takes `bytes` unless that is too much for now. A broker with nothing in memory always gets
    /// one message; after a refusal it is its own answers that make room, so none sleeps for ever.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let shared = &self.bodies.0;
        let mine = self.used.saturating_add(bytes);
        // One share is left free, for a broker that comes next.
        let fair = shared.limit / (shared.active.load(Ordering::Relaxed) + 1);
        let all = shared.used.load(Ordering::Relaxed).saturating_add(bytes);
        let fits = self.used == 0 || mine <= FLOOR || (mine <= fair && all <= shared.limit);
        if fits {
            if self.used == 0 && bytes > 0 {
                shared.active.fetch_add(1, Ordering::Relaxed);
            }
            shared.used.fetch_add(bytes, Ordering::Relaxed);
            self.used = mine;
        }
        fits
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.used);
        let shared = &self.bodies.0;
        shared.used.fetch_sub(bytes, Ordering::Relaxed);
        self.used -= bytes;
        if self.used == 0 && bytes > 0 {
            shared.active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_holds_all_it_may_leaves_enough_for_the_next() {
        const MIB: usize = 1 << 20;
        let bodies = Bodies::new(12 * MIB);
        let (mut a, mut b, mut c) = (bodies.share(), bodies.share(), bodies.share());
        let taken = |share: &mut Share| (0..100).take_while(|_| share.take(MIB)).count();
        assert_eq!(taken(&mut a), 6);
        assert_eq!(taken(&mut b), 4);
        // The budget is nearly gone; the third still gets what keeps it going.
        assert_eq!(taken(&mut c), 2);
        let mut d = bodies.share();
        assert_eq!(taken(&mut d), 1);
        a.give_back(6 * MIB);
        assert!(c.take(MIB));
        drop((a, b, c, d));
        assert_eq!(bodies.0.used.load(Ordering::Relaxed), 0);
        assert_eq!(bodies.0.active.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_message_over_the_budget_goes_alone() {
        let mut share = Bodies::new(1_000).share();
        assert!(share.take(FLOOR * 4));
        assert!(!share.take(1));
        share.give_back(FLOOR * 4);
        assert!(share.take(1));
    }
}
