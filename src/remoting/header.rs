//! The header of a frame: code, opaque, flags, remark and the ext fields, in either form.
//!
//! Lenient on what clients send (fastjson's habits), exact in what it writes (what Java's encoder
//! would write). Values are bytes, since a binary header may carry anything.

use bytes::Bytes;

use super::frame::SerializeType;

/// Bit 0 of `flag`: this is an answer.
pub const FLAG_RESPONSE: i32 = 1;
/// Bit 1 of `flag`: a request that wants no answer.
pub const FLAG_ONEWAY: i32 = 2;
/// The version we answer with: the ordinal of release 4.9.7.
pub const VERSION_4_9_7: i32 = 407;

/// A parsed header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// Request or response code.
    pub code: i32,
    /// Name of the sender's language (`JAVA`, `GO`, ...), kept as sent.
    pub language: Bytes,
    /// Ordinal of the sender's release; the ONS SDK sends values near 2^31.
    pub version: i32,
    /// Matches an answer to its request.
    pub opaque: i32,
    /// [`FLAG_RESPONSE`], [`FLAG_ONEWAY`].
    pub flag: i32,
    /// Error text.
    pub remark: Option<Bytes>,
    /// The ext fields, in the order sent.
    pub ext: ExtFields,
}

/// The ext fields: an ordered map of text to text. A repeated key replaces, as in Java.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtFields(Vec<(Bytes, Bytes)>);

/// A header that cannot be read; a stock server closes the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unreadable {form} header: {why}")]
pub struct HeaderError {
    /// `JSON` or `binary`.
    pub form: &'static str,
    /// What is wrong, and where.
    pub why: String,
}

impl ExtFields {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.0.iter().find(|(k, _)| k == key.as_bytes()).map(|(_, value)| value)
    }

    /// Sets `key`, in its old place if it was there.
    pub fn set(&mut self, key: Bytes, value: Bytes) {
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// All pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl Header {
    /// Reads a header. JSON values may be strings, numbers, booleans or null (null fields count as
    /// absent), keys and strings may be quoted as fastjson accepts them.
    pub fn decode(serialize: SerializeType, bytes: &[u8]) -> Result<Self, HeaderError> {
        let _ = (serialize, bytes);
        todo!()
    }

    /// Writes the header in the given form.
    pub fn encode(&self, serialize: SerializeType, out: &mut Vec<u8>) {
        let _ = (serialize, out);
        todo!()
    }
}
