//! What the dispatcher knows of one broker: whose turn it is, and whether it takes messages.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::attempt::Job;
use crate::store::LaneId;

/// Shortest time between two lines that say that a broker is in trouble, should it come and go.
const QUIET: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Broker {
    pub(super) name: String,
    pub(super) jobs: UnboundedSender<Job>,
    /// Jobs its courier has.
    pub(super) under_way: usize,
    /// Lanes that may have something to start, in turn.
    pub(super) ready: VecDeque<LaneId>,
    trouble: Option<Trouble>,
    logged: Option<Duration>,
}

struct Trouble {
    since: Duration,
    tries: u64,
    /// It was gone, rather than busy.
    gone: bool,
    logged: bool,
}

impl Broker {
    pub(super) fn new(name: String, jobs: UnboundedSender<Job>) -> Self {
        Self { name, jobs, under_way: 0, ready: VecDeque::new(), trouble: None, logged: None }
    }

    /// A try failed, and not for what was in it. The first one is logged.
    pub(super) fn failed(&mut self, gone: bool, words: &str, now: Duration) {
        let trouble = self.trouble.get_or_insert(Trouble {
            since: now,
            tries: 0,
            gone: false,
            logged: false,
        });
        trouble.tries += 1;
        trouble.gone |= gone;
        let quiet = self.logged.is_some_and(|last| now.saturating_sub(last) < QUIET);
        if !trouble.logged && !quiet {
            trouble.logged = true;
            self.logged = Some(now);
            tracing::warn!(
                broker = self.name,
                why = words,
                "messages for a broker are not taken; trying again until they are"
            );
        }
    }

    /// It answered. True when it had been gone: there may be lanes that wait longer than need be.
    pub(super) fn answered(&mut self, now: Duration) -> bool {
        let Some(trouble) = self.trouble.take() else {
            return false;
        };
        if trouble.logged {
            tracing::info!(
                broker = self.name,
                after = ?now.saturating_sub(trouble.since),
                failed_tries = trouble.tries,
                "a broker takes messages again"
            );
        }
        trouble.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_hurried_once_after_a_broker_was_gone() {
        const S: Duration = Duration::from_secs(1);
        let (jobs, _) = tokio::sync::mpsc::unbounded_channel();
        let mut broker = Broker::new("a".to_owned(), jobs);
        assert!(!broker.answered(S));
        broker.failed(false, "busy", S);
        assert!(!broker.answered(2 * S));
        broker.failed(false, "busy", 3 * S);
        broker.failed(true, "refused", 3 * S);
        broker.failed(false, "busy", 4 * S);
        assert!(broker.answered(5 * S));
        assert!(!broker.answered(5 * S));
    }

    #[test]
    fn trouble_that_comes_and_goes_is_logged_now_and_then() {
        let (jobs, _) = tokio::sync::mpsc::unbounded_channel();
        let mut broker = Broker::new("a".to_owned(), jobs);
        let mut lines = Vec::new();
        for second in 0..25 {
            broker.failed(true, "reset", Duration::from_secs(second));
            let logged = broker.trouble.as_ref().is_some_and(|trouble| trouble.logged);
            lines.extend(logged.then_some(second));
            broker.answered(Duration::from_secs(second));
        }
        assert_eq!(lines, [0, 10, 20]);
        // One that lasts is logged even if it began while it was quiet.
        for second in 25..40 {
            broker.failed(true, "refused", Duration::from_secs(second));
        }
        assert_eq!(broker.logged, Some(Duration::from_secs(30)));
    }
}
