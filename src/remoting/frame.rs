//! The envelope of a frame: lengths, limits, and what foreign protocols look like.
//!
//! Called by everything that reads a socket. Limits are judged from the first 8 bytes, before
//! anything announced is allocated.

use bytes::{Bytes, BytesMut};

/// Largest legal value of the length field: Netty's decoder limit of 16 MiB counts the field too.
pub const MAX_LENGTH: u32 = 16 * 1024 * 1024 - 4;
/// Bytes before the header.
pub const PREFIX_LEN: usize = 8;

/// How a header is written. Each frame says it by its own type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SerializeType {
    /// JSON text (0).
    Json,
    /// The compact binary form (1).
    RocketMq,
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
        let _ = bytes;
        todo!()
    }

    /// Bytes of the whole frame, the length field included.
    pub fn frame_len(&self) -> usize {
        PREFIX_LEN + self.header_len + self.body_len
    }
}

/// What the first bytes of a connection look like when they are not ours: "an HTTP/1 request", "an
/// HTTP/2 preface (a gRPC client?)", "a TLS handshake", "a PROXY protocol header".
pub fn foreign_protocol(first: &[u8]) -> Option<&'static str> {
    let _ = first;
    todo!()
}

/// One complete frame as it came from the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
    prefix: Prefix,
}

impl Frame {
    /// Takes one frame off the front of `buffer` if it is complete; leaves it untouched otherwise.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let _ = buffer;
        todo!()
    }

    /// Form of the header.
    pub fn serialize(&self) -> SerializeType {
        self.prefix.serialize
    }

    /// The header's bytes.
    pub fn header(&self) -> &[u8] {
        todo!()
    }

    /// The body, sharing the frame's memory.
    pub fn body(&self) -> Bytes {
        todo!()
    }

    /// The whole frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Whole frames from and to a byte stream.
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
