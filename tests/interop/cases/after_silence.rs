//! A broker closes what was silent for two minutes: what falls due after more than that is on time all
//! the same, at the first try. The name of this file puts it first, so that its one long wait passes
//! while the other tests run.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use crate::driver::Send;
use crate::leash::{await_start, now_ms};
use crate::stage::{self, Due, assert_held, find};

/// A broker's limit is 120 s.
const SILENCE_MS: i64 = 132_000;
/// For a client's connections to go once it is told to stop.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Long since closed by then: this only keeps a failure from hanging.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn what_falls_due_after_a_long_silence_is_on_time_at_the_first_try() {
    let turn = stage::take();
    let stage = turn.shared();
    let topic = stage.topic("Silence", 1);
    let proxy = stage.proxy();
    let witness = stage.witness(&topic);
    let port = stage.cluster.broker_port();

    let first = now_ms() + 1500;
    let second = first + SILENCE_MS;
    {
        let producer = stage.producer(&proxy.namesrv);
        for (body, at) in [("first", first), ("second", second)] {
            let send = Send::new(&topic, body).property("__STARTDELIVERTIME", at);
            assert_held(&producer.must_send(&send), &proxy);
        }
    }
    Due::at(first).check(find(&witness.messages(1, Due::at(first).patience()), "first"));
    let mut silent = TcpStream::connect(&stage.cluster.broker).expect("the broker accepts");
    // The producer is gone and its connections with it: what is left is the proxy's own.
    let own = await_start(
        GONE_WITHIN,
        || format!("one connection to the broker: {:?}", proxy.connections_to(port)),
        || Some(proxy.connections_to(port)).filter(|own| own.len() == 1),
    );
    drop(turn);

    let messages = witness.messages(2, Due::at(second).patience());

    Due::at(second).check(find(&messages, "second"));
    silent.set_read_timeout(Some(CLOSED_WITHIN)).expect("a limit is set");
    let read = silent.read(&mut [0]);
    assert!(matches!(read, Ok(0)), "the broker has not cut a silent connection: {read:?}");
    assert_eq!(proxy.connections_to(port), own, "connected anew");
    assert_eq!(proxy.metric("dispatch_retries_total"), 0);
    assert_eq!(proxy.metric("dispatch_delivered_total"), 2);
}
