//! Messages on which a broker hung up, told from those that merely shared the connection.
//!
//! A connection that ends takes everything in flight with it, and all of it is sent again. If one
//! message is the cause (a header that the broker's reader throws on), that goes on for ever, and
//! every round delivers its neighbours once more. So ends are counted by message, and only while the
//! broker answers others in between: a broker that is down hangs up on everybody.

use std::collections::HashMap;

use crate::store::Lsn;

/// So many ends make a message a suspect.
const SUSPECT: u32 = 3;
/// Messages remembered at most: several times what can be in flight at one broker.
const REMEMBERED: usize = 8_192;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HangUps(HashMap<Lsn, Seen>);

#[derive(Debug)]
struct Seen {
    times: u32,
    /// Answers that the broker had given by the last time.
    answers: u64,
}

impl HangUps {
    /// The connection ended while this message waited for its answer; the broker has given
    /// `answers` so far. Answers whether the message is a suspect.
    pub(super) fn ended(&mut self, lsn: Lsn, answers: u64) -> bool {
        if let Some(seen) = self.0.get_mut(&lsn) {
            if answers > seen.answers {
                *seen = Seen { times: seen.times.saturating_add(1), answers };
            }
            return seen.times >= SUSPECT;
        }
        if self.0.len() < REMEMBERED {
            self.0.insert(lsn, Seen { times: 1, answers });
        }
        false
    }

    /// The message was answered, or is tried no more.
    pub(super) fn forget(&mut self, lsn: Lsn) {
        if !self.0.is_empty() {
            self.0.remove(&lsn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_between_which_others_are_answered_count() {
        let mut hangups = HangUps::default();
        let poison = Lsn(64);
        assert!((0..100).all(|_| !hangups.ended(poison, 7)), "the broker is down for everybody");
        assert!(!hangups.ended(poison, 8));
        assert!(hangups.ended(poison, 9));
        assert!(hangups.ended(poison, 9), "once a suspect, always");
        assert!(!hangups.ended(Lsn(128), 9), "its neighbour");
        hangups.forget(poison);
        assert!(!hangups.ended(poison, 10));
    }
}
