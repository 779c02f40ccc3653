//! One view of the send requests: SEND_MESSAGE (10) with long ext names, SEND_MESSAGE_V2 (310) and
//! SEND_BATCH_MESSAGE (320) with letters.

use bytes::Bytes;

use super::command::Command;
use super::header::{ExtFields, Header};
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
        let _ = code;
        todo!()
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
        let _ = header;
        todo!()
    }

    /// The raw value of a field.
    pub fn field(&self, field: SendField) -> Option<&'a Bytes> {
        let _ = field;
        todo!()
    }

    /// The topic; empty when absent.
    pub fn topic(&self) -> &'a [u8] {
        todo!()
    }

    /// The queue asked for; -1 when absent, not a number, or left to the broker.
    pub fn queue_id(&self) -> i32 {
        todo!()
    }

    /// Whether the broker will read the body as a batch.
    pub fn is_batch(&self) -> bool {
        todo!()
    }

    /// The message's properties (of a batch: the header's own).
    pub fn properties(&self) -> Properties<'a> {
        todo!()
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
