//! What clients are told while no name server answers.

use std::time::Duration;

use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::SerializeType;
use rocketmq_timer_proxy::upstream::nameservers::NameServerSettings;
use tokio::time::Instant;

use super::{Proxy, broker, patient};
use crate::support::bytes;
use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer, Seen};

const MASTER: &str = "10.0.0.8:10911";

/// A route with a slave; `q` stands around the ids.
fn route(master: &str, slave: &str, q: &str) -> String {
    format!(
        r#"{{"brokerDatas":[{{"brokerAddrs":{{{q}0{q}:"{master}",{q}1{q}:"{slave}"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}]}}"#
    )
}

fn cluster(master: &str, slave: &str) -> String {
    format!(
        r#"{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{0:"{master}",1:"{slave}"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}}},"clusterAddrTable":{{"DefaultCluster":["broker-a"]}}}}"#
    )
}

/// A name server from 4.9.4 on, which quotes for clients of these releases.
fn names(seen: &Seen) -> Act {
    let quote = if seen.request.header.version >= 401 { "\"" } else { "" };
    Act::Reply(match (seen.code(), seen.ext("topic").as_str()) {
        (105, "none") => Reply::code(17).remark("No topic route info"),
        (105, _) => Reply::body(route(MASTER, "10.0.0.9:10911", quote)),
        (106, _) => Reply::body(cluster(MASTER, "10.0.0.9:10911")),
        _ => Reply::code(0),
    })
}

fn ask(topic: &str, version: i32) -> Command {
    let mut request = Command::request(105, &[("topic", topic)], bytes(""));
    request.header.version = version;
    request
}

fn text(command: &Command) -> String {
    String::from_utf8_lossy(&command.header.remark.clone().unwrap_or_default()).into_owned()
}

/// Expects the routes and the cluster last known, in the client's own form.
async fn assert_last_known(proxy: &Proxy, client: &mut RawClient) {
    let [master, slave] = [0, 1].map(|id| proxy.ours(&broker("broker-a", id)));
    for (version, quote) in [(399, ""), (401, "\"")] {
        for topic in ["T", "TBW102"] {
            let answer = client.call(ask(topic, version), version).await;
            assert_eq!(answer.header.code, 0, "{}", text(&answer));
            assert_eq!(answer.body, route(&master, &slave, quote), "{topic} {version}");
        }
    }
    let answer = client.call(Command::request(106, &[], bytes("")), 1).await;
    assert_eq!(answer.body, cluster(&master, &slave));
}

#[tokio::test]
async fn routes_last_known_are_served_while_every_name_server_is_down() {
    let (mut first, mut second) =
        (ScriptedPeer::start(names).await, ScriptedPeer::start(names).await);
    let proxy = Proxy::start(&[first.address(), second.address()]).await;
    let mut client = proxy.client().await;
    for topic in ["T", "TBW102", "none"] {
        client.call(ask(topic, 401), 1).await;
    }
    first.stop().await;
    assert_eq!(client.call(ask("U", 401), 1).await.header.code, 0);
    assert_eq!(proxy.metrics.namesrv_last_known.get(), 0);
    second.stop().await;
    assert_last_known(&proxy, &mut client).await;
    assert_eq!(proxy.metrics.namesrv_last_known.get(), 5);
    // A binary request is answered in binary.
    let mut binary = ask("T", 399);
    binary.serialize = SerializeType::RocketMq;
    let answer = client.call(binary, 1).await;
    assert_eq!((answer.serialize, answer.header.code), (SerializeType::RocketMq, 0));
    // What nobody asked for before is not made up.
    for topic in ["none", "new"] {
        let answer = client.call(ask(topic, 399), 1).await;
        assert_eq!((answer.header.code, answer.body.len()), (1, 0));
        assert!(text(&answer).contains("no name server answered"), "{}", text(&answer));
    }
    // The first answer of a name server counts again.
    let _second =
        ScriptedPeer::start_at(second.socket_address(), |_| Act::Reply(Reply::body("{}"))).await;
    assert_eq!(client.call(ask("T", 399), 1).await.body, "{}");
}

#[tokio::test]
async fn name_servers_that_never_quote_are_copied_in_that_too() {
    let mut old = ScriptedPeer::start(|seen| {
        Act::Reply(match seen.code() {
            105 => Reply::body(route(MASTER, "10.0.0.9:10911", "")),
            _ => Reply::body(cluster(MASTER, "10.0.0.9:10911")),
        })
    })
    .await;
    let proxy = Proxy::start(&[old.address()]).await;
    let mut client = proxy.client().await;
    client.call(ask("T", 401), 1).await;
    old.stop().await;
    let [master, slave] = [0, 1].map(|id| proxy.ours(&broker("broker-a", id)));
    assert_eq!(client.call(ask("T", 401), 1).await.body, route(&master, &slave, ""));
}

#[tokio::test]
async fn silent_name_servers_are_waited_for_once_and_not_for_each_client() {
    let silent = ScriptedPeer::start(names).await;
    let settings = NameServerSettings { read_within: Duration::from_secs(2), ..patient() };
    let proxy = Proxy::with(&[silent.address()], BrokerPorts::Any, settings).await;
    let mut client = proxy.client().await;
    client.call(ask("T", 399), 1).await;
    silent.script(|_| Act::Never);
    proxy.cluster.refresh().await;
    assert_eq!(client.call(ask("T", 399), 1).await.header.code, 0);
    let asked = Instant::now();
    assert_eq!(client.call(ask("T", 399), 1).await.header.code, 0);
    assert!(asked.elapsed() < Duration::from_millis(1_500), "{:?}", asked.elapsed());
    assert_eq!(proxy.metrics.namesrv_last_known.get(), 2);
}
