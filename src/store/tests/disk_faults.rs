//! A disk that fails, fills up or hangs.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use super::*;
use crate::disk::DiskOp;

/// Fails or blocks one kind of operation while switched on.
struct Switch {
    op: DiskOp,
    on: AtomicBool,
    error: Option<i32>,
    gate: (Mutex<bool>, Condvar),
    /// Told when the writer stands at the gate; nobody else is stopped there.
    blocked: Mutex<Option<std::sync::mpsc::Sender<()>>>,
}

impl Switch {
    fn failing(op: DiskOp, errno: i32) -> Arc<Self> {
        let gate = (Mutex::new(true), Condvar::new());
        let (on, blocked) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { op, on, error: Some(errno), gate, blocked })
    }

    fn blocking(op: DiskOp) -> Arc<Self> {
        let gate = (Mutex::new(false), Condvar::new());
        let (on, blocked) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { op, on, error: None, gate, blocked })
    }

    fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

impl Fault for Switch {
    fn before(&self, op: DiskOp, path: &Path) -> io::Result<()> {
        if op != self.op || !self.on.load(Ordering::SeqCst) || !path.ends_with_log() {
            return Ok(());
        }
        if let Some(errno) = self.error {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if std::thread::current().name() != Some("store-writer") {
            return Ok(());
        }
        if let Some(blocked) = self.blocked.lock().unwrap().take() {
            blocked.send(()).unwrap();
        }
        let mut open = self.gate.0.lock().unwrap();
        while !*open {
            open = self.gate.1.wait(open).unwrap();
        }
        Ok(())
    }
}

trait EndsWithLog {
    fn ends_with_log(&self) -> bool;
}

impl EndsWithLog for Path {
    fn ends_with_log(&self) -> bool {
        self.extension().is_some_and(|extension| extension == "log")
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn poisoned_by(op: DiskOp) {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::failing(op, EIO);
    let mut options = options(dir.path());
    options.fault = switch.clone();
    let mut rig = Rig::open(options);
    let before = rig.hold(hold(NOW + 10, b"before")).unwrap();
    switch.set(true);
    let failed = rig.hold(hold(NOW + 10, b"failed"));
    assert!(matches!(failed, Err(HoldError::Poisoned(_))), "{failed:?}");
    switch.set(false);
    let after = rig.hold(hold(NOW + 10, b"after"));
    assert!(matches!(after, Err(HoldError::Poisoned(_))), "never retried: {after:?}");
    assert!(rig.store.poisoned().is_some());
    assert_eq!(rig.metrics.store_poisoned.get(), 1);
    assert_eq!(rig.store.pending(), 1);

    // What was accepted still goes out.
    rig.clock.set_wall(NOW + 10);
    let due = rig.due(1)[0];
    assert_eq!(due.lsn.0, before.0);
    assert_eq!(rig.read(vec![due])[0].1.as_ref().unwrap().hold.body, "before");
    rig.store.complete(due);
    rig.close();

    // After a restart the accepted message is there (again); the failed one may be.
    let mut rig = Rig::open(super::options(dir.path()));
    rig.clock.set_wall(NOW + 10);
    let count = rig.recovery.pending as usize;
    let bodies: Vec<_> = {
        let dues = rig.due(count);
        rig.read(dues).into_iter().map(|(_, held)| held.unwrap().hold.body).collect()
    };
    assert!(bodies.contains(&Bytes::from_static(b"before")), "{bodies:?}");
    assert!(!bodies.contains(&Bytes::from_static(b"after")), "{bodies:?}");
    rig.close();
}

#[test]
fn a_failed_sync_poisons() {
    poisoned_by(DiskOp::Sync);
}

#[test]
fn a_failed_write_poisons() {
    poisoned_by(DiskOp::Write);
}

#[test]
fn a_full_disk_refuses_and_recovers_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::failing(DiskOp::Allocate, ENOSPC);
    let mut options = options(dir.path());
    options.fault = switch.clone();
    let mut rig = Rig::open(options);
    switch.set(true);
    let mut accepted = 0;
    let refusal = loop {
        match rig.hold(hold(NOW + 10, &[1; 2000])) {
            Ok(_) => accepted += 1,
            Err(err) => break err,
        }
    };
    assert!(matches!(refusal, HoldError::NoSpace(_)), "{refusal:?}");
    assert_eq!(rig.store.poisoned(), None);
    switch.set(false);
    // One more refusal may use up the answer of the try made while the disk was full.
    if rig.hold(hold(NOW + 10, &[1; 2000])).is_err() {
        rig.hold(hold(NOW + 10, &[1; 2000])).unwrap();
    }
    rig.clock.set_wall(NOW + 10);
    for due in rig.due(accepted + 1) {
        rig.store.complete(due);
    }
    rig.close();
    let rig = Rig::open(super::options(dir.path()));
    assert_eq!(rig.recovery.pending, 0);
    rig.close();
}

#[test]
fn a_hung_sync_is_answered_in_time_and_may_still_deliver() {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::blocking(DiskOp::Sync);
    let mut options = options(dir.path());
    options.fault = switch.clone();
    options.stall = Duration::from_millis(30);
    let mut rig = Rig::open(options);
    let (at_the_gate, blocked) = std::sync::mpsc::channel();
    *switch.blocked.lock().unwrap() = Some(at_the_gate);
    switch.set(true);
    let (told, outcome) = std::sync::mpsc::channel();
    let send = |body: &[u8]| {
        let told = told.clone();
        let receipt = move |outcome| told.send(outcome).unwrap();
        rig.store.hold(hold(NOW, body), Box::new(receipt));
    };
    send(b"with the disk");
    blocked.recv().unwrap();
    rig.clock.advance(Duration::from_millis(30));
    assert_eq!(outcome.recv().unwrap(), Err(HoldError::Stalled(30)));
    send(b"waiting behind it");
    rig.clock.advance(Duration::from_millis(30));
    assert_eq!(outcome.recv().unwrap(), Err(HoldError::Stalled(30)));
    switch.set(false);
    switch.open_gate();
    // The one the disk had comes; the one behind it was dropped.
    let due = rig.due(1);
    let read = rig.read(due);
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].1.as_ref().unwrap().hold.body, "with the disk");
    assert_eq!(rig.store.pending(), 1);
    assert_eq!(rig.metrics.store_accepted.get(), 0);
    rig.close();
}

#[test]
fn damaged_bytes_are_an_error_and_cost_no_neighbour() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(options(dir.path()));
    let ids: Vec<_> = (0..3).map(|i| rig.hold(hold(NOW + i, b"x")).unwrap()).collect();
    rig.clock.set_wall(NOW + 10);
    let dues = rig.due(3);
    let path = segment::log_path(&segment::dir_of(dir.path()), segment::SegmentSeq(0));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"#", ids[1].0 + 80).unwrap();
    let read = rig.read(dues);
    assert!(read[0].1.is_ok() && read[2].1.is_ok());
    match &read[1].1 {
        Err(ReadError::Damaged { file, offset, .. }) => {
            assert_eq!((file, *offset), (&path, ids[1].0));
        }
        other => panic!("{other:?}"),
    }
    rig.close();

    let rig = Rig::open(options(dir.path()));
    assert_eq!((rig.recovery.pending, rig.recovery.damaged), (2, 1));
    assert_eq!(rig.metrics.store_damaged.get(), 1);
    rig.close();
}
