//! Reads a segment record by record, telling a torn tail from corruption.
//!
//! A bad record with a valid one behind it, or in a segment that is not the last, is corruption: it
//! is reported and stepped over. What is left at the end of the last segment without any valid
//! record behind it is a torn tail: a write that never finished and was never acknowledged.

use super::{LaneId, LaneKey, Lsn};
use std::collections::HashMap;

use super::format::Format;
use super::index::Contents;
use super::record::{ALIGN, Codec, Invalid, Kind, u32_of, u64_at};
use super::segment::{HEADER_LEN, SegmentSeq};

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    names: HashMap<LaneKey, LaneId>,
    pub(super) contents: Contents,
    /// Corrupt places: offset, bytes stepped over, reason.
    pub(super) damaged: Vec<Damage>,
    /// Bytes behind the end of records that are no records, up to the last that is not zero.
    pub(super) torn: u64,
    /// The highest end of synced data that a batch names.
    pub(super) synced_end: Lsn,
    /// Why the segment's header is not what it should be; set by who reads the file.
    pub(super) foreign: Option<&'static str>,
}

/// A stretch of a segment that is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) why: &'static str,
}

/// Scans `bytes`, the whole of segment `seq`.
pub(super) fn scan(bytes: &bytes::Bytes, seq: SegmentSeq, format: &Format, codec: &Codec) -> Scan {
    let mut found = Scan::default();
    let mut at = HEADER_LEN as usize;
    while at < bytes.len() {
        let lsn = format.lsn(seq, at as u64);
        match codec.check(&bytes[at..], lsn) {
            Ok(record) => {
                if let Err(invalid) = take(&mut found, record, bytes, at) {
                    found.note(at, record.len(), invalid);
                }
                at += record.len();
            }
            Err(invalid) => match next_valid(bytes, at, seq, format, codec) {
                Some(next) => {
                    found.note(at, next - at, invalid);
                    at = next;
                }
                None => break,
            },
        }
    }
    let end = at.min(bytes.len());
    found.contents.end = end as u64;
    let last = bytes[end..].iter().rposition(|byte| *byte != 0);
    found.torn = last.map_or(0, |last| last as u64 + 1);
    found
}

impl Scan {
    fn note(&mut self, at: usize, len: usize, invalid: Invalid) {
        let why = invalid.why();
        self.damaged.push(Damage { offset: at as u64, len: len as u64, why });
    }

    /// Whether no record was ever written here; the file may not even have its header.
    pub(super) fn is_blank(&self) -> bool {
        self.contents.end <= HEADER_LEN && self.torn == 0 && self.damaged.is_empty()
    }

    /// Of a sealed segment whose records were not looked at, since its index is there.
    pub(super) fn of_foreign(why: &'static str) -> Self {
        let mut found = Self { foreign: Some(why), ..Self::default() };
        found.nothing_is_torn();
        found
    }

    /// Counts what looks unfinished as damage: for segments that were sealed, where a bad end or
    /// header cannot be a write cut short.
    pub(super) fn nothing_is_torn(&mut self) {
        if let Some(why) = self.foreign {
            self.damaged.push(Damage { offset: 0, len: HEADER_LEN, why });
        }
        if self.torn > 0 {
            let why = "bytes behind the last record of a full segment";
            self.damaged.push(Damage { offset: self.contents.end, len: self.torn, why });
            self.torn = 0;
        }
    }
}

fn take(
    found: &mut Scan,
    record: super::record::Record<'_>,
    bytes: &bytes::Bytes,
    at: usize,
) -> Result<(), Invalid> {
    match record.kind {
        Kind::Batch => found.synced_end = found.synced_end.max(record.synced_end()?),
        Kind::Hold => {
            let held = record.held(bytes)?;
            let next = LaneId(u32_of(found.names.len()));
            let lane = *found.names.entry(held.hold.lane.clone()).or_insert(next);
            found.contents.add_hold(&held.hold, lane, u32_of(at), u32_of(record.len()));
        }
        Kind::Complete => found.contents.ended.extend(record.ended()?),
    }
    Ok(())
}

/// The next place behind `at` where a valid record stands. Its LSN field is what makes this cheap:
/// eight bytes that must equal the place rule out all but a few candidates.
fn next_valid(
    bytes: &[u8],
    at: usize,
    seq: SegmentSeq,
    format: &Format,
    codec: &Codec,
) -> Option<usize> {
    (at + ALIGN..bytes.len()).step_by(ALIGN).find(|&at| {
        let lsn = format.lsn(seq, at as u64);
        u64_at(bytes, at + 8) == Some(lsn.0) && codec.check(&bytes[at..], lsn).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Hold;
    use super::*;

    const FORMAT: Format = Format { store_id: 5, segment_bytes: 8192 };
    const SEQ: SegmentSeq = SegmentSeq(1);

    /// A segment with five holds; returns it with the offsets of the holds.
    fn sample() -> (Vec<u8>, Vec<usize>) {
        let codec = Codec::new(FORMAT.store_id);
        let mut bytes = vec![0; HEADER_LEN as usize];
        let mut offsets = Vec::new();
        for i in 0..5u8 {
            let hold = Hold {
                due_ms: i64::from(i),
                accepted_ms: 0,
                lane: LaneKey { broker: "b".into(), topic: Bytes::new(), queue: 0 },
                unique_key: Bytes::new(),
                keys: Bytes::new(),
                client: String::new(),
                header: Bytes::new(),
                body: Bytes::from(vec![i; 100]),
            };
            offsets.push(bytes.len());
            let lsn = FORMAT.lsn(SEQ, bytes.len() as u64);
            codec.hold(&hold, lsn, &mut bytes);
        }
        offsets.push(bytes.len());
        bytes.resize(FORMAT.segment_bytes as usize, 0);
        (bytes, offsets)
    }

    fn scanned(bytes: Vec<u8>) -> Scan {
        scan(&Bytes::from(bytes), SEQ, &FORMAT, &Codec::new(FORMAT.store_id))
    }

    fn dues(scan: &Scan) -> Vec<i64> {
        scan.contents.holds.iter().map(|hold| hold.due_ms).collect()
    }

    #[test]
    fn a_clean_end_is_neither_torn_nor_damaged() {
        let (bytes, offsets) = sample();
        let scan = scanned(bytes);
        assert_eq!(dues(&scan), [0, 1, 2, 3, 4]);
        assert_eq!((scan.torn, scan.contents.end), (0, offsets[5] as u64));
        assert!(scan.damaged.is_empty());
    }

    #[test]
    fn every_cut_in_the_last_record_is_a_torn_tail() {
        let (bytes, offsets) = sample();
        for cut in offsets[4] + 1..offsets[5] {
            let mut bytes = bytes.clone();
            bytes[cut..offsets[5]].fill(0);
            let torn = bytes[offsets[4]..].iter().rposition(|b| *b != 0).unwrap() as u64 + 1;
            let scan = scanned(bytes);
            if scan.contents.holds.len() == 5 {
                // Only the padding was cut.
                continue;
            }
            assert_eq!(dues(&scan), [0, 1, 2, 3], "cut at {cut}");
            assert_eq!((scan.contents.end, scan.torn), (offsets[4] as u64, torn));
            assert!(scan.damaged.is_empty());
        }
    }

    #[test]
    fn a_bad_record_with_a_valid_one_behind_is_damage_and_costs_one_entry() {
        let (bytes, offsets) = sample();
        for at in offsets[2]..offsets[3] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x41;
            let scan = scanned(bytes);
            assert_eq!(dues(&scan), [0, 1, 3, 4], "flipped at {at}");
            let damage = scan.damaged[0];
            assert_eq!((damage.offset, damage.len), (offsets[2] as u64, 176), "at {at}");
            assert_eq!((scan.damaged.len(), scan.torn), (1, 0));
        }
    }

    #[test]
    fn the_tail_of_a_full_segment_is_damage() {
        let (mut bytes, offsets) = sample();
        bytes[offsets[5]..offsets[5] + 9].fill(7);
        let mut scan = scanned(bytes);
        assert_eq!(scan.torn, 9);
        scan.nothing_is_torn();
        assert_eq!((scan.damaged[0].len, scan.torn), (9, 0));
    }
}
