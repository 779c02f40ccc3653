//! A reader of JSON as fastjson writes and accepts it, which remembers where everything stood.
//!
//! Used for headers (single quotes, unquoted keys) and route bodies (numeric keys without quotes),
//! which `serde_json` rightly rejects, and where rewriting must leave all other bytes alone.
//!
//! A caller pulls the members it wants and skips the others; no tree is built, so memory does not
//! grow with the text, and nothing here recurses on what a peer sent. Also writes strings the way
//! fastjson does. Called by the JSON header and by route bodies.

use std::borrow::Cow;
use std::ops::Range;

/// Deepest nesting of objects and arrays in a skipped value.
pub const MAX_DEPTH: usize = 64;

/// Text that is not what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at byte {at}")]
pub struct JsonError {
    /// Offset into the text.
    pub at: usize,
    /// What should have stood there.
    pub expected: &'static str,
}

/// A string, number, boolean or key as it stands in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a> {
    raw: &'a [u8],
    start: usize,
    quote: Option<u8>,
    escaped: bool,
}

/// Reads one JSON text from front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    /// Where it stands, quotes included.
    pub fn span(&self) -> Range<usize> {
        let quote = usize::from(self.quote.is_some());
        self.start - quote..self.start + self.raw.len() + quote
    }

    /// Where it stands, without quotes.
    pub fn inner(&self) -> Range<usize> {
        self.start..self.start + self.raw.len()
    }

    /// The quote around it, if any.
    pub fn quote(&self) -> Option<u8> {
        self.quote
    }

    /// Whether [`Text::bytes`] differs from what stands in the text.
    pub fn is_escaped(&self) -> bool {
        self.escaped
    }

    /// What it means, escapes resolved. Bytes that are no UTF-8 stay as they are.
    #[inline]
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, JsonError> {
        if self.escaped {
            unescape(self.raw, self.start).map(Cow::Owned)
        } else {
            Ok(Cow::Borrowed(self.raw))
        }
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// A reader at the start of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Reads an object, handing each key to `member`, which must read or skip the value.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(&mut Self, Text<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.blank();
        self.eat(b'{', "an object")?;
        let mut first = true;
        while let Some(key) = self.next_key(first)? {
            member(self, key)?;
            first = false;
        }
        Ok(())
    }

    /// Reads an array, calling `item` before each value, which must read or skip it.
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.blank();
        self.eat(b'[', "an array")?;
        let mut first = true;
        while self.next_item(first)? {
            item(self)?;
            first = false;
        }
        Ok(())
    }

    /// Reads a `null` if one stands next.
    pub fn null(&mut self) -> bool {
        self.blank();
        let is_null = self.peek() == Some(b'n') && self.word() == b"null";
        if is_null {
            self.at += b"null".len();
        }
        is_null
    }

    /// Reads a value as text: of `null` nothing, of an object or array the text it is written as.
    #[inline]
    pub fn text(&mut self) -> Result<Option<Text<'a>>, JsonError> {
        self.blank();
        // Nearly every value of a header.
        if let Some(quote @ (b'"' | b'\'')) = self.peek() {
            return self.quoted(quote).map(Some);
        }
        if self.null() {
            return Ok(None);
        }
        match self.peek() {
            Some(b'{' | b'[') => {
                let start = self.at;
                self.skip()?;
                Ok(Some(self.plain(start)))
            }
            _ => self.leaf().map(Some),
        }
    }

    /// Steps over one value, however deep (to [`MAX_DEPTH`]).
    pub fn skip(&mut self) -> Result<(), JsonError> {
        self.keys(|_| ())
    }

    /// As [`Reader::skip`], showing each key within the value to `see`.
    pub fn keys(&mut self, mut see: impl FnMut(Text<'a>)) -> Result<(), JsonError> {
        let mut open = Vec::new();
        loop {
            self.blank();
            let mut first = false;
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    if open.len() == MAX_DEPTH {
                        return Err(self.expected("less nesting"));
                    }
                    self.at += 1;
                    open.push(bracket);
                    first = true;
                }
                _ => {
                    self.leaf()?;
                }
            }
            loop {
                let more = match open.last() {
                    None => return Ok(()),
                    Some(b'{') => self.next_key(first)?.map(&mut see).is_some(),
                    Some(_) => self.next_item(first)?,
                };
                if more {
                    break;
                }
                open.pop();
                first = false;
            }
        }
    }

    /// Whether only blanks are left; anything else is an error, as for fastjson.
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.blank();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    /// The next key of an object, up to and with its colon; `None` at the closing brace.
    #[inline]
    fn next_key(&mut self, first: bool) -> Result<Option<Text<'a>>, JsonError> {
        self.separator(first, b'}')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(None);
        }
        let key = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.quoted(quote)?,
            _ => {
                let start = self.at;
                self.run(is_bare_key);
                if self.at == start {
                    return Err(self.expected("a key"));
                }
                self.plain(start)
            }
        };
        self.blank();
        self.eat(b':', "a colon")?;
        Ok(Some(key))
    }

    /// Whether another item follows; steps over the closing bracket otherwise.
    fn next_item(&mut self, first: bool) -> Result<bool, JsonError> {
        self.separator(first, b']')?;
        let closed = self.peek() == Some(b']');
        self.at += usize::from(closed);
        Ok(!closed)
    }

    /// Steps over what stands between values. fastjson takes commas in any number.
    fn separator(&mut self, first: bool, close: u8) -> Result<(), JsonError> {
        self.blank();
        if !first && !matches!(self.peek(), Some(next) if next == b',' || next == close) {
            return Err(self.expected("a comma or the closing bracket"));
        }
        self.run(|byte| byte == b',' || is_blank(byte));
        Ok(())
    }

    /// A string, a number or a word.
    fn leaf(&mut self) -> Result<Text<'a>, JsonError> {
        if let Some(quote @ (b'"' | b'\'')) = self.peek() {
            return self.quoted(quote);
        }
        let word = self.word();
        if !matches!(word, b"true" | b"false" | b"null") && !is_number(word) {
            return Err(self.expected("a value"));
        }
        let start = self.at;
        self.at += word.len();
        Ok(self.plain(start))
    }

    #[inline]
    fn quoted(&mut self, quote: u8) -> Result<Text<'a>, JsonError> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            let rest = self.text.get(at..).unwrap_or_default();
            let Some(step) = memchr::memchr2(quote, b'\\', rest) else {
                return Err(self.expected("a string that ends"));
            };
            at += step;
            if self.text.get(at) == Some(&quote) {
                break;
            }
            escaped = true;
            at += 2;
        }
        self.at = at + 1;
        Ok(Text {
            raw: self.text.get(start..at).unwrap_or_default(),
            start,
            quote: Some(quote),
            escaped,
        })
    }

    /// What was read since `start`, as it stands.
    fn plain(&self, start: usize) -> Text<'a> {
        Text {
            raw: self.text.get(start..self.at).unwrap_or_default(),
            start,
            quote: None,
            escaped: false,
        }
    }

    /// The letters, digits and signs that stand next.
    fn word(&self) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| !is_word(*byte));
        rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
    }

    fn blank(&mut self) {
        self.run(is_blank);
    }

    fn run(&mut self, belongs: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&belongs) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.expected(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn expected(&self, expected: &'static str) -> JsonError {
        JsonError { at: self.at, expected }
    }
}

/// The blanks of fastjson's lexer.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x08 | 0x0c)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// A key without quotes: an identifier, or a number as in `{0:"host:port"}`. No backslash, so that
/// such a key means what it looks like.
fn is_bare_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'-') || byte >= 0x80
}

/// A decimal number; a plus and leading zeros are taken, as by fastjson.
fn is_number(word: &[u8]) -> bool {
    let digits = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    let unsigned = unsigned_part(word);
    let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', unsigned) {
        Some(at) => (unsigned.get(..at), unsigned.get(at + 1..)),
        None => (Some(unsigned), None),
    };
    let mantissa = mantissa.unwrap_or_default();
    let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
        Some(at) => (mantissa.get(..at), mantissa.get(at + 1..)),
        None => (Some(mantissa), None),
    };
    whole.is_some_and(digits)
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(unsigned_part(exponent)))
}

fn unsigned_part(number: &[u8]) -> &[u8] {
    match number {
        [b'+' | b'-', digits @ ..] => digits,
        digits => digits,
    }
}

// === escapes ===

/// Resolves the escapes that fastjson knows; `start` is where `raw` stands, for errors.
fn unescape(raw: &[u8], start: usize) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let bad =
            JsonError { at: start + (raw.len() - rest.len()) + at, expected: "a known escape" };
        let (plain, escape) = rest.split_at(at);
        out.extend_from_slice(plain);
        let (&letter, tail) = escape.get(1..).and_then(<[u8]>::split_first).ok_or(bad)?;
        rest = tail;
        match letter {
            b'u' => rest = unescape_unicode(tail, &mut out).ok_or(bad)?,
            b'x' => {
                let (digits, tail) = tail.split_first_chunk::<2>().ok_or(bad)?;
                push_char(hex(digits).ok_or(bad)?, &mut out);
                rest = tail;
            }
            b'0'..=b'7' => out.push(letter - b'0'),
            b'b' => out.push(0x08),
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'v' => out.push(0x0b),
            b'f' | b'F' => out.push(0x0c),
            b'r' => out.push(b'\r'),
            b'"' | b'\'' | b'/' | b'\\' => out.push(letter),
            _ => return Err(bad),
        }
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// Reads the digits after `\u`, with the second half of a surrogate pair where there is one, and
/// returns what follows.
fn unescape_unicode<'a>(digits: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (unit, rest) = utf16_unit(digits)?;
    if let 0xd800..=0xdbff = unit
        && let Some((low @ 0xdc00..=0xdfff, rest)) = rest.strip_prefix(b"\\u").and_then(utf16_unit)
    {
        push_char(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00), out);
        return Some(rest);
    }
    push_char(unit, out);
    Some(rest)
}

fn utf16_unit(digits: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = digits.split_first_chunk::<4>()?;
    Some((hex(digits)?, rest))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

/// Appends a character; half a surrogate pair becomes `?`, as when Java writes it as UTF-8.
fn push_char(code: u32, out: &mut Vec<u8>) {
    let character = char::from_u32(code).unwrap_or('?');
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Writes `bytes` as a string, byte for byte as fastjson 1.2.69 does: short escapes where JSON has
/// them, upper-case `\u00XX` for the other C0 and C1 controls, DEL, U+2028 and U+2029. Bytes that
/// are no UTF-8 become U+FFFD, which is what a Java peer would have read.
pub fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    match std::str::from_utf8(bytes) {
        Ok(text) => write_escaped(text, out),
        Err(_) => write_escaped(&String::from_utf8_lossy(bytes), out),
    }
    out.push(b'"');
}

fn write_escaped(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((at, special)) = next_special(rest) {
        let (plain, from) = rest.split_at(at);
        out.extend_from_slice(plain.as_bytes());
        let short = match special {
            '"' => Some(b'"'),
            '\\' => Some(b'\\'),
            '\u{8}' => Some(b'b'),
            '\t' => Some(b't'),
            '\n' => Some(b'n'),
            '\u{c}' => Some(b'f'),
            '\r' => Some(b'r'),
            _ => None,
        };
        match short {
            Some(letter) => out.extend_from_slice(&[b'\\', letter]),
            None => {
                out.extend_from_slice(b"\\u");
                for shift in [12, 8, 4, 0] {
                    let digit = char::from_digit((u32::from(special) >> shift) & 15, 16);
                    out.push(digit.map_or(b'0', |d| d.to_ascii_uppercase() as u8));
                }
            }
        }
        rest = from.get(special.len_utf8()..).unwrap_or_default();
    }
    out.extend_from_slice(rest.as_bytes());
}

/// First bytes of characters that are not written as themselves, and of some others: 0xc2 leads the
/// C1 controls, 0xe2 the two line separators.
const MAY_BE_SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        special[byte] = matches!(byte, 0..=0x1f | 0x22 | 0x5c | 0x7f | 0xc2 | 0xe2);
        byte += 1;
    }
    special
};

/// The first character that is not written as itself.
fn next_special(text: &str) -> Option<(usize, char)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let step = bytes.get(from..)?.iter().position(|byte| MAY_BE_SPECIAL[usize::from(*byte)])?;
        let at = from + step;
        let character = text.get(at..)?.chars().next()?;
        match character {
            '\0'..='\u{1f}' | '"' | '\\' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                return Some((at, character));
            }
            _ => from = at + character.len_utf8(),
        }
    }
}

#[cfg(test)]
mod tests;
