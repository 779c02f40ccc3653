//! The header of a frame: code, opaque, flags, remark and the ext fields, in either form.
//!
//! Lenient on what clients send (fastjson's habits), exact in what it writes (what Java's encoder
//! would write). Values are bytes, since a binary header may carry anything.
//!
//! Called wherever a frame's meaning matters. Never used on what is relayed: that leaves as the
//! bytes it came in. Decoded values share the memory of the header they were read from.

mod binary;
mod json;

use std::collections::HashMap;

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
    /// Name of the sender's language (`JAVA`, `GO`, ...), kept as sent; empty when absent, which
    /// peers take for `JAVA`.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
        Self::decode_shared(serialize, &Bytes::copy_from_slice(bytes))
    }

    /// As [`Header::decode`], without copying: the values keep `bytes` alive.
    pub fn decode_shared(serialize: SerializeType, bytes: &Bytes) -> Result<Self, HeaderError> {
        match serialize {
            SerializeType::Json => json::decode(bytes)
                .map_err(|error| HeaderError { form: "JSON", why: error.to_string() }),
            SerializeType::RocketMq => binary::decode(bytes)
                .map_err(|error| HeaderError { form: "binary", why: error.to_string() }),
        }
    }

    /// Writes the header in the given form.
    ///
    /// JSON has room for everything, but turns what is no UTF-8 into U+FFFD. The binary form cuts
    /// code and version to 16 bits and does not tell an empty remark from none, as in Java; an ext
    /// key over 32,767 bytes does not fit into it and is left out.
    pub fn encode(&self, serialize: SerializeType, out: &mut Vec<u8>) {
        match serialize {
            SerializeType::Json => json::encode(self, out),
            SerializeType::RocketMq => binary::encode(self, out),
        }
    }
}

/// Collects ext fields while a header is read, in linear time however many there are.
#[derive(Debug, Default)]
struct ExtCollector {
    fields: Vec<(Bytes, Bytes)>,
    /// Which of the letters a to z were keys: the keys of a send need no search.
    letters: u32,
    /// Where each key stands, once there are too many to search through.
    places: HashMap<Bytes, usize>,
}

impl ExtCollector {
    /// Enough for a send.
    const USUAL: usize = 16;
    /// Fields up to which a search beats hashing.
    const FEW: usize = 32;

    fn set(&mut self, key: Bytes, value: Bytes) {
        if self.fields.is_empty() {
            self.fields.reserve(Self::USUAL);
        }
        if self.fields.len() < Self::FEW {
            if let [letter @ b'a'..=b'z'] = key[..] {
                let seen = self.letters;
                self.letters |= 1 << (letter - b'a');
                if seen != self.letters {
                    self.fields.push((key, value));
                    return;
                }
            }
            match self.fields.iter_mut().find(|(k, _)| *k == key) {
                Some((_, old)) => *old = value,
                None => self.fields.push((key, value)),
            }
            return;
        }
        if self.places.is_empty() {
            let keys = self.fields.iter().map(|(key, _)| key.clone());
            self.places = keys.zip(0..).collect();
        }
        let next = self.fields.len();
        let place = *self.places.entry(key.clone()).or_insert(next);
        match self.fields.get_mut(place) {
            Some((_, old)) => *old = value,
            None => self.fields.push((key, value)),
        }
    }

    fn finish(self) -> ExtFields {
        ExtFields(self.fields)
    }
}

#[cfg(test)]
mod tests;
