//! The index of a sealed segment: what it holds, sorted by due time, and what its control records
//! ended; about 3 % of the segment. Recovery reads it in place of the segment.
//!
//! ```text
//!  0 8 bytes "RMQTINDX"        24 u64 segment number     48 u32 lanes
//!  8 u32 version 1             32 u64 end of records     52 u32 key hashes
//! 12 u32 header bytes 64       40 u32 holds              56 u32 ended entries
//! 16 u64 store id              44 u32 zero               60 u32 zero
//! 64 holds, 32 bytes each, by (due, LSN):
//!      i64 due │ u32 offset │ u32 length │ u32 lane │ u32 first key hash │ u32 key hashes │ u32 zero
//!    lanes: i32 queue │ u16 broker bytes │ u16 topic bytes │ broker │ topic
//!    key hashes: u64 each
//!    ended: u64 LSN │ i64 due
//!    u32 CRC-32 of all before
//! ```
//!
//! Derived: a missing or damaged index is built again from its segment.

use std::collections::HashMap;

use bytes::Bytes;

use super::format::Format;
use super::record::{i64_at, u16_at, u32_at, u32_of, u64_at};
use super::segment::SegmentSeq;
use super::{Hold, LaneId, LaneKey, Lsn};
use crate::clock::EpochMs;

const MAGIC: &[u8; 8] = b"RMQTINDX";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 64;
const HOLD_LEN: usize = 32;

/// One message of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) due_ms: EpochMs,
    pub(super) offset: u32,
    pub(super) len: u32,
    /// Position in [`Contents::lanes`].
    pub(super) lane: u32,
    first_key: u32,
    keys: u32,
}

/// What a segment holds. Grows with the open segment; written when it is sealed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) holds: Vec<Entry>,
    pub(super) lanes: Vec<LaneKey>,
    key_hashes: Vec<u64>,
    pub(super) ended: Vec<(Lsn, EpochMs)>,
    /// Where the records end, as an offset.
    pub(super) end: u64,
    by_id: HashMap<LaneId, u32>,
}

impl Contents {
    /// Of a segment without records.
    pub(super) fn empty() -> Self {
        Self { end: super::segment::HEADER_LEN, ..Self::default() }
    }

    /// Adds the message whose record of `len` bytes stands at `offset`; `id` is what its lane is
    /// called at present.
    pub(super) fn add_hold(&mut self, hold: &Hold, id: LaneId, offset: u32, len: u32) {
        let lane = self.lane(&hold.lane, id);
        let first_key = u32_of(self.key_hashes.len());
        self.key_hashes.extend(key_hashes(hold));
        let keys = u32_of(self.key_hashes.len()) - first_key;
        self.holds.push(Entry { due_ms: hold.due_ms, offset, len, lane, first_key, keys });
    }

    /// Position of a lane in the table. Its id makes that a look-up of four bytes; ids are used
    /// again for other lanes, so the key decides.
    fn lane(&mut self, key: &LaneKey, id: LaneId) -> u32 {
        let known = self.by_id.get(&id).copied();
        let same = |lane: &u32| self.lanes.get(*lane as usize) == Some(key);
        known.filter(same).unwrap_or_else(|| {
            let lane = u32_of(self.lanes.len());
            self.lanes.push(key.clone());
            self.by_id.insert(id, lane);
            lane
        })
    }

    /// The bytes of the index file.
    pub(super) fn encode(&self, seq: SegmentSeq, format: &Format) -> Vec<u8> {
        let mut holds = self.holds.clone();
        holds.sort_unstable();
        let mut out = Vec::with_capacity(HEADER_LEN + HOLD_LEN * holds.len() + 4096);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&u32_of(HEADER_LEN).to_le_bytes());
        for field in [format.store_id, seq.0, self.end] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let counts = [holds.len(), 0, self.lanes.len(), self.key_hashes.len(), self.ended.len(), 0];
        for count in counts {
            out.extend_from_slice(&u32_of(count).to_le_bytes());
        }
        for hold in &holds {
            out.extend_from_slice(&hold.due_ms.to_le_bytes());
            for field in [hold.offset, hold.len, hold.lane, hold.first_key, hold.keys, 0] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        for lane in &self.lanes {
            out.extend_from_slice(&lane.queue.to_le_bytes());
            for len in [lane.broker.len(), lane.topic.len()] {
                out.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            }
            out.extend_from_slice(lane.broker.as_bytes());
            out.extend_from_slice(&lane.topic);
        }
        for hash in &self.key_hashes {
            out.extend_from_slice(&hash.to_le_bytes());
        }
        for (lsn, due_ms) in &self.ended {
            out.extend_from_slice(&lsn.0.to_le_bytes());
            out.extend_from_slice(&due_ms.to_le_bytes());
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads an index file of segment `seq`; `None` if any of it is not as written.
    pub(super) fn decode(bytes: &[u8], seq: SegmentSeq, format: &Format) -> Option<Self> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        let whole = u32_at(crc, 0)? == crc32fast::hash(body);
        let ours = body.starts_with(MAGIC)
            && u32_at(body, 8)? == VERSION
            && u64_at(body, 16)? == format.store_id
            && u64_at(body, 24)? == seq.0;
        if !whole || !ours {
            return None;
        }
        let count = |at| u32_at(body, at).map(|count| count as usize);
        let mut contents = Self { end: u64_at(body, 32)?, ..Self::default() };
        let mut rest = body.get(HEADER_LEN..)?;
        for hold in take(&mut rest, count(40)?.checked_mul(HOLD_LEN)?)?.chunks_exact(HOLD_LEN) {
            contents.holds.push(Entry {
                due_ms: i64_at(hold, 0)?,
                offset: u32_at(hold, 8)?,
                len: u32_at(hold, 12)?,
                lane: u32_at(hold, 16)?,
                first_key: u32_at(hold, 20)?,
                keys: u32_at(hold, 24)?,
            });
        }
        for _ in 0..count(48)? {
            contents.lanes.push(lane(&mut rest)?);
        }
        for hash in take(&mut rest, count(52)?.checked_mul(8)?)?.chunks_exact(8) {
            contents.key_hashes.push(u64_at(hash, 0)?);
        }
        for ended in take(&mut rest, count(56)?.checked_mul(16)?)?.chunks_exact(16) {
            contents.ended.push((Lsn(u64_at(ended, 0)?), i64_at(ended, 8)?));
        }
        let lanes = u32_of(contents.lanes.len());
        let sound = rest.is_empty() && contents.holds.iter().all(|hold| hold.lane < lanes);
        sound.then_some(contents)
    }
}

fn lane(rest: &mut &[u8]) -> Option<LaneKey> {
    let fixed = take(rest, 8)?;
    let broker = take(rest, usize::from(u16_at(fixed, 4)?))?;
    let topic = take(rest, usize::from(u16_at(fixed, 6)?))?;
    Some(LaneKey {
        broker: String::from_utf8(broker.to_vec()).ok()?,
        topic: Bytes::copy_from_slice(topic),
        queue: u32_at(fixed, 0)?.cast_signed(),
    })
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// XXH3 of the unique key, and of `topic 0x01 word` for each word of the keys.
fn key_hashes(hold: &Hold) -> impl Iterator<Item = u64> {
    use xxhash_rust::xxh3::{Xxh3, xxh3_64};
    let unique = (!hold.unique_key.is_empty()).then(|| xxh3_64(&hold.unique_key));
    let words = hold.keys.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    unique.into_iter().chain(words.map(|word| {
        let mut hash = Xxh3::new();
        hash.update(&hold.lane.topic);
        hash.update(&[1]);
        hash.update(word);
        hash.digest()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { store_id: 5, segment_bytes: 8192 };

    fn hold(due_ms: i64, topic: &'static str, keys: &'static str) -> Hold {
        Hold {
            due_ms,
            accepted_ms: 0,
            lane: LaneKey {
                broker: "broker-a".into(),
                topic: Bytes::from_static(topic.as_bytes()),
                queue: -1,
            },
            unique_key: Bytes::from_static(b"U1"),
            keys: Bytes::from_static(keys.as_bytes()),
            client: String::new(),
            header: Bytes::new(),
            body: Bytes::new(),
        }
    }

    fn sample() -> Contents {
        let mut contents = Contents { end: 4000, ..Contents::default() };
        contents.add_hold(&hold(30, "t1", "k1 k2"), LaneId(0), 64, 100);
        contents.add_hold(&hold(-10, "t2", ""), LaneId(1), 164, 100);
        contents.add_hold(&hold(30, "t1", " k1 "), LaneId(0), 264, 100);
        contents.ended.push((Lsn(64), 30));
        contents
    }

    #[test]
    fn reads_back_sorted_by_due_time() {
        let contents = sample();
        let bytes = contents.encode(SegmentSeq(2), &FORMAT);
        let read = Contents::decode(&bytes, SegmentSeq(2), &FORMAT).unwrap();
        let order: Vec<_> = read.holds.iter().map(|hold| (hold.due_ms, hold.offset)).collect();
        assert_eq!(order, [(-10, 164), (30, 64), (30, 264)]);
        assert_eq!(read.lanes, contents.lanes);
        assert_eq!(read.lanes.len(), 2);
        let mut again = sample();
        again.add_hold(&hold(30, "t3", ""), LaneId(1), 364, 100);
        assert_eq!(again.lanes.len(), 3, "an id may be used again for another lane");
        assert_eq!(read.ended, contents.ended);
        assert_eq!(read.end, 4000);
        assert_eq!(read.key_hashes, contents.key_hashes);
        assert_eq!(read.key_hashes.len(), 6);
        assert_eq!(read.key_hashes[1], read.key_hashes[5], "same topic, same word");
    }

    #[test]
    fn any_damage_and_any_other_place_is_seen() {
        let bytes = sample().encode(SegmentSeq(2), &FORMAT);
        assert!(Contents::decode(&bytes, SegmentSeq(3), &FORMAT).is_none());
        let other = Format { store_id: 6, ..FORMAT };
        assert!(Contents::decode(&bytes, SegmentSeq(2), &other).is_none());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Contents::decode(&damaged, SegmentSeq(2), &FORMAT).is_none(), "byte {at}");
            assert!(Contents::decode(&bytes[..at], SegmentSeq(2), &FORMAT).is_none());
        }
    }
}
