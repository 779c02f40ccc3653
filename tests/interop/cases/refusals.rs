//! Case B65 and policies P1, P3, P12: what cannot be understood or kept is refused at once, in words
//! that name the fault, and the connection stays good.

use crate::driver::{Producer, Send, Sent};
use crate::leash::now_ms;
use crate::stage::{self, GRACE, find};

/// The client's own deadline is 3 s; an answer that never comes would take that long.
const ANSWERED_WITHIN_MS: i64 = 1000;

const MESSAGE_ILLEGAL: i32 = 13;
const SYSTEM_ERROR: i32 = 1;

const TIMED: [&str; 4] =
    ["__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

const UNREADABLE: [&str; 7] =
    [" ", "5e3", "5000L", "0x10", "1,000", "2031-01-01 00:00:00", "TIMER_DELAY_SEC"];

#[test]
fn values_that_are_no_numbers() {
    let stage = stage::take();
    let topic = stage.topic("Unreadable", 1);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);
    let digits = "7".repeat(30_000);

    for kind in TIMED {
        for value in UNREADABLE.into_iter().chain([digits.as_str(), "9223372036854775808"]) {
            for mode in ["sync", "async"] {
                let send = Send::new(&topic, "bad").with("mode", mode).property(kind, value);
                assert_refused(&producer.send(&send), kind);
            }
        }
    }

    assert_eq!(stage.stored(&topic, 1), 0, "a refused message was stored");
    assert_still_good(&producer, &topic);
}

#[test]
fn relative_delays_below_zero() {
    let stage = stage::take();
    let topic = stage.topic("Negative", 1);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);

    for kind in ["TIMER_DELAY_SEC", "TIMER_DELAY_MS"] {
        for value in [-1, i64::MIN] {
            assert_refused(&producer.send(&Send::new(&topic, "bad").property(kind, value)), kind);
        }
    }

    assert_eq!(stage.stored(&topic, 1), 0);
    assert_still_good(&producer, &topic);
}

#[test]
fn seconds_where_milliseconds_belong() {
    let stage = stage::take();
    let topic = stage.topic("Seconds", 1);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);

    for kind in ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"] {
        let sent = producer.send(&Send::new(&topic, "bad").property(kind, now_ms() / 1000 + 60));
        assert_refused(&sent, kind);
        let text = sent.text.unwrap_or_default().to_lowercase();
        assert!(text.contains("second"), "the remark does not name the unit: {text}");
    }

    assert_eq!(stage.stored(&topic, 1), 0);
}

#[test]
fn further_ahead_than_allowed() {
    let stage = stage::take();
    let topic = stage.topic("TooFar", 1);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);
    let days_400_ms: i64 = 400 * 86_400_000;

    let asked = [
        ("__STARTDELIVERTIME", now_ms() + days_400_ms),
        ("TIMER_DELAY_SEC", days_400_ms / 1000),
        ("TIMER_DELAY_MS", days_400_ms),
        ("TIMER_DELIVER_MS", now_ms() + days_400_ms),
    ];
    for (kind, value) in asked {
        let sent = producer.send(&Send::new(&topic, "bad").property(kind, value));
        assert_refused(&sent, kind);
        let text = sent.text.unwrap_or_default();
        assert!(text.contains("--max-delay"), "the remark does not name the flag: {text}");
    }
    assert_still_good(&producer, &topic);
}

#[test]
fn an_unreadable_level_is_the_brokers_to_refuse() {
    let stage = stage::take();
    let topic = stage.topic("BadLevel", 1);
    let proxy = stage.proxy();
    let producer = stage.producer(&proxy.namesrv);
    let direct = stage.producer(&stage.cluster.namesrv);
    let send = Send::new(&topic, "bad").property("DELAY", "soon");

    let (through, straight) = (producer.send(&send), direct.send(&send));

    assert_eq!(through.code, Some(SYSTEM_ERROR), "{through:?}");
    assert_eq!(through.code, straight.code, "{straight:?}");
    assert_eq!(through.exception, straight.exception);
    assert_still_good(&producer, &topic);
}

#[test]
fn an_unreadable_one_way_send_is_relayed() {
    let stage = stage::take();
    let topic = stage.topic("UnreadableOneWay", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);

    for kind in TIMED {
        producer.must_send(
            &Send::new(&topic, kind).with("mode", "oneway").property(kind, "not a number"),
        );
    }

    let messages = witness.messages(TIMED.len(), GRACE);
    for kind in TIMED {
        assert_eq!(find(&messages, kind).properties[kind], "not a number");
    }
    assert_still_good(&producer, &topic);
}

fn assert_refused(sent: &Sent, kind: &str) {
    assert!(!sent.ok, "accepted: {sent:?}");
    assert_eq!(sent.code, Some(MESSAGE_ILLEGAL), "{sent:?}");
    assert_eq!(sent.exception.as_deref(), Some("MQBrokerException"), "{sent:?}");
    let text = sent.text.as_deref().unwrap_or_default();
    assert!(text.contains(kind), "the remark does not name {kind}: {text}");
    assert!(text.len() < 2000, "the remark quotes too much: {} bytes", text.len());
    let took = sent.answered_ms - sent.sent_ms;
    assert!(took < ANSWERED_WITHIN_MS, "answered after {took} ms: {sent:?}");
}

/// The producer's connection still carries a plain send.
fn assert_still_good(producer: &Producer<'_>, topic: &str) {
    let sent = producer.must_send(&Send::new(topic, "plain, afterwards"));
    assert_eq!(sent.result().send_status, "SEND_OK");
}
