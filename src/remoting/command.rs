//! A frame's meaning: header and body; and the requests and answers that we make ourselves.
//!
//! Called by sessions, the name-server facade and upstream connections. Never used on what is
//! relayed. Decoding, setting an opaque and encoding keeps all ext fields and the body; members of
//! a JSON header that no release defines do not survive it.

use bytes::Bytes;

use super::frame::{Frame, PREFIX_LEN, Prefix, SerializeType};
use super::header::{FLAG_ONEWAY, FLAG_RESPONSE, Header, HeaderError, VERSION_4_9_7};

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
        let header = Header::decode_shared(frame.serialize(), &frame.shared_header())?;
        Ok(Self { serialize: frame.serialize(), header, body: frame.body() })
    }

    /// A JSON request from us, language and version as a Java 4.9.7 client would have them; set the
    /// opaque (and the flag for one-way) before it is sent.
    pub fn request(code: i32, ext: &[(&str, &str)], body: Bytes) -> Self {
        let mut header = own_header(code);
        for (key, value) in ext {
            let value = Bytes::copy_from_slice(value.as_bytes());
            header.ext.set(Bytes::copy_from_slice(key.as_bytes()), value);
        }
        Self { serialize: SerializeType::Json, header, body }
    }

    /// The answer to this request: its opaque, its form, our language and version.
    pub fn reply(&self, code: i32, remark: Option<&str>) -> Self {
        let mut header = own_header(code);
        header.opaque = self.header.opaque;
        header.flag = FLAG_RESPONSE;
        header.remark = remark.map(|text| Bytes::copy_from_slice(text.as_bytes()));
        Self { serialize: self.serialize, header, body: Bytes::new() }
    }

    /// Whether this is an answer.
    pub fn is_response(&self) -> bool {
        self.header.flag & FLAG_RESPONSE != 0
    }

    /// Whether the sender wants no answer.
    pub fn is_oneway(&self) -> bool {
        self.header.flag & FLAG_ONEWAY != 0
    }

    /// The whole frame.
    ///
    /// Written in the binary form where a JSON header would outgrow the limits of a frame: that
    /// form never grows, so what came in a frame fits into one again. Empty if the body alone is
    /// over the limits.
    pub fn encode(&self) -> Bytes {
        let frame = match self.encode_as(self.serialize) {
            Err(TooLarge) if self.serialize == SerializeType::Json => {
                self.encode_as(SerializeType::RocketMq)
            }
            frame => frame,
        };
        frame.unwrap_or_default()
    }

    fn encode_as(&self, serialize: SerializeType) -> Result<Bytes, TooLarge> {
        let mut out = Vec::with_capacity(PREFIX_LEN + HEADER_LEN_USUAL + self.body.len());
        out.extend_from_slice(&[0; PREFIX_LEN]);
        self.header.encode(serialize, &mut out);
        let prefix =
            Prefix { serialize, header_len: out.len() - PREFIX_LEN, body_len: self.body.len() };
        let prefix = prefix.to_bytes().ok_or(TooLarge)?;
        if let Some(place) = out.first_chunk_mut() {
            *place = prefix;
        }
        out.extend_from_slice(&self.body);
        Ok(Bytes::from(out))
    }
}

/// Room for the header of a send with its properties.
const HEADER_LEN_USUAL: usize = 768;

/// A frame over the limits.
struct TooLarge;

/// A header of ours, language and version as a Java 4.9.7 peer would have them.
fn own_header(code: i32) -> Header {
    Header {
        code,
        language: Bytes::from_static(b"JAVA"),
        version: VERSION_4_9_7,
        ..Header::default()
    }
}

#[cfg(test)]
mod tests;
