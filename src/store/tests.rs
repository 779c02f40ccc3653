//! The whole store against real files: what is promised at an answer, what survives, what is freed.

mod crash;
mod disk_faults;

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::clock::ManualClock;

/// A time in the middle of nowhere.
const NOW: EpochMs = 1_700_000_000_000;

fn hold(due_ms: EpochMs, body: &[u8]) -> Hold {
    Hold {
        due_ms,
        accepted_ms: NOW,
        lane: LaneKey { broker: "broker-a".into(), topic: Bytes::from_static(b"T"), queue: 2 },
        unique_key: Bytes::from_static(b"7F00000100010000000000000000ABCD"),
        keys: Bytes::from_static(b"order-1 order-2"),
        client: "127.0.0.1:4711".into(),
        header: Bytes::from_static(b"\x00\x0A\x01\x02header"),
        body: Bytes::copy_from_slice(body),
    }
}

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir.to_path_buf(), Flush::Sync, 1 << 20);
    options.segment_bytes = 16 << 10;
    options
}

/// An open store and what it handed over.
struct Rig {
    store: Store,
    due: UnboundedReceiver<Vec<Due>>,
    clock: ManualClock,
    metrics: Metrics,
    recovery: Recovery,
}

impl Rig {
    fn open(options: Options) -> Self {
        let (clock, metrics) = (ManualClock::new(NOW), Metrics::new());
        let opening = Store::open(options, Arc::new(clock.clone()), &metrics).unwrap();
        let recovery = opening.recovered.blocking_recv().unwrap().unwrap();
        Self { store: opening.store, due: opening.due, clock, metrics, recovery }
    }

    /// Holds and waits for the answer.
    fn hold(&self, hold: Hold) -> Result<TimerId, HoldError> {
        let (told, outcome) = std::sync::mpsc::channel();
        self.store.hold(hold, Box::new(move |outcome| told.send(outcome).unwrap()));
        outcome.recv().unwrap()
    }

    /// Waits until `count` messages have fallen due.
    fn due(&mut self, count: usize) -> Vec<Due> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.due.blocking_recv().unwrap());
        }
        all
    }

    fn read(&self, dues: Vec<Due>) -> Vec<(Due, Result<Held, ReadError>)> {
        block_on(self.store.read(dues))
    }

    fn close(self) {
        block_on(self.store.close());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn files(dir: &Path, suffix: &str) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(segment::dir_of(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(suffix))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_message_comes_back_at_its_time_as_it_was_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(options(dir.path()));
    let wanted = hold(NOW + 5_000, b"hello");
    let id = rig.hold(wanted.clone()).unwrap();
    assert_eq!(rig.store.pending(), 1);
    rig.clock.set_wall(NOW + 4_999);
    assert!(rig.due.try_recv().is_err());
    rig.clock.set_wall(NOW + 5_000);
    let due = rig.due(1)[0];
    assert_eq!((due.due_ms, due.lsn.0), (NOW + 5_000, id.0));
    assert_eq!(*rig.store.lane(due.lane).unwrap(), wanted.lane);
    let (_, held) = rig.read(vec![due]).remove(0);
    let held = held.unwrap();
    assert_eq!((held.id, held.hold), (id, wanted));
    rig.store.complete(due);
    rig.close();

    let rig = Rig::open(options(dir.path()));
    assert_eq!(rig.recovery.pending, 0);
    assert_eq!(rig.metrics.store_pending.get(), 0);
    rig.close();
}

#[test]
fn what_is_not_complete_survives_a_restart_with_its_id_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids = BTreeMap::new();
    let rig = Rig::open(options(dir.path()));
    for i in 0..100 {
        let due_ms = NOW + 60_000 - i * 7;
        ids.insert(rig.hold(hold(due_ms, &vec![i as u8; 400])).unwrap().0, due_ms);
    }
    rig.close();
    assert!(files(dir.path(), ".log").len() > 3, "several tiny segments");

    let mut rig = Rig::open(options(dir.path()));
    assert_eq!((rig.recovery.pending, rig.store.pending()), (100, 100));
    assert_eq!((rig.recovery.damaged, rig.recovery.torn_bytes), (0, 0));
    rig.clock.set_wall(NOW + 60_000);
    let dues = rig.due(100);
    assert!(dues.is_sorted(), "by due time, then acceptance");
    let found: BTreeMap<_, _> = dues.iter().map(|due| (due.lsn.0, due.due_ms)).collect();
    assert_eq!(found, ids);
    for (due, held) in rig.read(dues) {
        assert_eq!(held.unwrap().hold.due_ms, due.due_ms);
    }
    rig.close();
}

#[test]
fn finished_segments_go_from_the_oldest_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(options(dir.path()));
    let straggler = rig.hold(hold(NOW + 9_000_000, b"straggler")).unwrap();
    for _ in 0..100 {
        rig.hold(hold(NOW + 1, &[7; 1000])).unwrap();
    }
    rig.clock.set_wall(NOW + 1);
    for due in rig.due(100) {
        rig.store.complete(due);
    }
    rig.close();
    let kept = files(dir.path(), ".log");
    assert!(kept.contains(&"000000000000.log".to_owned()), "{kept:?}");
    assert!(kept.len() > 6, "all younger ones wait for the straggler: {kept:?}");

    let mut rig = Rig::open(options(dir.path()));
    assert_eq!(rig.recovery.pending, 1);
    rig.clock.set_wall(NOW + 9_000_000);
    let due = rig.due(1)[0];
    assert_eq!(due.lsn.0, straggler.0);
    rig.store.complete(due);
    rig.close();
    // The store has ended; its keeper finishes its chores right after.
    let rig = Rig::open(options(dir.path()));
    assert_eq!(rig.recovery.pending, 0);
    assert!(rig.recovery.segments <= 2, "{:?}", rig.recovery);
    rig.close();
}

#[test]
fn past_the_near_budget_holds_are_refused_until_some_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.near_memory = 3 * NEAR_BYTES;
    let mut rig = Rig::open(options);
    for _ in 0..3 {
        rig.hold(hold(NOW + 1, b"")).unwrap();
    }
    let refused = rig.hold(hold(NOW + 1, b""));
    assert_eq!(refused, Err(HoldError::Full { pending: 3, limit: 3 }));
    rig.clock.set_wall(NOW + 1);
    for due in rig.due(3) {
        rig.store.complete(due);
    }
    while rig.store.pending() > 0 {
        std::thread::yield_now();
        // Completions go out 5 ms after the first, by the test's clock.
        rig.clock.advance(Duration::from_millis(5));
    }
    rig.hold(hold(NOW + 1, b"")).unwrap();
    rig.close();
}

#[test]
fn a_record_that_no_segment_could_take_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    let err = rig.hold(hold(NOW + 1, &[0; 16 << 10])).unwrap_err();
    assert!(matches!(err, HoldError::TooLarge { len, limit } if len > limit), "{err:?}");
    assert_eq!(rig.store.pending(), 0);
    rig.hold(hold(NOW + 1, &[0; 15 << 10])).unwrap();
    rig.hold(hold(NOW + 1, &[0; 15 << 10])).unwrap();
    rig.close();
}

#[test]
fn holds_are_refused_after_close() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    let store = rig.store.clone();
    rig.close();
    let (told, outcome) = std::sync::mpsc::channel();
    store.hold(hold(NOW, b""), Box::new(move |outcome| told.send(outcome).unwrap()));
    assert_eq!(outcome.recv().unwrap(), Err(HoldError::Closed));
}

#[test]
fn a_directory_in_use_or_of_a_newer_release_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(options(dir.path()));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(NOW));
    let second = Store::open(options(dir.path()), Arc::clone(&clock), &Metrics::new());
    assert!(matches!(second.map(|_| ()), Err(OpenError::Locked(_))));
    rig.close();
}
