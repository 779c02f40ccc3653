use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::store::{LaneId, Lsn};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn pace() -> Pace {
    Pace::new(15 * 60 * S)
}

fn due(due_ms: EpochMs, lsn: u64) -> Due {
    Due { due_ms, lsn: Lsn(lsn), len: 100, lane: LaneId(1) }
}

fn lane_of(count: u64) -> Lane {
    let mut lane = Lane::new(&pace());
    for lsn in 0..count {
        lane.push(due(10, lsn));
    }
    lane
}

/// Everything that may start at `now`, with the wall clock far ahead.
fn start_all(lane: &mut Lane, now: Duration) -> Vec<Try> {
    std::iter::from_fn(|| lane.start(now, 1_000_000)).collect()
}

fn lsns(tries: &[Try]) -> Vec<u64> {
    tries.iter().map(|one| one.due.lsn.0).collect()
}

#[test]
fn messages_start_by_due_time_then_by_acceptance() {
    let mut lane = Lane::new(&pace());
    for (due_ms, lsn) in [(30, 1), (10, 9), (20, 5), (10, 3), (30, 0)] {
        lane.push(due(due_ms, lsn));
    }
    let mut started = start_all(&mut lane, S);
    assert_eq!(lsns(&started), [3, 9, 5, 0, 1]);
    // What was not tried goes back to its place.
    lane.untried(started.remove(3), S);
    lane.untried(started.remove(1), S);
    assert_eq!(lsns(&start_all(&mut lane, S)), [9, 0]);
}

#[test]
fn nothing_starts_before_its_time_on_the_wall_clock() {
    let mut lane = lane_of(0);
    lane.push(due(5_000, 1));
    lane.push(due(5_001, 2));
    assert!(lane.start(S, 4_999).is_none());
    assert_eq!(lane.wake(S, 4_999), Some(S + MS));
    assert_eq!(lane.wake(S, 0), Some(S + CLOCK_CHECK));
    let first = lane.start(S, 5_000).unwrap();
    assert!(lane.start(S, 5_000).is_none());
    // Refused in the meantime, and the clock set back: it waits for the clock too.
    assert!(!lane.refused(first, Parked::Refused(17), S, &pace()));
    assert!(lane.start(9 * S, 4_999).is_none());
    assert_eq!(lane.wake(9 * S, 4_999), Some(9 * S + MS));
    assert_eq!(lsns(&start_all(&mut lane, 9 * S)), [1, 2]);
}

#[test]
fn the_window_grows_on_success_and_halves_once_per_busy_spell() {
    let mut lane = lane_of(10_000);
    let started = start_all(&mut lane, S);
    assert_eq!(started.len(), 64);
    for one in started {
        lane.stored(one, &pace());
    }
    let started = start_all(&mut lane, S);
    assert_eq!(started.len(), 128);
    for one in started {
        lane.failed(one, true, S, &pace(), 1.0);
    }
    assert!(start_all(&mut lane, S + 9 * MS).is_empty());
    // One goes ahead; the others follow when it is through.
    let mut first = start_all(&mut lane, S + 10 * MS);
    assert_eq!(lsns(&first), [64]);
    lane.stored(first.remove(0), &pace());
    assert_eq!(start_all(&mut lane, S + 10 * MS).len(), 65);
    let mut lane = lane_of(100_000);
    for _ in 0..10 {
        for one in start_all(&mut lane, S) {
            lane.stored(one, &pace());
        }
    }
    assert_eq!(start_all(&mut lane, S).len(), 256);
}

#[test]
fn the_pause_doubles_to_its_limit_and_starts_anew_after_an_answer() {
    let mut lane = lane_of(3);
    let mut now = S;
    for wait_ms in
        [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_120, 10_240, 20_480, 30_000, 30_000]
    {
        let one = lane.start(now, 100).unwrap();
        lane.failed(one, false, now, &pace(), 1.0);
        let until = now + Duration::from_millis(wait_ms);
        assert_eq!(lane.wake(now, 100), Some(until));
        assert!(lane.start(until - MS, 100).is_none());
        now = until;
    }
    let one = lane.start(now, 100).unwrap();
    // Refusing a message is an answer: the broker is well.
    assert!(!lane.refused(one, Parked::Refused(13), now, &pace()));
    let one = lane.start(now, 100).unwrap();
    lane.failed(one, false, now, &pace(), 0.0);
    assert_eq!(lane.wake(now, 100), Some(now + Duration::from_micros(7_500)));
}

#[test]
fn a_success_from_before_the_pause_does_not_end_it() {
    let mut lane = lane_of(3);
    let mut started = start_all(&mut lane, S);
    lane.failed(started.remove(0), false, S, &pace(), 1.0);
    lane.stored(started.remove(0), &pace());
    assert!(start_all(&mut lane, S).is_empty());
    // Late in the pause: a failure of the same spell does not make it longer.
    lane.failed(started.remove(0), false, S + 9 * MS, &pace(), 1.0);
    assert_eq!(lane.wake(S + 9 * MS, 100), Some(S + 10 * MS));
    lane.hurry(S + 9 * MS);
    assert_eq!(lsns(&start_all(&mut lane, S + 9 * MS)), [0]);
}

#[test]
fn a_refused_message_waits_alone_and_is_parked_in_the_end() {
    let mut lane = lane_of(2);
    let bad = lane.start(S, 100).unwrap();
    let good = lane.start(S, 100).unwrap();
    assert!(!lane.refused(bad, Parked::Refused(17), S, &pace()));
    lane.stored(good, &pace());
    let (mut now, mut waits) = (S, Vec::new());
    loop {
        let next = lane.wake(now, 100).unwrap();
        waits.push((next - now).as_secs());
        now = next;
        lane.push(due(10, 1_000 + now.as_secs()));
        let bad = lane.start(now, 100).unwrap();
        assert_eq!(bad.due.lsn, Lsn(0));
        let good = lane.start(now, 100).unwrap();
        lane.stored(good, &pace());
        if lane.refused(bad, Parked::Refused(17), now, &pace()) {
            break;
        }
    }
    assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(now, S + Duration::from_secs(903));
    assert_eq!(lane.parked(), [(due(10, 0), Parked::Refused(17))]);
    assert_eq!((lane.wake(now, 100), lane.len()), (None, 1));
    assert!(!lane.is_empty());
    // Redriven, it has its time again.
    assert_eq!(lane.redrive(), 1);
    let again = lane.start(now, 100).unwrap();
    assert_eq!(again.due, due(10, 0));
    assert!(!lane.refused(again, Parked::Refused(17), now, &pace()));
}

#[test]
fn refused_messages_leave_room_for_the_others() {
    let mut lane = lane_of(64);
    for one in start_all(&mut lane, S) {
        assert!(!lane.refused(one, Parked::Refused(16), S, &pace()));
    }
    for lsn in 100..200 {
        lane.push(due(20, lsn));
    }
    let started = lsns(&start_all(&mut lane, 2 * S));
    assert_eq!(started, (0..16).chain(100..148).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_read_is_parked_at_once() {
    let mut lane = lane_of(2);
    let one = lane.start(S, 100).unwrap();
    lane.unreadable(one);
    assert_eq!(lane.parked(), [(due(10, 0), Parked::Unreadable)]);
    assert_eq!(lsns(&start_all(&mut lane, S)), [1]);
}

// === Against a model ===

#[derive(Debug, Clone)]
enum Step {
    Push(EpochMs),
    Start,
    Stored(usize),
    Failed(usize, bool),
    Untried(usize),
    Refused(usize),
    Unreadable(usize),
    Advance(u64),
    SetWall(EpochMs),
    Redrive,
    Hurry,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..1_000usize;
    prop_oneof![
        4 => (0..200i64).prop_map(Step::Push),
        8 => Just(Step::Start),
        4 => which.clone().prop_map(Step::Stored),
        2 => (which.clone(), any::<bool>()).prop_map(|(i, busy)| Step::Failed(i, busy)),
        1 => which.clone().prop_map(Step::Untried),
        2 => which.clone().prop_map(Step::Refused),
        1 => which.prop_map(Step::Unreadable),
        4 => (0..3_000u64).prop_map(Step::Advance),
        1 => (0..250i64).prop_map(Step::SetWall),
        1 => Just(Step::Redrive),
        1 => Just(Step::Hurry),
    ]
}

/// The lane under test, beside everything it was given and has not been rid of.
struct Model {
    lane: Lane,
    pace: Pace,
    now: Duration,
    wall: EpochMs,
    next_lsn: u64,
    /// Not under way and never refused since they came or were redriven.
    fresh: BTreeSet<Due>,
    slow: BTreeSet<Due>,
    parked: BTreeSet<Due>,
    tries: Vec<Try>,
    given: usize,
    done: usize,
}

impl Model {
    fn new() -> Self {
        let pace = Pace { window: (4, 8), park_after: 20 * S, ..pace() };
        Self {
            lane: Lane::new(&pace),
            pace,
            now: S,
            wall: 100,
            next_lsn: 0,
            fresh: BTreeSet::new(),
            slow: BTreeSet::new(),
            parked: BTreeSet::new(),
            tries: Vec::new(),
            given: 0,
            done: 0,
        }
    }

    fn start(&mut self) {
        let wake = self.lane.wake(self.now, self.wall);
        let Some(one) = self.lane.start(self.now, self.wall) else {
            // An idle lane says when to look again, and that is not "now".
            assert!(wake.is_none_or(|wake| wake > self.now), "{wake:?}");
            let idle = self.tries.is_empty() && !(self.fresh.is_empty() && self.slow.is_empty());
            assert!(!idle || wake.is_some(), "nobody would wake the lane");
            return;
        };
        assert!(wake.is_some_and(|wake| wake <= self.now), "{wake:?}");
        assert!(one.due.due_ms <= self.wall, "early");
        if one.refusals.is_some() {
            assert!(self.slow.remove(&one.due), "started twice");
        } else {
            // The first of all that wait, and so none twice.
            assert_eq!(self.fresh.pop_first(), Some(one.due));
        }
        self.tries.push(one);
        assert!(self.tries.len() <= self.pace.window.1);
    }

    fn back(&mut self, which: usize, step: &Step) {
        if self.tries.is_empty() {
            return;
        }
        let one = self.tries.swap_remove(which % self.tries.len());
        let (due, was_slow) = (one.due, one.refusals.is_some());
        match step {
            Step::Stored(_) => {
                self.lane.stored(one, &self.pace);
                self.done += 1;
                return;
            }
            Step::Refused(_) => {
                if self.lane.refused(one, Parked::Refused(17), self.now, &self.pace) {
                    self.parked.insert(due);
                } else {
                    self.slow.insert(due);
                }
                return;
            }
            Step::Unreadable(_) => {
                self.lane.unreadable(one);
                self.parked.insert(due);
                return;
            }
            Step::Failed(_, busy) => {
                self.lane.failed(one, *busy, self.now, &self.pace, 0.5);
            }
            _ => self.lane.untried(one, self.now),
        }
        let place = if was_slow { &mut self.slow } else { &mut self.fresh };
        place.insert(due);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Push(due_ms) => {
                let due = due(due_ms, self.next_lsn);
                self.next_lsn += 1;
                self.given += 1;
                self.lane.push(due);
                self.fresh.insert(due);
            }
            Step::Start => self.start(),
            Step::Stored(i)
            | Step::Failed(i, _)
            | Step::Untried(i)
            | Step::Refused(i)
            | Step::Unreadable(i) => self.back(i, step),
            Step::Advance(ms) => {
                self.now += Duration::from_millis(ms);
                self.wall += i64::try_from(ms).unwrap();
            }
            Step::SetWall(wall) => self.wall = wall,
            Step::Redrive => {
                assert_eq!(self.lane.redrive(), self.parked.len());
                self.fresh.append(&mut self.parked);
            }
            Step::Hurry => self.lane.hurry(self.now),
        }
    }

    fn check(&self) {
        let pending = self.fresh.len() + self.slow.len() + self.parked.len() + self.tries.len();
        assert_eq!(pending + self.done, self.given);
        assert_eq!(self.lane.len(), pending);
        let parked: BTreeSet<Due> = self.lane.parked().iter().map(|(due, _)| *due).collect();
        assert_eq!(parked, self.parked);
    }

    /// With everything well again, all of it gets out.
    fn finish(&mut self) {
        self.step(&Step::Redrive);
        for _ in 0..10_000 {
            while let Some(one) = self.lane.start(self.now, self.wall) {
                self.tries.push(one);
            }
            if self.tries.is_empty() {
                let Some(wake) = self.lane.wake(self.now, self.wall) else {
                    break;
                };
                self.wall += i64::try_from((wake - self.now).as_millis()).unwrap() + 1;
                self.now = wake;
            }
            for one in self.tries.drain(..) {
                self.lane.stored(one, &self.pace);
                self.done += 1;
            }
        }
        assert_eq!(self.done, self.given);
        assert!(self.lane.is_empty());
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_or_started_twice_or_out_of_order(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
            model.check();
        }
        model.finish();
    }
}
