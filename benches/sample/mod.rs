//! The send that the codec and intercept benches take apart: 1 KiB, as a Java client writes it.

use bytes::Bytes;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::SerializeType;

/// The properties of a send by a Java client with keys and tags.
pub(crate) const PROPERTIES: &str = "KEYS\u{1}order-4711 user-17\u{2}\
    UNIQ_KEY\u{1}7F0000010A2B63947C6B1A2B3C4D0000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}created\u{2}\
    source\u{1}checkout\u{2}traceparent\u{1}00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The whole frame of a SEND_MESSAGE_V2 with these properties.
pub(crate) fn send(serialize: SerializeType, properties: &str) -> Bytes {
    let ext = [
        ("a", "pg_order"),
        ("b", "OrderTopic"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1700000000123"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "broker-a"),
    ];
    let mut command = Command::request(310, &ext, Bytes::from(vec![b'x'; 1024]));
    command.serialize = serialize;
    command.encode()
}
