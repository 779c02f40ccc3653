//! Which of our ports stands for which broker: chosen once, kept on disk, bound before it is named.
//!
//! Called by the facade (which port goes into this answer) and started by the composition root,
//! which gets every new pair of listeners through a channel and runs sessions on it. One task owns
//! the table, binds and writes the file; readers see snapshots. Never hands out a port that is not
//! bound, and never a real address.

mod lease;
mod ports;
mod saved;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::lease::{InUse, Lease};
use self::ports::{Pair, Ports};
use crate::clock::Clock;
use crate::config::BrokerPorts;
use crate::config::broker_map::BrokerMap;
use crate::disk::Disk;
use crate::remoting::route::{BrokerId, Ours};
use crate::upstream::cluster::Cluster;

/// A pair without route and without connection for so long is free for others.
const UNUSED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Pause between two looks for such pairs.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// What the table is made from.
#[derive(Clone)]
pub struct EndpointSettings {
    /// Address on which the listeners are bound.
    pub ip: IpAddr,
    /// Host put into routes.
    pub advertise: String,
    /// The ports to choose from.
    pub ports: BrokerPorts,
    /// Ports chosen by the user.
    pub map: BrokerMap,
    /// Where the choice is kept.
    pub file: PathBuf,
    /// Says how long a pair has been unused.
    pub clock: Arc<dyn Clock>,
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
    /// Counts the connections on the pair, and says when it has to be closed.
    pub lease: Lease,
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
    /// The user chose a port that is not to be had.
    #[error(
        "--broker-map gives broker {broker} (id {id}) port {port}, and {port} or {} is taken: free \
         both, or choose another",
        port - 2
    )]
    Pinned {
        /// Broker name.
        broker: String,
        /// Its id.
        id: i64,
        /// The port.
        port: u16,
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
    given: Arc<ArcSwap<BTreeMap<BrokerId, Given>>>,
    advertise: String,
    cluster: Cluster,
    ask: mpsc::Sender<Ask>,
    _task: Arc<DropGuard>,
}

/// A bound pair.
#[derive(Debug, Clone)]
struct Given {
    port: u16,
    lease: Lease,
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
        let given = Arc::new(ArcSwap::default());
        let (ask, asked) = mpsc::channel(64);
        let advertise = match settings.advertise.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => settings.advertise.clone(),
        };
        let kept = saved::read(&settings.file);
        let owner = Owner {
            ports: Ports::new(settings.ip, settings.ports, settings.map),
            written: kept.clone(),
            kept,
            file: settings.file,
            open: BTreeMap::new(),
            used: BTreeMap::new(),
            clock: settings.clock,
            refused: BTreeMap::new(),
            published: Arc::clone(&given),
            cluster: cluster.watch(),
            created,
        };
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(owner.run(asked)));
        Self { given, advertise, cluster, ask, _task: Arc::new(stop.drop_guard()) }
    }

    /// Returns once each of `brokers` has its ports, bound and kept.
    pub async fn ensure(
        &self,
        brokers: impl IntoIterator<Item = &BrokerId>,
    ) -> Result<(), EndpointError> {
        let known = self.given.load_full();
        let unknown = |broker: &&BrokerId| match known.get(broker) {
            Some(given) => {
                given.lease.touch();
                false
            }
            None => true,
        };
        let brokers = brokers.into_iter().filter(unknown);
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
    pub fn ports(&self) -> BTreeMap<BrokerId, u16> {
        let given = self.given.load();
        given.iter().map(|(broker, given)| (broker.clone(), given.port)).collect()
    }
}

impl Ours for Endpoints {
    fn by_id(&self, broker: &BrokerId) -> Option<String> {
        let given = self.given.load();
        let given = given.get(broker)?;
        given.lease.touch();
        Some(format!("{}:{}", self.advertise, given.port))
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
    /// When each kept pair was last seen in use (monotonic clock): not before this process began.
    used: BTreeMap<BrokerId, Duration>,
    clock: Arc<dyn Clock>,
    /// Brokers that got none, as logged.
    refused: BTreeMap<BrokerId, String>,
    published: Arc<ArcSwap<BTreeMap<BrokerId, Given>>>,
    cluster: watch::Receiver<BTreeMap<BrokerId, String>>,
    created: mpsc::Sender<NewEndpoint>,
}

impl Owner {
    async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        let kept: Vec<_> = self.kept.keys().cloned().collect();
        self.open_or_log(kept).await;
        self.follow().await;
        let mut sweep = interval(SWEEP_EVERY);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = sweep.tick() => self.sweep().await,
                changed = self.cluster.changed() => match changed {
                    Ok(()) => self.follow().await,
                    Err(_) => return,
                },
                ask = asked.recv() => match ask {
                    Some(Ask { brokers, done }) => {
                        // Those asked for may need what others have left.
                        self.sweep().await;
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

    /// Frees the pairs that nobody has used for long.
    async fn sweep(&mut self) {
        let now = self.clock.monotonic();
        let (given, cluster) = (self.published.load_full(), self.cluster.borrow().clone());
        let mut unused = Vec::new();
        for broker in self.kept.keys() {
            let lease = given.get(broker).map(|given| &given.lease);
            // Asked first: the answer covers the time since the last sweep.
            let in_use = lease.is_some_and(Lease::was_used) || cluster.contains_key(broker);
            let used = self.used.entry(broker.clone()).or_insert(now);
            if in_use {
                *used = now;
            } else if now.saturating_sub(*used) >= UNUSED_FOR {
                unused.push(broker.clone());
            }
        }
        if unused.is_empty() {
            return;
        }
        for broker in &unused {
            self.free(broker);
        }
        if let Err(err) = self.keep().await {
            // A restart would open them again, for 24 h more; the next change tries to write.
            tracing::error!(%err, "freed broker ports are still in the file");
        }
    }

    fn free(&mut self, broker: &BrokerId) {
        let port = self.kept.remove(broker);
        self.used.remove(broker);
        self.refused.remove(broker);
        tracing::info!(?broker, port, "broker's ports are free: unused for 24 h");
        let Some(target) = self.open.remove(broker) else { return };
        // Whoever connects at this very moment is cut.
        target.send_replace(None);
        let given = self.published.load_full();
        self.published.rcu(|given| {
            let mut given = BTreeMap::clone(given);
            given.remove(broker);
            given
        });
        if let Some(Given { port, lease }) = given.get(broker) {
            lease.free();
            self.ports.freed(*port);
        }
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
        let lease = Lease::default();
        let endpoint = NewEndpoint {
            broker: broker.clone(),
            port,
            lease: lease.clone(),
            listeners: pair.listeners(),
            target: watched,
        };
        let sent = self.created.send(endpoint).await;
        sent.map_err(|_| EndpointError::Stopping)?;
        self.open.insert(broker.clone(), target);
        self.used.insert(broker.clone(), self.clock.monotonic());
        let new = Given { port, lease };
        self.published.rcu(|given| {
            let mut given = BTreeMap::clone(given);
            given.insert(broker.clone(), new.clone());
            given
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
