//! kill -9 while messages are held: all of them come, once, none early, and clients find the proxy
//! again where it was.

use std::time::Duration;

use crate::driver::{Consumer, Send};
use crate::leash::now_ms;
use crate::stage::{self, Due, GRACE, assert_held, find};

const COUNT: usize = 30;

/// What falls due between the two kills may come twice. A debug build reads its log in seconds, on a
/// loaded machine in more.
const FIRST_DUE_MS: i64 = 20_000;

/// A 4.9.7 client takes no notice when its connection is closed: its pending pull has to time out
/// first (30 s), and the broker takes the next one only after a heartbeat (every 30 s, together
/// 34 s at most).
const CLIENT_RECOVERS: Duration = Duration::from_secs(34);

#[test]
fn held_messages_survive_two_kills() {
    let stage = stage::take();
    let topic = stage.topic("Crash", 4);
    let mut proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let consumer = Consumer::start(&stage.driver, &proxy.namesrv, &topic);
    let producer = stage.producer(&proxy.namesrv);

    let mut due = Vec::new();
    for i in 0..COUNT {
        let ahead_ms = FIRST_DUE_MS + 50 * i64::try_from(i).expect("small");
        let at = now_ms() + ahead_ms;
        let send = Send::new(&topic, &format!("number {i}"));
        let (send, absolute) = if i % 2 == 0 {
            (send.property("__STARTDELIVERTIME", at), true)
        } else {
            (send.property("TIMER_DELAY_MS", ahead_ms), false)
        };
        let sent = producer.must_send(&send);
        assert_held(&sent, &proxy);
        due.push(if absolute { Due::at(at) } else { Due::after(&sent, ahead_ms) });
    }
    proxy.restart();
    proxy.restart();
    let back_ms = now_ms();
    assert!(back_ms < due[0].earliest_ms, "back too late for a test of what was held");
    let newcomer = Consumer::start(&stage.driver, &proxy.namesrv, &topic);

    let late_to_the_party =
        producer.must_send(&Send::new(&topic, "after the kills").property("TIMER_DELAY_MS", 1000));
    for (seen_by, patience) in
        [(&witness, GRACE), (&newcomer, GRACE), (&consumer, CLIENT_RECOVERS + GRACE)]
    {
        let ahead = Duration::from_millis(u64::try_from(FIRST_DUE_MS).expect("positive"));
        let messages = seen_by.messages(COUNT + 1, ahead + patience);
        for (i, due) in due.iter().enumerate() {
            // What fell due while nobody was there leaves when somebody is.
            let due = Due { latest_ms: due.latest_ms.max(back_ms), ..*due };
            due.check(find(&messages, &format!("number {i}")));
        }
        Due::after(&late_to_the_party, 1000).check(find(&messages, "after the kills"));
    }
    assert_eq!(stage.stored(&topic, 4), i64::try_from(COUNT + 1).expect("small"), "duplicates");
}
