//! The routes last known: what clients are told while no name server answers.
//!
//! Filled and asked by the facade. Bodies are kept as the name server wrote them, with real
//! addresses; whoever serves one rewrites it as any other answer. One task writes the file; the
//! table is behind a lock that is held for a look-up and no longer.

mod saved;
mod table;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use self::table::Table;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::metrics::Metrics;
use crate::remoting::route::{RouteError, ids_are_quoted, with_ids_quoted};

/// Where and how the routes are kept.
#[derive(Debug, Clone)]
pub struct RouteSettings {
    /// The file.
    pub file: PathBuf,
    /// How long changes are gathered before they are written.
    pub write_after: Duration,
}

impl RouteSettings {
    /// The ordinary ones, with the file in this directory.
    pub fn in_dir(data_dir: &Path) -> Self {
        Self { file: data_dir.join("routes.json"), write_after: Duration::from_secs(2) }
    }
}

/// The table; clones share it. Dropping the last clone ends its task.
#[derive(Clone)]
pub struct LastRoutes {
    shared: Arc<Shared>,
    flush: mpsc::Sender<oneshot::Sender<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

struct State {
    table: Table,
    /// Whether the file lacks something.
    unwritten: bool,
    /// Answers served since the name servers fell silent; `None` while they answer.
    outage: Option<u64>,
}

impl LastRoutes {
    /// Reads the file, or begins with nothing where it cannot be read; the log says why.
    pub fn start(settings: RouteSettings, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        let table = saved::read(&settings.file);
        tracing::debug!(routes = table.len(), "kept routes");
        let state = Mutex::new(State { table, unwritten: false, outage: None });
        let shared = Arc::new(Shared { state, changed: Notify::new(), clock, metrics });
        let (flush, asked) = mpsc::channel(1);
        tokio::spawn(keep(Arc::clone(&shared), settings, asked));
        Self { shared, flush }
    }

    /// A name server has answered. `standard`: the client can read JSON alone, so that a name server
    /// from 4.9.4 on has quoted the ids.
    pub fn learn(&self, topic: &str, body: &Bytes, standard: bool) -> Result<(), RouteError> {
        let quoted = ids_are_quoted(body)?;
        // One form for both kinds of clients, since they ask in turn.
        let plain = with_ids_quoted(body, false)?;
        let changed = {
            let mut state = self.shared.state();
            if standard && let Some(quoted) = quoted {
                state.table.quotes = Some(quoted);
            }
            let changed = state.table.put(topic, plain.into());
            state.unwritten |= changed;
            changed
        };
        if changed {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// A name server has said that there is no such topic. Believed once it has said so for a while:
    /// one that was just restarted knows no topic.
    pub fn unknown(&self, topic: &str) {
        let now = self.shared.clock.monotonic();
        let gone = {
            let mut state = self.shared.state();
            let gone = state.table.deny(topic, now);
            state.unwritten |= gone;
            gone
        };
        if gone {
            self.shared.changed.notify_one();
        }
    }

    /// The last body for this topic, in the form that this client would have got.
    pub fn last(&self, topic: &str, standard: bool) -> Option<Bytes> {
        let (body, quotes) = {
            let mut state = self.shared.state();
            let body = state.table.get(topic)?;
            (body, standard && state.table.quotes != Some(false))
        };
        with_ids_quoted(&body, quotes).ok().map(Bytes::from)
    }

    /// Whether no name server answered when one was last asked.
    pub fn is_outage(&self) -> bool {
        self.shared.state().outage.is_some()
    }

    /// An answer was served in the place of the name servers.
    pub fn served(&self) {
        self.shared.metrics.namesrv_last_known.inc();
        let began = {
            let mut state = self.shared.state();
            let began = state.outage.is_none();
            *state.outage.get_or_insert(0) += 1;
            began
        };
        if began {
            tracing::error!("no name server answers: clients get the routes last known");
        }
    }

    /// A name server has answered.
    pub fn answered(&self) {
        let ended = self.shared.state().outage.take();
        if let Some(served) = ended {
            tracing::info!(served, "a name server answers again: routes come from there");
        }
    }

    /// Returns when everything known so far is in the file, or could not be written.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.flush.send(done).await.is_ok() {
            // An error means that the task has ended with the runtime.
            drop(written.await);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the file some time after each change, and when asked.
async fn keep(
    shared: Arc<Shared>,
    settings: RouteSettings,
    mut asked: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut due = None;
    let mut failing = false;
    loop {
        let wait = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => shared.changed.notified().await,
            }
        };
        let asker = tokio::select! {
            () = wait => {
                if due.is_none() {
                    due = Some(Instant::now() + settings.write_after);
                    continue;
                }
                None
            }
            asker = asked.recv() => match asker {
                Some(asker) => Some(asker),
                None => return,
            },
        };
        let written = write(&shared, &settings.file).await;
        // What could not be written is tried again; the log says so once.
        due = written.is_err().then(|| Instant::now() + settings.write_after);
        match written {
            Err(why) if !failing => {
                tracing::error!(file = %settings.file.display(), why, "cannot keep the routes");
                failing = true;
            }
            Err(_) => {}
            Ok(()) => failing = false,
        }
        if let Some(asker) = asker {
            let _asker_is_gone = asker.send(());
        }
    }
}

async fn write(shared: &Shared, file: &Path) -> Result<(), String> {
    let (routes, quotes) = {
        let mut state = shared.state();
        if !std::mem::take(&mut state.unwritten) {
            return Ok(());
        }
        (state.table.all(), state.table.quotes)
    };
    let file = file.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        Disk::default().replace(&file, &saved::to_text(&routes, quotes))
    });
    let outcome = match written.await {
        Ok(outcome) => outcome.map_err(|err| err.to_string()),
        // The runtime is stopping.
        Err(_) => return Ok(()),
    };
    if outcome.is_err() {
        shared.state().unwritten = true;
    }
    outcome
}

#[cfg(test)]
mod tests;
