//! The append-only log: batches into the open segment, one after the other, and the positions that
//! must never overtake each other. Owned by the writer thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use super::format::Format;
use super::index::Contents;
use super::keeper::Keeper;
use super::record::{self, Codec, u32_of};
use super::segment::{HEADER_LEN, Segment, SegmentSeq};
use super::{Due, Hold, LaneId, Lsn};
use crate::clock::EpochMs;
use crate::disk::Disk;

/// The segment files by number, for readers.
#[derive(Debug, Default)]
pub(super) struct Segments(RwLock<BTreeMap<SegmentSeq, Arc<Segment>>>);

impl Segments {
    pub(super) fn get(&self, seq: SegmentSeq) -> Option<Arc<Segment>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&seq).map(Arc::clone)
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(segment.seq, segment);
    }

    /// Hands over all of them.
    pub(super) fn move_into(&self, other: &Self) {
        let mine = std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner));
        other.0.write().unwrap_or_else(PoisonError::into_inner).extend(mine);
    }

    fn remove(&self, seq: SegmentSeq) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&seq);
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// How far the log has come: `synced <= written`, and neither goes back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Positions {
    written: Lsn,
    synced: Lsn,
}

impl Positions {
    /// A log that was found complete up to `end`.
    pub(super) fn at(end: Lsn) -> Self {
        Self { written: end, synced: end }
    }

    fn wrote(&mut self, end: Lsn) {
        assert!(end >= self.written, "the log went back from {:?} to {end:?}", self.written);
        self.written = end;
    }

    fn synced(&mut self, end: Lsn) {
        assert!(
            self.synced <= end && end <= self.written,
            "synced {end:?} is not between {:?} and {:?}",
            self.synced,
            self.written
        );
        self.synced = end;
    }
}

impl Format {
    /// Bytes a segment has for one record.
    pub(super) fn largest_record(&self) -> u64 {
        self.segment_bytes - HEADER_LEN - record::BATCH_LEN as u64
    }
}

/// What keeps a segment: messages pending in it, and until when its last end was not synced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Live {
    pub(super) pending: u64,
    pub(super) finished_at: Lsn,
}

/// The writer's view of the log.
pub(super) struct Timerlog {
    format: Format,
    codec: Codec,
    disk: Disk,
    keeper: Keeper,
    segments: Arc<Segments>,
    open: Arc<Segment>,
    /// Offset in the open segment where the next batch starts.
    end: u64,
    contents: Contents,
    positions: Positions,
    live: BTreeMap<SegmentSeq, Live>,
    batch: Batch,
}

/// The batch being built: bytes, and what they are.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    records: u32,
    ended: Vec<(Lsn, EpochMs)>,
}

/// What recovery hands to the writer.
pub(super) struct Recovered {
    pub(super) open: Arc<Segment>,
    pub(super) contents: Contents,
    pub(super) live: BTreeMap<SegmentSeq, Live>,
}

impl Timerlog {
    pub(super) fn new(
        format: Format,
        disk: Disk,
        keeper: Keeper,
        segments: Arc<Segments>,
        found: Recovered,
    ) -> Self {
        let end = found.contents.end;
        keeper.prepare(found.open.seq.next());
        Self {
            codec: Codec::new(format.store_id),
            positions: Positions::at(format.lsn(found.open.seq, end)),
            format,
            disk,
            keeper,
            segments,
            open: found.open,
            end,
            contents: found.contents,
            live: found.live,
            batch: Batch::default(),
        }
    }

    /// Bytes a segment has for one record.
    pub(super) fn largest_record(&self) -> u64 {
        self.format.largest_record()
    }

    /// Live segments, the open one included.
    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Adds a message's record of `len` bytes to the batch and returns its place; `None` when the
    /// open segment has no room for it.
    pub(super) fn add_hold(&mut self, hold: &Hold, len: u64) -> Option<Lsn> {
        let lsn = self.begin(len)?;
        self.codec.hold(hold, lsn, &mut self.batch.bytes);
        Some(lsn)
    }

    /// Adds a COMPLETE record; `None` when the open segment has no room for it.
    pub(super) fn add_complete(&mut self, ended: &[Due]) -> Option<Lsn> {
        let lsn = self.begin(record::complete_len(ended.len()) as u64)?;
        let from = self.batch.ended.len();
        self.batch.ended.extend(ended.iter().map(|due| (due.lsn, due.due_ms)));
        self.codec.complete(&self.batch.ended[from..], lsn, &mut self.batch.bytes);
        Some(lsn)
    }

    fn begin(&mut self, len: u64) -> Option<Lsn> {
        let used = self.batch.bytes.len().max(record::BATCH_LEN) as u64;
        if self.end + used + len > self.format.segment_bytes {
            return None;
        }
        if self.batch.bytes.is_empty() {
            self.codec.begin_batch(&mut self.batch.bytes);
        }
        self.batch.records += 1;
        Some(self.format.lsn(self.open.seq, self.end + used))
    }

    /// Bytes in the batch.
    pub(super) fn batch_len(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Writes the batch. Nothing in memory moves unless the write succeeded.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.batch.bytes.is_empty() {
            return Ok(());
        }
        let start = self.format.lsn(self.open.seq, self.end);
        self.codec.finish_batch(
            &mut self.batch.bytes,
            start,
            self.positions.synced,
            self.batch.records,
        );
        let len = self.batch.bytes.len() as u64;
        self.disk.write_at(&self.open.file, &self.open.path, &self.batch.bytes, self.end)?;
        self.end += len;
        self.contents.end = self.end;
        self.positions.wrote(Lsn(start.0 + len));
        for (lsn, due_ms) in self.batch.ended.drain(..) {
            self.contents.ended.push((lsn, due_ms));
            let Some(live) = self.live.get_mut(&self.format.place(lsn).0) else {
                continue;
            };
            match live.pending.checked_sub(1) {
                Some(pending) => live.pending = pending,
                None => tracing::error!(lsn = lsn.0, "a message was completed twice"),
            }
            live.finished_at = self.positions.written;
        }
        self.batch.bytes.clear();
        self.batch.records = 0;
        Ok(())
    }

    /// A written hold is pending now.
    pub(super) fn note_hold(&mut self, hold: &Hold, lane: LaneId, lsn: Lsn, len: u32) {
        let (seq, offset) = self.format.place(lsn);
        self.contents.add_hold(hold, lane, offset as u32, len);
        self.live.entry(seq).or_default().pending += 1;
    }

    /// Whether something was written that is not synced.
    pub(super) fn is_dirty(&self) -> bool {
        self.positions.synced < self.positions.written
    }

    /// Syncs the open segment, then lets go of what is finished.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.disk.sync(&self.open.file, &self.open.path)?;
        self.positions.synced(self.positions.written);
        self.reclaim();
        Ok(())
    }

    /// Goes on to the next segment, once everything in this one is synced. On failure the open
    /// segment stays.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        assert!(!self.is_dirty(), "a segment with unsynced records must stay open");
        let next = self.keeper.spare();
        self.keeper.prepare(match &next {
            Ok(segment) => segment.seq.next(),
            Err(_) => self.open.seq.next(),
        });
        let next = Arc::new(next?);
        self.segments.insert(Arc::clone(&next));
        let sealed = std::mem::replace(&mut self.open, next);
        self.keeper.seal(sealed.seq, std::mem::take(&mut self.contents));
        self.live.entry(sealed.seq).or_default();
        self.end = HEADER_LEN;
        let start = self.format.lsn(self.open.seq, self.end);
        self.positions.wrote(start);
        self.positions.synced(start);
        self.reclaim();
        Ok(())
    }

    /// Removes segments from the oldest on while nothing in them is pending and the records that
    /// ended their messages are synced. A younger finished segment waits for the older ones: its
    /// control records may be what ended theirs.
    fn reclaim(&mut self) {
        while let Some(oldest) = self.live.first_entry() {
            let finished =
                oldest.get().pending == 0 && oldest.get().finished_at <= self.positions.synced;
            if *oldest.key() == self.open.seq || !finished {
                break;
            }
            let seq = oldest.remove_entry().0;
            self.segments.remove(seq);
            self.keeper.remove(seq);
        }
    }
}

/// Whether an error says that the disk is full.
pub(super) fn is_full(err: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(err.kind(), StorageFull | QuotaExceeded)
}

/// Record lengths are checked against the segment's size before they come here.
pub(super) fn record_len(len: u64) -> u32 {
    u32_of(usize::try_from(len).unwrap_or(usize::MAX))
}
