//! A proxy that starts while its name server and its broker are down: ready to hold what it knows of,
//! and at work as soon as they are there.

use std::net::SocketAddr;
use std::sync::Arc;

use rocketmq_timer_proxy::clock::Clock;

use crate::ledger::{Answer, Ledger};
use crate::load::judged;
use crate::plan::Kind;
use crate::rig::{Rig, ask_cluster, broker_script, door_at, get, look, own_ip, routes, settings};
use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::process::ProxyProcess;

/// A peer's address while nobody listens on it.
async fn nobody() -> SocketAddr {
    let mut peer = ScriptedPeer::start_at((own_ip(), 0).into(), |_| Act::Close).await;
    peer.stop().await;
    peer.socket_address()
}

async fn name_server_at(address: SocketAddr, broker: SocketAddr) -> ScriptedPeer {
    let (route, cluster) = routes(&broker.to_string());
    ScriptedPeer::start_at(address, move |seen| {
        Act::Reply(match seen.code() {
            105 => Reply::body(route.clone()),
            106 => Reply::body(cluster.clone()),
            _ => Reply::code(0),
        })
    })
    .await
}

async fn missing(proxy: &ProxyProcess) -> Vec<String> {
    let (_, body) = get(&proxy.admin, "/ready").await;
    serde_json::from_value(body["missing"].clone()).unwrap()
}

/// Sends messages one by one until one of them was held.
async fn hold_one(client: &mut RawClient, ledger: &Ledger) {
    loop {
        let plan = ledger.next(1);
        let answer = client.call(plan.sent(), plan.number as i32).await;
        let answer = judged(&answer);
        ledger.answered(plan.number, answer);
        if answer == Answer::Held && plan.kind != Kind::Plain {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_with_everything_down_serves_once_it_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let (names_at, broker_at) = (nobody().await, nobody().await);
    let proxy = ProxyProcess::start(settings(names_at.to_string(), dir.path()));
    assert_eq!(get(&proxy.admin, "/live").await.0, 200);
    assert_eq!(missing(&proxy).await, ["nameServer"]);
    let answer = ask_cluster(&proxy.namesrv).await;
    assert_ne!(answer.header.code, 0, "there is nothing to tell");

    // It goes on asking by itself.
    let names = name_server_at(names_at, broker_at).await;
    names.until_requests(106, 1).await;
    look("it to be ready", async || missing(&proxy).await.is_empty()).await;
    let door = door_at(&proxy.namesrv).await;
    assert_eq!(door.ip(), proxy.namesrv.parse::<SocketAddr>().unwrap().ip());
    // A broker that is down looks down.
    RawClient::connect(door).await.closed().await;

    let ledger = Arc::new(Ledger::new(3));
    let broker = ScriptedPeer::start_at(broker_at, broker_script(&ledger)).await;
    let mut client = RawClient::connect(door).await;
    hold_one(&mut client, &ledger).await;
    broker.until("what was held", |_| ledger.verdict().lost.is_empty()).await;
    ledger.verdict().assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_held_before_wait_for_a_cluster_that_is_down() {
    let mut rig = Rig::start(4, &[]).await;
    let door = door_at(&rig.proxy.namesrv).await;
    let mut client = RawClient::connect(door).await;
    for _ in 0..20 {
        hold_one(&mut client, &rig.ledger).await;
    }
    rig.kill();
    rig.names.stop().await;
    rig.broker.stop().await;
    let pending = rig.ledger.verdict();
    assert!(!pending.lost.is_empty(), "not all of them had come: {pending}");

    rig.proxy.spawn();
    rig.proxy.await_ready();
    assert_eq!(missing(&rig.proxy).await, ["nameServer"]);
    // A known broker keeps its port, and looks as it is.
    RawClient::connect(door).await.closed().await;
    let due_ms = rig.ledger.clock.wall_ms() + 50;
    look("a message to fall due in vain", async || {
        rig.ledger.clock.wall_ms() > due_ms && rig.stats().await["overdue"].as_u64() > Some(0)
    })
    .await;

    let at = rig.broker.socket_address();
    rig.broker = ScriptedPeer::start_at(at, broker_script(&rig.ledger)).await;
    rig.settle().await;
    rig.ledger.verdict().assert_clean();
    // The name server is still down.
    assert_eq!(missing(&rig.proxy).await, ["nameServer"]);
}
