//! Starts and restarts while name servers are down.

use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::route::broker_addresses;

use super::rig::{Proxy, TestClock, Witness, body_of, cluster_body, hold_all};
use crate::support::bytes;
use crate::support::client::send_v2;
use crate::support::peer::ScriptedPeer;

fn route_body(master: &str) -> String {
    format!(
        r#"{{"brokerDatas":[{{"brokerAddrs":{{0:"{master}"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}]}}"#
    )
}

fn ask(topic: &str) -> Command {
    Command::request(105, &[("topic", topic)], bytes(""))
}

#[tokio::test]
async fn a_restart_without_name_servers_serves_routes_relays_and_holds() {
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let broker = witness.peer.address();
    let cluster = cluster_body(&[("broker-a", 0, &broker)], "");
    let mut names = ScriptedPeer::name_server(&route_body(&broker), &cluster).await;
    let mut proxy = Proxy::start(names.address(), clock.clone()).await;
    proxy.ready().await;
    let before = proxy.names_client().await.call(ask("T"), 1).await.body;
    let dir = proxy.dir();
    names.stop().await;
    proxy.stop().await;

    let mut proxy = Proxy::start_in(dir, vec![names.address()], clock.clone()).await;
    proxy.ready().await;
    let answer = proxy.names_client().await.call(ask("T"), 1).await;
    assert_eq!(answer.body, before, "the same ports in the same bytes");
    let ours = broker_addresses(&before).unwrap().into_values().next().unwrap();
    assert_eq!(ours, proxy.port_of("broker-a", 0).to_string());
    assert_eq!(proxy.metrics.namesrv_last_known.get(), 2);
    // The listener leads to the broker: sends pass, and what is held is delivered.
    let mut client = proxy.client().await;
    let body = format!("{}:plain", clock.now());
    client.call(send_v2("T", 1, "", body.clone()), 1).await;
    assert_eq!(body_of(&witness.peer.requests_of(310)[0]), body);
    let due = clock.now() + 5_000;
    let delayed = send_v2("T", 1, &format!("TIMER_DELIVER_MS\u{1}{due}\u{2}"), format!("{due}:d"));
    hold_all(&mut client, vec![delayed]).await;
    clock.set(due);
    proxy.delivered(1).await;
    assert_eq!(witness.bodies().len(), 2);
    // The page says what is missing.
    let (status, page) = proxy.get("/ready").await;
    assert_eq!((status, page.contains("nameServer")), (503, true), "{page}");
    drop(client);
    proxy.stop().await;
}
