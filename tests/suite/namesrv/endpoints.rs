//! Which port stands for which broker.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;
use std::time::Duration;

use rocketmq_timer_proxy::clock::ManualClock;
use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::config::broker_map::BrokerMap;
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

#[tokio::test]
async fn pinned_brokers_get_their_port_and_nobody_else_does() {
    let directory = tempfile::tempdir().unwrap();
    let start = |map: &str| {
        let mut settings = endpoint_settings(directory.path(), BrokerPorts::Range(25_000, 25_003));
        settings.map = map.parse::<BrokerMap>().unwrap();
        let (sender, created) = mpsc::channel(8);
        (Endpoints::start(settings, Cluster::fixed(table(&[])), sender), created)
    };
    let [a, b, c] = ["a", "b", "c"].map(|name| broker(name, 0));
    // Outside of the range too.
    let (endpoints, mut created) = start("a:0=25002,b:0=25101,b:1=25105");
    endpoints.ensure([&c, &b, &a]).await.unwrap();
    let given = endpoints.ports();
    assert_eq!([given[&a], given[&b], given[&c]], [25_002, 25_101, 25_003]);
    for _ in 0..3 {
        let [main, vip] = next(&mut created).await.listeners;
        assert_eq!(main.listener.local_addr().unwrap().port(), vip.port + 2);
    }
    drop((endpoints, created));

    // A pin on what another broker had: that one moves, and the pin holds from the start.
    let (endpoints, created) = start("a:0=25003,b:0=25101");
    endpoints.settled().await;
    let given = endpoints.ports();
    assert_eq!((given[&a], given[&c]), (25_003, 25_002));
    drop((endpoints, created));

    // Pins reserve their ports before their brokers are there, those of others 2 apart as well.
    let (endpoints, created) = start("x:0=25001,y:0=25004");
    endpoints.settled().await;
    let refused = endpoints.ensure([&a]).await.unwrap_err();
    assert!(matches!(refused, EndpointError::NoPorts { .. }), "{refused}");
    drop((endpoints, created));
}

#[tokio::test]
async fn a_pinned_port_that_is_taken_refuses_the_route_until_it_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind((own_ip(), 25_200)).unwrap();
    let mut settings = endpoint_settings(directory.path(), BrokerPorts::Any);
    settings.map = "a:0=25202".parse().unwrap();
    let (sender, _created) = mpsc::channel(8);
    let endpoints = Endpoints::start(settings, Cluster::fixed(table(&[])), sender);
    let refused = endpoints.ensure([&broker("a", 0)]).await.unwrap_err();
    let words = "--broker-map gives broker a (id 0) port 25202, and 25202 or 25200 is taken: free both, or choose another";
    assert_eq!(refused.to_string(), words);
    assert_eq!(endpoints.by_id(&broker("a", 0)), None);
    drop(taken);
    endpoints.ensure([&broker("a", 0)]).await.unwrap();
    assert_eq!(endpoints.ports()[&broker("a", 0)], 25_202);
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test]
async fn a_pair_is_freed_after_a_day_without_route_and_connection() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(0);
    // Room for two.
    let ports = BrokerPorts::Range(26_000, 26_003);
    let mut settings = endpoint_settings(directory.path(), ports);
    settings.clock = Arc::new(clock.clone());
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| broker(name, 0));
    let cluster = Cluster::fixed(table(&[(a.clone(), "h:1")]));
    let (sender, mut created) = mpsc::channel(8);
    let endpoints = Endpoints::start(settings.clone(), cluster.clone(), sender);
    endpoints.ensure([&b]).await.unwrap();
    let of_a = next(&mut created).await;
    let of_b = next(&mut created).await;
    let range: BTreeSet<u16> = endpoints.ports().values().copied().collect();
    assert_eq!(range, BTreeSet::from([26_002, 26_003]));
    assert!(endpoints.ensure([&c]).await.is_err(), "the range is full");

    // A connection, though its broker is in no route, and then the route alone.
    let connection = of_b.lease.connected();
    for day in 0..3 {
        clock.advance(DAY);
        endpoints.settled().await;
        assert_eq!(endpoints.ports().len(), 2, "day {day}");
    }
    drop(connection);
    endpoints.settled().await;
    clock.advance(DAY - Duration::from_secs(1));
    endpoints.ensure([&b]).await.unwrap();
    endpoints.settled().await;
    clock.advance(DAY - Duration::from_secs(1));
    endpoints.settled().await;
    assert!(endpoints.by_id(&b).is_some(), "a second is missing");
    endpoints.settled().await;

    // That look-up named it in a route. A day later nobody has.
    let port = endpoints.ports()[&b];
    clock.advance(DAY);
    drop(of_b.listeners);
    endpoints.ensure([&c]).await.unwrap();
    soon("the notice to the listeners", of_b.lease.freed()).await;
    assert_eq!(*of_b.target.borrow(), None);
    assert_eq!(endpoints.by_id(&b), None);
    assert_eq!(endpoints.ports()[&c], port);
    assert_eq!(next(&mut created).await.broker, c);
    assert!(endpoints.ensure([&d]).await.is_err(), "full again");

    // The cluster's own keep their pairs, and the file says the same as the table.
    clock.advance(DAY);
    endpoints.settled().await;
    assert_eq!(endpoints.ports().into_keys().collect::<Vec<_>>(), std::slice::from_ref(&a));
    drop((endpoints, created, of_a));
    let (sender, _created) = mpsc::channel(8);
    let again = Endpoints::start(settings, cluster, sender);
    again.settled().await;
    assert_eq!(again.ports().into_keys().collect::<Vec<_>>(), [a]);
}

#[tokio::test]
async fn a_kept_pair_that_nobody_wants_again_is_freed_too() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(0);
    let mut settings = endpoint_settings(directory.path(), BrokerPorts::Any);
    settings.clock = Arc::new(clock.clone());
    let start = || {
        let (sender, created) = mpsc::channel(8);
        (Endpoints::start(settings.clone(), Cluster::fixed(table(&[])), sender), created)
    };
    let (endpoints, created) = start();
    endpoints.ensure([&broker("a", 0)]).await.unwrap();
    drop((endpoints, created));
    // The day begins with the process.
    clock.advance(DAY);
    let (endpoints, created) = start();
    endpoints.settled().await;
    assert_eq!(endpoints.ports().len(), 1);
    clock.advance(DAY);
    endpoints.settled().await;
    assert_eq!(endpoints.ports().len(), 0);
    drop((endpoints, created));
    let (endpoints, _created) = start();
    endpoints.settled().await;
    assert_eq!(endpoints.ports().len(), 0);
}
