//! A frame's meaning: header and body; and the answers we give ourselves.

use bytes::Bytes;

use super::frame::{Frame, SerializeType};
use super::header::{Header, HeaderError};

/// A request or an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Form of the header on the wire.
    pub serialize: SerializeType,
    /// The header.
    pub header: Header,
    /// The body; empty means none.
    pub body: Bytes,
}

impl Command {
    /// Reads a frame's header; the body is shared, not copied.
    pub fn decode(frame: &Frame) -> Result<Self, HeaderError> {
        let _ = frame;
        todo!()
    }

    /// A JSON request from us, language and version as a Java 4.9.7 client would have them; set the
    /// opaque (and the flag for one-way) before it is sent.
    pub fn request(code: i32, ext: &[(&str, &str)], body: Bytes) -> Self {
        let _ = (code, ext, body);
        todo!()
    }

    /// The answer to this request: its opaque, its form, our language and version.
    pub fn reply(&self, code: i32, remark: Option<&str>) -> Self {
        let _ = (code, remark);
        todo!()
    }

    /// Whether this is an answer.
    pub fn is_response(&self) -> bool {
        todo!()
    }

    /// Whether the sender wants no answer.
    pub fn is_oneway(&self) -> bool {
        todo!()
    }

    /// The whole frame.
    pub fn encode(&self) -> Bytes {
        todo!()
    }
}
