//! Keeps what peers can cause at will from filling the log.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lines of one kind come at least so far apart.
const APART: Duration = Duration::from_secs(1);

/// Remembers when each kind of line was last written. Kinds come from small fixed sets.
#[derive(Debug, Default)]
pub struct Quiet(Mutex<HashMap<&'static str, Kind>>);

#[derive(Debug)]
struct Kind {
    logged: Duration,
    unlogged: u64,
}

impl Quiet {
    /// Whether to log now (by the monotonic clock): `Some` with the number of lines of this kind
    /// that were left out since the last one.
    pub fn may_log(&self, kind: &'static str, now: Duration) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = kinds.get_mut(kind) else {
            let fresh = Kind { logged: now, unlogged: 0 };
            kinds.insert(kind, fresh);
            return Some(0);
        };
        if now.saturating_sub(known.logged) < APART {
            known.unlogged += 1;
            return None;
        }
        known.logged = now;
        Some(std::mem::take(&mut known.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_for_each_kind_with_the_others_counted() {
        let quiet = Quiet::default();
        let at = Duration::from_millis;
        assert_eq!(quiet.may_log("a", at(0)), Some(0));
        assert_eq!(quiet.may_log("a", at(10)), None);
        assert_eq!(quiet.may_log("a", at(999)), None);
        assert_eq!(quiet.may_log("b", at(999)), Some(0));
        assert_eq!(quiet.may_log("a", at(1_000)), Some(2));
        assert_eq!(quiet.may_log("a", at(2_000)), Some(0));
    }
}
