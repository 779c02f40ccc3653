//! Which port stands for which broker.

use std::collections::{BTreeMap, BTreeSet};

use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::namesrv::endpoints::{EndpointError, Endpoints, NewEndpoint};
use rocketmq_timer_proxy::remoting::route::{BrokerId, Ours};
use rocketmq_timer_proxy::upstream::cluster::Cluster;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::{broker, endpoint_settings, own_ip};
use crate::support::soon;

fn table(brokers: &[(BrokerId, &str)]) -> BTreeMap<BrokerId, String> {
    let entry = |(broker, address): &(BrokerId, &str)| (broker.clone(), (*address).to_owned());
    brokers.iter().map(entry).collect()
}

async fn next(created: &mut mpsc::Receiver<NewEndpoint>) -> NewEndpoint {
    soon("an endpoint", created.recv()).await.unwrap()
}

#[tokio::test]
async fn each_broker_gets_a_pair_that_is_bound_and_leads_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::fixed(table(&[(broker("a", 0), "h:1"), (broker("a", 1), "h:2")]));
    let (sender, mut created) = mpsc::channel(8);
    let settings = endpoint_settings(directory.path(), BrokerPorts::Any);
    let endpoints = Endpoints::start(settings, cluster.clone(), sender);
    let mut pairs = BTreeSet::new();
    for (id, address) in [(0, "h:1"), (1, "h:2")] {
        let mut endpoint = next(&mut created).await;
        assert_eq!(endpoint.broker, broker("a", id));
        assert_eq!(endpoint.target.borrow().as_deref(), Some(address));
        let [main, vip] = &endpoint.listeners;
        assert_eq!((main.port, main.vip), (endpoint.port, false));
        assert_eq!((vip.port, vip.vip), (endpoint.port - 2, true));
        for listener in [main, vip] {
            assert!(pairs.insert(listener.port));
            let bound = listener.listener.local_addr().unwrap();
            assert_eq!(bound.port(), listener.port);
            TcpStream::connect(bound).await.unwrap();
        }
        endpoints.ensure([&broker("a", id)]).await.unwrap();
        let ours = format!("{}:{}", own_ip(), endpoint.port);
        assert_eq!(endpoints.by_id(&broker("a", id)), Some(ours.clone()));
        assert_eq!(endpoints.by_address(address), Some(ours));
        if id == 1 {
            // The address changes, then the broker is gone.
            cluster.learn(&table(&[(broker("a", 1), "h:9")]));
            soon("the change", endpoint.target.changed()).await.unwrap();
            assert_eq!(endpoint.target.borrow_and_update().as_deref(), Some("h:9"));
            cluster.forget(&broker("a", 1));
            soon("the end", endpoint.target.changed()).await.unwrap();
            assert_eq!(endpoint.target.borrow_and_update().as_deref(), None);
        }
    }
    assert_eq!(endpoints.by_id(&broker("b", 0)), None);
    assert_eq!(endpoints.by_address("h:3"), None);
}

#[tokio::test]
async fn a_restart_gives_the_same_ports_before_anybody_asks() {
    for ports in [BrokerPorts::Any, BrokerPorts::Range(23_000, 23_999)] {
        let directory = tempfile::tempdir().unwrap();
        let brokers = ["a", "b", "c"].map(|name| broker(name, 0));
        let (sender, mut created) = mpsc::channel(8);
        let settings = endpoint_settings(directory.path(), ports);
        let endpoints = Endpoints::start(settings.clone(), Cluster::fixed(table(&[])), sender);
        endpoints.ensure(&brokers).await.unwrap();
        let before = endpoints.ports();
        assert_eq!(before.len(), 3);
        for _ in &brokers {
            assert_eq!(*next(&mut created).await.target.borrow(), None);
        }
        drop((endpoints, created));

        let (sender, mut created) = mpsc::channel(8);
        let cluster = Cluster::fixed(table(&[(broker("b", 0), "h:1")]));
        let endpoints = Endpoints::start(settings, cluster, sender);
        endpoints.settled().await;
        assert_eq!(endpoints.ports(), before);
        for (name, target) in [("a", None), ("b", Some("h:1")), ("c", None)] {
            let endpoint = next(&mut created).await;
            assert_eq!(endpoint.broker, broker(name, 0));
            assert_eq!(endpoint.target.borrow().as_deref(), target);
        }
    }
}

#[tokio::test]
async fn a_full_range_refuses_and_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let (sender, _created) = mpsc::channel(8);
    let ports = BrokerPorts::Range(24_000, 24_003);
    let settings = endpoint_settings(directory.path(), ports);
    let endpoints = Endpoints::start(settings, Cluster::fixed(table(&[])), sender);
    let brokers = ["a", "b", "c"].map(|name| broker(name, 0));
    let refused = endpoints.ensure(&brokers).await.unwrap_err();
    assert!(matches!(refused, EndpointError::NoPorts { .. }));
    let words = "no free pair of ports in --broker-ports for broker c (id 0, DefaultCluster)";
    assert_eq!(refused.to_string(), words);
    let given: BTreeSet<u16> = endpoints.ports().values().copied().collect();
    assert_eq!(given, BTreeSet::from([24_002, 24_003]));
    assert_eq!(endpoints.by_id(&brokers[2]), None);
}

#[tokio::test]
async fn a_port_that_cannot_be_kept_is_not_given_out() {
    let directory = tempfile::tempdir().unwrap();
    let (sender, _created) = mpsc::channel(8);
    let mut settings = endpoint_settings(directory.path(), BrokerPorts::Any);
    settings.file = directory.path().join("missing").join("endpoints.json");
    let endpoints = Endpoints::start(settings.clone(), Cluster::fixed(table(&[])), sender);
    let refused = endpoints.ensure([&broker("a", 0)]).await.unwrap_err();
    assert!(matches!(refused, EndpointError::Kept { .. }), "{refused}");
    assert_eq!(endpoints.by_id(&broker("a", 0)), None);
    // It works again as soon as the disk does.
    std::fs::create_dir(directory.path().join("missing")).unwrap();
    endpoints.ensure([&broker("a", 0)]).await.unwrap();
    assert!(endpoints.by_id(&broker("a", 0)).is_some());
}
