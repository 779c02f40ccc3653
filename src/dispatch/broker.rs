//! What the dispatcher knows of one broker: whose turn it is, and whether it takes messages.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::courier::Job;
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
        Self {
            name,
            jobs,
            under_way: 0,
            ready: VecDeque::new(),
            trouble: None,
            logged: None,
        }
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
        let quiet = self
            .logged
            .is_some_and(|last| now.saturating_sub(last) < QUIET);
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
