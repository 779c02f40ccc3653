//! One view of the send requests: SEND_MESSAGE (10) with long ext names, SEND_MESSAGE_V2 (310) and
//! SEND_BATCH_MESSAGE (320) with letters.
//!
//! Called by what decides on sends, holds them and forwards them. Only reads; whoever changes a
//! field does so in the header, by [`SendField::key`].

use bytes::Bytes;

use super::code::request;
use super::command::Command;
use super::header::{ExtFields, FLAG_RESPONSE, Header};
use super::properties::Properties;

/// The fields of a send, by their long names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendField {
    /// a, producerGroup
    ProducerGroup,
    /// b, topic
    Topic,
    /// c, defaultTopic
    DefaultTopic,
    /// d, defaultTopicQueueNums
    DefaultTopicQueueNums,
    /// e, queueId
    QueueId,
    /// f, sysFlag
    SysFlag,
    /// g, bornTimestamp
    BornTimestamp,
    /// h, flag
    Flag,
    /// i, properties
    Properties,
    /// j, reconsumeTimes
    ReconsumeTimes,
    /// k, unitMode
    UnitMode,
    /// l, maxReconsumeTimes
    MaxReconsumeTimes,
    /// m, batch: decides single or batch, not the code
    Batch,
    /// n, bname
    BrokerName,
}

impl SendField {
    /// The ext key of this field under `code`.
    pub fn key(self, code: i32) -> &'static str {
        let (long, letter) = match self {
            Self::ProducerGroup => ("producerGroup", "a"),
            Self::Topic => ("topic", "b"),
            Self::DefaultTopic => ("defaultTopic", "c"),
            Self::DefaultTopicQueueNums => ("defaultTopicQueueNums", "d"),
            Self::QueueId => ("queueId", "e"),
            Self::SysFlag => ("sysFlag", "f"),
            Self::BornTimestamp => ("bornTimestamp", "g"),
            Self::Flag => ("flag", "h"),
            Self::Properties => ("properties", "i"),
            Self::ReconsumeTimes => ("reconsumeTimes", "j"),
            Self::UnitMode => ("unitMode", "k"),
            Self::MaxReconsumeTimes => ("maxReconsumeTimes", "l"),
            Self::Batch => ("batch", "m"),
            Self::BrokerName => ("bname", "n"),
        };
        if code == request::SEND_MESSAGE { long } else { letter }
    }
}

/// A send request, read through its ext fields. Made only from requests whose code is a send's.
#[derive(Debug, Clone, Copy)]
pub struct Send<'a> {
    header: &'a Header,
}

impl<'a> Send<'a> {
    /// `None` for answers and for codes other than 10, 310 and 320.
    pub fn of(header: &'a Header) -> Option<Self> {
        let is_request = header.flag & FLAG_RESPONSE == 0;
        let is_send = matches!(
            header.code,
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE
        );
        (is_request && is_send).then_some(Self { header })
    }

    /// The raw value of a field.
    pub fn field(&self, field: SendField) -> Option<&'a Bytes> {
        self.header.ext.get(field.key(self.header.code))
    }

    /// The topic; empty when absent.
    pub fn topic(&self) -> &'a [u8] {
        self.field(SendField::Topic).map_or(&[], |topic| topic)
    }

    /// The queue asked for; -1 when absent, not a number, or left to the broker.
    pub fn queue_id(&self) -> i32 {
        self.field(SendField::QueueId)
            .and_then(|id| std::str::from_utf8(id).ok()?.parse().ok())
            .filter(|id| *id >= 0)
            .unwrap_or(-1)
    }

    /// Whether the broker will read the body as a batch: by the field, not by the code, and read
    /// like Java's `Boolean.parseBoolean`.
    pub fn is_batch(&self) -> bool {
        self.field(SendField::Batch).is_some_and(|batch| batch.eq_ignore_ascii_case(b"true"))
    }

    /// The message's properties (of a batch: the header's own).
    pub fn properties(&self) -> Properties<'a> {
        Properties::new(self.field(SendField::Properties).map_or(&[], |text| text))
    }

    /// The ext fields as sent.
    pub fn ext(&self) -> &'a ExtFields {
        &self.header.ext
    }

    /// The header this view reads.
    pub fn header(&self) -> &'a Header {
        self.header
    }
}

/// Whether this command is a send that we look into.
pub fn is_send(command: &Command) -> bool {
    Send::of(&command.header).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::frame::SerializeType;

    fn header(text: &str) -> Header {
        Header::decode(SerializeType::Json, text.as_bytes()).unwrap()
    }

    #[test]
    fn both_namings_give_the_same_view() {
        let long = header(
            r#"{"code":10,"extFields":{"topic":"T","queueId":"3","batch":false,
                "properties":"DELAY\u00013\u0002","b":"no"}}"#,
        );
        let letters = header(
            r#"{"code":310,"extFields":{"b":"T","e":"3","m":"false","i":"DELAY\u00013\u0002",
                "topic":"no"}}"#,
        );
        for header in [&long, &letters] {
            let send = Send::of(header).unwrap();
            assert_eq!((send.topic(), send.queue_id()), (&b"T"[..], 3));
            assert_eq!(send.properties().get("DELAY"), Some(&b"3"[..]));
            assert!(!send.is_batch());
            assert_eq!(send.field(SendField::SysFlag), None);
        }
    }

    #[test]
    fn the_field_decides_on_batch_whatever_the_code() {
        for (text, batch) in [
            (r#"{"code":310,"extFields":{"m":"true"}}"#, true),
            (r#"{"code":310,"extFields":{"m":true}}"#, true),
            (r#"{"code":310,"extFields":{"m":"TRUE"}}"#, true),
            (r#"{"code":10,"extFields":{"batch":"true","m":"false"}}"#, true),
            (r#"{"code":320,"extFields":{"m":"false"}}"#, false),
            (r#"{"code":320,"extFields":{"m":"1"}}"#, false),
            (r#"{"code":320}"#, false),
        ] {
            assert_eq!(Send::of(&header(text)).unwrap().is_batch(), batch, "{text}");
        }
    }

    #[test]
    fn what_is_no_queue_is_left_to_the_broker() {
        for (queue, id) in [
            (r#""e":7"#, 7),
            (r#""e":"-1""#, -1),
            (r#""e":"-9""#, -1),
            (r#""e":"x""#, -1),
            (r#""e":"4294967296""#, -1),
            (r#""x":"1""#, -1),
        ] {
            let header = header(&format!("{{code:310,extFields:{{{queue}}}}}"));
            assert_eq!(Send::of(&header).unwrap().queue_id(), id, "{queue}");
        }
    }

    #[test]
    fn answers_and_other_codes_are_no_sends() {
        for text in [
            r#"{"code":310,"flag":1}"#,
            r#"{"code":10,"flag":3}"#,
            r#"{"code":324}"#,
            r#"{"code":325}"#,
            r#"{"code":36}"#,
            r#"{"code":0}"#,
        ] {
            assert!(Send::of(&header(text)).is_none(), "{text}");
        }
        let empty = header(r#"{"code":310,"flag":2}"#);
        let send = Send::of(&empty).unwrap();
        assert_eq!((send.topic(), send.queue_id()), (&b""[..], -1));
        assert_eq!(send.properties(), Properties::new(b""));
    }

    #[test]
    fn each_field_has_its_letter() {
        use SendField::*;
        let fields = [
            ProducerGroup,
            Topic,
            DefaultTopic,
            DefaultTopicQueueNums,
            QueueId,
            SysFlag,
            BornTimestamp,
            Flag,
            Properties,
            ReconsumeTimes,
            UnitMode,
            MaxReconsumeTimes,
            Batch,
            BrokerName,
        ];
        for (field, letter) in fields.into_iter().zip('a'..) {
            assert_eq!(field.key(310), letter.to_string());
            assert_eq!(field.key(320), letter.to_string());
            assert!(field.key(10).len() > 1);
        }
        assert_eq!(BrokerName.key(10), "bname");
    }
}
