//! Crashes: the directory as it stood at some moment, cut, and opened again; against a ledger.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Copies a store's files, as a crash of the machine's process would leave them.
fn snapshot(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("FORMAT"), copy.path().join("FORMAT")).unwrap();
    let (from, to) = (segment::dir_of(dir), segment::dir_of(copy.path()));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // A file may go between the listing and the copy.
        drop(std::fs::copy(entry.path(), to.join(entry.file_name())));
    }
    copy
}

/// Bodies of all messages that a store opened on `dir` still delivers.
fn delivered(dir: &Path) -> (Vec<Bytes>, Recovery) {
    let mut rig = Rig::open(options(dir));
    rig.clock.set_wall(NOW + 1_000_000);
    let count = rig.recovery.pending as usize;
    let dues = rig.due(count);
    let bodies = rig.read(dues).into_iter().map(|(_, held)| held.unwrap().hold.body).collect();
    let recovery = rig.recovery.clone();
    rig.close();
    (bodies, recovery)
}

#[derive(Debug, Clone)]
enum Step {
    Hold(u16),
    CompleteOldest,
    Reopen,
    /// As [`Step::Reopen`], on a copy made while the store runs.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u16..6000).prop_map(Step::Hold),
        6 => Just(Step::CompleteOldest),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the order of holds, completions, restarts and crashes: every accepted message that
    /// was not completed is there; none that was completed before an orderly stop comes back.
    #[test]
    fn the_ledger_and_the_store_agree(steps in steps()) {
        let mut dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::open(options(dir.path()));
        let mut pending = BTreeSet::new();
        let mut maybe = BTreeSet::new();
        let mut undone = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Hold(len) => {
                    let mut body = number.to_le_bytes().to_vec();
                    body.resize(8 + usize::from(len), 0xA5);
                    rig.hold(hold(NOW, &body)).unwrap();
                    pending.insert(number);
                    undone.extend(rig.due(1));
                }
                Step::CompleteOldest if !undone.is_empty() => {
                    let due = undone.remove(0);
                    let (_, held) = rig.read(vec![due]).remove(0);
                    let number = usize::from_le_bytes(*held.unwrap().hold.body.first_chunk().unwrap());
                    rig.store.complete(due);
                    pending.remove(&number);
                    maybe.insert(number);
                }
                Step::CompleteOldest => {}
                Step::Reopen | Step::Crash => {
                    if matches!(step, Step::Crash) {
                        let copy = snapshot(dir.path());
                        rig.close();
                        dir = copy;
                    } else {
                        rig.close();
                        maybe.clear();
                    }
                    rig = Rig::open(options(dir.path()));
                    let count = rig.recovery.pending as usize;
                    undone = rig.due(count);
                    let found: BTreeSet<_> = rig
                        .read(undone.clone())
                        .into_iter()
                        .map(|(_, held)| {
                            usize::from_le_bytes(*held.unwrap().hold.body.first_chunk().unwrap())
                        })
                        .collect();
                    prop_assert_eq!(found.len(), count, "each once");
                    prop_assert!(found.is_superset(&pending), "{:?} {:?}", found, pending);
                    let again = found.difference(&pending);
                    prop_assert!(again.clone().all(|number| maybe.contains(number)));
                    pending = found;
                    maybe.clear();
                }
            }
        }
        rig.close();
    }
}

#[test]
fn any_torn_end_is_cut_and_everything_before_it_kept() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    for i in 0..5u8 {
        rig.hold(hold(NOW, &[i; 50])).unwrap();
    }
    rig.close();
    let path = segment::log_path(&segment::dir_of(dir.path()), segment::SegmentSeq(0));
    let bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for cut in (end - 300..end).step_by(7) {
        let copy = snapshot(dir.path());
        let path = segment::log_path(&segment::dir_of(copy.path()), segment::SegmentSeq(0));
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![0; end - cut], cut as u64).unwrap();
        let (bodies, recovery) = delivered(copy.path());
        assert!((3..5).contains(&bodies.len()), "cut at {cut}: {}", bodies.len());
        assert_eq!(recovery.damaged, 0);
        // What was cut is gone for good, and the log goes on over it.
        let rig = Rig::open(options(copy.path()));
        assert_eq!(rig.recovery.torn_bytes, 0);
        rig.hold(hold(NOW, b"next")).unwrap();
        rig.close();
        let (after, _) = delivered(copy.path());
        assert_eq!(after.len(), bodies.len() + 1);
    }
}

#[test]
fn what_a_crash_left_half_made_is_no_damage_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    for i in 0..30u8 {
        rig.hold(hold(NOW, &[i; 900])).unwrap();
    }
    rig.close();
    let log_dir = segment::dir_of(dir.path());
    let spare = files(dir.path(), ".log").pop().unwrap();
    let indexes = files(dir.path(), ".idx");
    // Killed while the spare was made, and while a segment was sealed.
    for len in [0, 63, 64, 4096] {
        std::fs::write(log_dir.join(&spare), vec![0; len]).unwrap();
        std::fs::write(log_dir.join("000000000001.idx.new"), b"half an ind").unwrap();
        let (bodies, recovery) = delivered(dir.path());
        assert_eq!((bodies.len(), recovery.damaged, recovery.torn_bytes), (30, 0, 0), "{len}");
        assert_eq!(files(dir.path(), ".idx"), indexes);
        assert!(files(dir.path(), ".new").is_empty());
    }
}

#[test]
fn finished_segments_go_at_a_start_though_nothing_is_written_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(options(dir.path()));
    for _ in 0..60 {
        rig.hold(hold(NOW, &[7; 900])).unwrap();
    }
    let before = snapshot(dir.path());
    for due in rig.due(60) {
        rig.store.complete(due);
    }
    rig.close();
    // As if it had been killed after the completions, and before the segments went.
    for suffix in [".log", ".idx"] {
        let there = files(dir.path(), suffix);
        for name in files(before.path(), suffix).iter().filter(|name| !there.contains(name)) {
            let log_dir = segment::dir_of(before.path());
            std::fs::copy(log_dir.join(name), segment::dir_of(dir.path()).join(name)).unwrap();
        }
    }
    assert!(files(dir.path(), ".log").len() > 3, "{:?}", files(dir.path(), ".log"));
    let rig = Rig::open(options(dir.path()));
    assert_eq!((rig.recovery.pending, rig.recovery.damaged), (0, 0));
    rig.close();
    assert_eq!(files(dir.path(), ".log").len(), 2, "the open one and the spare");
    assert_eq!(files(dir.path(), ".idx"), [""; 0]);
}

#[test]
fn a_missing_or_damaged_index_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    for i in 0..60u8 {
        rig.hold(hold(NOW, &[i; 900])).unwrap();
    }
    rig.close();
    let wanted = delivered(&snapshot(dir.path()).keep()).0;
    assert_eq!(wanted.len(), 60);
    let log_dir = segment::dir_of(dir.path());
    let indexes = files(dir.path(), ".idx");
    assert!(indexes.len() >= 3, "{indexes:?}");
    std::fs::remove_file(log_dir.join(&indexes[0])).unwrap();
    std::fs::write(log_dir.join(&indexes[1]), b"nonsense").unwrap();
    let (bodies, recovery) = delivered(dir.path());
    assert_eq!(bodies, wanted);
    assert_eq!(recovery.damaged, 0);
    assert_eq!(files(dir.path(), ".idx"), indexes);
}

#[test]
fn a_segment_of_another_store_or_place_is_reported_not_believed() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        let rig = Rig::open(options(dir.path()));
        for _ in 0..60 {
            rig.hold(hold(NOW, &[1; 900])).unwrap();
        }
        rig.close();
    }
    let (log, other) = (segment::dir_of(ours.path()), segment::dir_of(theirs.path()));
    for name in ["000000000001.log", "000000000001.idx"] {
        std::fs::copy(other.join(name), log.join(name)).unwrap();
    }
    let (bodies, recovery) = delivered(ours.path());
    assert!(recovery.damaged > 0);
    assert!((40..50).contains(&bodies.len()), "{}", bodies.len());
}

#[test]
fn a_lost_or_shortened_segment_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    for _ in 0..60 {
        rig.hold(hold(NOW, &[1; 900])).unwrap();
    }
    rig.close();
    let logs = files(dir.path(), ".log");
    let (oldest, middle, open) = (&logs[0], &logs[1], &logs[logs.len() - 2]);
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    let shorten = |path: &Path| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(3000).unwrap();
    };
    type Harm<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Harm<'_>); 6] = [
        (oldest, &remove),
        (middle, &remove),
        (open, &remove),
        (oldest, &shorten),
        (middle, &shorten),
        (open, &shorten),
    ];
    for (i, (name, harm)) in cases.into_iter().enumerate() {
        let copy = snapshot(dir.path());
        harm(&segment::dir_of(copy.path()).join(name));
        let mut rig = Rig::open(options(copy.path()));
        // An open one that was shortened has lost a part of a record as well.
        assert!((1..=2).contains(&rig.recovery.damaged), "case {i}: {name}");
        // The log goes on, and what is left of it is delivered.
        rig.hold(hold(NOW, b"next")).unwrap();
        rig.clock.set_wall(NOW + 1_000_000);
        let dues = rig.due(rig.store.pending() as usize);
        let read = rig.read(dues);
        let readable = read.iter().filter(|(_, held)| held.is_ok()).count();
        assert!((44..61).contains(&readable), "case {i}: {readable}");
        assert_eq!(
            rig.metrics.store_damaged.get() as usize,
            rig.recovery.damaged as usize + read.len() - readable,
            "case {i}: what cannot be read is counted"
        );
        rig.close();
    }
}
