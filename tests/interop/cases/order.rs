//! Case B44: nothing waits for what is due later, whatever order the sends came in.

use std::time::Duration;

use crate::driver::Send;
use crate::leash::now_ms;
use crate::stage::{self, Due, GRACE, assert_held, find};

const COUNT: i64 = 100;
const STEP_MS: i64 = 20;

#[test]
fn descending_due_times_in_one_queue() {
    let stage = stage::take();
    let topic = stage.topic("Descending", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);
    // Far enough ahead that the last send is over before the first is due.
    let first_due = now_ms() + 3000;
    let hour =
        producer.must_send(&Send::new(&topic, "in an hour").property("TIMER_DELAY_SEC", 3600));
    assert_held(&hour, &proxy);

    let pending: Vec<(i64, u64)> = (0..COUNT)
        .rev()
        .map(|i| {
            let send = Send::new(&topic, &format!("number {i}"))
                .with("mode", "async")
                .property("__STARTDELIVERTIME", first_due + i * STEP_MS);
            (i, producer.begin(&send))
        })
        .collect();
    for (i, id) in pending {
        let sent = producer.finish(id);
        assert!(sent.ok, "number {i}: {sent:?}");
        assert_held(&sent, &proxy);
    }

    let count = usize::try_from(COUNT).expect("small");
    let messages = witness.messages(count, Duration::from_secs(6) + GRACE);
    for i in 0..COUNT {
        Due::at(first_due + i * STEP_MS).check(find(&messages, &format!("number {i}")));
    }
    assert_eq!(stage.stored(&topic, 1), COUNT);
}
