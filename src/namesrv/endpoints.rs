//! Which of our ports stands for which broker: chosen once, kept on disk, bound before it is named.
//!
//! Called by the facade (which port goes into this answer) and started by the composition root,
//! which gets every new pair of listeners through a channel and runs sessions on it. One task owns
//! the table, binds and writes the file; readers see snapshots. Never hands out a port that is not
//! bound, and never a real address.

mod ports;
mod saved;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::ports::{Pair, Ports};
use crate::config::BrokerPorts;
use crate::disk::Disk;
use crate::remoting::route::{BrokerId, Ours};
use crate::upstream::cluster::Cluster;

/// What the table is made from.
#[derive(Debug, Clone)]
pub struct EndpointSettings {
    /// Address on which the listeners are bound.
    pub ip: IpAddr,
    /// Host put into routes.
    pub advertise: String,
    /// The ports to choose from.
    pub ports: BrokerPorts,
    /// Where the choice is kept.
    pub file: PathBuf,
}

/// A broker that now has its ports.
#[derive(Debug)]
pub struct NewEndpoint {
    /// Whom the listeners stand for.
    pub broker: BrokerId,
    /// The port that routes name.
    pub port: u16,
    /// Both listeners, bound: P, and P-2 for the VIP channel.
    pub listeners: [EndpointListener; 2],
    /// The broker's real address as it changes; `None` while the cluster does not have it.
    pub target: watch::Receiver<Option<String>>,
}

/// One of the two listeners of an endpoint.
#[derive(Debug)]
pub struct EndpointListener {
    /// Bound and listening.
    pub listener: TcpListener,
    /// The port it is bound to.
    pub port: u16,
    /// Whether this is P-2.
    pub vip: bool,
}

/// Why a broker has no endpoint.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EndpointError {
    /// No pair of ports is left.
    #[error("no free pair of ports in --broker-ports for broker {broker} (id {id}, {cluster})")]
    NoPorts {
        /// Broker name.
        broker: String,
        /// Its cluster.
        cluster: String,
        /// Its id.
        id: i64,
    },
    /// The choice could not be kept, so that a restart would break the routes given out.
    #[error("cannot keep the broker ports in {file}: {why}")]
    Kept {
        /// The file.
        file: String,
        /// The system's words.
        why: String,
    },
    /// The process is stopping.
    #[error("no new broker ports while stopping")]
    Stopping,
}

/// The table; clones share it. Dropping the last clone ends its task.
#[derive(Debug, Clone)]
pub struct Endpoints {
    ports: Arc<ArcSwap<BTreeMap<BrokerId, u16>>>,
    advertise: String,
    cluster: Cluster,
    ask: mpsc::Sender<Ask>,
    _task: Arc<DropGuard>,
}

struct Ask {
    brokers: Vec<BrokerId>,
    done: oneshot::Sender<Result<(), EndpointError>>,
}

// === impl Endpoints ===

impl Endpoints {
    /// Reads the kept table, binds what it names, and goes on with the cluster's brokers as they
    /// come. Whatever is bound is sent through `created`.
    pub fn start(
        settings: EndpointSettings,
        cluster: Cluster,
        created: mpsc::Sender<NewEndpoint>,
    ) -> Self {
        let ports = Arc::new(ArcSwap::default());
        let (ask, asked) = mpsc::channel(64);
        let advertise = match settings.advertise.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => settings.advertise.clone(),
        };
        let kept = saved::read(&settings.file);
        let owner = Owner {
            ports: Ports::new(settings.ip, settings.ports),
            written: kept.clone(),
            kept,
            file: settings.file,
            open: BTreeMap::new(),
            refused: BTreeMap::new(),
            published: Arc::clone(&ports),
            cluster: cluster.watch(),
            created,
        };
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(owner.run(asked)));
        Self { ports, advertise, cluster, ask, _task: Arc::new(stop.drop_guard()) }
    }

    /// Returns once each of `brokers` has its ports, bound and kept.
    pub async fn ensure(
        &self,
        brokers: impl IntoIterator<Item = &BrokerId>,
    ) -> Result<(), EndpointError> {
        let known = self.ports.load_full();
        let brokers = brokers.into_iter().filter(|b| !known.contains_key(b));
        let brokers: Vec<_> = brokers.cloned().collect();
        if brokers.is_empty() {
            return Ok(());
        }
        let (done, outcome) = oneshot::channel();
        let asked = self.ask.send(Ask { brokers, done }).await;
        asked.map_err(|_| EndpointError::Stopping)?;
        outcome.await.unwrap_or(Err(EndpointError::Stopping))
    }

    /// Returns once the brokers known at the start have their ports, as far as they can have them.
    pub async fn settled(&self) {
        let (done, outcome) = oneshot::channel();
        let brokers = Vec::new();
        if self.ask.send(Ask { brokers, done }).await.is_ok() {
            // An error means that the task has ended: nothing more will come.
            drop(outcome.await);
        }
    }

    /// The ports given out so far.
    pub fn ports(&self) -> Arc<BTreeMap<BrokerId, u16>> {
        self.ports.load_full()
    }
}

impl Ours for Endpoints {
    fn by_id(&self, broker: &BrokerId) -> Option<String> {
        let port = *self.ports.load().get(broker)?;
        Some(format!("{}:{port}", self.advertise))
    }

    fn by_address(&self, address: &str) -> Option<String> {
        self.by_id(&self.cluster.broker_at(address)?)
    }
}

// === Owner ===

/// The task that owns the table.
struct Owner {
    ports: Ports,
    /// The choice as it stands, of brokers without listeners too.
    kept: BTreeMap<BrokerId, u16>,
    /// What the file holds. Where nothing changes nothing is written: a full disk stops no restart.
    written: BTreeMap<BrokerId, u16>,
    file: PathBuf,
    /// Brokers with listeners, and where they lead.
    open: BTreeMap<BrokerId, watch::Sender<Option<String>>>,
    /// Brokers that got none, as logged.
    refused: BTreeMap<BrokerId, String>,
    published: Arc<ArcSwap<BTreeMap<BrokerId, u16>>>,
    cluster: watch::Receiver<BTreeMap<BrokerId, String>>,
    created: mpsc::Sender<NewEndpoint>,
}

impl Owner {
    async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        let kept: Vec<_> = self.kept.keys().cloned().collect();
        self.open_or_log(kept).await;
        self.follow().await;
        loop {
            tokio::select! {
                biased;
                changed = self.cluster.changed() => match changed {
                    Ok(()) => self.follow().await,
                    Err(_) => return,
                },
                ask = asked.recv() => match ask {
                    Some(Ask { brokers, done }) => {
                        let outcome = self.open_all(&brokers).await;
                        // Whoever asked may have left.
                        drop(done.send(outcome));
                    }
                    None => return,
                },
            }
        }
    }

    /// Leads every listener to where the cluster now has its broker.
    async fn follow(&mut self) {
        let cluster = self.cluster.borrow_and_update().clone();
        for (broker, target) in &self.open {
            lead(target, cluster.get(broker));
        }
        self.open_or_log(cluster.into_keys().collect()).await;
    }

    async fn open_or_log(&mut self, brokers: Vec<BrokerId>) {
        for broker in brokers {
            match self.open_all(std::slice::from_ref(&broker)).await {
                Ok(()) => {
                    self.refused.remove(&broker);
                }
                Err(EndpointError::Stopping) => {}
                Err(err) => {
                    let why = err.to_string();
                    if self.refused.get(&broker) != Some(&why) {
                        tracing::error!(%why, "routes to this broker are refused");
                        self.refused.insert(broker, why);
                    }
                }
            }
        }
    }

    /// Binds, keeps, publishes, and only then hands the listeners on.
    async fn open_all(&mut self, brokers: &[BrokerId]) -> Result<(), EndpointError> {
        let mut pairs = Vec::new();
        let mut outcome = Ok(());
        for broker in brokers {
            if self.open.contains_key(broker) {
                continue;
            }
            match self.ports.open(broker, &self.kept) {
                Ok(pair) => {
                    if let Some(old) = self.kept.insert(broker.clone(), pair.port)
                        && old != pair.port
                    {
                        tracing::warn!(?broker, old, new = pair.port, "broker's port has changed");
                    }
                    pairs.push((broker.clone(), pair));
                }
                Err(err) => outcome = Err(err),
            }
        }
        if pairs.is_empty() {
            return outcome;
        }
        if let Err(err) = self.keep().await {
            for (_, pair) in pairs {
                self.ports.release(pair);
            }
            self.kept = self.written.clone();
            return Err(err);
        }
        for (broker, pair) in pairs {
            self.hand_on(broker, pair).await?;
        }
        outcome
    }

    async fn keep(&mut self) -> Result<(), EndpointError> {
        if self.written == self.kept {
            return Ok(());
        }
        let (file, text) = (self.file.clone(), saved::to_text(&self.kept));
        let written =
            tokio::task::spawn_blocking(move || Disk::default().replace(&file, &text)).await;
        match written {
            Ok(Ok(())) => {
                self.written = self.kept.clone();
                Ok(())
            }
            Ok(Err(err)) => Err(EndpointError::Kept {
                file: self.file.display().to_string(),
                why: err.to_string(),
            }),
            Err(_) => Err(EndpointError::Stopping),
        }
    }

    async fn hand_on(&mut self, broker: BrokerId, pair: Pair) -> Result<(), EndpointError> {
        let address = self.cluster.borrow().get(&broker).cloned();
        let (target, watched) = watch::channel(address);
        let port = pair.port;
        let endpoint = NewEndpoint {
            broker: broker.clone(),
            port,
            listeners: pair.listeners(),
            target: watched,
        };
        let sent = self.created.send(endpoint).await;
        sent.map_err(|_| EndpointError::Stopping)?;
        self.open.insert(broker.clone(), target);
        self.published.rcu(|ports| {
            let mut ports = BTreeMap::clone(ports);
            ports.insert(broker.clone(), port);
            ports
        });
        Ok(())
    }
}

fn lead(target: &watch::Sender<Option<String>>, address: Option<&String>) {
    target.send_if_modified(|now| {
        let changed = now.as_ref() != address;
        if changed {
            *now = address.cloned();
        }
        changed
    });
}

fn is_taken(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests;
