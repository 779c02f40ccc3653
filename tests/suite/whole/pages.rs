//! What operators see over HTTP: health, metrics and counts that agree with what happened.

use std::time::Duration;

use rocketmq_timer_proxy::remoting::command::Command;
use serde_json::{Value, json};

use super::rig::{Proxy, START, TestClock, cluster_body, hold_all, is_ours, oneway, until};
use crate::support::client::{RawClient, send_v2};
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{bytes, soon};

fn delayed(kind: &str, value: impl std::fmt::Display) -> Command {
    send_v2("Orders", 0, &format!("{kind}\u{1}{value}"), "x")
}

const COUNTS: [&str; 6] = ["pending", "overdue", "inFlight", "accepted", "delivered", "parked"];

fn counts(stats: &Value) -> [u64; 6] {
    COUNTS.map(|name| stats[name].as_u64().unwrap())
}

/// Ten to hold: four to be delivered, two to a topic that gets no answer, four that stay.
fn to_hold() -> Vec<Command> {
    let mute = || send_v2("Mute", 3, "TIMER_DELAY_SEC\u{1}3", "x");
    vec![
        delayed("DELAY", 1),
        delayed("TIMER_DELAY_MS", 2_000),
        delayed("TIMER_DELIVER_MS", START + 2_000),
        delayed("__STARTDELIVERTIME", START + 2_000),
        mute(),
        mute(),
        delayed("DELAY", 18),
        delayed("TIMER_DELAY_SEC", 7_200),
        delayed("TIMER_DELAY_SEC", 7_200),
        delayed("__STARTDELIVERTIME", START + 7_200_000),
    ]
}

/// Sends that are refused, dropped, relayed by a rule, and plain. Six reach the broker.
async fn send_others(client: &mut RawClient) {
    for send in [
        delayed("TIMER_DELAY_MS", "soon"),
        delayed("TIMER_DELAY_MS", -5),
        delayed("__STARTDELIVERTIME", START / 1_000 + 60),
        delayed("TIMER_DELAY_SEC", i64::MAX),
        send_v2("Orders", 0, "TRAN_MSG\u{1}true\u{2}DELAY\u{1}1", "x"),
    ] {
        assert_eq!(client.call(send, 1).await.header.code, 13);
    }
    client.send(oneway(delayed("TIMER_DELAY_SEC", i64::MAX)), 1).await;
    for send in [
        delayed("__STARTDELIVERTIME", 5),
        delayed("TIMER_DELAY_MS", 0),
        delayed("DELAY", "soon"),
        send_v2("%RETRY%g", 0, "DELAY\u{1}3", "x"),
        send_v2("Orders", 0, "KEYS\u{1}k", "x"),
        delayed("DELAY", 0),
    ] {
        let answer = client.call(send, 1).await;
        assert!(answer.header.code == 0 && !is_ours(&answer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_metrics_agree_with_what_happened() {
    let broker = ScriptedPeer::start(|seen| match seen.ext("b").as_str() {
        "Mute" => Act::Never,
        _ => Act::Reply(Reply::stored(0, 0)),
    })
    .await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    assert_eq!(proxy.json("/live").await, (200, json!({"live": true, "wheelStuckMs": 0})));
    assert_eq!(proxy.json("/ready").await, (200, json!({"ready": true, "missing": []})));
    let (status, stats) = proxy.json("/api/v1/stats").await;
    assert_eq!((status, counts(&stats)), (200, [0; 6]));
    assert_eq!(stats["lateness"]["p50Ms"], Value::Null);

    hold_all(&mut client, to_hold()).await;
    send_others(&mut client).await;
    // One exactly on time, three a good three seconds late by then, two without an answer.
    clock.set(START + 1_000);
    proxy.delivered(1).await;
    clock.set(START + 5_100);
    broker.until("all that is due", |log| log.requests.len() == 6 + 6).await;
    let delivered = &proxy.metrics.dispatch_delivered;
    until("four answers", || delivered.get() == 4).await;
    proxy.pending(6).await;
    let (_, stats) = proxy.json("/api/v1/stats").await;
    assert_eq!(counts(&stats), [6, 2, 2, 10, 4, 0]);
    assert_reasons(&stats);
    assert_lateness(&stats["lateness"]);
    assert_eq!(stats["config"]["max-delay"], "366d");
    assert_eq!(stats["config"]["flush"], "sync");
    assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    let (status, page) = proxy.get("/metrics").await;
    assert_eq!(status, 200);
    assert_page(&page);
    assert_eq!(proxy.get("/nowhere").await.0, 404);

    // The two are answered after all, and the counts move on.
    for seen in broker.requests().iter().filter(|seen| seen.ext("b") == "Mute") {
        broker.answer(seen, &Reply::stored(3, 0));
    }
    proxy.delivered(6).await;
    proxy.pending(4).await;
    let (_, stats) = proxy.json("/api/v1/stats").await;
    assert_eq!(counts(&stats), [4, 0, 0, 10, 6, 0]);
    drop(client);
    proxy.stop().await;
}

/// Every reason that was not given stands at 0.
fn assert_reasons(stats: &Value) {
    assert_eq!(
        stats["held"],
        json!({
            "DELAY": 2, "__STARTDELIVERTIME": 2, "TIMER_DELAY_SEC": 4, "TIMER_DELAY_MS": 1,
            "TIMER_DELIVER_MS": 1,
        })
    );
    let refused = json!({
        "over_max_delay": 1, "unreadable": 2, "seconds": 1, "batch": 0, "half": 1,
    });
    assert_eq!(stats["refused"], refused);
    let dropped = json!({
        "over_max_delay": 1, "unreadable": 0, "seconds": 0, "batch": 0, "half": 0,
    });
    assert_eq!(stats["dropped"], dropped);
    let relayed = json!({
        "past": 2, "bad_level": 1, "levels_off": 0, "system_topic": 1, "request": 0, "slave": 0,
        "bad_delay": 0, "oneway_unreadable": 0,
    });
    assert_eq!(stats["relayed"], relayed);
}

fn assert_page(page: &str) {
    for line in [
        "store_pending 6",
        "store_accepted_total 10",
        "store_poisoned 0",
        "store_damaged_total 0",
        "session_open 1",
        "dispatch_overdue 2",
        "dispatch_in_flight 2",
        "dispatch_delivered_total 4",
        "dispatch_parked 0",
        "dispatch_lateness_seconds_count 4",
        "intercept_refused_total{why=\"unreadable\"} 2",
        "intercept_dropped_total{why=\"over_max_delay\"} 1",
        "intercept_relayed_total{why=\"past\"} 2",
        "intercept_held_total{why=\"TIMER_DELAY_SEC\"} 4",
    ] {
        let line = format!("rocketmq_timer_proxy_{line}");
        assert!(page.lines().any(|have| have == line), "no line {line:?} in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
}

/// Three of four were 3.1 s late; how late the punctual one was in real time is not judged here.
fn assert_lateness(lateness: &Value) {
    assert_eq!(lateness["count"], 4);
    let up_to = |ms: f64| {
        let buckets = lateness["buckets"].as_array().unwrap();
        let bucket = buckets.iter().find(|bucket| bucket["leMs"] == ms).unwrap();
        bucket["count"].as_u64().unwrap()
    };
    assert_eq!([up_to(2_000.0), up_to(5_000.0), up_to(600_000.0)], [1, 4, 4]);
    let p50 = lateness["p50Ms"].as_f64().unwrap();
    let p99 = lateness["p99Ms"].as_f64().unwrap();
    assert!(p50 > 2_000.0 && p50 < p99 && p99 <= 5_000.0, "{p50} {p99}");
}

/// While the log is read everything is relayed and nothing is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_the_log_has_been_read_holds_are_answered_not_now() {
    let broker = ScriptedPeer::broker().await;
    let cluster = cluster_body(&[("broker-a", 0, &broker.address())], "");
    let names = ScriptedPeer::name_server("{}", &cluster).await;
    let clock = TestClock::new();
    clock.hold_up_recovery();
    let mut proxy = Proxy::start(names.address(), clock.clone()).await;
    proxy.learn_ports().await;
    let mut client = proxy.client().await;
    for n in 1..=3 {
        let answer = client.call(delayed("DELAY", 1), 2 * n).await;
        assert_eq!(answer.header.code, 2);
        let remark = answer.header.remark.unwrap();
        assert_eq!(remark, "recovering: held messages are being read from disk");
        assert_eq!(answer.header.ext.get("msgId"), None);
        let plain = client.call(send_v2("Orders", 0, "KEYS\u{1}k", "plain"), 2 * n + 1).await;
        assert_eq!(plain.header.code, 0);
        client.send(oneway(delayed("DELAY", 1)), 1).await;
    }
    let mut names_client = proxy.names_client().await;
    let routes = names_client.call(Command::request(106, &[], bytes("")), 1).await;
    assert_eq!(routes.header.code, 0);
    let (status, ready) = proxy.json("/ready").await;
    assert_eq!((status, &ready["ready"]), (503, &json!(false)));
    assert_eq!(ready["missing"], json!(["recovered", "storeHealthy"]));
    assert_eq!(proxy.get("/live").await.0, 200);
    assert_eq!(broker.requests().len(), 3);
    assert_eq!(proxy.metrics.store_pending.get(), 0);
    clock.let_recover();
    proxy.ready().await;
    assert_eq!(proxy.get("/ready").await.0, 200);
    hold_all(&mut client, vec![delayed("DELAY", 1)]).await;
    clock.advance(1_000);
    broker.until_requests(310, 4).await;
    proxy.delivered(1).await;
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_without_a_name_server_is_not_ready_until_it_has_one() {
    let broker = ScriptedPeer::broker().await;
    let mut gone = ScriptedPeer::broker().await;
    let address = gone.socket_address();
    gone.stop().await;
    let mut proxy = Proxy::start(address.to_string(), TestClock::new()).await;
    proxy.app.ready().await.unwrap();
    let missing = json!({"ready": false, "missing": ["nameServer"]});
    assert_eq!(proxy.json("/ready").await, (503, missing));
    let mut client = proxy.names_client().await;
    let answer = client.call(Command::request(106, &[], bytes("")), 1).await;
    assert_eq!(answer.header.code, 1);
    let remark = answer.header.remark.unwrap();
    let remark = std::str::from_utf8(&remark).unwrap();
    assert!(remark.contains("no name server answered"), "{remark}");
    assert!(remark.contains(&address.to_string()), "{remark}");

    let cluster = cluster_body(&[("broker-a", 0, &broker.address())], "");
    let _names =
        ScriptedPeer::start_at(address, move |_| Act::Reply(Reply::body(cluster.clone()))).await;
    // It is asked every five seconds.
    soon("ready", async {
        while proxy.get("/ready").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    proxy.learn_ports().await;
    proxy.client().await.call(send_v2("Orders", 0, "", "plain"), 1).await;
    assert_eq!(broker.requests().len(), 1);
    drop(client);
    proxy.stop().await;
}
