//! The control runs, without the proxy: what a stock 4.9.7 does by itself. They also prove that the
//! checks of the other cases can see a difference.

use crate::cluster::route;
use crate::driver::Send;
use crate::leash::now_ms;
use crate::stage::{self, Due, GRACE, assert_relayed, find};

use super::residue::level_queue_ends;

#[test]
fn a_stock_broker_delivers_absolute_times_at_once() {
    let stage = stage::take();
    let topic = stage.topic("ControlTime", 4);
    let witness = stage.witness(&topic);
    let producer = stage.producer(&stage.cluster.namesrv);
    let due = now_ms() + 30_000;

    let sent = producer.must_send(&Send::new(&topic, "time").property("__STARTDELIVERTIME", due));

    assert_relayed(&sent, &stage.cluster);
    let messages = witness.messages(1, GRACE);
    let message = find(&messages, "time");
    assert!(message.store_timestamp < due - 20_000, "held by a stock broker: {message:?}");
    assert_eq!(message.msg_id, sent.result().msg_id);
    assert_eq!(message.offset_msg_id, sent.result().offset_msg_id);
}

#[test]
fn a_stock_broker_moves_its_own_levels_through_its_schedule_topic() {
    let stage = stage::take();
    let topic = stage.topic("ControlLevel", 1);
    let witness = stage.witness(&topic);
    let producer = stage.producer(&stage.cluster.namesrv);
    let before = level_queue_ends(&stage);

    let sent = producer.must_send(&Send::new(&topic, "level 1").with("delayLevel", 1));

    let messages = witness.messages(1, GRACE);
    Due::after(&sent, 1000).check(find(&messages, "level 1"));
    let after = level_queue_ends(&stage);
    assert_eq!(after[0], before[0] + 1, "level 1 took no trip through SCHEDULE_TOPIC_XXXX");
    assert_eq!(after[1..], before[1..]);
    assert!(messages[0].properties.contains_key("REAL_TOPIC"), "{messages:?}");
}

#[test]
fn the_name_server_routes_to_the_broker_itself() {
    let stage = stage::take();
    let topic = stage.topic("ControlRoute", 1);

    let body = route(&stage.cluster.namesrv, &topic).expect("a route");

    assert!(body.contains(&stage.cluster.broker), "{body}");
}
