//! The property string of a message: `name 0x01 value 0x02 name 0x01 value ...`
//!
//! Java up to 4.9.0 and Go end it with 0x02, Java since 4.9.1 does not; both are ordinary. Entries
//! that a stock broker would not see (shorter than 3, no 0x01, empty name or value) are no entries.
//!
//! Called by the views of sends and by what forwards a held message. Never interprets a value.

/// Ends a name.
pub const NAME_END: u8 = 1;
/// Ends a property.
pub const PROPERTY_END: u8 = 2;

/// Names of the properties the proxy reads.
pub mod name {
    /// Absolute epoch milliseconds; the name the ONS SDK uses.
    pub const START_DELIVER_TIME: &str = "__STARTDELIVERTIME";
    /// Delay level, 1-based.
    pub const DELAY: &str = "DELAY";
    /// Absolute epoch milliseconds; the 5.x client's name.
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// Relative seconds.
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    /// Relative milliseconds.
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    /// "true" makes a message a half (transactional) message.
    pub const TRAN_MSG: &str = "TRAN_MSG";
    /// The client's message id.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// Index keys, separated by blanks.
    pub const KEYS: &str = "KEYS";
    /// A request message: who waits for the reply.
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    /// A request message: joins request and reply.
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    /// A request message: how long the requester waits.
    pub const TTL: &str = "TTL";
}

/// A property string, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// A view of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The value of `name`; of a name that stands twice, the last, as the broker reads it.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            let start = memchr::memrchr(PROPERTY_END, rest).map_or(0, |at| at + 1);
            let value = rest
                .get(start..)
                .and_then(|part| part.strip_prefix(name.as_bytes()))
                .and_then(|part| part.strip_prefix(&[NAME_END]));
            if let Some(value) = value.filter(|value| !name.is_empty() && !value.is_empty()) {
                return Some(value);
            }
            rest = rest.get(..start.checked_sub(1)?)?;
        }
    }

    /// All entries that a broker would see, in order, duplicates included.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        self.0.split(|byte| *byte == PROPERTY_END).filter_map(entry)
    }

    /// The string without any entry named in `names`; every other byte stays where it was, and the
    /// string ends with a separator exactly when it did before, unless nothing is left of it.
    pub fn without(&self, names: &[&str]) -> Vec<u8> {
        let goes = |part: &[u8]| {
            entry(part).is_some_and(|(name, _)| names.iter().any(|n| n.as_bytes() == name))
        };
        let mut kept = Vec::with_capacity(self.0.len());
        let mut last_goes = false;
        let mut first = true;
        for part in self.0.split(|byte| *byte == PROPERTY_END) {
            last_goes = goes(part);
            if last_goes {
                continue;
            }
            if !first {
                kept.push(PROPERTY_END);
            }
            kept.extend_from_slice(part);
            first = false;
        }
        // Separators in front of a last entry that went would now end the string.
        while last_goes && kept.last() == Some(&PROPERTY_END) {
            kept.pop();
        }
        kept
    }
}

/// Name and value, split at the first 0x01, of what stands between two separators.
fn entry(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(NAME_END, part)?;
    let (name, value) = (part.get(..at)?, part.get(at + 1..)?);
    (!name.is_empty() && !value.is_empty()).then_some((name, value))
}

#[cfg(test)]
mod tests;
