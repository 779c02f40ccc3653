//! The console tools of 4.9.7 with the proxy as their name server: they work, and where they print
//! addresses of brokers, these are the proxy's.

use serde_json::json;

use crate::cluster::BROKER_NAME;
use crate::driver::{Consumer, Producer, Send};
use crate::leash::await_start;
use crate::stage::{self, GRACE, Stage};

const HEARTBEAT_MS: u64 = 500;

#[test]
fn they_see_the_cluster_and_its_clients_through_the_proxy() {
    let stage = stage::take();
    let topic = stage.topic("Console", 4);
    let proxy = stage.proxy();
    let consumer = Consumer::start(&stage.driver, &proxy.namesrv, &topic);
    let producer =
        Producer::with(&stage.driver, &proxy.namesrv, &json!({"heartbeatMs": HEARTBEAT_MS}));
    producer.must_send(&Send::new(&topic, "plain"));
    let namesrv = &proxy.namesrv;
    let real = &stage.cluster.broker;

    let list = run(&stage, &format!("clusterList -n {namesrv}"));
    let row = row_with(&list, BROKER_NAME);
    let address = row.iter().find(|field| field.starts_with("127.0.0.1:")).expect("an address");
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
    assert!(port.is_some_and(|port| proxy.owns_port(port)), "{list}");
    assert!(!list.contains(real), "{list}");
    assert!(row.contains(&"V4_9_7"), "the broker itself was not asked: {list}");

    let route = run(&stage, &format!("topicRoute -n {namesrv} -t {topic}"));
    assert!(route.contains(address) && route.contains(BROKER_NAME), "{route}");
    assert!(!route.contains(real), "{route}");

    for target in [format!("-b {address}"), "-c stock".to_owned()] {
        let status = run(&stage, &format!("brokerStatus -n {namesrv} {target}"));
        assert!(row_with(&status, "brokerVersionDesc").contains(&"V4_9_7"), "{status}");
        assert!(!status.contains(real), "{status}");
    }

    // A producer first tells brokers of itself with its next heartbeat after its first send.
    let line = format!("producerConnection -n {namesrv} -g {} -t {topic}", producer.group());
    let producers = await_start(
        GRACE,
        || format!("{line} prints something"),
        || Some(run(&stage, &line)).filter(|printed| !printed.trim().is_empty()),
    );
    assert!(producers.contains("JAVA") && producers.contains("V4_9_7"), "{producers}");

    let consumers =
        run(&stage, &format!("consumerConnection -n {namesrv} -g {}", consumer.group()));
    assert!(consumers.contains("JAVA") && consumers.contains(&topic), "{consumers}");

    // Without the proxy the address is the broker's: the check above can fail.
    let direct = run(&stage, &format!("clusterList -n {}", stage.cluster.namesrv));
    assert!(direct.contains(real), "{direct}");
}

/// What the tool printed.
fn run(stage: &Stage, line: &str) -> String {
    let reply = stage.driver.must(&json!({"cmd": "mqadmin", "line": line}));
    let printed = reply["printed"].as_str().expect("text").to_owned();
    assert!(!printed.contains("Exception"), "{line}: {printed}");
    printed
}

/// The fields of the line with that word.
fn row_with<'a>(printed: &'a str, word: &str) -> Vec<&'a str> {
    let line = printed.lines().find(|line| line.contains(word));
    line.unwrap_or_else(|| panic!("no {word} in {printed}")).split_whitespace().collect()
}
