//! The composition root: binds, opens the store, starts the tasks, and stops them in order.
//!
//! Ports are bound first and relay from the first moment; holds are accepted once the log has been
//! read. Nothing below this file knows more than its own part.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::admin::{self, readiness::Latch, readiness::Readiness};
use crate::budget::Budget;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::dispatch::dispatcher::{self, Dispatcher};
use crate::dispatch::lane::Pace;
use crate::metrics::Metrics;
use crate::namesrv::endpoints::{EndpointSettings, Endpoints, NewEndpoint};
use crate::namesrv::facade;
use crate::namesrv::routes::{LastRoutes, RouteSettings};
use crate::session;
use crate::shutdown::{self, Stage, Stop, Stopping};
use crate::store::{self, Due, OpenError, Opening, Recovery, Store};
use crate::upstream::cluster::{Cluster, ClusterSettings};
use crate::upstream::nameservers::{NameServerSettings, NameServers};
use crate::upstream::pool::{Pool, PoolSettings};

/// Bytes of frames that may be buffered whole at one time, on all broker ports.
const FRAMES: usize = 64 << 20;
/// The same for the name-server port: what stops there must not keep sends waiting.
const NAMES_FRAMES: usize = 32 << 20;
/// Client connections at one time, if the limit on open files allows it.
const CONNECTIONS: u64 = 10_000;
/// So few connections that a busy group of producers may meet the limit.
const FEW_CONNECTIONS: u64 = 1_000;
/// Files and sockets that are not client connections.
const RESERVED_FILES: u64 = 512;

/// Serves until a signal stops it, or until a part fails that it cannot be without.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut app = App::start(config, Arc::new(SystemClock::new())).await?;
    let mut stopped = async move || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let signal = tokio::select! {
        ready = app.ready() => {
            ready?;
            announce(&app)?;
            tokio::select! {
                signal = stopped() => signal,
                failure = app.failed() => return Err(failure),
            }
        }
        signal = stopped() => signal,
    };
    tracing::info!(signal, "stopping");
    app.stop().await;
    Ok(())
}

/// The line that tells scripts and supervisors that holds are accepted.
fn announce(app: &App) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready namesrv={} admin={}", app.namesrv, app.admin)
        .and_then(|()| out.flush())
        .context("cannot write the ready line to stdout")
}

/// A running proxy.
pub struct App {
    /// Where clients find their name server.
    pub namesrv: SocketAddr,
    /// Where health and metrics are.
    pub admin: SocketAddr,
    /// All metric families.
    pub metrics: Metrics,
    store: Store,
    readiness: Readiness,
    recovered: Option<oneshot::Receiver<Result<Recovery, OpenError>>>,
    stop: Stop,
    lame_duck: Duration,
    grace: Duration,
    sessions: Arc<session::Shared>,
    /// What has to finish before the store is closed: the facade and dispatch.
    drained: JoinSet<anyhow::Result<()>>,
    /// What just goes on until the end.
    tasks: JoinSet<anyhow::Result<()>>,
}

/// What the tasks share.
struct Common {
    config: Arc<Config>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    budget: Budget,
    max_connections: usize,
    stopping: Stopping,
}

impl App {
    /// Binds, takes the data directory and starts everything; the log is still being read when this
    /// returns.
    pub async fn start(config: Config, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let (namesrv, admin) = (bind(config.listen, "listen"), bind(config.admin, "admin"));
        let (namesrv, admin) = (namesrv.await?, admin.await?);
        let metrics = Metrics::new();
        let options =
            store::Options::new(config.data_dir.clone(), config.flush, config.near_memory);
        let Opening { store, due, recovered } = Store::open(options, Arc::clone(&clock), &metrics)?;
        let (stop, stopping) = shutdown::stop();
        let common = Common {
            clock,
            metrics: metrics.clone(),
            budget: Budget::new(FRAMES),
            max_connections: connections(),
            stopping,
            config: Arc::new(config),
        };
        let sessions = common.sessions(&store);
        let mut app = Self {
            namesrv: namesrv.local_addr()?,
            admin: admin.local_addr()?,
            metrics,
            store,
            readiness: Readiness::new(),
            recovered: Some(recovered),
            stop,
            lame_duck: common.config.lame_duck,
            grace: common.config.grace,
            sessions,
            drained: JoinSet::new(),
            tasks: JoinSet::new(),
        };
        app.spawn_admin(admin, &common);
        app.spawn_network(namesrv, due, &common).await;
        app.readiness.set(Latch::Ports);
        Ok(app)
    }

    /// Returns when holds are accepted.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let Some(recovered) = self.recovered.take() else { return Ok(()) };
        let report = recovered.await.context("the store ended while it read its log")??;
        tracing::info!(
            pending = report.pending,
            segments = report.segments,
            damaged = report.damaged,
            torn_bytes = report.torn_bytes,
            took = ?report.took,
            "the timerlog has been read"
        );
        self.readiness.set(Latch::Recovered);
        self.readiness.set(Latch::StoreHealthy);
        let (store, readiness) = (self.store.clone(), self.readiness.clone());
        self.tasks.spawn(async move {
            store.failed().await;
            readiness.clear(Latch::StoreHealthy);
            std::future::pending().await
        });
        Ok(())
    }

    /// Returns when a part has failed that the proxy cannot be without.
    pub async fn failed(&mut self) -> anyhow::Error {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.drained.join_next() => ended,
                Some(ended) = self.tasks.join_next() => ended,
            };
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => return failure,
                Err(panic) => return anyhow::Error::new(panic),
            }
        }
    }

    /// Stops in stages: no new routes, then no new frames, then nothing. What was accepted is
    /// answered and synced.
    pub async fn stop(mut self) {
        self.stop.enter(Stage::LameDuck);
        tokio::time::sleep(self.lame_duck).await;
        self.stop.enter(Stage::Draining);
        if tokio::time::timeout(self.grace, self.drain()).await.is_err() {
            tracing::warn!(grace = ?self.grace, "cut what was not done at the end of the grace period");
        }
        self.stop.enter(Stage::Cut);
        self.drain().await;
        self.store.close().await;
        self.tasks.shutdown().await;
    }

    /// Returns when every session and all of [`App::drained`] have ended.
    async fn drain(&mut self) {
        self.sessions.ended().await;
        while let Some(ended) = self.drained.join_next().await {
            if let Err(failure) = ended.map_err(anyhow::Error::new).flatten() {
                tracing::error!("while stopping: {failure:#}");
            }
        }
    }

    fn spawn_admin(&mut self, listener: TcpListener, common: &Common) {
        let (store, clock) = (self.store.clone(), Arc::clone(&common.clock));
        let state = admin::State {
            metrics: common.metrics.clone(),
            readiness: self.readiness.clone(),
            config: Arc::clone(&common.config),
            wheel_stuck_for: Arc::new(move || {
                let late = store.next_due().map_or(0, |due| clock.wall_ms().saturating_sub(due));
                Duration::from_millis(late.max(0).cast_unsigned())
            }),
            stopping: common.stopping.clone(),
        };
        let stopping = common.stopping.clone();
        self.tasks.spawn(async move {
            admin::serve(listener, state, stopping).await;
            Ok(())
        });
    }

    async fn spawn_network(
        &mut self,
        namesrv: TcpListener,
        due: mpsc::UnboundedReceiver<Vec<Due>>,
        common: &Common,
    ) {
        let config = &common.config;
        let nameservers = NameServers::new(
            &config.namesrv,
            NameServerSettings::default(),
            common.metrics.clone(),
        );
        let cluster =
            Cluster::start(nameservers.clone(), ClusterSettings::in_dir(&config.data_dir));
        self.spawn_latch(&cluster);
        let (created, endpoints) = mpsc::channel(16);
        self.spawn_sessions(endpoints, config.advertise.parse().ok());
        let settings = EndpointSettings {
            ip: config.listen.ip(),
            advertise: config.advertise.clone(),
            ports: config.broker_ports,
            map: config.broker_map.clone(),
            file: config.data_dir.join("endpoints.json"),
            clock: Arc::clone(&common.clock),
        };
        let endpoints = Endpoints::start(settings, cluster.clone(), created);
        endpoints.settled().await;
        self.spawn_dispatch(due, &nameservers, &cluster, common);
        let parts = facade::Parts {
            nameservers,
            cluster,
            endpoints,
            routes: LastRoutes::start(
                RouteSettings::in_dir(&config.data_dir),
                Arc::clone(&common.clock),
                common.metrics.clone(),
            ),
            budget: Budget::new(NAMES_FRAMES),
            metrics: common.metrics.clone(),
            clock: Arc::clone(&common.clock),
            stopping: common.stopping.clone(),
            max_connections: common.max_connections,
        };
        self.drained.spawn(async move {
            facade::serve(namesrv, parts).await;
            Ok(())
        });
    }

    /// Keeps the name servers' latch at what the last question to them says.
    fn spawn_latch(&mut self, cluster: &Cluster) {
        let (mut answered, readiness) = (cluster.answered(), self.readiness.clone());
        self.tasks.spawn(async move {
            loop {
                match *answered.borrow_and_update() {
                    true => readiness.set(Latch::NameServer),
                    false => readiness.clear(Latch::NameServer),
                }
                if answered.changed().await.is_err() {
                    return Ok(());
                }
            }
        });
    }

    /// Accepts clients wherever a broker got its ports.
    fn spawn_sessions(&mut self, mut created: mpsc::Receiver<NewEndpoint>, host: Option<IpAddr>) {
        let sessions = Arc::clone(&self.sessions);
        self.tasks.spawn(async move {
            while let Some(endpoint) = created.recv().await {
                session::listener::open(endpoint, host, &sessions);
            }
            Ok(())
        });
    }

    fn spawn_dispatch(
        &mut self,
        due: mpsc::UnboundedReceiver<Vec<Due>>,
        nameservers: &NameServers,
        cluster: &Cluster,
        common: &Common,
    ) {
        let pool = Pool::new(PoolSettings::brokers(), common.metrics.clone());
        let followed = pool.clone().follow(cluster.watch());
        self.tasks.spawn(async move {
            followed.await;
            Ok(())
        });
        let (dispatcher, _controls) = Dispatcher::new(dispatcher::Parts {
            source: self.store.clone(),
            due,
            cluster: cluster.clone(),
            pool,
            nameservers: nameservers.clone(),
            clock: Arc::clone(&common.clock),
            metrics: common.metrics.clone(),
            stopping: common.stopping.clone(),
            pace: Pace::new(common.config.park_after),
        });
        self.drained.spawn(async move { dispatcher.run().await.context("dispatch has failed") });
    }
}

impl Common {
    fn sessions(&self, store: &Store) -> Arc<session::Shared> {
        session::Shared::new(session::Parts {
            clock: Arc::clone(&self.clock),
            policy: self.config.policy.clone(),
            holder: Arc::new(store.clone()),
            budget: self.budget.clone(),
            metrics: self.metrics.clone(),
            stopping: self.stopping.clone(),
            max_connections: self.max_connections,
        })
    }
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: free it, or give another --{flag}"))
}

/// How many client connections the limit on open files allows: each has a twin. The soft limit is
/// raised to the hard one first, since many systems start processes with 1,024.
fn connections() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let files = if raised { maximum } else { current };
    let files = files.unwrap_or(u64::MAX).saturating_sub(RESERVED_FILES);
    let most = (files / 2).clamp(16, CONNECTIONS);
    if most < CONNECTIONS {
        let raise = CONNECTIONS * 2 + RESERVED_FILES;
        let said = format!(
            "the limit on open files allows {most} client connections; raise ulimit -n to {raise} \
             for {CONNECTIONS}"
        );
        if most < FEW_CONNECTIONS {
            tracing::warn!("{said}");
        } else {
            tracing::info!("{said}");
        }
    }
    usize::try_from(most).unwrap_or(usize::MAX)
}
