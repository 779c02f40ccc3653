//! A client that writes its headers in the binary form, to a proxy between it and a broker that others
//! speak JSON to.

use std::net::SocketAddr;

use crate::cluster::route;
use crate::driver::{Client, Consumer, Producer, Send};
use crate::proxy::ProxyProcess;
use crate::stage::{self, GRACE, assert_relayed, find};
use crate::tap;

use super::arrival::broker_address;
use super::kinds::{KINDS, assert_complete, check_arrivals, send_by_every_way};

/// Clients are sent to this address, and the tap there sees what they write.
const TAPPED_HOST: &str = "127.0.0.2";

#[test]
fn every_kind_by_every_way_to_send() {
    let stage = stage::take();
    let java = stage.driver(Client::JAVA_4_9_7_BINARY);
    let topic = stage.topic("Binary", 4);
    let proxy = ProxyProcess::start_with(&stage.cluster.namesrv, &["--advertise", TAPPED_HOST]);
    let tapped = broker_address(&route(&proxy.namesrv, &topic).expect("a route"), TAPPED_HOST);
    let tap = tap::start(tapped, SocketAddr::new([127, 0, 0, 1].into(), tapped.port()));
    // One that speaks JSON reads what the other wrote, and the other way round.
    let witness = stage.witness(&topic);
    let consumer = Consumer::start(&java, &proxy.namesrv, &topic);
    let producer = Producer::start(&java, &proxy.namesrv);

    let expected = send_by_every_way(&proxy, &producer, &topic, &KINDS);

    check_arrivals(&expected, &[&witness, &consumer]);
    let all_sends = u64::try_from(expected.len()).expect("small");
    assert_eq!(tap.clients.json(), Vec::<String>::new(), "it does not write binary headers");
    assert!(tap.clients.binary() >= all_sends, "{} binary headers", tap.clients.binary());
    // A broker answers a pull that it let wait in JSON whatever was asked, but no send.
    let answered = all_sends - all_sends / 4;
    let in_json = tap.servers.json();
    assert!(in_json.iter().all(|header| !header.contains("msgId")), "{in_json:?}");
    assert!(tap.servers.binary() >= answered, "{} binary answers", tap.servers.binary());
    assert_eq!(stage.stored(&topic, 4), i64::try_from(expected.len()).expect("small"));

    let plain = producer.must_send(&Send::new(&topic, "plain"));
    assert_relayed(&plain, &stage.cluster);
    assert_complete(&plain);
    for seen_by in [&witness, &consumer] {
        let messages = seen_by.messages(expected.len() + 1, GRACE);
        assert_eq!(find(&messages, "plain").offset_msg_id, plain.result().offset_msg_id);
    }
}
