//! A send becomes a held record; a receipt becomes the producer's answer.
//!
//! Called by [`crate::session`] for sends that [`super::decide`] wants held. Its counterpart at the
//! due time is [`crate::dispatch::forward`]. Never judges whether a send is held, never waits.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use crate::clock::EpochMs;
use crate::remoting::code::response;
use crate::remoting::command::Command;
use crate::remoting::frame::SerializeType;
use crate::remoting::header::{FLAG_RESPONSE, Header, VERSION_4_9_7};
use crate::remoting::properties::name;
use crate::remoting::send::Send;
use crate::remoting::stored;
use crate::store::{Hold, HoldError, LaneKey, TimerId};

/// Set in every timer id on the wire, so that it is never taken for an offset in a commit log.
pub const TIMER_BIT: u64 = 1 << 62;

/// A send that no stock broker would take, whatever its time: it closes the connection it comes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ext field {0:?} is an instruction to a stock broker's JSON reader")]
pub struct Poison(pub String);

/// Whether a send can be forwarded at all. Held, it would take down with it the messages that share
/// its connection, at a time when nobody can be told.
pub fn check(send: &Command) -> Result<(), Poison> {
    let poison = |key: &Bytes| matches!(key.first(), None | Some(b'@' | b'$'));
    match send.header.ext.iter().find(|(key, _)| poison(key)) {
        Some((key, _)) => Err(Poison(String::from_utf8_lossy(key).into_owned())),
        None => Ok(()),
    }
}

/// The record for a send that [`super::decide::decide`] wants held.
pub fn record(
    send: &Command,
    broker: &str,
    due_ms: EpochMs,
    arrival_ms: EpochMs,
    client: String,
) -> Hold {
    let view = Send::of(&send.header);
    let property = |name| {
        let value = view.and_then(|view| view.properties().get(name));
        value.map_or_else(Bytes::new, Bytes::copy_from_slice)
    };
    Hold {
        due_ms,
        accepted_ms: arrival_ms,
        lane: LaneKey {
            broker: broker.to_owned(),
            topic: view.map_or_else(Bytes::new, |view| Bytes::copy_from_slice(view.topic())),
            queue: view.map_or(-1, |view| view.queue_id()),
        },
        unique_key: property(name::UNIQ_KEY),
        keys: property(name::KEYS),
        client,
        header: stored::encode(&send.header),
        body: send.body.clone(),
    }
}

/// What a broker puts into each of its answers to a send, good or bad. A listener keeps the one of
/// its broker and gives it to [`Pending::stamped`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// `MSG_REGION`: the broker's region.
    pub region: Bytes,
    /// `TRACE_ON`: whether it wants to be traced, as text.
    pub trace_on: Bytes,
}

impl Default for Stamp {
    /// What a broker answers that was configured to nothing else.
    fn default() -> Self {
        Self { region: Bytes::from_static(b"DefaultRegion"), trace_on: Bytes::from_static(b"true") }
    }
}

/// What is needed to answer a held send, kept small while the commit is under way.
#[derive(Debug, Clone)]
pub struct Pending {
    opaque: i32,
    serialize: SerializeType,
    oneway: bool,
    queue: i32,
    host: IpAddr,
    port: u16,
    stamp: Arc<Stamp>,
}

impl Pending {
    /// For this send, arriving at the listener `host:port` (the address put into the id).
    pub fn of(send: &Command, host: IpAddr, port: u16) -> Self {
        static STOCK: LazyLock<Arc<Stamp>> = LazyLock::new(Arc::default);
        let queue = Send::of(&send.header).map_or(-1, |view| view.queue_id());
        Self {
            opaque: send.header.opaque,
            serialize: send.serialize,
            oneway: send.is_oneway(),
            queue: queue.max(0),
            host,
            port,
            stamp: Arc::clone(&STOCK),
        }
    }

    /// With what this broker puts into its answers, in place of the stock values.
    pub fn stamped(self, stamp: Arc<Stamp>) -> Self {
        Self { stamp, ..self }
    }

    /// The answer; `None` for one-way sends.
    pub fn answer(&self, outcome: Result<TimerId, HoldError>) -> Option<Command> {
        if self.oneway {
            return None;
        }
        let mut header = Header {
            opaque: self.opaque,
            flag: FLAG_RESPONSE,
            language: Bytes::from_static(b"JAVA"),
            version: VERSION_4_9_7,
            ..Header::default()
        };
        let mut set = |key: &'static str, value: Bytes| {
            header.ext.set(Bytes::from_static(key.as_bytes()), value);
        };
        match outcome {
            Ok(id) => {
                set("msgId", message_id(self.host, self.port, id).into());
                set("queueId", self.queue.to_string().into());
                set("queueOffset", Bytes::from_static(b"0"));
                header.code = response::SUCCESS;
            }
            Err(err) => {
                header.code = code_of(&err);
                header.remark = Some(err.to_string().into());
            }
        }
        set("MSG_REGION", self.stamp.region.clone());
        set("TRACE_ON", self.stamp.trace_on.clone());
        Some(Command { serialize: self.serialize, header, body: Bytes::new() })
    }
}

/// P17: 13 for the sender's fault, 2 for "not now"; clients retry neither.
fn code_of(err: &HoldError) -> i32 {
    match err {
        HoldError::TooLong { .. } | HoldError::TooLarge { .. } => response::MESSAGE_ILLEGAL,
        HoldError::Recovering
        | HoldError::Full { .. }
        | HoldError::NoSpace(_)
        | HoldError::Stalled(_)
        | HoldError::Poisoned(_)
        | HoldError::Closed => response::SYSTEM_BUSY,
    }
}

/// A broker's form of message id: address, port as i32, offset as i64, in upper-case hex; 32 digits,
/// with an IPv6 address 56 (protocol: MessageDecoder.createMessageId).
fn message_id(host: IpAddr, port: u16, id: TimerId) -> String {
    let mut text = String::with_capacity(56);
    match host {
        IpAddr::V4(host) => text.extend(host.octets().into_iter().flat_map(hex)),
        IpAddr::V6(host) => text.extend(host.octets().into_iter().flat_map(hex)),
    }
    text.extend(u32::from(port).to_be_bytes().into_iter().flat_map(hex));
    text.extend((id.0 | TIMER_BIT).to_be_bytes().into_iter().flat_map(hex));
    text
}

fn hex(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(code: i32, serialize: SerializeType, flag: i32, queue: &'static str) -> Command {
        let keys = match code {
            10 => ["topic", "queueId", "properties"],
            _ => ["b", "e", "i"],
        };
        let values = ["Orders", queue, "KEYS\u{1}k1 k2\u{2}UNIQ_KEY\u{1}AC11\u{2}DELAY\u{1}3"];
        let mut header = Header {
            code,
            opaque: -7,
            flag,
            language: Bytes::from_static(b"GO"),
            version: 317,
            ..Header::default()
        };
        for (key, value) in keys.into_iter().zip(values) {
            header.ext.set(key.into(), value.into());
        }
        Command { serialize, header, body: Bytes::from_static(b"payload") }
    }

    fn ext(answer: &Command) -> Vec<(&str, &str)> {
        let mut ext: Vec<_> = answer
            .header
            .ext
            .iter()
            .map(|(k, v)| (std::str::from_utf8(k).unwrap(), std::str::from_utf8(v).unwrap()))
            .collect();
        ext.sort_unstable();
        ext
    }

    #[test]
    fn a_record_says_what_the_send_says() {
        for code in [10, 310] {
            let send = send(code, SerializeType::Json, 0, "3");
            let hold = record(&send, "broker-a", 5_000, 2_000, "10.0.0.9:4711".to_owned());
            assert_eq!(
                hold,
                Hold {
                    due_ms: 5_000,
                    accepted_ms: 2_000,
                    lane: LaneKey {
                        broker: "broker-a".to_owned(),
                        topic: Bytes::from_static(b"Orders"),
                        queue: 3,
                    },
                    unique_key: Bytes::from_static(b"AC11"),
                    keys: Bytes::from_static(b"k1 k2"),
                    client: "10.0.0.9:4711".to_owned(),
                    header: stored::encode(&send.header),
                    body: Bytes::from_static(b"payload"),
                }
            );
        }
    }

    #[test]
    fn success_looks_like_a_brokers() {
        let host = "192.168.1.10".parse().unwrap();
        for serialize in [SerializeType::Json, SerializeType::RocketMq] {
            let pending = Pending::of(&send(310, serialize, 0, "2"), host, 20_011);
            let answer = pending.answer(Ok(TimerId(0xAB_CDEF))).unwrap();
            assert_eq!(answer.serialize, serialize);
            let header = &answer.header;
            assert_eq!((header.code, header.opaque, header.flag), (0, -7, 1));
            assert_eq!((&header.language[..], header.version), (&b"JAVA"[..], 407));
            assert_eq!(header.remark, None);
            assert!(answer.body.is_empty());
            assert_eq!(
                ext(&answer),
                [
                    ("MSG_REGION", "DefaultRegion"),
                    ("TRACE_ON", "true"),
                    ("msgId", "C0A8010A00004E2B4000000000ABCDEF"),
                    ("queueId", "2"),
                    ("queueOffset", "0"),
                ]
            );
        }
    }

    #[test]
    fn an_id_behind_an_ipv6_listener_is_56_digits() {
        let id = message_id("2001:db8::1".parse().unwrap(), 65_535, TimerId(1));
        assert_eq!(id, "20010DB80000000000000000000000010000FFFF4000000000000001");
    }

    #[test]
    fn a_queue_left_to_the_broker_is_answered_as_0() {
        for queue in ["-1", "nonsense"] {
            let send = send(10, SerializeType::Json, 0, queue);
            let pending = Pending::of(&send, "127.0.0.1".parse().unwrap(), 1);
            let answer = pending.answer(Ok(TimerId(0))).unwrap();
            assert_eq!(answer.header.ext.get("queueId").unwrap(), "0");
        }
    }

    #[test]
    fn errors_say_whose_fault_it_is() {
        let not_now = [
            HoldError::Recovering,
            HoldError::Full { pending: 7, limit: 7 },
            HoldError::NoSpace("no space left".to_owned()),
            HoldError::Stalled(2_000),
            HoldError::Poisoned("EIO".to_owned()),
            HoldError::Closed,
        ];
        let theirs = [
            HoldError::TooLarge { len: 9, limit: 8 },
            HoldError::TooLong { part: "topic", len: 65_536, limit: 65_535 },
        ];
        let expected = not_now.into_iter().map(|err| (err, 2)).chain(theirs.map(|err| (err, 13)));
        let send = send(310, SerializeType::Json, 0, "0");
        let stamp = Arc::new(Stamp {
            region: Bytes::from_static(b"north"),
            trace_on: Bytes::from_static(b"false"),
        });
        let pending = Pending::of(&send, "127.0.0.1".parse().unwrap(), 1).stamped(stamp);
        for (err, code) in expected {
            let words = err.to_string();
            let answer = pending.answer(Err(err)).unwrap();
            assert_eq!((answer.header.code, answer.header.opaque), (code, -7));
            assert_eq!(answer.header.remark.as_ref().unwrap(), words.as_str());
            assert_eq!(ext(&answer), [("MSG_REGION", "north"), ("TRACE_ON", "false")]);
        }
    }

    #[test]
    fn nobody_waits_for_a_one_way_answer() {
        let send = send(10, SerializeType::Json, 2, "0");
        let pending = Pending::of(&send, "127.0.0.1".parse().unwrap(), 1);
        assert_eq!(pending.answer(Ok(TimerId(1))), None);
        assert_eq!(pending.answer(Err(HoldError::Closed)), None);
    }
}
