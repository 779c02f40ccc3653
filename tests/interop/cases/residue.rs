//! Case B15: nothing that a held message leaves behind delays it a second time or shows at the
//! consumer. The check is a difference: the same message sent plain, straight to the broker.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::driver::{Message, Send};
use crate::leash::now_ms;
use crate::stage::{self, GRACE, Stage, assert_held, find};

const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
const LEVELS: u32 = 18;

#[test]
fn a_held_message_takes_no_trip_through_the_brokers_levels() {
    let stage = stage::take();
    let topic = stage.topic("Residue", 4);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    let direct = stage.producer(&stage.cluster.namesrv);
    let before = level_queue_ends(&stage);
    let at = (now_ms() + 1200).to_string();
    let asked: [&[(&str, &str)]; 8] = [
        &[("DELAY", "1")],
        &[("__STARTDELIVERTIME", &at)],
        &[("TIMER_DELAY_SEC", "1")],
        &[("TIMER_DELAY_MS", "1100")],
        &[("TIMER_DELIVER_MS", &at)],
        &[("DELAY", "1"), ("__STARTDELIVERTIME", &at)],
        &[("DELAY", "1"), ("TIMER_DELAY_SEC", "2"), ("TIMER_DELAY_MS", "2000")],
        &[("TIMER_DELAY_MS", "1000"), ("TIMER_DELIVER_MS", &at)],
    ];

    direct.must_send(&with_everything(&topic, "plain"));
    for (i, delays) in asked.iter().enumerate() {
        let mut send = with_everything(&topic, &format!("held {i}"));
        for (name, value) in *delays {
            send = send.property(name, value);
        }
        assert_held(&producer.must_send(&send), &proxy);
    }

    let messages = witness.messages(asked.len() + 1, Duration::from_secs(3) + GRACE);
    let plain = as_sent(find(&messages, "plain"));
    assert_eq!(plain["KEYS"], "order-17 customer-4");
    assert_eq!(plain["TAGS"], "A");
    for (i, delays) in asked.iter().enumerate() {
        let mut expected = plain.clone();
        // Absolute times stay: a 4.x broker ignores them, and a signature over them stays valid.
        expected.extend(
            delays
                .iter()
                .filter(|(name, _)| super::kinds::is_absolute(name))
                .map(|&(name, value)| (name.to_owned(), value.to_owned())),
        );
        assert_eq!(as_sent(find(&messages, &format!("held {i}"))), expected, "asked {delays:?}");
    }
    assert_eq!(level_queue_ends(&stage), before, "SCHEDULE_TOPIC_XXXX moved");
    assert_eq!(stage.stored(&topic, 4), 9);
}

/// The ends of the 18 queues in which a stock broker keeps what it delays by level.
pub(super) fn level_queue_ends(stage: &Stage) -> Vec<i64> {
    (0..LEVELS).map(|queue| stage.max_offset(SCHEDULE_TOPIC, queue)).collect()
}

fn with_everything(topic: &str, body: &str) -> Send {
    Send::new(topic, body)
        .with("tags", "A")
        .with("keys", "order-17 customer-4")
        .with("wait", false)
        .property("user-text", "gr\u{fc}n \u{1f34f}")
        .property("user-empty-looking", " ")
}

/// The properties less what differs between any two messages: the id, and what the consumer's own
/// client adds on the way in.
fn as_sent(message: &Message) -> BTreeMap<String, String> {
    let mut properties = message.properties.clone();
    assert_eq!(properties.get("UNIQ_KEY"), Some(&message.uniq_key));
    properties.retain(|name, _| {
        !matches!(name.as_str(), "UNIQ_KEY" | "MIN_OFFSET" | "MAX_OFFSET" | "CONSUME_START_TIME")
    });
    properties
}
