//! What is held and what is forwarded, pinned to each other: each undoes the other, but for what
//! rule P10 removes.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use rocketmq_timer_proxy::dispatch::forward;
use rocketmq_timer_proxy::intercept::hold;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, SerializeType};
use rocketmq_timer_proxy::remoting::properties::Properties;
use rocketmq_timer_proxy::store::{Held, TimerId};

use crate::support::client::{send_v1, send_v2};

/// What reaches the broker for `send`, through bytes on a wire and a record.
fn there_and_back(send: &Command) -> Command {
    let frame = Frame::take(&mut BytesMut::from(&send.encode()[..]));
    let received = Command::decode(&frame.unwrap().unwrap()).unwrap();
    let hold = hold::record(&received, "a", 9, 1, String::new());
    let id = TimerId(1);
    let command = forward::command(&Held { id, hold }, None).unwrap();
    let frame = Frame::take(&mut BytesMut::from(&command.encode()[..]));
    Command::decode(&frame.unwrap().unwrap()).unwrap()
}

fn fields(command: &Command, leave_out: &str) -> Vec<(Bytes, Bytes)> {
    let ext = command.header.ext.iter();
    ext.filter(|(key, _)| *key != leave_out)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

const REMOVED: [&str; 3] = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"];

fn property() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("DELAY".to_owned()),
        Just("TIMER_DELAY_SEC".to_owned()),
        Just("TIMER_DELAY_MS".to_owned()),
        Just("TIMER_DELIVER_MS".to_owned()),
        Just("__STARTDELIVERTIME".to_owned()),
        Just("UNIQ_KEY".to_owned()),
        Just("DELAYED".to_owned()),
        "[a-zA-Zé\"\\\\]{1,9}",
    ];
    (name, "[ -~é\u{1}中]{1,12}").prop_map(|(name, value)| format!("{name}\u{1}{value}"))
}

proptest! {
    /// Every field and property byte of the original survives, but for what P10 removes.
    #[test]
    fn what_leaves_is_what_was_sent(
        long_names: bool,
        binary: bool,
        oneway: bool,
        version: i16,
        properties in prop::collection::vec(property(), 0..8),
        separator_at_end: bool,
        body in prop::collection::vec(any::<u8>(), 0..200),
        extra in "[ -~é中]{1,20}",
    ) {
        let mut text = properties.join("\u{2}");
        if separator_at_end && !text.is_empty() {
            text.push('\u{2}');
        }
        let (mut sent, key) = if long_names {
            (send_v1("Orders", 3, &text, body), "properties")
        } else {
            (send_v2("Orders", 3, &text, body), "i")
        };
        sent.header.ext.set(Bytes::from_static(b"Extra"), extra.into());
        sent.header.flag = if oneway { 2 } else { 0 };
        sent.header.opaque = 77;
        sent.header.version = i32::from(version);
        sent.header.language = Bytes::from_static(b"GO");
        sent.serialize = if binary { SerializeType::RocketMq } else { SerializeType::Json };
        let left = there_and_back(&sent);

        prop_assert_eq!(left.header.code, sent.header.code);
        prop_assert_eq!(left.header.version, sent.header.version);
        prop_assert_eq!(&left.header.language, &sent.header.language);
        prop_assert_eq!(left.header.flag, 0);
        prop_assert_eq!(left.serialize, SerializeType::Json);
        prop_assert_eq!(&left.body, &sent.body);
        prop_assert_eq!(fields(&left, key), fields(&sent, key));
        let after = left.header.ext.get(key).map_or(&[][..], |value| value);
        let kept: Vec<_> = Properties::new(text.as_bytes())
            .iter()
            .filter(|(name, _)| !REMOVED.iter().any(|removed| *name == removed.as_bytes()))
            .collect();
        prop_assert_eq!(Properties::new(after).iter().collect::<Vec<_>>(), kept);
        if !REMOVED.iter().any(|name| Properties::new(text.as_bytes()).get(name).is_some()) {
            prop_assert_eq!(after, text.as_bytes());
        }
    }
}
