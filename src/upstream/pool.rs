//! One client per address, connected when first needed, kept alive, replaced when it ends.
//!
//! Called by dispatch and by the name servers. Never repeats a request, and never refuses a caller
//! because of an earlier failure: every call that finds no connection tries to make one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::UpstreamError;
use super::client::Client;
use crate::metrics::Metrics;
use crate::remoting::code::request::GET_BROKER_RUNTIME_INFO;
use crate::remoting::command::Command;
use crate::remoting::route::BrokerId;

/// Waits and intervals of a pool.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// Limit for making a connection. Longer than a client's own, shorter than a client's patience.
    pub connect_within: Duration,
    /// A connection that was silent for so long is asked for a sign of life (code 28): brokers cut
    /// silent ones after 120 s, firewalls often earlier. `None`: never, for peers that do not
    /// answer such a request.
    pub keep_alive_after: Option<Duration>,
    /// Limit for that sign; without it the connection is dead.
    pub keep_alive_within: Duration,
    /// First and longest pause between attempts that nobody asked for.
    pub pauses: (Duration, Duration),
}

impl PoolSettings {
    /// For brokers.
    pub fn brokers() -> Self {
        Self {
            connect_within: Duration::from_secs(3),
            keep_alive_after: Some(Duration::from_secs(30)),
            keep_alive_within: Duration::from_secs(10),
            pauses: (Duration::from_millis(100), Duration::from_secs(5)),
        }
    }

    /// For name servers: they do not answer code 28, and are asked every few seconds anyway.
    pub fn name_servers() -> Self {
        Self { keep_alive_after: None, ..Self::brokers() }
    }
}

/// Clients by address; clones share them. Dropping the last clone closes them.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    slots: Mutex<HashMap<String, Slot>>,
    settings: PoolSettings,
    metrics: Metrics,
}

/// One address. Its task ends when the slot is dropped.
#[derive(Debug)]
struct Slot {
    state: watch::Receiver<State>,
    wanted: Arc<Notify>,
    _task: DropGuard,
}

#[derive(Debug, Clone)]
struct State {
    /// Attempts to connect that came to an end.
    attempts: u64,
    /// What came of the last one.
    last: Option<Result<Client, UpstreamError>>,
}

// === impl Pool ===

impl Pool {
    /// An empty pool. Needs a running runtime when used.
    pub fn new(settings: PoolSettings, metrics: Metrics) -> Self {
        let shared = Shared { slots: Mutex::default(), settings, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// A client for `address`, connecting if there is none. Callers that arrive while a connect is
    /// under way share its outcome.
    pub async fn client(&self, address: &str) -> Result<Client, UpstreamError> {
        let (mut state, wanted) = self.slot(address);
        let seen = {
            let state = state.borrow_and_update();
            if let Some(client) = state.open() {
                return Ok(client);
            }
            state.attempts
        };
        wanted.notify_one();
        let outcome = state.wait_for(|state| state.attempts > seen || state.open().is_some()).await;
        let last = outcome.ok().and_then(|state| state.last.clone());
        last.unwrap_or_else(|| {
            Err(UpstreamError::Connect {
                address: address.to_owned(),
                why: "this broker is no longer in the cluster".to_owned(),
            })
        })
    }

    /// A connection that nobody shares; it closes when its last handle is dropped.
    pub async fn own(&self, address: &str) -> Result<Client, UpstreamError> {
        let Shared { settings, metrics, .. } = &*self.shared;
        Client::connect(address, settings.connect_within, metrics).await
    }

    /// Forgets every address that is not in `addresses`: its connection is closed and not made
    /// again until somebody asks.
    pub fn keep(&self, addresses: &BTreeSet<&str>) {
        self.lock().retain(|address, _| addresses.contains(address.as_str()));
    }

    /// Forgets addresses as they leave `cluster`. Returns when its sender is gone or when this was
    /// the last clone of the pool.
    pub async fn follow(self, mut cluster: watch::Receiver<BTreeMap<BrokerId, String>>) {
        let shared = Arc::downgrade(&self.shared);
        drop(self);
        while cluster.changed().await.is_ok() {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let addresses = cluster.borrow_and_update().clone();
            let addresses = addresses.values().map(String::as_str).collect();
            Self { shared }.keep(&addresses);
        }
    }

    fn slot(&self, address: &str) -> (watch::Receiver<State>, Arc<Notify>) {
        let mut slots = self.lock();
        if let Some(slot) = slots.get(address) {
            return (slot.state.clone(), Arc::clone(&slot.wanted));
        }
        let (sender, state) = watch::channel(State { attempts: 0, last: None });
        let wanted = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let connector = Connector {
            address: address.to_owned(),
            settings: self.shared.settings.clone(),
            metrics: self.shared.metrics.clone(),
            state: sender,
            wanted: Arc::clone(&wanted),
            reachable: None,
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(connector.run()));
        let slot =
            Slot { state: state.clone(), wanted: Arc::clone(&wanted), _task: stop.drop_guard() };
        slots.insert(address.to_owned(), slot);
        (state, wanted)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Slot>> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open(&self) -> Option<Client> {
        let client = self.last.as_ref()?.as_ref().ok()?;
        client.is_open().then(|| client.clone())
    }
}

// === Connector ===

/// The task behind a slot: connects, keeps alive, connects again.
struct Connector {
    address: String,
    settings: PoolSettings,
    metrics: Metrics,
    state: watch::Sender<State>,
    wanted: Arc<Notify>,
    /// As last logged.
    reachable: Option<bool>,
}

impl Connector {
    async fn run(mut self) {
        let (first, longest) = self.settings.pauses;
        let mut pause = first;
        loop {
            let within = self.settings.connect_within;
            let outcome = Client::connect(&self.address, within, &self.metrics).await;
            self.log(outcome.as_ref().err());
            let client = outcome.as_ref().ok().cloned();
            self.state.send_modify(|state| {
                state.attempts += 1;
                state.last = Some(outcome);
            });
            if let Some(client) = client {
                let since = Instant::now();
                self.keep_alive(&client).await;
                drop(client);
                if since.elapsed() >= longest {
                    // It served for a while: the next attempt need not wait.
                    pause = first;
                    continue;
                }
            }
            // The jitter keeps many proxies from returning to one broker at the same moment.
            let jittered = pause.mul_f64(rand::rng().random_range(0.75..1.25));
            tokio::select! {
                () = sleep(jittered) => {}
                () = self.wanted.notified() => {}
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Returns when the connection has ended.
    async fn keep_alive(&self, client: &Client) {
        let ended = client.ended();
        tokio::pin!(ended);
        let Some(after) = self.settings.keep_alive_after else {
            return ended.await;
        };
        loop {
            tokio::select! {
                () = &mut ended => return,
                () = sleep_until(client.last_heard() + after) => {}
            }
            if client.last_heard().elapsed() < after {
                continue;
            }
            let ask = Command::request(GET_BROKER_RUNTIME_INFO, &[], Bytes::new());
            // Whatever it says, it is alive; if it says nothing, the client has ended itself.
            if let Err(err) = client.request(ask, self.settings.keep_alive_within).await {
                tracing::debug!(%err, "no sign of life");
            }
        }
    }

    fn log(&mut self, failure: Option<&UpstreamError>) {
        let before = self.reachable.replace(failure.is_none());
        match (before, failure) {
            (None | Some(true), Some(err)) => tracing::warn!(%err, "unreachable"),
            (Some(false), None) => tracing::info!(address = self.address, "reachable again"),
            _ => {}
        }
    }
}
