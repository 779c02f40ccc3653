//! Data directories that the process must not work on: one clear line, exit code 1, nothing touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::Signal;

use crate::rig::{Rig, settings};

/// Every file below a folder: its bytes and when it was written.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let written = path.metadata().unwrap().modified().unwrap();
                found.insert(path.clone(), (std::fs::read(&path).unwrap(), written));
            }
        }
    }
    found
}

/// Starts a proxy on a directory that it cannot have; the line that says why.
fn refused(data_dir: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings("127.0.0.1:1".to_owned(), dir.path());
    settings.data_dir = data_dir.to_path_buf();
    let output = settings.command().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "never ready");
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert_eq!(said.lines().last(), Some(lines[0]), "{said}");
    lines[0].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_use_is_refused_and_untouched() {
    let rig = Rig::start(1, &[]).await;
    let load = rig.load();
    load.stop().await;
    // Standing still, it holds the directory and changes nothing in it.
    rig.proxy.signal(Signal::STOP);
    let before = contents(rig.data_dir());
    let said = refused(rig.data_dir());
    let dir = rig.data_dir().display();
    assert_eq!(
        said,
        format!("error: {dir} is in use by another process: stop it, or name another --data-dir")
    );
    assert!(before == contents(rig.data_dir()), "something was touched");
    // The owner has not noticed.
    rig.proxy.signal(Signal::CONT);
    rig.settle().await;
    rig.ledger.verdict().assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_of_a_newer_release_is_refused_and_untouched() {
    let mut rig = Rig::start(2, &[]).await;
    rig.load().stop().await;
    rig.kill();
    let format = rig.data_dir().join("FORMAT");
    let newer = std::fs::read_to_string(&format).unwrap().replace(r#""format":1"#, r#""format":2"#);
    std::fs::write(&format, newer).unwrap();
    let before = contents(rig.data_dir());
    assert!(before.len() >= 4, "a log is there: {:?}", before.keys());
    let said = refused(rig.data_dir());
    assert_eq!(
        said,
        format!(
            "error: {} was written by a newer release (format 2, this one knows 1): start that \
             release",
            format.display()
        )
    );
    assert!(before == contents(rig.data_dir()), "something was touched");
}

#[test]
fn a_directory_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a-file");
    std::fs::write(&file, "mine").unwrap();
    for data_dir in [file.join("data"), file.clone()] {
        let said = refused(&data_dir);
        let start = format!("error: cannot create {}: ", data_dir.display());
        assert!(said.starts_with(&start), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}
