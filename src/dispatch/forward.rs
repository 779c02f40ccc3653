//! A held record becomes the send that delivers it: the counterpart of `intercept::hold`.
//!
//! Pure. What is removed is rule P10: the delay level and the relative delays, which a broker would
//! obey again. Absolute times stay. Nothing else changes. Called by the couriers of
//! [`super::dispatcher`].

use bytes::Bytes;

use crate::remoting::command::Command;
use crate::remoting::frame::SerializeType;
use crate::remoting::properties::{Properties, name};
use crate::remoting::send::SendField;
use crate::remoting::stored::{self, StoredError};
use crate::store::Held;

/// What a broker must not see again.
const REMOVED: [&str; 3] = [name::DELAY, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS];

/// The send that delivers `held`, to `queue` in place of the one asked for when that is given.
///
/// It always wants an answer, also where the producer did not, since a message is complete only
/// when a broker says so. The opaque is the connection's to set.
pub fn command(held: &Held, queue: Option<i32>) -> Result<Command, StoredError> {
    let mut header = stored::decode(&held.hold.header)?;
    let key = |field: SendField| field.key(header.code).as_bytes();
    let (properties_key, queue_key) = (key(SendField::Properties), key(SendField::QueueId));
    if let Some(properties) = header.ext.get(SendField::Properties.key(header.code)) {
        let without = Properties::new(properties).without(&REMOVED);
        if without.len() != properties.len() {
            header.ext.set(Bytes::from_static(properties_key), without.into());
        }
    }
    if let Some(queue) = queue {
        header.ext.set(Bytes::from_static(queue_key), queue.to_string().into());
    }
    Ok(Command { serialize: SerializeType::Json, header, body: held.hold.body.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::header::Header;
    use crate::store::{Hold, LaneKey, TimerId};

    fn held(code: i32, ext: &[(&str, &str)]) -> Held {
        let mut header = Header {
            code,
            opaque: 5,
            flag: 2,
            version: 2_147_483_459,
            language: Bytes::from_static(b"CPP"),
            ..Header::default()
        };
        for (key, value) in ext {
            let value = Bytes::copy_from_slice(value.as_bytes());
            header.ext.set(Bytes::copy_from_slice(key.as_bytes()), value);
        }
        Held {
            id: TimerId(1),
            hold: Hold {
                due_ms: 0,
                accepted_ms: 0,
                lane: LaneKey { broker: "a".to_owned(), topic: Bytes::from_static(b"T"), queue: 3 },
                unique_key: Bytes::new(),
                keys: Bytes::new(),
                client: String::new(),
                header: stored::encode(&header),
                body: Bytes::from_static(b"body"),
            },
        }
    }

    fn ext(command: &Command) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let ext = command.header.ext.iter();
        ext.map(|(key, value)| (text(key), text(value))).collect()
    }

    fn pairs(ext: &[(&str, &str)]) -> Vec<(String, String)> {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ext.iter().map(pair).collect()
    }

    #[test]
    fn only_what_would_delay_again_is_removed() {
        let properties = "TIMER_DELAY_MS\u{1}1\u{2}DELAY\u{1}3\u{2}a\u{1}b\u{2}\
            __STARTDELIVERTIME\u{1}99\u{2}DELAYS\u{1}4\u{2}TIMER_DELIVER_MS\u{1}98\u{2}\
            TIMER_DELAY_SEC\u{1}2\u{2}WAIT\u{1}true";
        let left = "a\u{1}b\u{2}__STARTDELIVERTIME\u{1}99\u{2}DELAYS\u{1}4\u{2}\
            TIMER_DELIVER_MS\u{1}98\u{2}WAIT\u{1}true";
        for (code, queue, key) in [(10, "queueId", "properties"), (310, "e", "i")] {
            let before = [(queue, "3"), (key, properties), ("x", "é\u{1}"), ("i2", "")];
            let held = held(code, &before);
            let command = command(&held, None).unwrap();
            let after = [(queue, "3"), (key, left), ("x", "é\u{1}"), ("i2", "")];
            assert_eq!(ext(&command), pairs(&after));
            let header = &command.header;
            assert_eq!((header.code, header.version), (code, 2_147_483_459));
            assert_eq!(header.language, "CPP");
            assert_eq!((header.flag, header.remark.as_ref()), (0, None));
            assert_eq!(command.serialize, SerializeType::Json);
            // Shared, not copied.
            assert_eq!(command.body.as_ptr(), held.hold.body.as_ptr());
        }
    }

    #[test]
    fn another_queue_changes_the_queue_alone() {
        for (code, queue, other) in [(10, "queueId", "e"), (310, "e", "queueId")] {
            let held = held(code, &[("b", "T"), (queue, "7"), (other, "7")]);
            let command = command(&held, Some(3)).unwrap();
            let after = [("b", "T"), (queue, "3"), (other, "7")];
            assert_eq!(ext(&command), pairs(&after));
        }
    }

    #[test]
    fn a_damaged_header_is_an_error() {
        let mut held = held(10, &[]);
        held.hold.header = Bytes::from_static(b"\x07");
        assert_eq!(command(&held, None), Err(StoredError("unknown version")));
    }
}
