//! The ports that stand for brokers: the VIP port beside each, and what happens when the broker
//! behind one is another.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq_timer_proxy::remoting::command::Command;
use tokio::time::Instant;

use super::rig::{Proxy, START, TestClock, body_of, cluster_body, is_ours};
use crate::support::bytes;
use crate::support::client::{RawClient, send_v2};
use crate::support::peer::{Act, Reply, ScriptedPeer, Seen};

fn stores(seen: &Seen) -> Act {
    Act::Reply(if seen.code() == 310 { Reply::stored(0, 0) } else { Reply::code(0) })
}

#[tokio::test]
async fn every_broker_has_a_vip_port_of_its_own_for_plain_and_delayed_sends() {
    let clock = TestClock::new();
    // On addresses of their own, so that nobody else listens two ports below. Only the second has a
    // VIP port.
    let first = ScriptedPeer::start_at(([127, 77, 0, 1], 0).into(), stores).await;
    let second = ScriptedPeer::start_at(([127, 77, 0, 2], 0).into(), stores).await;
    let mut beside = second.socket_address();
    beside.set_port(beside.port() - 2);
    let second_vip = ScriptedPeer::start_at(beside, stores).await;
    let brokers = [("broker-a", &first), ("broker-b", &second)];
    let addresses = brokers.map(|(_, peer)| peer.address());
    let cluster =
        cluster_body(&[("broker-a", 0, &addresses[0]), ("broker-b", 0, &addresses[1])], "");
    let names = ScriptedPeer::name_server("{}", &cluster).await;
    let mut proxy = Proxy::start(names.address(), clock.clone()).await;
    proxy.ready().await;
    let mut ports = BTreeSet::new();
    let due = START + 60_000;
    for (name, _) in brokers {
        let main = proxy.port_of(name, 0);
        let mut vip = main;
        vip.set_port(main.port() - 2);
        assert!(ports.insert(main.port()) && ports.insert(vip.port()), "{ports:?} overlap");
        for (opaque, address) in [(1, main), (2, vip)] {
            let mut client = RawClient::connect(address).await;
            let plain = send_v2("T", 0, "", format!("{name} plain {opaque}"));
            let answer = client.call(plain, opaque).await;
            assert_eq!((answer.header.code, is_ours(&answer)), (0, false));
            let delay = format!("TIMER_DELIVER_MS\u{1}{due}\u{2}");
            let delayed = send_v2("T", 0, &delay, format!("{name} delayed {opaque}"));
            let answer = client.call(delayed, opaque).await;
            assert!(is_ours(&answer), "{answer:?}");
            // The id names the main port: clients take two off by themselves.
            let id = answer.header.ext.get("msgId").unwrap();
            let port = u32::from_str_radix(std::str::from_utf8(&id[8..16]).unwrap(), 16).unwrap();
            assert_eq!(port, u32::from(main.port()));
        }
    }
    clock.set(due);
    proxy.delivered(4).await;
    for (name, peer) in brokers {
        let bodies: BTreeSet<_> = peer.requests_of(310).iter().map(body_of).collect();
        let kinds = ["plain 1", "plain 2", "delayed 1", "delayed 2"];
        let mut expected: BTreeSet<_> = kinds.map(|kind| format!("{name} {kind}")).into();
        if name == "broker-b" {
            let plain = expected.take("broker-b plain 2").unwrap();
            let at_vip: Vec<_> = second_vip.requests_of(310).iter().map(body_of).collect();
            assert_eq!(at_vip, [plain]);
        }
        assert_eq!(bodies, expected);
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_role_switch_cuts_the_masters_clients_and_no_others() {
    let old = ScriptedPeer::broker().await;
    let new = ScriptedPeer::broker().await;
    let other = ScriptedPeer::broker().await;
    let [old_at, new_at, other_at] = [&old, &new, &other].map(ScriptedPeer::address);
    let before = cluster_body(
        &[("broker-a", 0, &old_at), ("broker-a", 1, &new_at), ("broker-b", 0, &other_at)],
        "",
    );
    let names = ScriptedPeer::name_server("{}", &before).await;
    let mut proxy = Proxy::start(names.address(), TestClock::new()).await;
    proxy.ready().await;
    let mut client = proxy.client().await;
    let mut bystander = RawClient::connect(proxy.port_of("broker-b", 0)).await;
    let ask = |body: &str| Command::request(34, &[], bytes(body));
    client.call(ask("to the old"), 1).await;
    bystander.call(ask("before"), 1).await;

    // The slave is the master now. Nobody asks the proxy: it finds out by itself.
    let after = cluster_body(&[("broker-a", 0, &new_at), ("broker-b", 0, &other_at)], "");
    let told: Arc<Mutex<Option<Instant>>> = Arc::default();
    let note = Arc::clone(&told);
    names.script(move |_| {
        note.lock().unwrap().get_or_insert_with(Instant::now);
        Act::Reply(Reply::body(after.clone()))
    });
    client.closed().await;
    let since = told.lock().unwrap().unwrap().elapsed();
    assert!(since < Duration::from_secs(1), "{since:?} after it was known");
    old.until("the twin to end", |log| log.open == 0).await;

    bystander.call(ask("after"), 2).await;
    // The same port leads to the new master.
    proxy.client().await.call(ask("to the new"), 1).await;
    let heard =
        |peer: &ScriptedPeer| -> Vec<_> { peer.requests_of(34).iter().map(body_of).collect() };
    assert_eq!(heard(&old), ["to the old"]);
    assert_eq!(heard(&new), ["to the new"]);
    assert_eq!((heard(&other), other.log().accepted), (vec!["before".into(), "after".into()], 1));
    drop(bystander);
    proxy.stop().await;
}
