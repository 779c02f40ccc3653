//! Connections by address.

use std::collections::BTreeMap;
use std::time::Duration;

use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::upstream::UpstreamError;
use rocketmq_timer_proxy::upstream::pool::{Pool, PoolSettings};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::fault::{BlackHole, Fault, FaultRelay};
use crate::support::peer::ScriptedPeer;
use crate::support::{PATIENCE, bytes, soon};

fn ask() -> Command {
    Command::request(310, &[], bytes("hello"))
}

fn quick() -> PoolSettings {
    PoolSettings {
        connect_within: PATIENCE,
        keep_alive_after: Some(Duration::from_millis(40)),
        keep_alive_within: PATIENCE,
        pauses: (Duration::from_millis(1), Duration::from_millis(5)),
    }
}

/// No attempt that nobody asked for.
fn patient() -> PoolSettings {
    PoolSettings {
        keep_alive_after: None,
        pauses: (Duration::from_secs(600), Duration::from_secs(600)),
        ..quick()
    }
}

#[tokio::test]
async fn callers_share_one_connect() {
    let peer = ScriptedPeer::broker().await;
    let pool = Pool::new(patient(), Metrics::new());
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let (pool, address) = (pool.clone(), peer.address());
        calls.spawn(async move {
            let client = pool.client(&address).await.unwrap();
            client.request(ask(), PATIENCE).await.unwrap().header.code
        });
    }
    assert_eq!(soon("the answers", calls.join_all()).await, [0; 20]);
    assert_eq!(peer.log().accepted, 1);
    drop(pool);
    peer.until("the end", |log| log.open == 0).await;
}

#[tokio::test]
async fn each_call_tries_again_whatever_failed_before() {
    let peer = ScriptedPeer::broker().await;
    let relay = FaultRelay::start(peer.address()).await;
    relay.set(Fault::Refuse).await;
    let pool = Pool::new(patient(), Metrics::new());
    for _ in 0..3 {
        let failed = pool.client(&relay.address()).await;
        assert!(matches!(failed, Err(UpstreamError::Connect { .. })));
    }
    relay.set(Fault::Pass).await;
    let client = soon("a connection", async {
        loop {
            // The relay opens its port a moment after it was told to.
            if let Ok(client) = pool.client(&relay.address()).await {
                return client;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(client.request(ask(), PATIENCE).await.unwrap().header.code, 0);
}

#[tokio::test]
async fn a_connection_that_ends_is_made_again_before_anybody_asks() {
    let peer = ScriptedPeer::broker().await;
    let pool = Pool::new(quick(), Metrics::new());
    let first = pool.client(&peer.address()).await.unwrap();
    peer.cut();
    peer.until("a second connection", |log| log.accepted == 2).await;
    assert!(!first.is_open());
    let second = pool.client(&peer.address()).await.unwrap();
    assert_eq!(second.request(ask(), PATIENCE).await.unwrap().header.code, 0);
}

#[tokio::test]
async fn a_silent_connection_is_asked_for_a_sign_of_life() {
    let peer = ScriptedPeer::broker().await;
    let pool = Pool::new(quick(), Metrics::new());
    let client = pool.client(&peer.address()).await.unwrap();
    peer.until_requests(28, 3).await;
    assert!(client.is_open());
    assert_eq!(peer.log().accepted, 1);
}

#[tokio::test]
async fn a_half_dead_connection_is_found_and_replaced() {
    let peer = ScriptedPeer::broker().await;
    let relay = FaultRelay::start(peer.address()).await;
    let settings = PoolSettings { keep_alive_within: Duration::from_millis(60), ..quick() };
    let pool = Pool::new(settings, Metrics::new());
    let client = pool.client(&relay.address()).await.unwrap();
    relay.set(Fault::BlackHole).await;
    soon("the end of the half-dead connection", client.ended()).await;
    relay.set(Fault::Pass).await;
    let next = soon("a live connection", async {
        loop {
            let client = pool.client(&relay.address()).await.unwrap();
            if client.request(ask(), Duration::from_millis(200)).await.is_ok() {
                return client;
            }
        }
    });
    assert!(next.await.is_open());
}

#[tokio::test]
async fn addresses_that_left_the_cluster_are_forgotten() {
    let (old, new) = (ScriptedPeer::broker().await, ScriptedPeer::broker().await);
    let broker = BrokerId { cluster: "C".to_owned(), name: "broker-a".to_owned(), id: 0 };
    let table = |peer: &ScriptedPeer| BTreeMap::from([(broker.clone(), peer.address())]);
    let cluster = watch::Sender::new(table(&old));
    let pool = Pool::new(quick(), Metrics::new());
    let following = tokio::spawn(pool.clone().follow(cluster.subscribe()));
    let client = pool.client(&old.address()).await.unwrap();
    cluster.send_replace(table(&new));
    // `client` is a handle of ours; the pool's own is gone, and no other is made.
    drop(client);
    old.until("the end", |log| log.open == 0).await;
    pool.client(&new.address()).await.unwrap();
    assert_eq!(old.log().accepted, 1);
    drop(cluster);
    soon("the end of the following", following).await.unwrap();
}

#[tokio::test]
async fn a_connect_without_outcome_ends_in_time() {
    let hole = BlackHole::new();
    let settings = PoolSettings { connect_within: Duration::from_millis(50), ..patient() };
    let pool = Pool::new(settings, Metrics::new());
    let err = pool.client(&hole.address()).await.unwrap_err();
    let address = hole.address();
    let words = format!("cannot connect to {address}: no connection within 50ms");
    assert_eq!(err.to_string(), words);
}
