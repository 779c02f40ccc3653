//! The envelope of a frame: lengths, limits, and what foreign protocols look like.
//!
//! Called by everything that reads a socket. Limits are judged from the first 8 bytes, before
//! anything announced is allocated.

use bytes::{Bytes, BytesMut};

/// Largest legal value of the length field: Netty's decoder limit of 16 MiB counts the field too.
pub const MAX_LENGTH: u32 = 16 * 1024 * 1024 - 4;
/// Bytes before the header.
pub const PREFIX_LEN: usize = 8;
/// Largest header that the 24-bit field can announce.
pub const MAX_HEADER_LEN: usize = 0xff_ffff;
/// The part of the prefix that the length field counts: type byte and header length.
const HEADER_WORD_LEN: u32 = 4;

/// How a header is written. Each frame says it by its own type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SerializeType {
    /// JSON text (0).
    Json,
    /// The compact binary form (1).
    RocketMq,
}

impl SerializeType {
    fn of_byte(byte: u8) -> Result<Self, FrameError> {
        match byte {
            0 => Ok(Self::Json),
            1 => Ok(Self::RocketMq),
            other => Err(FrameError::SerializeType(other)),
        }
    }

    /// The type byte of a frame.
    pub fn byte(self) -> u8 {
        match self {
            Self::Json => 0,
            Self::RocketMq => 1,
        }
    }
}

/// The first 8 bytes of a frame, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Form of the header.
    pub serialize: SerializeType,
    /// Bytes of the header.
    pub header_len: usize,
    /// Bytes of the body.
    pub body_len: usize,
}

/// Why bytes cannot be a frame. All of these end the connection, as they do on a stock server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is over [`MAX_LENGTH`].
    #[error("frame length {0} is over {MAX_LENGTH}")]
    TooLong(u32),
    /// The length field has no room for the header word.
    #[error("frame length {0} is under 4")]
    TooShort(u32),
    /// The header is longer than the frame.
    #[error("header length {header} is over the frame's {room}")]
    HeaderTooLong {
        /// Announced header length.
        header: usize,
        /// Bytes the frame has for header and body.
        room: usize,
    },
    /// Neither JSON nor binary.
    #[error("unknown serialize type {0}")]
    SerializeType(u8),
}

impl Prefix {
    /// Reads the first 8 bytes; `Ok(None)` when fewer are there. A length out of bounds is an
    /// error as soon as its 4 bytes are there.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        if length > MAX_LENGTH {
            return Err(FrameError::TooLong(length));
        }
        if length < HEADER_WORD_LEN {
            return Err(FrameError::TooShort(length));
        }
        let Some(&[serialize, high, middle, low]) = rest.first_chunk() else {
            return Ok(None);
        };
        let room = (length - HEADER_WORD_LEN) as usize;
        let header_len = u32::from_be_bytes([0, high, middle, low]) as usize;
        let Some(body_len) = room.checked_sub(header_len) else {
            return Err(FrameError::HeaderTooLong { header: header_len, room });
        };
        let serialize = SerializeType::of_byte(serialize)?;
        Ok(Some(Self { serialize, header_len, body_len }))
    }

    /// The first 8 bytes, or `None` when these lengths are over the limits of a frame.
    pub fn to_bytes(&self) -> Option<[u8; PREFIX_LEN]> {
        let length =
            (HEADER_WORD_LEN as usize).checked_add(self.header_len)?.checked_add(self.body_len)?;
        let length = u32::try_from(length).ok().filter(|l| *l <= MAX_LENGTH)?;
        let header = u32::try_from(self.header_len).ok()?;
        let [a, b, c, d] = length.to_be_bytes();
        let [over, high, middle, low] = header.to_be_bytes();
        (over == 0).then_some([a, b, c, d, self.serialize.byte(), high, middle, low])
    }

    /// Bytes of the whole frame, the length field included.
    pub fn frame_len(&self) -> usize {
        PREFIX_LEN + self.header_len + self.body_len
    }
}

/// What the first bytes of a connection look like when they are not ours: "an HTTP/1 request", "an
/// HTTP/2 preface (a gRPC client?)", "a TLS handshake", "a PROXY protocol header".
///
/// Four bytes are enough, which is when [`Prefix::parse`] refuses them; every start known here
/// would be a length over [`MAX_LENGTH`], so no frame is ever taken for something else.
pub fn foreign_protocol(first: &[u8]) -> Option<&'static str> {
    if first.starts_with(&[TLS_HANDSHAKE]) {
        return Some("a TLS handshake");
    }
    FOREIGN_STARTS
        .iter()
        .find(|(start, _)| {
            let common = start.len().min(first.len());
            common >= 4 && start.get(..common) == first.get(..common)
        })
        .map(|(_, what)| *what)
}

/// Content type of a TLS record that opens a connection.
const TLS_HANDSHAKE: u8 = 0x16;

const HTTP_1: &str = "an HTTP/1 request";
const PROXY: &str = "a PROXY protocol header";

/// How other protocols open a connection.
const FOREIGN_STARTS: [(&[u8], &str); 12] = [
    (b"PRI * HTTP/2.0\r\n", "an HTTP/2 preface (a gRPC client?)"),
    (b"PROXY ", PROXY),
    (b"\r\n\r\n\0\r\nQUIT\n", PROXY),
    (b"GET ", HTTP_1),
    (b"HEAD ", HTTP_1),
    (b"POST ", HTTP_1),
    (b"PUT ", HTTP_1),
    (b"DELETE ", HTTP_1),
    (b"CONNECT ", HTTP_1),
    (b"OPTIONS ", HTTP_1),
    (b"TRACE ", HTTP_1),
    (b"PATCH ", HTTP_1),
];

/// One complete frame as it came from the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
    prefix: Prefix,
}

impl Frame {
    /// Takes one frame off the front of `buffer` if it is complete; leaves it untouched otherwise.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(prefix) = Prefix::parse(buffer)? else {
            return Ok(None);
        };
        if buffer.len() < prefix.frame_len() {
            return Ok(None);
        }
        let bytes = buffer.split_to(prefix.frame_len()).freeze();
        Ok(Some(Self { bytes, prefix }))
    }

    /// The frame that `bytes` are, when they are exactly one.
    pub fn whole(bytes: Bytes) -> Result<Option<Self>, FrameError> {
        let prefix = Prefix::parse(&bytes)?.filter(|prefix| prefix.frame_len() == bytes.len());
        Ok(prefix.map(|prefix| Self { bytes, prefix }))
    }

    /// Form of the header.
    pub fn serialize(&self) -> SerializeType {
        self.prefix.serialize
    }

    /// The header's bytes.
    pub fn header(&self) -> &[u8] {
        let header = PREFIX_LEN..PREFIX_LEN + self.prefix.header_len;
        self.bytes.get(header).unwrap_or_default()
    }

    /// The header's bytes, sharing the frame's memory.
    pub fn shared_header(&self) -> Bytes {
        self.bytes.slice_ref(self.header())
    }

    /// The body, sharing the frame's memory.
    pub fn body(&self) -> Bytes {
        // `Frame`s are made only with as many bytes as their prefix says.
        self.bytes.slice(PREFIX_LEN + self.prefix.header_len..)
    }

    /// The whole frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Whole frames from a byte stream.
#[derive(Debug, Default)]
pub struct FrameCodec;

impl tokio_util::codec::Decoder for FrameCodec {
    type Item = Frame;
    type Error = CodecError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        Ok(Frame::take(src)?)
    }
}

/// A stream that ended or carried what is no frame.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests;
