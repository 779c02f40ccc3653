//! Case B67 and policies P2, P6: times at or before now, and levels outside the table.

use std::time::Duration;

use crate::driver::Send;
use crate::leash::now_ms;
use crate::stage::{self, Due, GRACE, assert_held, assert_relayed, find};

#[test]
fn past_and_zero_pass_untouched_at_once() {
    let stage = stage::take();
    let topic = stage.topic("Past", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    let now = now_ms();
    let asked = [
        ("__STARTDELIVERTIME", now - 1),
        ("__STARTDELIVERTIME", 0),
        ("__STARTDELIVERTIME", -1),
        ("__STARTDELIVERTIME", i64::MIN),
        ("TIMER_DELIVER_MS", now - 1),
        ("TIMER_DELIVER_MS", 0),
        ("TIMER_DELIVER_MS", -1),
        ("TIMER_DELIVER_MS", i64::MIN),
        ("TIMER_DELAY_SEC", 0),
        ("TIMER_DELAY_MS", 0),
        ("DELAY", 0),
        ("DELAY", -1),
        ("DELAY", i64::from(i32::MIN)),
    ];

    for (kind, value) in asked {
        let send = Send::new(&topic, &format!("{kind}={value}")).property(kind, value);
        assert_relayed(&producer.must_send(&send), &stage.cluster);
    }

    let messages = witness.messages(asked.len(), GRACE);
    for (kind, value) in asked {
        let message = find(&messages, &format!("{kind}={value}"));
        assert_eq!(message.properties[kind], value.to_string(), "not untouched: {message:?}");
    }
    assert_eq!(stage.stored(&topic, 1), 13);
}

/// A property without value is none to a stock broker, so it asks for nothing.
#[test]
fn an_empty_value_passes() {
    let stage = stage::take();
    let topic = stage.topic("Empty", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    let kinds =
        ["DELAY", "__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

    for kind in kinds {
        let sent = producer.must_send(&Send::new(&topic, kind).property(kind, ""));
        assert_relayed(&sent, &stage.cluster);
    }

    let messages = witness.messages(kinds.len(), GRACE);
    for kind in kinds {
        assert_eq!(find(&messages, kind).properties.get(kind), None);
    }
}

#[test]
fn a_few_milliseconds_ahead() {
    let stage = stage::take();
    let topic = stage.topic("Close", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    super::kinds::warm_up(&stage, &proxy.namesrv);

    let mut expected = Vec::new();
    for round in 0..5 {
        for ahead_ms in [0, 1, 3, 10] {
            let body = format!("round {round}, {ahead_ms} ms ahead");
            let at = now_ms() + ahead_ms;
            let sent =
                producer.must_send(&Send::new(&topic, &body).property("__STARTDELIVERTIME", at));
            // Already past on arrival or still ahead, by the luck of the moment: early in no case.
            expected.push((body, Due { earliest_ms: at, latest_ms: at.max(sent.answered_ms) }));
        }
    }

    let messages = witness.messages(expected.len(), GRACE);
    for (body, due) in &expected {
        due.check(find(&messages, body));
    }
    assert_eq!(stage.stored(&topic, 1), 20);
}

#[test]
fn a_level_beyond_the_table_is_the_last() {
    let stage = stage::take();
    let topic = stage.topic("LastLevel", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);

    for level in ["18", "19", "2147483647"] {
        assert_held(
            &producer.must_send(&Send::new(&topic, level).property("DELAY", level)),
            &proxy,
        );
    }
    let sent = producer.must_send(&Send::new(&topic, "level 1").property("DELAY", 1));

    let messages = witness.messages(1, Duration::from_secs(1) + GRACE);
    Due::after(&sent, 1000).check(find(&messages, "level 1"));
    assert_eq!(stage.stored(&topic, 1), 1, "a level of 2 h was delivered");
}
