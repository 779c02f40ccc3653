//! Layout of the timerlog's records: encode, check, decode. Pure.
//!
//! All integers little-endian; every record starts at a multiple of 8.
//!
//! ```text
//!  0 u32 length    of the record, header and padding included; a multiple of 8
//!  4 u32 crc       CRC-32 of the store id, then of bytes 8 to the end
//!  8 u64 lsn       the record's own place: stale or misplaced bytes never pass
//! 16 u8  version   1
//! 17 u8  kind
//! 18 u16 zero
//! 20 u32 zero
//! 24     payload, zero padding
//! ```

use bytes::Bytes;

use super::{Held, Hold, HoldError, LaneKey, Lsn, TimerId};
use crate::clock::EpochMs;

/// Bytes before the payload.
pub(super) const HEADER_LEN: usize = 24;
/// Records start at multiples of this.
pub(super) const ALIGN: usize = 8;
/// Version written.
const VERSION: u8 = 1;
/// Bytes of a HOLD before its variable part.
const HOLD_FIXED: usize = HEADER_LEN + 48;
/// Bytes of a BATCH record.
pub(super) const BATCH_LEN: usize = HEADER_LEN + 16;
/// Most entries in one COMPLETE record.
pub(super) const COMPLETE_MAX: usize = 4096;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Starts a commit batch: `u64` end of what was synced before it, `u32` bytes and `u32` records
    /// that follow in the batch.
    Batch = 1,
    /// A message; its LSN is its timer's id.
    Hold = 2,
    /// Messages a broker has confirmed: `u32` count, `u32` zero, then (`u64` LSN, `i64` due) each.
    Complete = 3,
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    #[error("zeros where a record could start")]
    Empty,
    #[error("a length that no record has")]
    Length,
    #[error("another place's record")]
    Misplaced,
    #[error("checksum mismatch")]
    Checksum,
    #[error("a version or kind this release does not know")]
    Unknown,
    #[error("a payload that does not fit its record")]
    Payload,
}

impl Invalid {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Empty => "zeros where a record should be",
            Self::Length => "impossible length",
            Self::Misplaced => "a record of another place",
            Self::Checksum => "checksum mismatch",
            Self::Unknown => "unknown version or kind",
            Self::Payload => "payload does not fit",
        }
    }
}

/// A record whose checksum and place are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) kind: Kind,
    pub(super) lsn: Lsn,
    bytes: &'a [u8],
}

/// Writes and checks records of one store: its id seeds every checksum, so that the files of
/// another store never pass.
#[derive(Debug, Clone)]
pub(super) struct Codec {
    seed: crc32fast::Hasher,
}

impl Codec {
    pub(super) fn new(store_id: u64) -> Self {
        let mut seed = crc32fast::Hasher::new();
        seed.update(&store_id.to_le_bytes());
        Self { seed }
    }

    fn crc(&self, record: &[u8]) -> u32 {
        let mut hasher = self.seed.clone();
        hasher.update(record.get(8..).unwrap_or_default());
        hasher.finalize()
    }

    /// The record at the start of `bytes`, which stand at `lsn`.
    pub(super) fn check<'a>(&self, bytes: &'a [u8], lsn: Lsn) -> Result<Record<'a>, Invalid> {
        let len = u32_at(bytes, 0).ok_or(Invalid::Length)? as usize;
        if len == 0 {
            return Err(Invalid::Empty);
        }
        if len < HEADER_LEN || !len.is_multiple_of(ALIGN) || len > bytes.len() {
            return Err(Invalid::Length);
        }
        if u64_at(bytes, 8) != Some(lsn.0) {
            return Err(Invalid::Misplaced);
        }
        let bytes = bytes.get(..len).ok_or(Invalid::Length)?;
        if u32_at(bytes, 4) != Some(self.crc(bytes)) {
            return Err(Invalid::Checksum);
        }
        let kind = match (bytes.get(16), bytes.get(17)) {
            (Some(&VERSION), Some(1)) => Kind::Batch,
            (Some(&VERSION), Some(2)) => Kind::Hold,
            (Some(&VERSION), Some(3)) => Kind::Complete,
            _ => return Err(Invalid::Unknown),
        };
        Ok(Record { kind, lsn, bytes })
    }

    /// Appends a BATCH record whose sizes are filled in by [`Codec::finish_batch`].
    pub(super) fn begin_batch(&self, out: &mut Vec<u8>) {
        out.resize(out.len() + BATCH_LEN, 0);
    }

    /// Fills in the BATCH record at the front of `batch`, which stands at `lsn`.
    pub(super) fn finish_batch(&self, batch: &mut [u8], lsn: Lsn, synced: Lsn, records: u32) {
        let following = u32_of(batch.len() - BATCH_LEN);
        let record = &mut batch[..BATCH_LEN];
        record[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&synced.0.to_le_bytes());
        record[HEADER_LEN + 8..HEADER_LEN + 12].copy_from_slice(&following.to_le_bytes());
        record[HEADER_LEN + 12..].copy_from_slice(&records.to_le_bytes());
        self.seal(record, Kind::Batch, lsn);
    }

    /// Appends a HOLD record that will stand at `lsn`.
    pub(super) fn hold(&self, hold: &Hold, lsn: Lsn, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + HEADER_LEN, 0);
        out.extend_from_slice(&lsn.0.to_le_bytes());
        out.extend_from_slice(&hold.due_ms.to_le_bytes());
        out.extend_from_slice(&hold.accepted_ms.to_le_bytes());
        out.extend_from_slice(&hold.lane.queue.to_le_bytes());
        for section in short_sections(hold) {
            out.extend_from_slice(&u16::try_from(section.len()).unwrap_or(u16::MAX).to_le_bytes());
        }
        out.extend_from_slice(&[0; 2]);
        for section in [&hold.header, &hold.body] {
            out.extend_from_slice(&u32_of(section.len()).to_le_bytes());
        }
        for section in short_sections(hold) {
            out.extend_from_slice(section);
        }
        out.extend_from_slice(&hold.header);
        out.extend_from_slice(&hold.body);
        out.resize(start + (out.len() - start).next_multiple_of(ALIGN), 0);
        self.seal(&mut out[start..], Kind::Hold, lsn);
    }

    /// Appends a COMPLETE record that will stand at `lsn`; at most [`COMPLETE_MAX`] entries.
    pub(super) fn complete(&self, ended: &[(Lsn, EpochMs)], lsn: Lsn, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + HEADER_LEN, 0);
        out.extend_from_slice(&u32_of(ended.len()).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for (lsn, due_ms) in ended {
            out.extend_from_slice(&lsn.0.to_le_bytes());
            out.extend_from_slice(&due_ms.to_le_bytes());
        }
        self.seal(&mut out[start..], Kind::Complete, lsn);
    }

    fn seal(&self, record: &mut [u8], kind: Kind, lsn: Lsn) {
        let len = u32_of(record.len());
        record[..4].copy_from_slice(&len.to_le_bytes());
        record[8..16].copy_from_slice(&lsn.0.to_le_bytes());
        record[16] = VERSION;
        record[17] = kind as u8;
        let crc = self.crc(record);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn short_sections(hold: &Hold) -> [&[u8]; 5] {
    [
        hold.lane.broker.as_bytes(),
        &hold.lane.topic,
        &hold.unique_key,
        &hold.keys,
        hold.client.as_bytes(),
    ]
}

/// Bytes of a COMPLETE record with `entries` entries.
pub(super) fn complete_len(entries: usize) -> usize {
    HEADER_LEN + 8 + 16 * entries
}

/// Bytes of the HOLD record for `hold`, or which of its parts is too long for the layout.
pub(super) fn hold_len(hold: &Hold) -> Result<u64, HoldError> {
    const NAMES: [&str; 5] = ["broker name", "topic", "unique key", "keys", "client address"];
    let mut len = HOLD_FIXED as u64;
    for (part, section) in NAMES.into_iter().zip(short_sections(hold)) {
        let too_long = |_| HoldError::TooLong { part, len: section.len(), limit: u16::MAX };
        len += u64::from(u16::try_from(section.len()).map_err(too_long)?);
    }
    // Both come from one frame, whose length is 32 bits.
    len += hold.header.len() as u64 + hold.body.len() as u64;
    Ok(len.next_multiple_of(ALIGN as u64))
}

impl Record<'_> {
    /// Bytes of the record.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The end of what was synced, of a BATCH.
    pub(super) fn synced_end(&self) -> Result<Lsn, Invalid> {
        u64_at(self.bytes, HEADER_LEN).map(Lsn).ok_or(Invalid::Payload)
    }

    /// What a COMPLETE ends.
    pub(super) fn ended(&self) -> Result<Vec<(Lsn, EpochMs)>, Invalid> {
        let count = u32_at(self.bytes, HEADER_LEN).ok_or(Invalid::Payload)? as usize;
        if complete_len(count) != self.bytes.len() {
            return Err(Invalid::Payload);
        }
        let entries = self.bytes.get(HEADER_LEN + 8..).unwrap_or_default().chunks_exact(16);
        entries
            .map(|entry| Some((Lsn(u64_at(entry, 0)?), i64_at(entry, 8)?)))
            .collect::<Option<_>>()
            .ok_or(Invalid::Payload)
    }

    /// The message of a HOLD; its header and body share `within`, which holds the record.
    pub(super) fn held(&self, within: &Bytes) -> Result<Held, Invalid> {
        self.try_held(within).ok_or(Invalid::Payload)
    }

    fn try_held(&self, within: &Bytes) -> Option<Held> {
        let bytes = self.bytes;
        let at = |offset| HEADER_LEN + offset;
        let mut lens = [0; 7];
        for (i, len) in lens.iter_mut().take(5).enumerate() {
            *len = usize::from(u16_at(bytes, at(28 + 2 * i))?);
        }
        lens[5] = u32_at(bytes, at(40))? as usize;
        lens[6] = u32_at(bytes, at(44))? as usize;
        let mut offset = HOLD_FIXED;
        let mut sections = [&bytes[..0]; 7];
        for (section, len) in sections.iter_mut().zip(lens) {
            let end = offset.checked_add(len)?;
            *section = bytes.get(offset..end)?;
            offset = end;
        }
        let [broker, topic, unique_key, keys, client, header, body] = sections;
        let lane = LaneKey {
            broker: String::from_utf8(broker.to_vec()).ok()?,
            topic: Bytes::copy_from_slice(topic),
            queue: u32_at(bytes, at(24))?.cast_signed(),
        };
        let hold = Hold {
            due_ms: i64_at(bytes, at(8))?,
            accepted_ms: i64_at(bytes, at(16))?,
            lane,
            unique_key: Bytes::copy_from_slice(unique_key),
            keys: Bytes::copy_from_slice(keys),
            client: String::from_utf8(client.to_vec()).ok()?,
            header: within.slice_ref(header),
            body: within.slice_ref(body),
        };
        Some(Held { id: TimerId(u64_at(bytes, at(0))?), hold })
    }
}

// === little-endian fields ===

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

pub(super) fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    bytes.get(at..)?.first_chunk().map(|b| i64::from_le_bytes(*b))
}

/// Lengths inside a segment, whose size is checked to fit.
#[expect(clippy::expect_used, reason = "a segment is under 4 GiB by FORMAT's check")]
pub(super) fn u32_of(len: usize) -> u32 {
    u32::try_from(len).expect("lengths inside a segment fit 32 bits")
}

#[cfg(test)]
mod tests;
