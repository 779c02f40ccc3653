//! The ROCKETMQ form of a header.
//!
//! ```text
//! i16 code │ u8 language │ i16 version │ i32 opaque │ i32 flag │ i32 + n remark
//! │ i32 length of ext │ (i16 + n key │ i32 + n value)*
//! ```

use bytes::Bytes;

use super::{ExtCollector, ExtFields, Header};

/// Language names by their code.
const LANGUAGES: [&[u8]; 14] = [
    b"JAVA", b"CPP", b"DOTNET", b"PYTHON", b"DELPHI", b"ERLANG", b"RUBY", b"OTHER", b"HTTP", b"GO",
    b"PHP", b"OMS", b"RUST", b"NODE_JS",
];
/// Code of `OTHER`, for names that have none.
const OTHER: u8 = 7;

/// Why bytes are no binary header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at} does not fit")]
pub(super) struct BinaryError {
    what: &'static str,
    at: usize,
}

pub(super) fn decode(bytes: &Bytes) -> Result<Header, BinaryError> {
    let mut reader = Reader { bytes, at: 0 };
    let code = i32::from(reader.i16("code")?);
    let language = language_name(reader.u8("language")?);
    let version = i32::from(reader.i16("version")?);
    let opaque = reader.i32("opaque")?;
    let flag = reader.i32("flag")?;
    let remark = reader.long_bytes("remark")?;
    Ok(Header {
        code,
        language,
        version,
        opaque,
        flag,
        remark: (!remark.is_empty()).then_some(remark),
        ext: ext(&mut reader)?,
    })
}

/// Java takes a negative length for "no fields" and ignores what follows the fields.
fn ext(reader: &mut Reader<'_>) -> Result<ExtFields, BinaryError> {
    let length = reader.i32("ext length")?;
    let Ok(length) = usize::try_from(length) else {
        return Ok(ExtFields::default());
    };
    let fields = reader.take(length, "ext")?;
    let mut reader = Reader { bytes: &fields, at: 0 };
    let mut ext = ExtCollector::default();
    while reader.at < fields.len() {
        let key = reader.short_bytes("ext key")?;
        let value = reader.long_bytes("ext value")?;
        ext.set(key, value);
    }
    Ok(ext.finish())
}

pub(super) fn encode(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(&low_16_bits(header.code));
    out.push(language_code(&header.language));
    out.extend_from_slice(&low_16_bits(header.version));
    out.extend_from_slice(&header.opaque.to_be_bytes());
    out.extend_from_slice(&header.flag.to_be_bytes());
    put_long(header.remark.as_deref().unwrap_or_default(), out);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    for (key, value) in header.ext.iter() {
        let Ok(key_len) = i16::try_from(key.len()) else {
            continue;
        };
        out.extend_from_slice(&key_len.to_be_bytes());
        out.extend_from_slice(key);
        put_long(value, out);
    }
    let length = length_field(out.len() - length_at - 4);
    if let Some(place) = out.get_mut(length_at..).and_then(<[u8]>::first_chunk_mut) {
        *place = length;
    }
}

fn put_long(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&length_field(bytes.len()));
    out.extend_from_slice(bytes);
}

/// A length of over 2^31 is over the limit of a frame too, which refuses it whatever stands here.
fn length_field(length: usize) -> [u8; 4] {
    i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes()
}

fn low_16_bits(value: i32) -> [u8; 2] {
    let [_, _, high, low] = value.to_be_bytes();
    [high, low]
}

/// The name of a language; of an unknown code, the code in decimal.
fn language_name(code: u8) -> Bytes {
    match LANGUAGES.get(usize::from(code)) {
        Some(name) => Bytes::from_static(name),
        None => Bytes::from(code.to_string()),
    }
}

/// The code of a language: 0 when absent, since that is what absent means.
fn language_code(name: &[u8]) -> u8 {
    if name.is_empty() {
        return 0;
    }
    let known = (0..).zip(LANGUAGES).find(|(_, known)| *known == name);
    let code = known.map(|(code, _)| code);
    let decimal = || std::str::from_utf8(name).ok()?.parse().ok();
    code.or_else(decimal).unwrap_or(OTHER)
}

struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<Bytes, BinaryError> {
        let end = self.at.checked_add(length);
        let end = end.filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(BinaryError { what, at: self.at })?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BinaryError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let array = rest.first_chunk().ok_or(BinaryError { what, at: self.at })?;
        self.at += N;
        Ok(*array)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, BinaryError> {
        self.array(what).map(u8::from_be_bytes)
    }

    fn i16(&mut self, what: &'static str) -> Result<i16, BinaryError> {
        self.array(what).map(i16::from_be_bytes)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, BinaryError> {
        self.array(what).map(i32::from_be_bytes)
    }

    fn short_bytes(&mut self, what: &'static str) -> Result<Bytes, BinaryError> {
        let at = self.at;
        let length = self.i16(what)?;
        let length = usize::try_from(length).map_err(|_| BinaryError { what, at })?;
        self.take(length, what)
    }

    fn long_bytes(&mut self, what: &'static str) -> Result<Bytes, BinaryError> {
        let at = self.at;
        let length = self.i32(what)?;
        let length = usize::try_from(length).map_err(|_| BinaryError { what, at })?;
        self.take(length, what)
    }
}
