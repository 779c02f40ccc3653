//! The JSON form of a header.

use std::borrow::Cow;

use bytes::Bytes;

use super::{ExtCollector, ExtFields, Header};
use crate::remoting::json::{JsonError, Reader, Text, write_string};

pub(super) fn decode(bytes: &Bytes) -> Result<Header, JsonError> {
    let mut header = Header::default();
    let mut reader = Reader::new(bytes);
    reader.object(|reader, key| {
        let at = key.span().start;
        match key.bytes()?.as_ref() {
            b"code" => header.code = integer(reader)?,
            b"language" => header.language = text(bytes, reader)?.unwrap_or_default(),
            b"version" => header.version = integer(reader)?,
            b"opaque" => header.opaque = integer(reader)?,
            b"flag" => header.flag = integer(reader)?,
            b"remark" => header.remark = text(bytes, reader)?,
            b"extFields" => header.ext = ext(bytes, reader)?,
            other if resembles_a_member(other) => {
                return Err(JsonError { at, expected: "a member's name as Java writes it" });
            }
            _ => reader.skip()?,
        }
        Ok::<(), JsonError>(())
    })?;
    reader.end()?;
    Ok(header)
}

/// Whether fastjson would take this name for one of the members that decide what a frame means: it
/// ignores case, `_` and `-`. We do not, and must not take such a frame for something else.
fn resembles_a_member(name: &[u8]) -> bool {
    const MEMBERS: [&[u8]; 7] =
        [b"code", b"language", b"version", b"opaque", b"flag", b"remark", b"extfields"];
    let bare: Vec<u8> = name
        .iter()
        .filter(|byte| !matches!(byte, b'_' | b'-'))
        .map(u8::to_ascii_lowercase)
        .collect();
    MEMBERS.contains(&bare.as_slice())
}

fn ext(bytes: &Bytes, reader: &mut Reader<'_>) -> Result<ExtFields, JsonError> {
    let mut ext = ExtCollector::default();
    if reader.null() {
        return Ok(ext.finish());
    }
    reader.object(|reader, key| {
        let value = text(bytes, reader)?;
        if let Some(value) = value {
            ext.set(ext_key(bytes, &key)?, value);
        }
        Ok::<(), JsonError>(())
    })?;
    Ok(ext.finish())
}

/// The letters that name the fields of a send, which need no share of the header's memory.
static LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

fn ext_key(bytes: &Bytes, key: &Text<'_>) -> Result<Bytes, JsonError> {
    if let [letter @ b'a'..=b'z'] = key.bytes()?.as_ref() {
        let at = usize::from(letter - b'a');
        return Ok(Bytes::from_static(LETTERS.get(at..=at).unwrap_or_default()));
    }
    shared(bytes, key)
}

#[inline]
fn text(bytes: &Bytes, reader: &mut Reader<'_>) -> Result<Option<Bytes>, JsonError> {
    reader.text()?.map(|text| shared(bytes, &text)).transpose()
}

/// The meaning of `text`, as a part of `bytes` where it stands there as it is.
#[inline]
fn shared(bytes: &Bytes, text: &Text<'_>) -> Result<Bytes, JsonError> {
    Ok(match text.bytes()? {
        Cow::Borrowed(_) => bytes.slice(text.inner()),
        Cow::Owned(unescaped) => Bytes::from(unescaped),
    })
}

/// An integer, quoted or not; 0 for null and for no text. Of other numbers fastjson makes integers of
/// its own, which no client needs and we do not guess.
fn integer(reader: &mut Reader<'_>) -> Result<i32, JsonError> {
    let Some(text) = reader.text()? else {
        return Ok(0);
    };
    let bytes = text.bytes()?;
    if bytes.is_empty() {
        return Ok(0);
    }
    let value = std::str::from_utf8(&bytes).ok().and_then(|value| value.parse().ok());
    value.ok_or(JsonError { at: text.span().start, expected: "a 32-bit integer" })
}

/// What Java's encoder writes: members by name, nulls left out, no blanks.
pub(super) fn encode(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"code\":");
    put_integer(header.code, out);
    if !header.ext.is_empty() {
        out.extend_from_slice(b",\"extFields\":");
        let mut before = b'{';
        for (key, value) in header.ext.iter() {
            out.push(before);
            write_string(key, out);
            out.push(b':');
            write_string(value, out);
            before = b',';
        }
        out.push(b'}');
    }
    out.extend_from_slice(b",\"flag\":");
    put_integer(header.flag, out);
    if !header.language.is_empty() {
        out.extend_from_slice(b",\"language\":");
        write_string(&header.language, out);
    }
    out.extend_from_slice(b",\"opaque\":");
    put_integer(header.opaque, out);
    if let Some(remark) = &header.remark {
        out.extend_from_slice(b",\"remark\":");
        write_string(remark, out);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    put_integer(header.version, out);
    out.push(b'}');
}

fn put_integer(value: i32, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}
