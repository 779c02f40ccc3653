//! Messages that were in flight more than once when a connection to their broker ended.
//!
//! A connection that ends takes everything in flight with it, and all of it is sent again. If one
//! message is the cause (a header that the broker's reader throws on), that goes on for ever, and
//! every round delivers its neighbours once more. So a message that saw two ends goes on alone
//! ([`super::alone`]). Most suspects are innocent: that costs them a connection and nothing else.
//! Owned by [`super::dispatcher`].

use std::collections::HashMap;

use crate::store::Lsn;

/// So many ends make a message a suspect: one takes along whatever happens to be in flight.
const ENDS: u32 = 2;
/// Messages remembered at most, about 2 MiB. When there are more, counting starts again.
const REMEMBERED: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Suspects(HashMap<Lsn, u32>);

impl Suspects {
    /// A connection ended while this message waited for its answer.
    pub(super) fn ended(&mut self, lsn: Lsn) {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&lsn) {
            self.0.clear();
        }
        let ends = self.0.entry(lsn).or_default();
        *ends = ends.saturating_add(1);
    }

    /// Whether the message is to be sent alone.
    pub(super) fn include(&self, lsn: Lsn) -> bool {
        !self.0.is_empty() && self.0.get(&lsn).is_some_and(|ends| *ends >= ENDS)
    }

    /// A broker answered the message: it is innocent.
    pub(super) fn acquit(&mut self, lsn: Lsn) {
        if !self.0.is_empty() {
            self.0.remove(&lsn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_end_makes_a_suspect_and_an_answer_an_innocent() {
        let mut suspects = Suspects::default();
        suspects.ended(Lsn(64));
        assert!(!suspects.include(Lsn(64)));
        suspects.ended(Lsn(64));
        suspects.ended(Lsn(128));
        assert!(suspects.include(Lsn(64)));
        assert!(!suspects.include(Lsn(128)));
        suspects.acquit(Lsn(64));
        suspects.ended(Lsn(64));
        assert!(!suspects.include(Lsn(64)));
    }

    #[test]
    fn memory_is_bounded_and_later_messages_are_found_all_the_same() {
        let mut suspects = Suspects::default();
        (0..3 * REMEMBERED as u64).for_each(|lsn| suspects.ended(Lsn(lsn)));
        assert!(suspects.0.len() <= REMEMBERED);
        let late = Lsn(u64::MAX);
        suspects.ended(late);
        suspects.ended(late);
        assert!(suspects.include(late));
    }
}
