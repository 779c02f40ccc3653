//! Some of several name servers cannot be reached: nothing is slow, nothing is asked twice of those
//! that can.

use std::collections::BTreeMap;
use std::time::Duration;

use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::upstream::nameservers::NameServerSettings;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Proxy;
use crate::support::bytes;
use crate::support::client::RawClient;
use crate::support::fault::BlackHole;
use crate::support::peer::{Act, Reply, ScriptedPeer};

const ROUTE: &str = r#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.8:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"queueDatas":[]}"#;
const CLUSTER: &str = r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.8:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#;
const CLIENTS: usize = 50;
/// From a query to its answer.
const PROMPT: Duration = Duration::from_secs(1);

fn ask(topic: &str) -> Command {
    Command::request(105, &[("topic", topic)], bytes(""))
}

/// Every client on a connection of its own asks for a topic of its own, all at once.
async fn all_ask(proxy: &Proxy) {
    let mut asking = JoinSet::new();
    let begin = Instant::now();
    for n in 0..CLIENTS {
        let address = proxy.address.clone();
        asking.spawn(async move {
            let mut client = RawClient::connect(address).await;
            client.call(ask(&format!("T{n}")), 1).await.header.code
        });
    }
    while let Some(code) = asking.join_next().await {
        assert_eq!(code.unwrap(), 0);
    }
    assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
}

/// How often each topic was asked of a name server.
fn times(names: &ScriptedPeer) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for seen in names.requests_of(105) {
        *times.entry(seen.ext("topic")).or_insert(0) += 1;
    }
    times
}

#[tokio::test]
async fn routes_come_within_a_second_and_each_is_asked_once() {
    let (hole, silent) = (BlackHole::new(), ScriptedPeer::start(|_| Act::Never).await);
    let mut refusing = ScriptedPeer::start(|_| Act::Never).await;
    refusing.stop().await;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut healthy = ScriptedPeer::name_server(ROUTE, CLUSTER).await;
        let three = [hole.address(), silent.address(), healthy.address()];
        let mut all: Vec<_> = order.iter().map(|i| three[*i].clone()).collect();
        all.insert(1, refusing.address());
        let proxy = Proxy::with(&all, BrokerPorts::Any, NameServerSettings::default()).await;
        all_ask(&proxy).await;
        let times = times(&healthy);
        assert_eq!(times.len(), CLIENTS, "{order:?}");
        assert!(times.values().all(|times| *times == 1), "{order:?}: {times:?}");
        // Once one answers, the others cost nothing at all.
        silent.forget();
        all_ask(&proxy).await;
        assert_eq!(silent.requests_of(105).len(), 0, "{order:?}");
        assert_eq!(proxy.metrics.namesrv_last_known.get(), 0, "{order:?}");

        // It dies, and one that refused comes back.
        healthy.stop().await;
        let mut back = ScriptedPeer::start_at(refusing.socket_address(), |seen| {
            Act::Reply(Reply::body(if seen.code() == 105 { ROUTE } else { CLUSTER }))
        })
        .await;
        all_ask(&proxy).await;
        assert_eq!(back.requests_of(105).len(), CLIENTS, "{order:?}");
        back.stop().await;
    }
}

#[tokio::test]
async fn a_write_that_one_name_server_does_not_confirm_fails_with_its_address() {
    let silent = ScriptedPeer::start(|_| Act::Never).await;
    let healthy = ScriptedPeer::name_server(ROUTE, CLUSTER).await;
    let all = [healthy.address(), silent.address()];
    let proxy = Proxy::with(&all, BrokerPorts::Any, NameServerSettings::default()).await;
    let mut client = proxy.client().await;
    let asked = Instant::now();
    let answer = client.call(Command::request(216, &[("topic", "T")], bytes("")), 1).await;
    assert!(asked.elapsed() < Duration::from_secs(3), "a client waits no longer");
    let remark = String::from_utf8(answer.header.remark.unwrap().to_vec()).unwrap();
    let words = format!("rocketmq-timer-proxy: name server {} failed: ", silent.address());
    assert_eq!(answer.header.code, 1);
    assert!(remark.starts_with(&words), "{remark}");
    assert_eq!(healthy.requests_of(216).len(), 1);
}
