//! A dispatcher at work on a store without a disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rocketmq_timer_proxy::clock::{Clock, SystemClock};
use rocketmq_timer_proxy::dispatch::dispatcher::{Controls, DispatchError, Dispatcher, Parts};
use rocketmq_timer_proxy::dispatch::lane::Pace;
use rocketmq_timer_proxy::metrics::{Metrics, count};
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::shutdown::{Stop, stop};
use rocketmq_timer_proxy::store::Due;
use rocketmq_timer_proxy::upstream::cluster::Cluster;
use rocketmq_timer_proxy::upstream::nameservers::{NameServerSettings, NameServers};
use rocketmq_timer_proxy::upstream::pool::{Pool, PoolSettings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::shelf::Shelf;
use crate::support::peer::ScriptedPeer;

pub(super) struct Rig {
    pub(super) shelf: Shelf,
    pub(super) due: mpsc::UnboundedSender<Vec<Due>>,
    pub(super) cluster: Cluster,
    pub(super) metrics: Metrics,
    pub(super) controls: Controls,
    pub(super) stop: Stop,
    pub(super) task: JoinHandle<Result<(), DispatchError>>,
}

/// Short waits, so that tests do not wait; the shape of the numbers stays.
pub(super) fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace { pause: (ms(2), ms(50)), slow: (ms(5), ms(20)), ..Pace::new(Duration::from_secs(900)) }
}

impl Rig {
    pub(super) async fn start(brokers: &[(&str, String)]) -> Self {
        let name_server = ScriptedPeer::name_server("{}", "{}").await;
        Self::start_with(brokers, &name_server, Arc::new(SystemClock::new()), pace())
    }

    pub(super) fn start_with(
        brokers: &[(&str, String)],
        name_server: &ScriptedPeer,
        clock: Arc<dyn Clock>,
        pace: Pace,
    ) -> Self {
        let (shelf, metrics) = (Shelf::default(), Metrics::new());
        let (due, incoming) = mpsc::unbounded_channel();
        let (stop, stopping) = stop();
        let cluster = Cluster::fixed(BTreeMap::new());
        let (dispatcher, controls) = Dispatcher::new(Parts {
            source: shelf.clone(),
            due: incoming,
            cluster: cluster.clone(),
            pool: Pool::new(PoolSettings::brokers(), metrics.clone()),
            nameservers: NameServers::new(
                &[name_server.address()],
                NameServerSettings::default(),
                metrics.clone(),
            ),
            clock,
            metrics: metrics.clone(),
            stopping,
            pace,
        });
        let rig = Self {
            shelf,
            due,
            cluster,
            metrics,
            controls,
            stop,
            task: tokio::spawn(dispatcher.run()),
        };
        for (name, address) in brokers {
            rig.meet(name, address.clone());
        }
        rig
    }

    pub(super) fn meet(&self, name: &str, address: String) {
        self.cluster.learn(&BTreeMap::from([master(name, address)]));
    }

    pub(super) fn fall_due(&self, due: Vec<Due>) {
        self.due.send(due).unwrap();
    }

    pub(super) fn retries(&self, why: &'static str) -> u64 {
        count(&self.metrics.dispatch_retries, why)
    }

    /// Everything that was due is delivered, and the gauges say so.
    pub(super) fn assert_idle(&self, delivered: u64) {
        assert_eq!(self.metrics.dispatch_delivered.get(), delivered);
        assert_eq!(self.metrics.dispatch_overdue.get(), 0);
        assert_eq!(self.metrics.dispatch_in_flight.get(), 0);
        assert_eq!(self.metrics.dispatch_parked.get(), 0);
    }
}

fn master(name: &str, address: String) -> (BrokerId, String) {
    let id = BrokerId { cluster: "c".to_owned(), name: name.to_owned(), id: 0 };
    (id, address)
}
