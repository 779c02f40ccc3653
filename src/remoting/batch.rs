//! The body of a batch send: entries one after the other to the end of the body.
//!
//! ```text
//! i32 size │ i32 magic │ i32 body crc │ i32 flag │ i32 + n body │ i16 + n properties
//! ```
//!
//! Walked by the lengths of bodies and properties, as the broker does; it ignores size, magic and
//! crc. Called by what decides on sends.

use super::properties::Properties;

/// Bytes of size, magic, crc and flag.
const FIXED: usize = 16;

/// One message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its body.
    pub body: &'a [u8],
    /// Its own properties; a broker adds those of the header behind them.
    pub properties: Properties<'a>,
}

/// A body that ends in the middle of an entry, or with a length below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed batch")]
pub struct Malformed;

/// The entries of a batch body; the first that cannot be read is the last item.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Walks `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    fn entry(&mut self) -> Option<Entry<'a>> {
        self.take(FIXED)?;
        let len = self.take(4)?.try_into().ok().map(i32::from_be_bytes)?;
        let body = self.take(usize::try_from(len).ok()?)?;
        let len = self.take(2)?.try_into().ok().map(i16::from_be_bytes)?;
        let properties = Properties::new(self.take(usize::try_from(len).ok()?)?);
        Some(Entry { body, properties })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = self.entry().ok_or(Malformed);
        if entry.is_err() {
            self.rest = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One entry, its size field senseless, as the broker does not look at it.
    fn entry(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xff; FIXED];
        bytes.extend(i32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes.extend(i16::try_from(properties.len()).unwrap().to_be_bytes());
        bytes.extend(properties);
        bytes
    }

    #[test]
    fn entries_are_walked_by_their_lengths() {
        let body = [entry(b"one", b"DELAY\x013"), entry(b"", b"")].concat();
        let entries: Vec<_> = Entries::new(&body).collect();
        let [Ok(first), Ok(second)] = entries[..] else {
            panic!("{entries:?}");
        };
        assert_eq!(first.body, b"one");
        assert_eq!(first.properties.get("DELAY"), Some(&b"3"[..]));
        assert_eq!(second.body, b"");
        assert_eq!(second.properties, Properties::new(b""));
        assert_eq!(Entries::new(b"").count(), 0);
    }

    #[test]
    fn a_cut_body_ends_with_what_cannot_be_read() {
        let whole = entry(b"one", b"A\x01b");
        for len in 1..whole.len() {
            let cut: Vec<_> = Entries::new(&whole[..len]).collect();
            assert_eq!(cut, [Err(Malformed)], "{len} bytes");
        }
        let mut negative = whole.clone();
        negative[FIXED] = 0x80;
        assert_eq!(Entries::new(&negative).last(), Some(Err(Malformed)));
        let mut behind = whole.clone();
        behind.push(0);
        let entries: Vec<_> = Entries::new(&behind).map(|e| e.is_ok()).collect();
        assert_eq!(entries, [true, false]);
    }
}
