//! Case B17: a held message is the message that was sent. Each is sent twice, once plain and once
//! delayed, through the proxy; the two must not differ in anything but their times.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::driver::{Consumer, Message, Send, Sent};
use crate::stage::{self, GRACE, assert_held, assert_relayed};

/// Above the client's threshold of 4 KiB, so that the body travels compressed.
const COMPRESSED_BODY: usize = 6000;

#[test]
fn ids_tags_keys_flag_and_body_stay() {
    let stage = stage::take();
    let topic = stage.topic("Identity", 4);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let only_a = Consumer::filtered(
        &stage.driver,
        &stage.cluster.namesrv,
        &topic,
        &json!({"expression": "A"}),
    );
    let by_sql = Consumer::filtered(
        &stage.driver,
        &stage.cluster.namesrv,
        &topic,
        &json!({"sql": "colour = 'red'"}),
    );
    let producer = stage.producer(&proxy.namesrv);

    let variants = variants(&topic);
    let pairs: Vec<(Sent, Sent)> = variants
        .iter()
        .map(|send| {
            let plain = producer.must_send(send);
            let held = producer.must_send(&send.clone().property("TIMER_DELAY_MS", 1500));
            assert_relayed(&plain, &stage.cluster);
            assert_held(&held, &proxy);
            (plain, held)
        })
        .collect();

    let messages = witness.messages(2 * variants.len(), Duration::from_secs(2) + GRACE);
    for (plain, held) in &pairs {
        let (plain_message, held_message) = (by_key(&messages, plain), by_key(&messages, held));
        assert_same(plain_message, held_message);
        let born = held_message.born_timestamp;
        assert!((held.sent_ms..=held.answered_ms).contains(&born), "{held_message:?}");
        assert_eq!(held_message.msg_id, held.result().msg_id);
    }
    assert_filtered_alike(&only_a, &pairs, &[true, false, false, false, false, true, false]);
    assert_filtered_alike(&by_sql, &pairs, &[false, false, false, false, false, false, true]);
    for (_, held) in &pairs {
        let key = &held.result().msg_id;
        let found = stage.query_unique(&topic, key);
        assert_eq!(found.len(), 1, "the index has {key} {} times", found.len());
        assert_eq!(found[0].store_timestamp, by_key(&messages, held).store_timestamp);
    }
}

fn variants(topic: &str) -> Vec<Send> {
    let mut colourful = Send::new(topic, "20 properties").property("colour", "red");
    for i in 0..19 {
        colourful = colourful.property(&format!("user-{i}"), format!("value {i}"));
    }
    vec![
        Send::new(topic, "tag A").with("tags", "A"),
        Send::new(topic, "tag A||B").with("tags", "A||B").with("keys", "one"),
        Send::new(topic, "no tag").with("keys", "one two three"),
        Send::new(topic, "tag null").with("tags", "null").with("wait", false),
        Send::new(topic, "flag").with("flag", 7),
        Send::new(topic, "").with("bodySize", COMPRESSED_BODY).with("tags", "A"),
        colourful,
    ]
}

fn by_key<'a>(messages: &'a [Message], sent: &Sent) -> &'a Message {
    let key = sent.uniq_key.as_ref().expect("the client gave it a key");
    let mut found = messages.iter().filter(|message| message.uniq_key == *key);
    let message = found.next().unwrap_or_else(|| panic!("no message {key}"));
    assert_eq!(found.count(), 0, "{key} came more than once");
    message
}

fn assert_same(plain: &Message, held: &Message) {
    assert_eq!(held.flag, plain.flag, "{held:?}");
    assert_eq!(held.sys_flag, plain.sys_flag, "{held:?}");
    assert_eq!(held.body_sha256, plain.body_sha256, "{held:?}");
    assert_eq!(held.body_length, plain.body_length, "{held:?}");
    let changing = ["UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"];
    let stable = |message: &Message| {
        let mut properties = message.properties.clone();
        properties.retain(|name, _| !changing.contains(&name.as_str()));
        properties
    };
    assert_eq!(stable(held), stable(plain));
}

/// A consumer with a filter has got exactly those pairs that `wanted` says, both halves.
fn assert_filtered_alike(consumer: &Consumer<'_>, pairs: &[(Sent, Sent)], wanted: &[bool]) {
    assert_eq!(pairs.len(), wanted.len());
    let expected: BTreeSet<String> = pairs
        .iter()
        .zip(wanted)
        .filter(|&(_, &wanted)| wanted)
        .flat_map(|((plain, held), _)| [plain.uniq_key.clone(), held.uniq_key.clone()])
        .flatten()
        .collect();
    let got = consumer.messages(expected.len(), GRACE);
    let got: BTreeSet<String> = got.into_iter().map(|message| message.uniq_key).collect();
    assert_eq!(got, expected);
}
