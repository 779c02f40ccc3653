//! Cheap looks at a raw header, so that plain traffic is relayed without being parsed.
//!
//! Each answers "certainly not" or "maybe"; a maybe is settled by a full parse. Escapes by which a
//! JSON encoder could hide a name (`\u0044ELAY`) count as maybe. A wrong "certainly not" would
//! deliver a message early, so none of these may ever give one; a wrong "maybe" costs a parse.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::frame::SerializeType;
use super::json::is_blank;
use super::properties::NAME_END;

/// What all names of delay properties have in common.
static STEM: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("DEL"));
/// What follows the stem in each of them.
const ENDINGS: [&[u8]; 5] = [
    b"AY",       // DELAY
    b"IVERTIME", // __STARTDELIVERTIME
    b"IVER_MS",  // TIMER_DELIVER_MS
    b"AY_SEC",   // TIMER_DELAY_SEC
    b"AY_MS",    // TIMER_DELAY_MS
];

static JSON_CODE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("code"));
static JSON_BATCH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("batch"));
/// Code 320 (SEND_BATCH_MESSAGE) as a binary header starts with it.
const BATCH_CODE: [u8; 2] = 320u16.to_be_bytes();
/// Keys of the batch field in a binary header, each with its length and that of `true`.
static BINARY_BATCH: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\0\x01m\0\0\0\x04"), Finder::new(b"\0\x05batch\0\0\0\x04")]);

/// Whether a header may ask for a delay: a delay property's name is in it.
pub fn may_ask_for_delay(serialize: SerializeType, header: &[u8]) -> bool {
    match serialize {
        SerializeType::Json => names_a_delay(header, true) || hides_a_word(header),
        SerializeType::RocketMq => names_a_delay(header, false),
    }
}

/// Whether a header may be a batch send (code 320, or `m`/`batch` true), whose delay properties
/// would stand in the body.
pub fn may_be_batch(serialize: SerializeType, header: &[u8]) -> bool {
    match serialize {
        SerializeType::Json => is_json_batch(header) || hides_a_word(header),
        SerializeType::RocketMq => {
            header.starts_with(&BATCH_CODE)
                || BINARY_BATCH.iter().any(|key| {
                    key.find_iter(header)
                        .any(|at| starts_with_true(after(header, at + key.needle().len())))
                })
        }
    }
}

/// Whether a batch body holds the name of a delay property.
pub fn body_names_a_delay(body: &[u8]) -> bool {
    names_a_delay(body, false)
}

/// Whether the name of a delay property stands in `bytes`, with the byte behind it that ends a
/// name; in JSON that byte may be written as an escape.
fn names_a_delay(bytes: &[u8], json: bool) -> bool {
    STEM.find_iter(bytes).any(|at| {
        let rest = after(bytes, at + STEM.needle().len());
        ENDINGS.iter().any(|ending| {
            let next = rest.strip_prefix(*ending).and_then(<[u8]>::first);
            next.is_some_and(|byte| *byte == NAME_END || (json && *byte == b'\\'))
        })
    })
}

/// Whether the code of a JSON header may be 320, or its batch field true. Looks at these keys only,
/// so that `true` in a property (`WAIT`) does not make every send a maybe.
fn is_json_batch(json: &[u8]) -> bool {
    let is_value = |key_end: usize, is: fn(&[u8]) -> bool| match value_of(after(json, key_end)) {
        Value::Is(value) => is(value),
        Value::No => false,
        Value::Maybe => true,
    };
    JSON_CODE.find_iter(json).any(|at| is_value(at + JSON_CODE.needle().len(), is_320))
        || memchr::memchr_iter(b'm', json).any(|at| is_value(at + 1, starts_with_true))
        || JSON_BATCH
            .find_iter(json)
            .any(|at| is_value(at + JSON_BATCH.needle().len(), starts_with_true))
}

/// What may follow the name of a key.
enum Value<'a> {
    /// Its value, without an opening quote.
    Is(&'a [u8]),
    /// It was no key.
    No,
    /// A comment, which fastjson steps over.
    Maybe,
}

fn value_of(after_key: &[u8]) -> Value<'_> {
    let after_key = match after_key {
        [b'"' | b'\'', rest @ ..] => rest,
        bare => bare,
    };
    let value = match skip_blanks(after_key) {
        [b':', value @ ..] => skip_blanks(value),
        [b'/', ..] => return Value::Maybe,
        _ => return Value::No,
    };
    match value {
        [b'"' | b'\'', value @ ..] => Value::Is(value),
        [b'/', ..] => Value::Maybe,
        value => Value::Is(value),
    }
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().position(|byte| !is_blank(*byte));
    after(bytes, blanks.unwrap_or(bytes.len()))
}

fn starts_with_true(value: &[u8]) -> bool {
    value.first_chunk::<4>().is_some_and(|word| word.eq_ignore_ascii_case(b"true"))
}

fn is_320(value: &[u8]) -> bool {
    let unsigned = value.strip_prefix(b"+").unwrap_or(value);
    let zeros = unsigned.iter().position(|byte| *byte != b'0');
    match after(unsigned, zeros.unwrap_or_default()) {
        [b'3', b'2', b'0', next @ ..] => !next.first().is_some_and(u8::is_ascii_digit),
        _ => false,
    }
}

fn after(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

/// Whether an escape may stand for a letter, a digit or `_`. No encoder in use writes one: they
/// escape quotes, controls and what is not ASCII.
fn hides_a_word(json: &[u8]) -> bool {
    memchr::memchr_iter(b'\\', json).any(|at| match after(json, at + 1) {
        [b'u', digits @ ..] => hides_a_word_character(digits),
        [b'"' | b'\'' | b'/' | b'\\' | b'b' | b't' | b'n' | b'v' | b'f' | b'F' | b'r', ..] => false,
        [b'0'..=b'7', ..] => false,
        _ => true,
    })
}

/// Whether the digits of a `\u` escape may stand for a letter, a digit or `_`: all of these are
/// between U+0030 and U+007A. What is no such escape for us might be one for a peer.
fn hides_a_word_character(digits: &[u8]) -> bool {
    match digits {
        [b'0', b'0', high, low, ..] => {
            !matches!(high, b'0'..=b'2' | b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F')
                || !low.is_ascii_hexdigit()
        }
        [a, b, c, d, ..] => ![a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
