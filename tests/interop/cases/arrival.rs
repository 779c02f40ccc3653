//! Case B05: a relative delay counts from the arrival of the send at the proxy, neither from when it
//! was born nor from when it was stored.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cluster::route;
use crate::driver::{Send, Sent};
use crate::lag;
use crate::proxy::ProxyProcess;
use crate::stage::{self, Due, GRACE, assert_held, find};

const LAG: Duration = Duration::from_millis(400);
const LAG_MS: i64 = 400;

/// Clients are sent to this address; between it and the proxy lies the slow network.
const SLOW_HOST: &str = "127.0.0.2";

#[test]
fn relative_delays_count_from_arrival() {
    let stage = stage::take();
    let topic = stage.topic("Arrival", 1);
    let proxy = ProxyProcess::start_with(&stage.cluster.namesrv, &["--advertise", SLOW_HOST]);
    let slow = broker_address(&route(&proxy.namesrv, &topic).expect("a route"), SLOW_HOST);
    lag::start(slow, SocketAddr::new([127, 0, 0, 1].into(), slow.port()), LAG);
    let witness = stage.witness(&topic);
    let producer = stage.producer(&proxy.namesrv);

    let kinds =
        [("DELAY", "1", 1000), ("TIMER_DELAY_SEC", "1", 1000), ("TIMER_DELAY_MS", "1000", 1000)];
    let sent: Vec<(&str, i64, Sent)> = kinds
        .iter()
        .map(|&(kind, value, delay_ms)| {
            let sent = producer.must_send(&Send::new(&topic, kind).property(kind, value));
            assert_held(&sent, &proxy);
            assert!(sent.answered_ms >= sent.sent_ms + LAG_MS, "the lag is not there: {sent:?}");
            (kind, delay_ms, sent)
        })
        .collect();

    let messages = witness.messages(kinds.len(), Duration::from_secs(2) + GRACE);
    for (kind, delay_ms, sent) in &sent {
        let message = find(&messages, kind);
        // It left the client at the earliest when the send began, so it arrived a lag later.
        let due = Due {
            earliest_ms: sent.sent_ms + LAG_MS + delay_ms,
            latest_ms: sent.answered_ms + delay_ms,
        };
        due.check(message);
        let born = message.born_timestamp;
        assert!((sent.sent_ms..sent.sent_ms + LAG_MS).contains(&born), "born anew: {message:?}");
    }
}

/// The address that a route has for the broker, on a host that it advertises.
pub(super) fn broker_address(route: &str, host: &str) -> SocketAddr {
    let start = route.find(host).unwrap_or_else(|| panic!("{host} is not in {route}"));
    let address: String = route[start..]
        .chars()
        .take_while(|&c| c.is_ascii_digit() || c == '.' || c == ':')
        .collect();
    address.parse().unwrap_or_else(|e| panic!("{address:?}: {e}"))
}
