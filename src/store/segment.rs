//! One preallocated file of the timerlog: its name, its header, its place in the log.
//!
//! ```text
//!  0 8 bytes "RMQTIMER"     24 u64 segment number      40 i64 created, epoch ms
//!  8 u32 version 1          32 u64 segment bytes       48 12 zero bytes
//! 12 u32 header bytes 64                               60 u32 CRC-32 of bytes 0 to 60
//! 16 u64 store id           64 records
//! ```
//!
//! The header is synced, with its directory entry, before the first record is written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Lsn;
use super::format::Format;
use super::record::{u32_at, u64_at};
use crate::clock::EpochMs;
use crate::disk::Disk;

/// Bytes before the first record.
pub(super) const HEADER_LEN: u64 = 64;
/// Smallest geometry: the largest frame of a client need not fit, tests need tiny segments.
pub(super) const MIN_SEGMENT_BYTES: u64 = 4096;
/// Largest geometry: offsets inside a segment are 32 bits.
pub(super) const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Geometry of a new directory.
pub(super) const SEGMENT_BYTES: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"RMQTIMER";
const VERSION: u32 = 1;

/// Number of a segment, from 0, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SegmentSeq(pub(super) u64);

impl SegmentSeq {
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Format {
    /// Place of a byte in the log.
    pub(super) fn lsn(&self, seq: SegmentSeq, offset: u64) -> Lsn {
        Lsn(seq.0 * self.segment_bytes + offset)
    }

    /// Segment and offset of a place.
    pub(super) fn place(&self, lsn: Lsn) -> (SegmentSeq, u64) {
        (SegmentSeq(lsn.0 / self.segment_bytes), lsn.0 % self.segment_bytes)
    }
}

/// Where the log of a data directory lives.
pub(super) fn dir_of(data_dir: &Path) -> PathBuf {
    data_dir.join("timerlog")
}

/// File of a segment.
pub(super) fn log_path(log_dir: &Path, seq: SegmentSeq) -> PathBuf {
    log_dir.join(format!("{:012}.log", seq.0))
}

/// File of a sealed segment's index.
pub(super) fn index_path(log_dir: &Path, seq: SegmentSeq) -> PathBuf {
    log_dir.join(format!("{:012}.idx", seq.0))
}

/// The segments in a directory, oldest first.
pub(super) fn list(log_dir: &Path) -> io::Result<Vec<SegmentSeq>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(log_dir)? {
        let name = entry?.file_name();
        let seq = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok());
        found.extend(seq.map(SegmentSeq));
    }
    found.sort_unstable();
    Ok(found)
}

/// What lies beside the segments.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Indexes whose segment is not there.
    pub(super) orphans: Vec<PathBuf>,
    /// Files that a crash kept from taking their name.
    pub(super) unnamed: Vec<PathBuf>,
}

/// Looks for what does not belong to `segments`, which are sorted.
pub(super) fn beside(log_dir: &Path, segments: &[SegmentSeq]) -> io::Result<Beside> {
    let mut found = Beside::default();
    for entry in std::fs::read_dir(log_dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let index = name.strip_suffix(".idx").and_then(|seq| seq.parse().ok()).map(SegmentSeq);
        if name.ends_with(".idx.new") {
            found.unnamed.push(path);
        } else if index.is_some_and(|seq| segments.binary_search(&seq).is_err()) {
            found.orphans.push(path);
        }
    }
    Ok(found)
}

/// An open segment file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) seq: SegmentSeq,
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Segment {
    /// Makes segment `seq`: blocks reserved, header and directory entry synced. A file left by a
    /// crash in the middle of this is made anew.
    pub(super) fn create(
        log_dir: &Path,
        seq: SegmentSeq,
        format: &Format,
        now_ms: EpochMs,
        disk: &Disk,
    ) -> io::Result<Self> {
        let path = log_path(log_dir, seq);
        disk.unlink(&path)?;
        let made = disk.allocate(&path, format.segment_bytes).and_then(|file| {
            disk.write_at(&file, &path, &header(seq, format, now_ms), 0)?;
            disk.sync(&file, &path)?;
            disk.sync_dir(log_dir)?;
            Ok(file)
        });
        match made {
            Ok(file) => Ok(Self { seq, path, file }),
            Err(err) => {
                // Half a segment is of no use; the first error is the one to tell.
                drop(disk.unlink(&path));
                Err(err)
            }
        }
    }

    /// Opens segment `seq` for reading and writing; the header is checked by [`Segment::check`].
    pub(super) fn open(log_dir: &Path, seq: SegmentSeq) -> io::Result<Self> {
        let path = log_path(log_dir, seq);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Self { seq, path, file })
    }

    /// Whether length and header are what the file's name and the store's FORMAT say; else the
    /// reason.
    pub(super) fn check(&self, format: &Format) -> io::Result<Result<(), &'static str>> {
        if self.file.metadata()?.len() != format.segment_bytes {
            return Ok(Err("not as long as a segment"));
        }
        let mut bytes = [0; HEADER_LEN as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        let wanted = header(self.seq, format, 0);
        let sound = Some(crc32fast::hash(&bytes[..60])) == u32_at(&bytes, 60);
        Ok(match sound {
            false => Err("header checksum mismatch"),
            true if bytes[..16] != wanted[..16] => Err("not a segment of this version"),
            true if u64_at(&bytes, 16) != Some(format.store_id) => Err("of another store"),
            true if bytes[24..40] != wanted[24..40] => Err("of another place"),
            true => Ok(()),
        })
    }

    /// Reads exactly `buffer` from `offset`.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

fn header(seq: SegmentSeq, format: &Format, now_ms: EpochMs) -> [u8; HEADER_LEN as usize] {
    let mut bytes = [0; HEADER_LEN as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(HEADER_LEN as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&format.store_id.to_le_bytes());
    bytes[24..32].copy_from_slice(&seq.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&format.segment_bytes.to_le_bytes());
    bytes[40..48].copy_from_slice(&now_ms.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { store_id: 5, segment_bytes: 8192 };

    #[test]
    fn a_segment_knows_its_store_and_place() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let made = Segment::create(dir.path(), SegmentSeq(3), &FORMAT, 9, &disk).unwrap();
        assert_eq!(made.check(&FORMAT).unwrap(), Ok(()));
        assert_eq!(list(dir.path()).unwrap(), [SegmentSeq(3)]);

        let other = Format { store_id: 6, ..FORMAT };
        assert_eq!(made.check(&other).unwrap(), Err("of another store"));
        std::fs::copy(&made.path, log_path(dir.path(), SegmentSeq(4))).unwrap();
        let moved = Segment::open(dir.path(), SegmentSeq(4)).unwrap();
        assert_eq!(moved.check(&FORMAT).unwrap(), Err("of another place"));
        made.file.write_all_at(b"x", 41).unwrap();
        assert_eq!(made.check(&FORMAT).unwrap(), Err("header checksum mismatch"));
        made.file.set_len(10).unwrap();
        assert_eq!(made.check(&FORMAT).unwrap(), Err("not as long as a segment"));
    }

    #[test]
    fn places_and_lsns_are_two_names_for_one_thing() {
        let lsn = FORMAT.lsn(SegmentSeq(7), 72);
        assert_eq!(lsn, Lsn(7 * 8192 + 72));
        assert_eq!(FORMAT.place(lsn), (SegmentSeq(7), 72));
    }
}
