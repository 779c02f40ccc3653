//! Which address each broker has now, learnt from the name servers (code 106 every 5 s); the last
//! answer survives a restart.
//!
//! Called by dispatch (where is this master), by sessions through the endpoint table (where does
//! this listener lead), and by the facade (what a route answer told it). One task asks and writes
//! the file; the table itself is a watch value.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::nameservers::NameServers;
use crate::disk::Disk;
use crate::remoting::code::request::GET_BROKER_CLUSTER_INFO;
use crate::remoting::code::response::SUCCESS;
use crate::remoting::command::Command;
use crate::remoting::route::{BrokerId, broker_addresses};

/// Format of the file.
const FORMAT: u32 = 1;

type Table = BTreeMap<BrokerId, String>;

/// How the cluster is watched.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// Pause between two questions.
    pub every: Duration,
    /// How long a broker must be missing from the answers before it is taken to be gone. A name
    /// server that was just restarted knows no broker for as long as brokers take to register again
    /// (30 s), and its ignorance must not cut anybody.
    pub gone_after: Duration,
    /// Where the last answer is kept; `None`: nowhere.
    pub file: Option<PathBuf>,
}

impl ClusterSettings {
    /// The ordinary ones, with the table kept in this directory.
    pub fn in_dir(data_dir: &Path) -> Self {
        Self {
            every: Duration::from_secs(5),
            gone_after: Duration::from_secs(40),
            file: Some(data_dir.join("brokers.json")),
        }
    }
}

/// The brokers' real addresses; clones share the table. Dropping the last clone ends its task.
#[derive(Debug, Clone)]
pub struct Cluster {
    table: Arc<watch::Sender<Table>>,
    answered: watch::Receiver<bool>,
    ask: mpsc::Sender<oneshot::Sender<()>>,
    _task: Arc<DropGuard>,
}

impl Cluster {
    /// Reads the kept table and starts asking. A file that cannot be read is named in the log and
    /// replaced by the first answer.
    pub fn start(nameservers: NameServers, settings: ClusterSettings) -> Self {
        let kept = settings.file.as_deref().map_or_else(Table::new, read_kept);
        let cluster = Self::with_task(kept, |table, answered, asked| {
            let poller = Poller {
                table,
                nameservers,
                settings,
                missing: HashMap::new(),
                answered,
                names_down: false,
                kept: None,
            };
            poller.run(asked)
        });
        tracing::debug!(brokers = cluster.table.borrow().len(), "kept brokers");
        cluster
    }

    /// A table that nobody asks for: changed by [`Cluster::learn`] and [`Cluster::forget`] alone.
    pub fn fixed(table: Table) -> Self {
        Self::with_task(table, |_, answered, mut asked| async move {
            answered.send_replace(true);
            while let Some(done) = asked.recv().await {
                let _asker_is_gone = done.send(());
            }
        })
    }

    fn with_task<F>(
        table: Table,
        task: impl FnOnce(
            Arc<watch::Sender<Table>>,
            watch::Sender<bool>,
            mpsc::Receiver<oneshot::Sender<()>>,
        ) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let table = Arc::new(watch::Sender::new(table));
        let (ask, asked) = mpsc::channel(16);
        let (answering, answered) = watch::channel(false);
        let stop = CancellationToken::new();
        let task = task(Arc::clone(&table), answering, asked);
        tokio::spawn(stop.clone().run_until_cancelled_owned(task));
        Self { table, answered, ask, _task: Arc::new(stop.drop_guard()) }
    }

    /// Whether the last question to the name servers was answered.
    pub fn answered(&self) -> watch::Receiver<bool> {
        self.answered.clone()
    }

    /// Address of the master with this broker name.
    pub fn master(&self, broker_name: &str) -> Option<String> {
        let table = self.table.borrow();
        let master = |broker: &BrokerId| broker.id == 0 && broker.name == broker_name;
        let (_, address) = table.iter().find(|(broker, _)| master(broker))?;
        Some(address.clone())
    }

    /// The broker with this real address.
    pub fn broker_at(&self, address: &str) -> Option<BrokerId> {
        let table = self.table.borrow();
        let (broker, _) = table.iter().find(|(_, at)| at.as_str() == address)?;
        Some(broker.clone())
    }

    /// The whole table, changed as the cluster changes.
    pub fn watch(&self) -> watch::Receiver<Table> {
        self.table.subscribe()
    }

    /// Adds what a route answer told us, ahead of the next 106.
    pub fn learn(&self, brokers: &Table) {
        self.table.send_if_modified(|table| {
            let mut changed = false;
            for (broker, address) in brokers {
                if table.get(broker) != Some(address) {
                    table.insert(broker.clone(), address.clone());
                    changed = true;
                }
            }
            changed
        });
    }

    /// Takes a broker out.
    pub fn forget(&self, broker: &BrokerId) {
        self.table.send_if_modified(|table| table.remove(broker).is_some());
    }

    /// Asks the name servers now; returns when the table is as they say, or when they did not answer.
    pub async fn refresh(&self) {
        let (done, waiting) = oneshot::channel();
        if self.ask.send(done).await.is_ok() {
            // An error means that the task has ended: the table stays as it is.
            drop(waiting.await);
        }
    }
}

// === Poller ===

struct Poller {
    table: Arc<watch::Sender<Table>>,
    nameservers: NameServers,
    settings: ClusterSettings,
    /// Since when brokers have been missing from the answers.
    missing: HashMap<BrokerId, Instant>,
    answered: watch::Sender<bool>,
    names_down: bool,
    /// What the file holds, if this process wrote it.
    kept: Option<Table>,
}

impl Poller {
    async fn run(mut self, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut tick = interval(self.settings.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                Some(done) = asked.recv() => {
                    waiting.push(done);
                    // One answer serves all who asked before it was requested.
                    while let Ok(done) = asked.try_recv() {
                        waiting.push(done);
                    }
                }
            }
            self.poll().await;
            for done in waiting.drain(..) {
                let _asker_is_gone = done.send(());
            }
        }
    }

    async fn poll(&mut self) {
        let ask = Command::request(GET_BROKER_CLUSTER_INFO, &[], Bytes::new());
        let answered = match self.nameservers.request(ask).await {
            Ok(answer) if answer.header.code == SUCCESS => {
                broker_addresses(&answer.body).map_err(|err| err.to_string())
            }
            Ok(answer) => Err(format!(
                "code {}: {}",
                answer.header.code,
                String::from_utf8_lossy(&answer.header.remark.unwrap_or_default())
            )),
            Err(err) => Err(err.to_string()),
        };
        self.answered.send_replace(answered.is_ok());
        match answered {
            Ok(brokers) => {
                if std::mem::take(&mut self.names_down) {
                    tracing::info!(brokers = brokers.len(), "name servers answer again");
                }
                self.take(brokers);
                self.keep().await;
            }
            Err(why) if !std::mem::replace(&mut self.names_down, true) => {
                let all = self.nameservers.describe();
                tracing::error!(%why, "no name server answers ({all}): the last known brokers are used");
            }
            Err(_) => {}
        }
    }

    /// Makes the table what the answer says. A broker that is missing stays for a while.
    fn take(&mut self, answer: Table) {
        let now = Instant::now();
        self.missing.retain(|broker, _| !answer.contains_key(broker));
        let (missing, gone_after) = (&mut self.missing, self.settings.gone_after);
        self.table.send_if_modified(|table| {
            let mut next = answer;
            for (broker, address) in &*table {
                if next.contains_key(broker) {
                    continue;
                }
                let since = *missing.entry(broker.clone()).or_insert(now);
                if now - since < gone_after {
                    next.insert(broker.clone(), address.clone());
                }
            }
            let changed = *table != next;
            if changed {
                log_changes(table, &next);
                *table = next;
            }
            changed
        });
        let table = self.table.borrow();
        self.missing.retain(|broker, _| table.contains_key(broker));
    }

    /// Writes the file when the table has changed.
    async fn keep(&mut self) {
        let table = self.table.borrow().clone();
        let Some(file) = self.settings.file.clone() else {
            return;
        };
        if self.kept.as_ref() == Some(&table) {
            return;
        }
        let text = Kept::of(&table).to_text();
        let named = file.clone();
        let written =
            tokio::task::spawn_blocking(move || Disk::default().replace(&file, &text)).await;
        match written {
            Ok(Ok(())) => self.kept = Some(table),
            Ok(Err(err)) => {
                // Tried again with the next answer; until then a restart starts with less.
                tracing::error!(file = %named.display(), %err, "cannot keep the brokers");
            }
            // The runtime is stopping.
            Err(_) => {}
        }
    }
}

fn log_changes(before: &Table, after: &Table) {
    for (broker, address) in after {
        match before.get(broker) {
            Some(old) if old == address => {}
            old => tracing::info!(?broker, ?old, new = address, "broker's address"),
        }
    }
    for broker in before.keys().filter(|broker| !after.contains_key(broker)) {
        tracing::warn!(?broker, "broker is gone from the cluster");
    }
}

// === The file ===

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    format: u32,
    brokers: Vec<KeptBroker>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptBroker {
    cluster: String,
    name: String,
    id: i64,
    address: String,
}

impl Kept {
    fn of(table: &Table) -> Self {
        let brokers = table.iter().map(|(broker, address)| KeptBroker {
            cluster: broker.cluster.clone(),
            name: broker.name.clone(),
            id: broker.id,
            address: address.clone(),
        });
        Self { format: FORMAT, brokers: brokers.collect() }
    }

    fn to_text(&self) -> Vec<u8> {
        // Strings and numbers alone: writing them as JSON cannot fail.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    fn into_table(self) -> Table {
        let brokers = self.brokers.into_iter().map(|kept| {
            let (cluster, name, id) = (kept.cluster, kept.name, kept.id);
            (BrokerId { cluster, name, id }, kept.address)
        });
        brokers.collect()
    }
}

fn read_kept(file: &Path) -> Table {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Table::new(),
        Err(err) => {
            tracing::error!(file = %file.display(), %err, "cannot read the kept brokers");
            return Table::new();
        }
    };
    match serde_json::from_slice::<Kept>(&text) {
        Ok(kept) if kept.format == FORMAT => kept.into_table(),
        Ok(kept) => {
            let format = kept.format;
            tracing::error!(file = %file.display(), format, "unknown format of the kept brokers");
            Table::new()
        }
        Err(err) => {
            tracing::error!(file = %file.display(), %err, "the kept brokers are damaged");
            Table::new()
        }
    }
}
