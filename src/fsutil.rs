//! Small files that are replaced as a whole and survive a power cut.
//!
//! Called for the broker and port tables. Blocks: never on an async worker.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Puts `bytes` into the file at `path`, in place of what it held. After a crash at any moment the
/// file holds either the old bytes or the new ones; on return the new ones are on disk.
#[expect(
    clippy::disallowed_methods,
    reason = "the file is synced before and its directory after the rename"
)]
pub fn durable_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = directory.join(name);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_whole_file_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table.json");
        durable_write(&path, b"a longer first text").unwrap();
        durable_write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table.json");
        durable_write(&path, b"first").unwrap();
        fs::create_dir(directory.path().join("table.json.new")).unwrap();
        assert!(durable_write(&path, b"second").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }
}
