//! The Java client 5.3.3 on a 4.9.7 broker: its own setters, which that broker takes for properties of
//! the user and ignores.

use crate::driver::{Client, Consumer, Producer, Send};
use crate::leash::now_ms;
use crate::stage::{self, GRACE, assert_relayed, find};

use super::kinds::{assert_complete, check_arrivals, send_by_every_way};

const KINDS: [(&str, i64); 5] = [
    ("setDelayTimeMs", 1234),
    ("setDelayTimeSec", 2000),
    ("setDeliverTimeMs", 1700),
    ("setDelayTimeLevel", 1000),
    ("__STARTDELIVERTIME", 1500),
];

#[test]
fn its_setters_are_kept_to_the_millisecond_and_ignored_without_the_proxy() {
    let stage = stage::take();
    let java = stage.driver(Client::JAVA_5_3_3);
    let topic = stage.topic("Newer", 4);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let consumer = Consumer::start(&java, &proxy.namesrv, &topic);
    let producer = Producer::start(&java, &proxy.namesrv);

    let expected = send_by_every_way(&proxy, &producer, &topic, &KINDS);
    check_arrivals(&expected, &[&witness, &consumer]);
    assert_eq!(stage.stored(&topic, 4), i64::try_from(expected.len()).expect("small"));

    let plain = producer.must_send(&Send::new(&topic, "plain"));
    assert_relayed(&plain, &stage.cluster);
    assert_complete(&plain);

    let direct = Producer::start(&java, &stage.cluster.namesrv);
    let due = now_ms() + 30_000;
    let asked = [("setDelayTimeMs", 30_000), ("setDelayTimeSec", 30), ("setDeliverTimeMs", due)];
    for (setter, value) in asked {
        let body = format!("direct {setter}");
        let sent = direct.must_send(&Send::new(&topic, &body).asking(setter, &value.to_string()));
        assert_relayed(&sent, &stage.cluster);
    }
    for seen_by in [&witness, &consumer] {
        let messages = seen_by.messages(expected.len() + 1 + asked.len(), GRACE);
        assert_eq!(find(&messages, "plain").offset_msg_id, plain.result().offset_msg_id);
        for (setter, _) in asked {
            let message = find(&messages, &format!("direct {setter}"));
            assert!(message.store_timestamp < due - 20_000, "a stock broker held it: {message:?}");
        }
    }
}
