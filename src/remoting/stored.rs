//! The header of a send as a held record keeps it: independent of JSON or binary, compact, complete.
//!
//! ```text
//! u8 version │ i32 code │ i32 release │ u8 + n language │ u16 count │ (u16 + n key │ u32 + n value)*
//! ```
//!
//! Little-endian, as all of the store. The opaque, the flag and the remark are not kept: they belong
//! to the connection the send came on.

use bytes::Bytes;

use super::header::Header;

/// A stored header that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unreadable stored header: {0}")]
pub struct StoredError(pub &'static str);

/// Writes what a held record keeps of a send's header.
pub fn encode(header: &Header) -> Bytes {
    let _ = header;
    todo!()
}

/// Reads it back; ext values share the memory of `bytes`.
pub fn decode(bytes: &Bytes) -> Result<Header, StoredError> {
    let _ = bytes;
    todo!()
}
