//! The Java client 4.3.0. It sends through the VIP channel, two ports below the one that the route
//! names, unless told not to, and asks for unknown topics by a key that newer brokers do not have.

use serde_json::json;

use crate::cluster::route;
use crate::driver::{Client, Consumer, Producer, Send};
use crate::leash::await_start;
use crate::stage::{self, GRACE, assert_relayed, find};

use super::kinds::{assert_complete, check_arrivals, send_by_every_way};

const KINDS: [(&str, i64); 3] =
    [("setDelayTimeLevel", 1000), ("__STARTDELIVERTIME", 1500), ("TIMER_DELAY_MS", 1234)];

#[test]
fn delays_through_the_vip_channel_to_a_topic_that_it_creates() {
    let stage = stage::take();
    let java = stage.driver(Client::JAVA_4_3_0);
    let topic = format!("CreatedBy430-{}", std::process::id());
    let proxy = stage.proxy();
    let port = stage.cluster.broker_port();
    let producer = Producer::with(&java, &proxy.namesrv, &json!({"createTopicKey": "TBW102"}));

    let plain = producer.must_send(&Send::new(&topic, "plain"));

    assert_relayed(&plain, &stage.cluster);
    assert_complete(&plain);
    assert_eq!(proxy.connections_to(port - 2).len(), 1, "it does not use the VIP channel");
    await_start(GRACE, || format!("a route of {topic}"), || route(&proxy.namesrv, &topic));
    let witness = stage.witness(&topic);
    let consumer = Consumer::start(&java, &proxy.namesrv, &topic);

    let expected = send_by_every_way(&proxy, &producer, &topic, &KINDS);

    for seen_by in [&witness, &consumer] {
        let messages = seen_by.messages(1 + expected.len(), GRACE);
        let message = find(&messages, "plain");
        assert_eq!(message.offset_msg_id, plain.result().offset_msg_id);
        assert_eq!(message.queue_offset, plain.result().queue_offset);
    }
    check_arrivals(&expected, &[&witness, &consumer]);
    assert_eq!(stage.stored(&topic, 4), 1 + i64::try_from(expected.len()).expect("small"));
}
