//! Every system call that changes the data directory, in one place: with the sync that makes it
//! last, and a hook before it where tests let it fail, block or kill the process.
//!
//! Called by the store, and for the small tables beside it. Blocks: never on an async worker.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

/// What is about to be done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// A new file with all its blocks.
    Allocate,
    /// A positioned write.
    Write,
    /// `fdatasync` of a file, or `fsync` of a directory.
    Sync,
    /// A temporary file takes its name.
    Rename,
    /// A file goes.
    Unlink,
}

/// Asked before each operation; an error is returned in the operation's place.
pub trait Fault: Send + Sync {
    /// May fail, block, or not return at all.
    fn before(&self, op: DiskOp, path: &Path) -> io::Result<()>;
}

/// Nothing goes wrong on purpose.
#[derive(Debug)]
pub struct NoFault;

impl Fault for NoFault {
    fn before(&self, _: DiskOp, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// The system calls, behind the hook. Clones share it.
#[derive(Clone)]
pub struct Disk {
    fault: Arc<dyn Fault>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new(Arc::new(NoFault))
    }
}

impl Disk {
    /// With this hook before every call.
    pub fn new(fault: Arc<dyn Fault>) -> Self {
        Self { fault }
    }

    /// A new file of `len` bytes, its blocks reserved, so that later writes cannot run out of disk.
    /// Where the file system cannot reserve, zeros are written: a sparse file would break the promise.
    pub fn allocate(&self, path: &Path, len: u64) -> io::Result<File> {
        self.fault.before(DiskOp::Allocate, path)?;
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::OPNOTSUPP) => {
                write_zeros(&file, 0, len)?;
                Ok(file)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes all of `bytes` from `at`.
    pub fn write_at(&self, file: &File, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
        self.fault.before(DiskOp::Write, path)?;
        file.write_all_at(bytes, at)
    }

    /// Overwrites `len` bytes from `at` with zeros.
    pub fn zero(&self, file: &File, path: &Path, at: u64, len: u64) -> io::Result<()> {
        self.fault.before(DiskOp::Write, path)?;
        write_zeros(file, at, len)
    }

    /// Makes what was written to a file last.
    pub fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        self.fault.before(DiskOp::Sync, path)?;
        file.sync_data()
    }

    /// Makes names in `dir` last: created, renamed or removed ones.
    pub fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fault.before(DiskOp::Sync, dir)?;
        File::open(dir)?.sync_all()
    }

    /// Puts `bytes` into the file at `path`, in place of what it held. After a crash at any moment
    /// the file holds either the old bytes or the new ones; on return the new ones are on disk.
    #[expect(clippy::disallowed_methods, reason = "this is the place that syncs around a rename")]
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let dir = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = path.with_added_extension("new");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        self.write_at(&file, &temporary, bytes, 0)?;
        self.sync(&file, &temporary)?;
        self.fault.before(DiskOp::Rename, path)?;
        std::fs::rename(&temporary, path)?;
        self.sync_dir(dir)
    }

    /// Removes a file; one that is gone already is no error.
    pub fn unlink(&self, path: &Path) -> io::Result<()> {
        self.fault.before(DiskOp::Unlink, path)?;
        match std::fs::remove_file(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

fn write_zeros(file: &File, at: u64, len: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let end = at + len;
    let mut at = at;
    while at < end {
        let piece = usize::try_from(end - at).unwrap_or(usize::MAX).min(ZEROS.len());
        file.write_all_at(&ZEROS[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace_leaves_the_new_bytes_and_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.idx");
        let disk = Disk::default();
        disk.replace(&path, b"old and long").unwrap();
        disk.replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        disk.unlink(&path).unwrap();
        disk.unlink(&path).unwrap();
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.json");
        let disk = Disk::default();
        disk.replace(&path, b"first").unwrap();
        std::fs::create_dir(dir.path().join("table.json.new")).unwrap();
        assert!(disk.replace(&path, b"second").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn allocated_files_are_zero_and_have_their_blocks() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let file = disk.allocate(&dir.path().join("s"), 1 << 20).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), 1 << 20);
        assert!(meta.blocks() * 512 >= 1 << 20, "{} blocks", meta.blocks());
        let mut bytes = [1; 16];
        file.read_exact_at(&mut bytes, 1000).unwrap();
        assert_eq!(bytes, [0; 16]);
    }
}
