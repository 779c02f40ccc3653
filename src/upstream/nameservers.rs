//! The upstream name servers: one is used while it answers, the others stand by.
//!
//! Called by the facade, by the cluster table and by dispatch. Reads that can be repeated (105, 106)
//! are asked again elsewhere as soon as one server fails or is silent; anything else moves on only
//! when no connection could be made, since it may have been carried out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::UpstreamError;
use super::client::{Answer, Client, Request, Silence};
use super::pool::{Pool, PoolSettings};
use crate::metrics::Metrics;
use crate::remoting::code::request::{GET_BROKER_CLUSTER_INFO, GET_ROUTEINFO_BY_TOPIC};
use crate::remoting::command::Command;

/// Waits for name servers.
#[derive(Debug, Clone)]
pub struct NameServerSettings {
    /// For repeatable reads: how long a server may be silent before the next is asked as well. The
    /// earlier answer counts, so that a slow server costs nothing when it is the only one.
    pub next_after: Duration,
    /// For repeatable reads, and for writes to every server: limit of all tries together; under the
    /// 3 s that clients wait.
    pub read_within: Duration,
    /// For everything else: limit for making a connection before the next server is taken.
    pub connect_within: Duration,
    /// For everything else: limit for the answer. A 4.x name server does not answer codes that it
    /// does not know, so this is how long such a request is remembered.
    pub answer_within: Duration,
}

impl Default for NameServerSettings {
    fn default() -> Self {
        Self {
            next_after: Duration::from_millis(300),
            read_within: Duration::from_millis(2700),
            connect_within: Duration::from_millis(700),
            answer_within: Duration::from_secs(10),
        }
    }
}

/// Several name servers behind one `request`; clones share the choice.
#[derive(Debug, Clone)]
pub struct NameServers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<Server>,
    current: AtomicUsize,
    pool: Pool,
    settings: NameServerSettings,
    metrics: Metrics,
}

#[derive(Debug)]
struct Server {
    address: String,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    /// The latest failure, if the latest outcome was one.
    failure: Option<String>,
    logged: Option<Instant>,
}

/// Lines about one server come at least so far apart.
const LINES_APART: Duration = Duration::from_secs(1);

type Tries = JoinSet<(usize, Result<Answer, UpstreamError>)>;

// === impl NameServers ===

impl NameServers {
    /// Name servers at `addresses` (`host:port`). Connects when first asked.
    pub fn new(addresses: &[String], settings: NameServerSettings, metrics: Metrics) -> Self {
        let servers = addresses
            .iter()
            .map(|address| Server { address: address.clone(), health: Mutex::default() });
        let shared = Shared {
            servers: servers.collect(),
            current: AtomicUsize::new(0),
            pool: Pool::new(PoolSettings::name_servers(), metrics.clone()),
            settings,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Asks the current name server, and the next ones when it does not answer.
    pub async fn request(&self, request: Command) -> Result<Command, UpstreamError> {
        let answer = self.ask(Request::Command(request)).await?;
        Ok(answer.into_command())
    }

    /// The same for a request in either form, with the answer's bytes.
    pub async fn ask(&self, request: Request) -> Result<Answer, UpstreamError> {
        match request.header().code {
            GET_ROUTEINFO_BY_TOPIC | GET_BROKER_CLUSTER_INFO => self.read(request).await,
            _ => self.once(request).await,
        }
    }

    /// Sends a request that gets no answer to the current name server.
    pub async fn notify(&self, request: Request) -> Result<(), UpstreamError> {
        let (_, client) = self.connected().await?;
        let within = self.shared.settings.answer_within;
        client.notify(request, within).await
    }

    /// Asks every name server, for writes that clients address to each of them. The outcomes stand
    /// in the order of the addresses.
    pub async fn ask_all(&self, request: &Request) -> Vec<(String, Result<Answer, UpstreamError>)> {
        let mut tries = Tries::new();
        let deadline = Instant::now() + self.shared.settings.read_within;
        for index in 0..self.shared.servers.len() {
            let request = request.clone();
            self.spawn_try(&mut tries, index, request, deadline, Silence::Allowed);
        }
        let mut outcomes = tries.join_all().await;
        outcomes.sort_by_key(|(index, _)| *index);
        outcomes
            .into_iter()
            .map(|(index, outcome)| {
                self.note(index, outcome.as_ref().err());
                (self.address(index), outcome)
            })
            .collect()
    }

    /// All name servers with what is wrong with each, for remarks and log lines.
    pub fn describe(&self) -> String {
        let servers = self.shared.servers.iter().map(|server| {
            let health = server.health();
            match &health.failure {
                Some(failure) => format!("{} ({failure})", server.address),
                None => server.address.clone(),
            }
        });
        servers.collect::<Vec<_>>().join(", ")
    }

    /// A repeatable read: tries are started one after the other and run side by side.
    async fn read(&self, request: Request) -> Result<Answer, UpstreamError> {
        let settings = &self.shared.settings;
        let deadline = Instant::now() + settings.read_within;
        let mut waiting = self.starting_at_current().into_iter();
        let mut tries = Tries::new();
        let mut last_error = None;
        if let Some(index) = waiting.next() {
            self.spawn_try(&mut tries, index, request.clone(), deadline, Silence::Ends);
        }
        loop {
            let outcome = tokio::select! {
                outcome = tries.join_next() => outcome,
                () = sleep(settings.next_after), if waiting.len() > 0 => {
                    if let Some(index) = waiting.next() {
                        self.spawn_try(&mut tries, index, request.clone(), deadline, Silence::Ends);
                    }
                    continue;
                }
            };
            match outcome {
                Some(Ok((index, Ok(answer)))) => {
                    self.use_server(index);
                    return Ok(answer);
                }
                Some(Ok((index, Err(err)))) => {
                    self.note(index, Some(&err));
                    last_error = Some(err);
                }
                // Tries neither panic nor are aborted.
                Some(Err(_)) => {}
                None => return Err(last_error.unwrap_or_else(|| self.nobody())),
            }
            if Instant::now() < deadline
                && let Some(index) = waiting.next()
            {
                self.spawn_try(&mut tries, index, request.clone(), deadline, Silence::Ends);
            }
        }
    }

    /// Any other request: sent once, to the first server that can be connected to.
    async fn once(&self, request: Request) -> Result<Answer, UpstreamError> {
        let (index, client) = self.connected().await?;
        let within = self.shared.settings.answer_within;
        let in_flight = client.start(request, within, Silence::Allowed).await?;
        let answer = in_flight.answer().await?;
        self.note(index, None);
        Ok(answer)
    }

    async fn connected(&self) -> Result<(usize, Client), UpstreamError> {
        let mut last_error = self.nobody();
        for index in self.starting_at_current() {
            let within = self.shared.settings.connect_within;
            match connect(&self.shared.pool, &self.address(index), within).await {
                Ok(client) => {
                    self.use_server(index);
                    return Ok((index, client));
                }
                Err(err) => {
                    self.note(index, Some(&err));
                    last_error = err;
                }
            }
        }
        Err(last_error)
    }

    fn spawn_try(
        &self,
        tries: &mut Tries,
        index: usize,
        request: Request,
        deadline: Instant,
        silence: Silence,
    ) {
        let (pool, address) = (self.shared.pool.clone(), self.address(index));
        tries.spawn(async move {
            let within = deadline.saturating_duration_since(Instant::now());
            let outcome = async {
                let client = connect(&pool, &address, within).await?;
                let left = deadline.saturating_duration_since(Instant::now());
                let in_flight = client.start(request, left, silence).await?;
                in_flight.answer().await
            };
            (index, outcome.await)
        });
    }

    fn starting_at_current(&self) -> Vec<usize> {
        let count = self.shared.servers.len();
        let current = self.shared.current.load(Ordering::Relaxed);
        (0..count).map(|step| (current + step) % count).collect()
    }

    fn address(&self, index: usize) -> String {
        let server = self.shared.servers.get(index);
        server.map_or_else(String::new, |server| server.address.clone())
    }

    fn nobody(&self) -> UpstreamError {
        UpstreamError::Connect { address: self.describe(), why: "no name server".to_owned() }
    }

    /// This server answered: it is the one to ask from now on.
    fn use_server(&self, index: usize) {
        let before = self.shared.current.swap(index, Ordering::Relaxed);
        if before != index {
            self.shared.metrics.upstream_failovers.inc();
            if let Some(silent) = self.shared.servers.get(before) {
                silent.failed("no answer in time");
            }
        }
        self.note(index, None);
    }

    fn note(&self, index: usize, failure: Option<&UpstreamError>) {
        if let Some(server) = self.shared.servers.get(index) {
            match failure {
                Some(err) => server.failed(&err.to_string()),
                None => server.answered(),
            }
        }
    }
}

// === impl Server ===

impl Server {
    fn failed(&self, why: &str) {
        let mut health = self.health();
        if health.failure.replace(why.to_owned()).is_none() && health.may_log() {
            tracing::warn!(name_server = self.address, why, "name server is down");
        }
    }

    fn answered(&self) {
        let mut health = self.health();
        if health.failure.take().is_some() && health.may_log() {
            tracing::info!(name_server = self.address, "name server is back");
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health {
    fn may_log(&mut self) -> bool {
        let now = Instant::now();
        let may = self.logged.is_none_or(|at| now - at >= LINES_APART);
        if may {
            self.logged = Some(now);
        }
        may
    }
}

async fn connect(pool: &Pool, address: &str, within: Duration) -> Result<Client, UpstreamError> {
    timeout(within, pool.client(address)).await.unwrap_or_else(|_| {
        Err(UpstreamError::Connect {
            address: address.to_owned(),
            why: format!("no connection within {within:?}"),
        })
    })
}
