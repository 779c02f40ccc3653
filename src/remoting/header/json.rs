//! The JSON form of a header.
//!
//! fastjson, which reads it at a stock peer, takes members under other names too, and replaces
//! values by what a reference in them points at. Such a header must not mean one thing here and
//! another there: a delay that only the broker finds would be delivered early. What releases of
//! fastjson read differently is unreadable here.

use std::borrow::Cow;

use bytes::Bytes;

use super::{ExtCollector, ExtFields, Header};
use crate::remoting::json::{JsonError, Reader, Text, write_string};

pub(super) fn decode(bytes: &Bytes) -> Result<Header, JsonError> {
    let mut header = Header::default();
    let mut reader = Reader::new(bytes);
    reader.object(|reader, key| {
        match key.bytes()?.as_ref() {
            b"code" => integer(reader, &mut header.code)?,
            b"language" => header.language = text(bytes, reader)?.unwrap_or_default(),
            b"version" => integer(reader, &mut header.version)?,
            b"opaque" => integer(reader, &mut header.opaque)?,
            b"flag" => integer(reader, &mut header.flag)?,
            b"remark" => header.remark = text(bytes, reader)?,
            b"extFields" => header.ext = ext(bytes, reader)?,
            b"serializeTypeCurrentRPC" => reader.skip()?,
            other if is_special(other) || is_nearly_a_member(other) => {
                return Err(JsonError { at: key.span().start, expected: "a member's exact name" });
            }
            _ => {
                value(bytes, reader)?;
            }
        }
        Ok::<(), JsonError>(())
    })?;
    reader.end()?;
    Ok(header)
}

/// The members of a header, as fastjson compares them.
const FOLDED: [&str; 8] = [
    "code",
    "language",
    "version",
    "opaque",
    "flag",
    "remark",
    "extfields",
    "serializetypecurrentrpc",
];

/// Whether a name that is no member's may be one's for fastjson: it ignores case, `_` and `-`, and
/// 1.2.29 also takes the few letters outside ASCII whose other case is in it.
fn is_nearly_a_member(name: &[u8]) -> bool {
    let letters = name.iter().filter(|byte| !matches!(byte, b'_' | b'-'));
    let folded = letters.map(u8::to_ascii_lowercase);
    !name.is_ascii() || FOLDED.iter().any(|member| folded.clone().eq(member.bytes()))
}

/// Whether fastjson may take the value of this key for something else than a value: the name of a
/// class (`@type`), a reference (`$ref`). No release has an ext field of such a name, or of none.
fn is_special(key: &[u8]) -> bool {
    matches!(key, [] | [b'@' | b'$', ..])
}

fn ext(bytes: &Bytes, reader: &mut Reader<'_>) -> Result<ExtFields, JsonError> {
    let mut ext = ExtCollector::default();
    if reader.null() {
        return Ok(ext.finish());
    }
    reader.object(|reader, key| {
        if is_special(key.bytes()?.as_ref()) {
            return Err(JsonError { at: key.span().start, expected: "the name of an ext field" });
        }
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
    value(bytes, reader)?.map(|text| shared(bytes, &text)).transpose()
}

/// A value as text, with nothing in it that fastjson would resolve to something else.
#[inline]
fn value<'a>(bytes: &Bytes, reader: &mut Reader<'a>) -> Result<Option<Text<'a>>, JsonError> {
    let value = reader.text()?;
    let plain = value.as_ref().filter(|text| text.quote().is_none());
    if let Some(range) = plain.map(Text::inner)
        && let Some(nested @ [b'{' | b'[', ..]) = bytes.get(range.clone())
    {
        let mut special = false;
        Reader::new(nested).keys(|key| {
            special |= !key.bytes().is_ok_and(|key| !matches!(key[..], [b'@' | b'$', ..]));
        })?;
        if special {
            return Err(JsonError { at: range.start, expected: "a value without references" });
        }
    }
    Ok(value)
}

/// The meaning of `text`, as a part of `bytes` where it stands there as it is.
#[inline]
fn shared(bytes: &Bytes, text: &Text<'_>) -> Result<Bytes, JsonError> {
    Ok(match text.bytes()? {
        Cow::Borrowed(_) => bytes.slice(text.inner()),
        Cow::Owned(unescaped) => Bytes::from(unescaped),
    })
}

/// Reads an integer, quoted or not, into `member`. Null and no text leave it as it is, as fastjson
/// does when a member is repeated. A fraction or an exponent, which fastjson takes from a number
/// but not from a string, is an error.
fn integer(reader: &mut Reader<'_>, member: &mut i32) -> Result<(), JsonError> {
    let Some(text) = reader.text()? else {
        return Ok(());
    };
    let bytes = text.bytes()?;
    if !bytes.is_empty() {
        let number = std::str::from_utf8(&bytes).ok().and_then(|number| number.parse().ok());
        let at = text.span().start;
        *member = number.ok_or(JsonError { at, expected: "a 32-bit integer" })?;
    }
    Ok(())
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
