//! The JSON form of a header.

use std::borrow::Cow;

use bytes::Bytes;

use super::{ExtCollector, ExtFields, Header};
use crate::remoting::json::{JsonError, Reader, Text, write_string};

pub(super) fn decode(bytes: &Bytes) -> Result<Header, JsonError> {
    let mut header = Header::default();
    let mut reader = Reader::new(bytes);
    reader.object(|reader, key| {
        match key.bytes()?.as_ref() {
            b"code" => header.code = integer(reader)?,
            b"language" => header.language = text(bytes, reader)?.unwrap_or_default(),
            b"version" => header.version = integer(reader)?,
            b"opaque" => header.opaque = integer(reader)?,
            b"flag" => header.flag = integer(reader)?,
            b"remark" => header.remark = text(bytes, reader)?,
            b"extFields" => header.ext = ext(bytes, reader)?,
            _ => reader.skip()?,
        }
        Ok::<(), JsonError>(())
    })?;
    reader.end()?;
    Ok(header)
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

/// A number, quoted or not, of which fastjson drops a fraction; 0 for null and for no text.
fn integer(reader: &mut Reader<'_>) -> Result<i32, JsonError> {
    let Some(text) = reader.text()? else {
        return Ok(0);
    };
    let bytes = text.bytes()?;
    let whole = std::str::from_utf8(&bytes).ok().map(|value| {
        let fraction = value.find('.').filter(|_| text.quote().is_none());
        value.get(..fraction.unwrap_or(value.len())).unwrap_or_default()
    });
    match whole {
        Some("") => Ok(0),
        value => value
            .and_then(|v| v.parse().ok())
            .ok_or(JsonError { at: text.span().start, expected: "a 32-bit integer" }),
    }
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
