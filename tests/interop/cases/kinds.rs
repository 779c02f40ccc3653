//! Every way to ask for a delay, by every way to send: held, answered in full, delivered on time.

use std::time::Duration;

use crate::cluster::{BROKER_NAME, route};
use crate::driver::{Consumer, Producer, Send, Sent};
use crate::leash::now_ms;
use crate::proxy::ProxyProcess;
use crate::stage::{self, Due, GRACE, Stage, assert_held, assert_relayed, find};

const MODES: [&str; 4] = ["sync", "async", "oneway", "selector"];

/// Each property that asks for a delay, the strongest first (P4), and how far ahead this test asks.
pub(super) const KINDS: [(&str, i64); 5] = [
    ("DELAY", 1000),
    ("__STARTDELIVERTIME", 1500),
    ("TIMER_DELAY_SEC", 2000),
    ("TIMER_DELAY_MS", 1234),
    ("TIMER_DELIVER_MS", 1700),
];

#[test]
fn every_kind_by_every_way_to_send() {
    let stage = stage::take();
    let topic = stage.topic("Kinds", 4);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let consumer = Consumer::start(&stage.driver, &proxy.namesrv, &topic);
    let producer = stage.producer(&proxy.namesrv);

    let expected = send_by_every_way(&proxy, &producer, &topic, &KINDS);

    check_arrivals(&expected, &[&witness, &consumer]);
    assert_eq!(stage.stored(&topic, 4), i64::try_from(expected.len()).expect("small"));
}

/// A send that was accepted: its text, its time, its outcome.
pub(super) type Accepted = (String, Due, Sent);

/// Every kind by every way to send, to a topic with four queues.
pub(super) fn send_by_every_way(
    proxy: &ProxyProcess,
    producer: &Producer<'_>,
    topic: &str,
    kinds: &[(&str, i64)],
) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    for mode in MODES {
        for &(kind, ahead_ms) in kinds {
            let body = format!("{mode} {kind}");
            let at = now_ms() + ahead_ms;
            let send = Send::new(topic, &body)
                .with("mode", mode)
                .with("key", 2)
                .asking(kind, &value_of(kind, ahead_ms, at));
            let sent = producer.must_send(&send);
            let due = if is_absolute(kind) { Due::at(at) } else { Due::after(&sent, ahead_ms) };
            if mode != "oneway" {
                assert_held(&sent, proxy);
                assert_complete(&sent);
            }
            if mode == "selector" {
                assert_eq!(sent.result().queue_id, 2, "{sent:?}");
            }
            accepted.push((body, due, sent));
        }
    }
    accepted
}

/// All of them came to each consumer, in time, as what was sent.
pub(super) fn check_arrivals(accepted: &[Accepted], consumers: &[&Consumer<'_>]) {
    for seen_by in consumers {
        let messages = seen_by.messages(accepted.len(), Duration::from_secs(3) + GRACE);
        for (body, due, sent) in accepted {
            let message = find(&messages, body);
            due.check(message);
            assert_eq!(Some(&message.msg_id), sent.uniq_key.as_ref());
            assert_eq!(message.reconsume_times, 0);
            if let Some(result) = &sent.result {
                assert_eq!(message.queue_id, result.queue_id, "{message:?}");
            }
        }
    }
}

#[test]
fn level_by_the_setter_of_the_client() {
    let stage = stage::take();
    let topic = stage.topic("Level", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);

    let sent = producer.must_send(&Send::new(&topic, "level 1").with("delayLevel", 1));

    assert_held(&sent, &proxy);
    let due = Due::after(&sent, 1000);
    due.check(find(&witness.messages(1, due.patience()), "level 1"));
}

#[test]
fn the_strongest_of_several_wins() {
    let stage = stage::take();
    let topic = stage.topic("Several", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    let far = now_ms() + 3_600_000;
    let near = now_ms() + 1500;
    // Each names the winner first and, beside it, all that it beats, an hour ahead.
    let sends = [
        ("DELAY", "1", 1000),
        ("__STARTDELIVERTIME", &near.to_string(), 0),
        ("TIMER_DELAY_SEC", "1", 1000),
        ("TIMER_DELAY_MS", "900", 900),
    ];

    let mut expected = Vec::new();
    for (strongest, (kind, value, delay_ms)) in sends.iter().enumerate() {
        let mut send = Send::new(&topic, kind).property(kind, value);
        for (weaker, _) in KINDS.iter().skip(strongest + 1) {
            send = send.property(weaker, value_of(weaker, 3_600_000, far));
        }
        let sent = producer.must_send(&send);
        assert_held(&sent, &proxy);
        let due = if *delay_ms == 0 { Due::at(near) } else { Due::after(&sent, *delay_ms) };
        expected.push((kind, due));
    }

    let messages = witness.messages(expected.len(), Duration::from_secs(3) + GRACE);
    for (kind, due) in expected {
        due.check(find(&messages, kind));
    }
}

#[test]
fn plain_sends_pass_with_the_brokers_own_answer() {
    let stage = stage::take();
    let topic = stage.topic("Plain", 1);
    let proxy = stage.proxy();
    let consumer = Consumer::start(&stage.driver, &proxy.namesrv, &topic);
    let producer = stage.producer(&proxy.namesrv);

    let mut sent = Vec::new();
    for mode in MODES {
        sent.push((
            mode,
            producer.must_send(&Send::new(&topic, mode).with("mode", mode).with("key", 0)),
        ));
    }

    let messages = consumer.messages(MODES.len(), GRACE);
    for (mode, sent) in &sent {
        let message = find(&messages, mode);
        assert_eq!(Some(&message.uniq_key), sent.uniq_key.as_ref());
        if *mode != "oneway" {
            assert_relayed(sent, &stage.cluster);
            assert_complete(sent);
            assert_eq!(message.offset_msg_id, sent.result().offset_msg_id);
            assert_eq!(message.queue_offset, sent.result().queue_offset);
        }
    }
    assert_eq!(stage.stored(&topic, 1), 4);
}

#[test]
fn a_held_answer_says_what_the_brokers_would() {
    let stage = stage::take();
    let topic = stage.topic("Answer", 4);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);

    let plain = producer.must_send(&Send::new(&topic, "plain"));
    let held = producer.must_send(&Send::new(&topic, "held").property("TIMER_DELAY_MS", 600_000));

    assert_eq!(held.result().region_id, plain.result().region_id);
    assert_eq!(held.result().trace_on, plain.result().trace_on);
    assert_eq!(held.result().broker_name, plain.result().broker_name);
    assert_eq!(held.result().send_status, plain.result().send_status);
}

#[test]
fn no_route_names_the_brokers_real_address() {
    let stage = stage::take();
    let topic = stage.topic("Route", 1);
    let proxy = stage.proxy();

    let body = route(&proxy.namesrv, &topic).expect("a route");

    assert!(body.contains(BROKER_NAME), "{body}");
    assert!(!body.contains(&stage.cluster.broker), "{body}");
}

/// Whether a property, or a setter of `Message`, says when rather than how long.
pub(super) fn is_absolute(kind: &str) -> bool {
    matches!(kind, "__STARTDELIVERTIME" | "TIMER_DELIVER_MS" | "setDeliverTimeMs")
}

/// What the property says to ask for `ahead_ms` from now, or for `at` where it is absolute.
fn value_of(kind: &str, ahead_ms: i64, at: i64) -> String {
    match kind {
        "DELAY" => if ahead_ms == 1000 { "1" } else { "17" }.to_owned(),
        "setDelayTimeLevel" => "1".to_owned(),
        "TIMER_DELAY_SEC" | "setDelayTimeSec" => (ahead_ms / 1000).to_string(),
        "TIMER_DELAY_MS" | "setDelayTimeMs" => ahead_ms.to_string(),
        _ => at.to_string(),
    }
}

pub(super) fn assert_complete(sent: &Sent) {
    let result = sent.result();
    assert_eq!(result.send_status, "SEND_OK", "{sent:?}");
    assert_eq!(Some(&result.msg_id), sent.uniq_key.as_ref(), "{sent:?}");
    assert_eq!(result.broker_name, BROKER_NAME, "{sent:?}");
    assert!((0..4).contains(&result.queue_id), "{sent:?}");
    assert_eq!(result.region_id.as_deref(), Some("DefaultRegion"), "{sent:?}");
}

/// One plain message through, so that the first delayed one does not pay for connections.
pub(super) fn warm_up(stage: &Stage, namesrv: &str) {
    let topic = stage.topic("WarmUp", 1);
    stage.producer(namesrv).must_send(&Send::new(&topic, "warm up"));
}
