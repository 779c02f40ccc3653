//! The name-server facade: what clients are told, and what stands behind it.

mod endpoints;
mod facade;
mod foreign;
mod outage;
mod unreachable;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rocketmq_timer_proxy::budget::Budget;
use rocketmq_timer_proxy::clock::SystemClock;
use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::config::broker_map::BrokerMap;
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::namesrv::endpoints::{EndpointSettings, Endpoints, NewEndpoint};
use rocketmq_timer_proxy::namesrv::facade::{Parts, serve};
use rocketmq_timer_proxy::namesrv::routes::{LastRoutes, RouteSettings};
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::shutdown::{Stop, stop};
use rocketmq_timer_proxy::upstream::cluster::{Cluster, ClusterSettings};
use rocketmq_timer_proxy::upstream::nameservers::{NameServerSettings, NameServers};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::PATIENCE;
use crate::support::client::RawClient;

fn broker(name: &str, id: i64) -> BrokerId {
    BrokerId { cluster: "DefaultCluster".to_owned(), name: name.to_owned(), id }
}

/// A loopback address of this process's own, so that fixed ranges of ports meet nobody else's.
fn own_ip() -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 100 + high % 100, low, 1)
}

fn endpoint_settings(directory: &Path, ports: BrokerPorts) -> EndpointSettings {
    EndpointSettings {
        ip: own_ip().into(),
        advertise: own_ip().to_string(),
        ports,
        map: BrokerMap::default(),
        file: directory.join("endpoints.json"),
        clock: Arc::new(SystemClock::new()),
    }
}

/// Limits that nothing here may run into.
fn patient() -> NameServerSettings {
    NameServerSettings {
        next_after: PATIENCE,
        read_within: PATIENCE,
        connect_within: PATIENCE,
        answer_within: PATIENCE,
    }
}

/// A facade with everything behind it, on a free port.
struct Proxy {
    address: String,
    endpoints: Endpoints,
    cluster: Cluster,
    created: mpsc::Receiver<NewEndpoint>,
    stop: Stop,
    served: JoinHandle<()>,
    metrics: Metrics,
    budget: Budget,
    _directory: tempfile::TempDir,
}

impl Proxy {
    async fn start(nameservers: &[String]) -> Self {
        Self::with(nameservers, BrokerPorts::Any, patient()).await
    }

    async fn with(
        nameservers: &[String],
        ports: BrokerPorts,
        settings: NameServerSettings,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let metrics = Metrics::new();
        let nameservers = NameServers::new(nameservers, settings, metrics.clone());
        let cluster = Cluster::start(
            nameservers.clone(),
            ClusterSettings {
                // Only when asked: what tests see comes from their own requests.
                every: Duration::from_secs(3600),
                ..ClusterSettings::in_dir(directory.path())
            },
        );
        let (sender, created) = mpsc::channel(64);
        let settings = endpoint_settings(directory.path(), ports);
        let endpoints = Endpoints::start(settings, cluster.clone(), sender);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopping) = stop();
        let budget = Budget::new(8 * 1024 * 1024);
        let routes = RouteSettings::in_dir(directory.path());
        let clock = Arc::new(SystemClock::new());
        let parts = Parts {
            nameservers,
            cluster: cluster.clone(),
            endpoints: endpoints.clone(),
            routes: LastRoutes::start(routes, clock.clone(), metrics.clone()),
            budget: budget.clone(),
            metrics: metrics.clone(),
            clock,
            stopping,
            max_connections: 2_000,
        };
        Self {
            address,
            endpoints,
            cluster,
            created,
            stop,
            served: tokio::spawn(serve(listener, parts)),
            metrics,
            budget,
            _directory: directory,
        }
    }

    async fn client(&self) -> RawClient {
        RawClient::connect(&self.address).await
    }

    fn port(&self, broker: &BrokerId) -> u16 {
        self.endpoints.ports()[broker]
    }

    fn ours(&self, broker: &BrokerId) -> String {
        format!("{}:{}", own_ip(), self.port(broker))
    }
}
