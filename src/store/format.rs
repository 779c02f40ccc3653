//! The guard rails of a data directory: LOCK (one process), FORMAT (version, identity, geometry).
//!
//! `FORMAT` is JSON: `{"format":1,"store":"16 hex digits","segment_bytes":67108864}`. It is written
//! once, when the directory is new, and read at every start. A newer format is refused as it is.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::OpenError;
use super::segment::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
use crate::disk::Disk;

/// The newest format this release reads and writes.
const KNOWN: u64 = 1;

/// What FORMAT says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// Identity of the store: seeds all checksums.
    pub(super) store_id: u64,
    /// Bytes of every segment file.
    pub(super) segment_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct OnDisk {
    format: u64,
    store: String,
    segment_bytes: u64,
}

/// An exclusive hold on a data directory; ends with the process, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Takes the directory, making it (mode 0700) if it is not there.
pub(super) fn lock(dir: &Path) -> Result<Lock, OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(OpenError::io("cannot create", dir))?;
    let path = dir.join("LOCK");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(OpenError::io("cannot open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(dir.to_path_buf())),
        Err(TryLockError::Error(err)) => Err(OpenError::io("cannot lock", &path)(err)),
    }
}

/// Refuses a directory whose FORMAT no start could use, before anything in it is touched.
pub(super) fn refuse_unusable(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join("FORMAT");
    match std::fs::read(&path) {
        Ok(bytes) => parse(&path, &bytes).map(|_| ()),
        // Whatever else is wrong shows when the directory is taken.
        Err(_) => Ok(()),
    }
}

/// Reads FORMAT, or writes it for a new directory with segments of `segment_bytes`.
pub(super) fn read_or_create(
    dir: &Path,
    segment_bytes: u64,
    disk: &Disk,
) -> Result<Format, OpenError> {
    let path = dir.join("FORMAT");
    match std::fs::read(&path) {
        Ok(bytes) => parse(&path, &bytes),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
            refuse_orphans(dir, &path)?;
            let format = Format { store_id: rand::random(), segment_bytes };
            let on_disk =
                OnDisk { format: KNOWN, store: format!("{:016x}", format.store_id), segment_bytes };
            let mut text = serde_json::to_vec(&on_disk).unwrap_or_default();
            text.push(b'\n');
            disk.replace(&path, &text).map_err(OpenError::io("cannot write", &path))?;
            Ok(format)
        }
        Err(err) => Err(OpenError::io("cannot read", &path)(err)),
    }
}

/// A log without FORMAT is somebody's lost file, not a new directory.
fn refuse_orphans(dir: &Path, format: &Path) -> Result<(), OpenError> {
    let log: PathBuf = super::segment::dir_of(dir);
    let is_empty = std::fs::read_dir(&log).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return Ok(());
    }
    let why = format!("it is missing, but {} is not empty", log.display());
    Err(OpenError::Format { path: format.to_path_buf(), why })
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Format, OpenError> {
    let refuse = |why: String| OpenError::Format { path: path.to_path_buf(), why };
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|err| refuse(err.to_string()))?;
    let found = value.get("format").and_then(serde_json::Value::as_u64);
    match found {
        Some(KNOWN) => {}
        Some(found) if found > KNOWN => {
            return Err(OpenError::Newer { path: path.to_path_buf(), found, known: KNOWN });
        }
        _ => return Err(refuse("it names no format".into())),
    }
    let on_disk: OnDisk = serde_json::from_value(value).map_err(|err| refuse(err.to_string()))?;
    let store_id = u64::from_str_radix(&on_disk.store, 16)
        .map_err(|err| refuse(format!("store {:?}: {err}", on_disk.store)))?;
    let segment_bytes = on_disk.segment_bytes;
    if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment_bytes)
        || !segment_bytes.is_multiple_of(4096)
    {
        return Err(refuse(format!("segment_bytes {segment_bytes} is out of bounds")));
    }
    Ok(Format { store_id, segment_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::default()
    }

    #[test]
    fn a_directory_keeps_its_identity_and_geometry() {
        let dir = tempfile::tempdir().unwrap();
        let made = read_or_create(dir.path(), 1 << 20, &disk()).unwrap();
        let read = read_or_create(dir.path(), 1 << 26, &disk()).unwrap();
        assert_eq!(made, read);
        assert_eq!(read.segment_bytes, 1 << 20);
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = br#"{"format":2,"surprise":true}"#;
        std::fs::write(dir.path().join("FORMAT"), text).unwrap();
        let err = read_or_create(dir.path(), 1 << 20, &disk()).unwrap_err();
        assert!(matches!(err, OpenError::Newer { found: 2, known: 1, .. }), "{err}");
        assert_eq!(std::fs::read(dir.path().join("FORMAT")).unwrap(), text);
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for text in [
            "",
            "{}",
            r#"{"format":1}"#,
            r#"{"format":1,"store":"zz","segment_bytes":1048576}"#,
            r#"{"format":1,"store":"00","segment_bytes":5}"#,
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("FORMAT"), text).unwrap();
            let err = read_or_create(dir.path(), 1 << 20, &disk()).unwrap_err();
            assert!(matches!(err, OpenError::Format { .. }), "{text}: {err}");
        }
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert!(matches!(lock(dir.path()), Err(OpenError::Locked(_))));
        drop(held);
        lock(dir.path()).unwrap();
    }

    #[test]
    fn segments_without_format_are_not_taken_for_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(super::super::segment::dir_of(dir.path())).unwrap();
        std::fs::write(super::super::segment::dir_of(dir.path()).join("x"), b"").unwrap();
        let err = read_or_create(dir.path(), 1 << 20, &disk()).unwrap_err();
        assert!(matches!(err, OpenError::Format { .. }), "{err}");
    }
}
