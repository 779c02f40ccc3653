//! The table of real addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::upstream::cluster::{Cluster, ClusterSettings};
use rocketmq_timer_proxy::upstream::nameservers::{NameServerSettings, NameServers};

use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::soon;

type Table = BTreeMap<BrokerId, String>;

fn broker(name: &str, id: i64) -> BrokerId {
    BrokerId { cluster: "C".to_owned(), name: name.to_owned(), id }
}

/// A 106 body with one broker.
fn body(name: &str, addresses: &str) -> String {
    format!(
        r#"{{"brokerAddrTable":{{"{name}":{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}","cluster":"C"}}}},"clusterAddrTable":{{"C":["{name}"]}}}}"#
    )
}

const NOBODY: &str = r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#;

fn cluster(peer: &ScriptedPeer, gone_after: Duration, file: Option<&Path>) -> Cluster {
    let names = NameServers::new(&[peer.address()], NameServerSettings::default(), Metrics::new());
    let settings = ClusterSettings {
        every: Duration::from_millis(20),
        gone_after,
        file: file.map(Path::to_owned),
    };
    Cluster::start(names, settings)
}

async fn becomes(cluster: &Cluster, expected: &[(BrokerId, &str)]) {
    let expected = expected.iter().map(|(b, a)| (b.clone(), (*a).to_owned()));
    let expected: Table = expected.collect();
    let mut watch = cluster.watch();
    let reached = watch.wait_for(|table| *table == expected);
    drop(soon(&format!("{expected:?}"), reached).await.unwrap());
}

#[tokio::test]
async fn follows_the_answers() {
    let peer = ScriptedPeer::name_server("", &body("a", r#"0:"h:1",1:"h:2""#)).await;
    let cluster = cluster(&peer, Duration::ZERO, None);
    becomes(&cluster, &[(broker("a", 0), "h:1"), (broker("a", 1), "h:2")]).await;
    assert_eq!(cluster.master("a").as_deref(), Some("h:1"));
    assert_eq!(cluster.master("b"), None);
    assert_eq!(cluster.broker_at("h:2"), Some(broker("a", 1)));
    // The roles change: the old slave is the master now.
    let changed = body("a", r#"0:"h:2""#);
    peer.script(move |_| Act::Reply(Reply::body(changed.clone())));
    becomes(&cluster, &[(broker("a", 0), "h:2")]).await;
    assert_eq!(cluster.master("a").as_deref(), Some("h:2"));
}

#[tokio::test]
async fn a_broker_is_gone_only_after_a_while() {
    let peer = ScriptedPeer::name_server("", &body("a", r#"0:"h:1""#)).await;
    let cluster = cluster(&peer, Duration::from_secs(3600), None);
    becomes(&cluster, &[(broker("a", 0), "h:1")]).await;
    // A name server that was just restarted.
    peer.script(|_| Act::Reply(Reply::body(NOBODY)));
    cluster.refresh().await;
    cluster.refresh().await;
    assert_eq!(cluster.master("a").as_deref(), Some("h:1"));
    let other = body("b", r#"0:"h:3""#);
    peer.script(move |_| Act::Reply(Reply::body(other.clone())));
    cluster.refresh().await;
    becomes(&cluster, &[(broker("a", 0), "h:1"), (broker("b", 0), "h:3")]).await;
}

#[tokio::test]
async fn what_a_route_told_counts_until_the_next_answer() {
    let peer = ScriptedPeer::name_server("", NOBODY).await;
    let cluster = cluster(&peer, Duration::ZERO, None);
    cluster.refresh().await;
    let mut watch = cluster.watch();
    watch.mark_unchanged();
    cluster.learn(&Table::from([(broker("a", 0), "h:1".to_owned())]));
    soon("the change", watch.changed()).await.unwrap();
    assert_eq!(*watch.borrow_and_update(), Table::from([(broker("a", 0), "h:1".to_owned())]));
    becomes(&cluster, &[]).await;
}

#[tokio::test]
async fn the_last_answer_survives_a_restart_without_name_servers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("brokers.json");
    let mut peer = ScriptedPeer::name_server("", &body("a", r#"0:"h:1""#)).await;
    let first = cluster(&peer, Duration::ZERO, Some(&file));
    first.refresh().await;
    assert_eq!(first.master("a").as_deref(), Some("h:1"));
    drop(first);
    peer.stop().await;
    let second = cluster(&peer, Duration::ZERO, Some(&file));
    assert_eq!(second.master("a").as_deref(), Some("h:1"));
    second.refresh().await;
    assert_eq!(second.master("a").as_deref(), Some("h:1"));
    // And a newer answer takes its place.
    let newer = body("a", r#"0:"h:9""#);
    let _peer = ScriptedPeer::start_at(peer.socket_address(), move |_| {
        Act::Reply(Reply::body(newer.clone()))
    })
    .await;
    becomes(&second, &[(broker("a", 0), "h:9")]).await;
}

#[tokio::test]
async fn a_damaged_file_and_answers_that_say_nothing_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("brokers.json");
    std::fs::write(&file, "{\"format\":1,\"brokers\":[{").unwrap();
    let peer = ScriptedPeer::name_server("", &body("a", r#"0:"h:1""#)).await;
    let cluster = cluster(&peer, Duration::ZERO, Some(&file));
    becomes(&cluster, &[(broker("a", 0), "h:1")]).await;
    for reply in [Reply::code(1).remark("busy"), Reply::body("[1,2"), Reply::body("")] {
        peer.script(move |_| Act::Reply(reply.clone()));
        cluster.refresh().await;
        assert_eq!(cluster.master("a").as_deref(), Some("h:1"));
    }
}
