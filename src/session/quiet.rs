//! One log line a second for each kind of trouble that peers can cause at will.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Between two lines of one kind.
const APART: Duration = Duration::from_secs(1);

/// Remembers when each kind was last logged. Kinds come from small fixed sets.
#[derive(Debug, Default)]
pub(super) struct Quiet(Mutex<HashMap<&'static str, Kind>>);

#[derive(Debug)]
struct Kind {
    logged: Duration,
    unlogged: u64,
}

impl Quiet {
    /// Whether to log now: `Some` with the number of lines left out since the last one.
    pub(super) fn may_log(&self, kind: &'static str, now: Duration) -> Option<u64> {
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
    fn a_second_passes_between_two_lines_of_a_kind() {
        let log = Quiet::default();
        let ms = Duration::from_millis;
        assert_eq!(log.may_log("a", ms(0)), Some(0));
        assert_eq!(log.may_log("a", ms(400)), None);
        assert_eq!(log.may_log("b", ms(400)), Some(0));
        assert_eq!(log.may_log("a", ms(999)), None);
        assert_eq!(log.may_log("a", ms(1000)), Some(2));
        assert_eq!(log.may_log("a", ms(2500)), Some(0));
    }
}
