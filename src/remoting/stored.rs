//! The header of a send as a held record keeps it: independent of JSON or binary, compact, complete.
//!
//! ```text
//! u8 version │ i32 code │ i32 release │ text language │ n count │ (text key │ text value)*
//! n    = unsigned LEB128, at most 32 bits
//! text = n length │ that many bytes
//! ```
//!
//! The two fixed integers are little-endian, as all of the store. Lengths take one byte up to 127,
//! and no header a peer can send is too large for them, so that writing never fails or cuts. The
//! opaque, the flag and the remark are not kept: they belong to the connection the send came on.
//!
//! Bytes of this form lie on disk for years: a change of form takes a new version number, and the
//! old ones stay readable.

use bytes::{BufMut, Bytes};

use super::header::{ExtFields, Header};

/// The form written today.
const VERSION: u8 = 1;

/// A stored header that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unreadable stored header: {0}")]
pub struct StoredError(pub &'static str);

/// Writes what a held record keeps of a send's header.
pub fn encode(header: &Header) -> Bytes {
    let fields = || header.ext.iter();
    let room = fields().map(|(k, v)| k.len() + v.len() + 10).sum::<usize>();
    let mut out = Vec::with_capacity(24 + header.language.len() + room);
    out.put_u8(VERSION);
    out.put_i32_le(header.code);
    out.put_i32_le(header.version);
    put_text(&mut out, &header.language);
    put_number(&mut out, fields().count());
    for (key, value) in fields() {
        put_text(&mut out, key);
        put_text(&mut out, value);
    }
    out.into()
}

/// Reads it back; ext values share the memory of `bytes`.
pub fn decode(bytes: &Bytes) -> Result<Header, StoredError> {
    let mut rest = bytes.clone();
    if take::<1>(&mut rest)? != [VERSION] {
        return Err(StoredError("unknown version"));
    }
    let code = i32::from_le_bytes(take(&mut rest)?);
    let version = i32::from_le_bytes(take(&mut rest)?);
    let language = take_text(&mut rest)?;
    let count = take_number(&mut rest)?;
    let mut ext = ExtFields::default();
    // Every field takes at least two bytes, so a count that lies ends with the bytes.
    for _ in 0..count {
        let key = take_text(&mut rest)?;
        let value = take_text(&mut rest)?;
        ext.set(key, value);
    }
    if !rest.is_empty() {
        return Err(StoredError("bytes after the last field"));
    }
    Ok(Header { code, language, version, ext, ..Header::default() })
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len());
    out.put_slice(text);
}

/// Frames end at 16 MiB, far below the 32 bits that [`take_number`] accepts.
fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn take<const N: usize>(rest: &mut Bytes) -> Result<[u8; N], StoredError> {
    let Some(head) = rest.first_chunk::<N>().copied() else {
        return Err(StoredError("too short"));
    };
    *rest = rest.slice(N..);
    Ok(head)
}

fn take_number(rest: &mut Bytes) -> Result<u32, StoredError> {
    let mut number = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let [byte] = take(rest)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| StoredError("a number over 32 bits"));
        }
    }
    Err(StoredError("a number over 32 bits"))
}

fn take_text(rest: &mut Bytes) -> Result<Bytes, StoredError> {
    let len = take_number(rest)? as usize;
    if len > rest.len() {
        return Err(StoredError("a text over the end"));
    }
    Ok(rest.split_to(len))
}

#[cfg(test)]
mod tests {
    use proptest::collection::{hash_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn header(code: i32, version: i32, language: &[u8], ext: &[(&[u8], &[u8])]) -> Header {
        let mut fields = ExtFields::default();
        for (key, value) in ext {
            fields.set(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        }
        Header {
            code,
            version,
            language: Bytes::copy_from_slice(language),
            ext: fields,
            ..Header::default()
        }
    }

    /// The form on disk, byte by byte: this test must never need a change.
    #[test]
    fn version_1_is_these_bytes() {
        let long = [b'x'; 300];
        let header = header(310, -1, b"JAVA", &[(b"b", b"Orders"), (b"i", &long)]);
        let mut expected = vec![1, 0x36, 1, 0, 0, 0xff, 0xff, 0xff, 0xff];
        expected.extend_from_slice(b"\x04JAVA\x02\x01b\x06Orders\x01i\xac\x02");
        expected.extend_from_slice(&long);
        assert_eq!(encode(&header), expected);
        assert_eq!(decode(&expected.into()), Ok(header));
    }

    #[test]
    fn what_belongs_to_the_connection_is_not_kept() {
        let mut sent = header(10, 407, b"GO", &[(b"topic", b"T")]);
        let kept = sent.clone();
        sent.opaque = 77;
        sent.flag = 2;
        sent.remark = Some(Bytes::from_static(b"hello"));
        assert_eq!(decode(&encode(&sent)), Ok(kept));
    }

    #[test]
    fn damaged_bytes_are_named() {
        let good = encode(&header(10, 407, b"GO", &[(b"topic", b"T")]));
        for len in 0..good.len() {
            assert!(decode(&good.slice(..len)).is_err(), "cut to {len}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut damaged = good[..at].to_vec();
            damaged.extend_from_slice(bytes);
            decode(&damaged.into())
        };
        assert_eq!(with(0, &[2]), Err(StoredError("unknown version")));
        assert_eq!(with(9, &[200, 1]), Err(StoredError("a text over the end")));
        let over = Err(StoredError("a number over 32 bits"));
        assert_eq!(with(9, &[0xff, 0xff, 0xff, 0xff, 0x10]), over);
        assert_eq!(with(9, &[0x80; 5]), over);
        let after = Err(StoredError("bytes after the last field"));
        assert_eq!(with(good.len(), &[0]), after);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            code: i32,
            version: i32,
            language in vec(any::<u8>(), 0..300),
            ext in hash_map(vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..400), 0..20),
        ) {
            let ext: Vec<_> = ext.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
            let header = header(code, version, &language, &ext);
            prop_assert_eq!(decode(&encode(&header)), Ok(header));
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), versioned: bool) {
            let mut bytes = bytes;
            if versioned && !bytes.is_empty() {
                bytes[0] = VERSION;
            }
            // Whatever was read from them can be written and read again.
            if let Ok(header) = decode(&bytes.into()) {
                prop_assert_eq!(decode(&encode(&header)), Ok(header));
            }
        }
    }
}
