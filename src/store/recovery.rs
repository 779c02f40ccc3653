//! Reads the log of a directory: which messages are pending, and where the next record goes.
//!
//! Sealed segments are read through their index, the open one record by record. Runs before any
//! thread of the store writes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::error::OpenError;
use super::format::Format;
use super::index::Contents;
use super::lanes::Lanes;
use super::record::Codec;
use super::scan::{Scan, scan};
use super::segment::{self, Segment, SegmentSeq, index_path, log_path};
use super::timerlog::{Live, Recovered, Segments};
use super::{Due, Lsn};
use crate::clock::Clock;
use crate::disk::Disk;

/// What a start found on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Messages that wait for their time or for their broker.
    pub pending: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Places that are not what was written; each was logged.
    pub damaged: u64,
    /// Bytes cut off the end of the log: a write that never finished and was never acknowledged.
    pub torn_bytes: u64,
    /// How long the log took to read.
    pub took: Duration,
}

/// All that the store starts with.
pub(super) struct Found {
    pub(super) recovered: Recovered,
    pub(super) segments: Segments,
    pub(super) dues: Vec<Due>,
    pub(super) report: Recovery,
}

/// What a recovery works with.
pub(super) struct Recoverer<'a> {
    pub(super) log_dir: &'a Path,
    pub(super) format: Format,
    pub(super) disk: &'a Disk,
    pub(super) clock: &'a dyn Clock,
    pub(super) lanes: &'a Lanes,
}

/// Segments read so far, and what their younger neighbours said of them.
#[derive(Default)]
struct Progress {
    segments: Segments,
    live: BTreeMap<SegmentSeq, Live>,
    ended: HashSet<Lsn>,
    dues: Vec<Due>,
    report: Recovery,
}

impl Recoverer<'_> {
    pub(super) fn recover(&self) -> Result<Found, OpenError> {
        let start = self.clock.monotonic();
        let mut seqs =
            segment::list(self.log_dir).map_err(OpenError::io("cannot list", self.log_dir))?;
        let mut progress = Progress::default();
        self.look_beside(&seqs, &mut progress)?;
        let (open, contents) = self.open_segment(&mut seqs, &mut progress)?;
        self.report_gaps(&seqs, open.seq, &mut progress);
        let oldest = seqs.first().copied().unwrap_or(open.seq);
        self.take_pending(open.seq, &contents, oldest, &mut progress);
        for (done, seq) in seqs.iter().rev().enumerate() {
            let (segment, contents) = self.sealed(*seq, &mut progress)?;
            self.take_pending(*seq, &contents, oldest, &mut progress);
            progress.segments.insert(Arc::new(segment));
            if done % 64 == 63 {
                tracing::info!(read = done + 1, of = seqs.len(), "reading the timerlog");
            }
        }
        progress.segments.insert(Arc::clone(&open));
        progress.report.segments = progress.segments.len() as u64;
        progress.report.pending = progress.dues.len() as u64;
        progress.report.took = self.clock.monotonic().saturating_sub(start);
        Ok(Found {
            recovered: Recovered { open, contents, live: progress.live },
            segments: progress.segments,
            dues: progress.dues,
            report: progress.report,
        })
    }

    /// Reports indexes whose segment is gone, and removes files that never took their name.
    fn look_beside(&self, seqs: &[SegmentSeq], progress: &mut Progress) -> Result<(), OpenError> {
        let beside = segment::beside(self.log_dir, seqs)
            .map_err(OpenError::io("cannot list", self.log_dir))?;
        for path in beside.unnamed {
            self.disk.unlink(&path).map_err(OpenError::io("cannot remove", &path))?;
        }
        for index in beside.orphans {
            self.report_missing(&index.with_extension("log"), progress);
        }
        Ok(())
    }

    fn report_missing(&self, path: &Path, progress: &mut Progress) {
        progress.report.damaged += 1;
        tracing::error!(
            file = %path.display(),
            "missing: the messages in it are lost unless the file is put back"
        );
    }

    /// The segment that goes on growing: the last with anything in it, taken off `seqs`, or a new
    /// one behind it if it was sealed. Blank ones behind it were made ahead and are made anew.
    fn open_segment(
        &self,
        seqs: &mut Vec<SegmentSeq>,
        progress: &mut Progress,
    ) -> Result<(Arc<Segment>, Contents), OpenError> {
        let mut blank = None;
        while let Some(last) = seqs.last().copied() {
            if self.index_of(last).is_some() {
                break;
            }
            let segment = self.open(last)?;
            let found = self.scan(&segment)?;
            if found.is_blank() {
                // Made ahead and never used, or not even made to the end.
                let path = log_path(self.log_dir, last);
                self.disk.unlink(&path).map_err(OpenError::io("cannot remove", &path))?;
                blank = seqs.pop();
                continue;
            }
            if found.foreign.is_some() {
                break;
            }
            seqs.pop();
            self.report_damage(&segment, &found, progress);
            self.cut(&segment, &found, progress)?;
            return Ok((Arc::new(segment), found.contents));
        }
        // A blank one keeps its number: were it not the next, one in between would be missing.
        let next = blank.or(seqs.last().map(|last| last.next())).unwrap_or(SegmentSeq(0));
        let path = log_path(self.log_dir, next);
        let segment =
            Segment::create(self.log_dir, next, &self.format, self.clock.wall_ms(), self.disk)
                .map_err(OpenError::io("cannot create", &path))?;
        Ok((Arc::new(segment), Contents::empty()))
    }

    /// A full segment's contents: from its index, or read again where that is missing or damaged.
    fn sealed(
        &self,
        seq: SegmentSeq,
        progress: &mut Progress,
    ) -> Result<(Segment, Contents), OpenError> {
        let segment = self.open(seq)?;
        if let Some(contents) = self.index_of(seq) {
            let checked = segment.check(&self.format);
            if let Err(why) = checked.map_err(OpenError::io("cannot read", &segment.path))? {
                self.report_damage(&segment, &Scan::of_foreign(why), progress);
            }
            return Ok((segment, contents));
        }
        tracing::warn!(segment = %segment.path.display(), "no index: reading the whole segment");
        let mut found = self.scan(&segment)?;
        found.nothing_is_torn();
        self.report_damage(&segment, &found, progress);
        let path = index_path(self.log_dir, seq);
        if let Err(err) = self.disk.replace(&path, &found.contents.encode(seq, &self.format)) {
            tracing::warn!(file = %path.display(), %err, "cannot write a segment's index");
        }
        Ok((segment, found.contents))
    }

    fn index_of(&self, seq: SegmentSeq) -> Option<Contents> {
        let bytes = fs::read(index_path(self.log_dir, seq)).ok()?;
        Contents::decode(&bytes, seq, &self.format)
    }

    fn open(&self, seq: SegmentSeq) -> Result<Segment, OpenError> {
        let path = log_path(self.log_dir, seq);
        Segment::open(self.log_dir, seq).map_err(OpenError::io("cannot open", &path))
    }

    fn scan(&self, segment: &Segment) -> Result<Scan, OpenError> {
        let bytes = fs::read(&segment.path).map_err(OpenError::io("cannot read", &segment.path))?;
        let codec = Codec::new(self.format.store_id);
        let mut found = scan(&Bytes::from(bytes), segment.seq, &self.format, &codec);
        let checked = segment.check(&self.format);
        found.foreign = checked.map_err(OpenError::io("cannot read", &segment.path))?.err();
        Ok(found)
    }

    fn report_damage(&self, segment: &Segment, found: &Scan, progress: &mut Progress) {
        for damage in &found.damaged {
            progress.report.damaged += 1;
            tracing::error!(
                file = %segment.path.display(),
                offset = damage.offset,
                bytes = damage.len,
                reason = damage.why,
                "damaged: set aside, what is readable behind it is kept"
            );
        }
    }

    fn report_gaps(&self, seqs: &[SegmentSeq], open: SegmentSeq, progress: &mut Progress) {
        let following = seqs.iter().copied().skip(1).chain([open]);
        for (seq, following) in seqs.iter().zip(following) {
            // One that left its index has been reported by it.
            if seq.next() != following && !index_path(self.log_dir, seq.next()).exists() {
                self.report_missing(&log_path(self.log_dir, seq.next()), progress);
            }
        }
    }

    /// Cuts a torn tail, so that nothing of it can ever be taken for a record.
    fn cut(
        &self,
        segment: &Segment,
        found: &Scan,
        progress: &mut Progress,
    ) -> Result<(), OpenError> {
        if found.torn == 0 {
            return Ok(());
        }
        let (file, path) = (&segment.file, &segment.path);
        tracing::warn!(
            file = %path.display(),
            offset = found.contents.end,
            bytes = found.torn,
            "cut an unfinished write off the end of the log"
        );
        progress.report.torn_bytes = found.torn;
        self.disk
            .zero(file, path, found.contents.end, found.torn)
            .and_then(|()| self.disk.sync(file, path))
            .map_err(OpenError::io("cannot cut the end of", path))
    }

    /// Adds a segment's pending messages. Called from the youngest segment to the oldest, so that
    /// every end of a message is known before the message is met.
    fn take_pending(
        &self,
        seq: SegmentSeq,
        contents: &Contents,
        oldest: SegmentSeq,
        progress: &mut Progress,
    ) {
        let known = contents.ended.iter().map(|(lsn, _)| *lsn);
        progress.ended.extend(known.filter(|lsn| self.format.place(*lsn).0 >= oldest));
        let lsn_of = |offset: u32| self.format.lsn(seq, u64::from(offset));
        let pending: Vec<_> = contents
            .holds
            .iter()
            .filter(|hold| !progress.ended.remove(&lsn_of(hold.offset)))
            .collect();
        let mut counts = vec![0; contents.lanes.len()];
        for hold in &pending {
            counts[hold.lane as usize] += 1;
        }
        let lanes = contents.lanes.iter().zip(&counts);
        let ids: Vec<_> =
            lanes.map(|(key, count)| (*count > 0).then(|| self.lanes.take(key, *count))).collect();
        progress.dues.extend(pending.iter().filter_map(|hold| {
            let lane = ids[hold.lane as usize]?;
            Some(Due { due_ms: hold.due_ms, lsn: lsn_of(hold.offset), len: hold.len, lane })
        }));
        let live = Live { pending: pending.len() as u64, ..Live::default() };
        progress.live.insert(seq, live);
    }
}
