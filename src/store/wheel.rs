//! The near level: pending messages by second, sorted just before their second opens. Pure: time is
//! an argument, so tests run years in no time.
//!
//! A second is a plain list of 32-byte entries. Only the seconds that are about to open are sorted
//! by (due, LSN), so that an insert costs an append whatever the delay, and messages leave to the
//! millisecond and in order of acceptance. Empty seconds cost nothing: the next one is looked up,
//! never walked to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::Due;
use crate::clock::EpochMs;

/// Width of a slot.
const SLOT_MS: i64 = 1_000;
/// How long before its start a slot is sorted: sorting a million entries must not make them late.
const OPEN_AHEAD_MS: i64 = 200;

/// Pending messages by due time.
#[derive(Debug, Default)]
pub(super) struct Wheel {
    /// Slots not opened yet, by due time divided by [`SLOT_MS`].
    slots: BTreeMap<i64, Vec<Due>>,
    /// Slots below this number have been opened.
    opened_to: i64,
    /// What opened slots hold, latest first: the next one is taken off the end.
    open: Vec<Due>,
    /// What was inserted into slots already open.
    late: BinaryHeap<Reverse<Due>>,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self { opened_to: i64::MIN, ..Self::default() }
    }

    /// Adds a message; one whose time has passed leaves with the next [`Wheel::advance`].
    pub(super) fn insert(&mut self, due: Due) {
        let slot = due.due_ms.div_euclid(SLOT_MS);
        if slot < self.opened_to {
            self.late.push(Reverse(due));
        } else {
            self.slots.entry(slot).or_default().push(due);
        }
    }

    /// Appends to `out`, in order of (due, LSN), what is due at `now_ms`.
    pub(super) fn advance(&mut self, now_ms: EpochMs, out: &mut Vec<Due>) {
        self.open_slots(now_ms.saturating_add(OPEN_AHEAD_MS).div_euclid(SLOT_MS));
        while let Some(next) = self.first().filter(|next| next.due_ms <= now_ms) {
            out.push(next);
            if self.late.peek() == Some(&Reverse(next)) {
                self.late.pop();
            } else {
                self.open.pop();
            }
        }
    }

    /// When [`Wheel::advance`] has something to do next: a message falls due, or a slot is to be
    /// sorted.
    pub(super) fn next_deadline(&self) -> Option<EpochMs> {
        let open = self.first().map(|due| due.due_ms);
        let slot = self
            .slots
            .first_key_value()
            .map(|(slot, _)| slot.saturating_mul(SLOT_MS).saturating_sub(OPEN_AHEAD_MS));
        open.into_iter().chain(slot).min()
    }

    /// The next message among the opened slots.
    fn first(&self) -> Option<Due> {
        let late = self.late.peek().map(|Reverse(due)| *due);
        self.open.last().copied().into_iter().chain(late).min()
    }

    /// Opens every slot up to `last`.
    fn open_slots(&mut self, last: i64) {
        if last < self.opened_to {
            return;
        }
        let unopened = self.slots.split_off(&last.saturating_add(1));
        let opening = std::mem::replace(&mut self.slots, unopened);
        self.opened_to = last.saturating_add(1);
        if !opening.is_empty() {
            self.open.extend(opening.into_values().flatten());
            self.open.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::{LaneId, Lsn};
    use super::*;

    fn due(due_ms: i64, lsn: u64) -> Due {
        Due { due_ms, lsn: Lsn(lsn), len: 8, lane: LaneId(0) }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(i64),
        /// Moves the clock, back too.
        Clock(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let near = prop_oneof![-3_000i64..3_000, 990i64..1_010, 0i64..400_000_000_000];
        let step = prop_oneof![
            3 => near.clone().prop_map(Step::Insert),
            1 => near.prop_map(Step::Clock),
            1 => (-5_000i64..5_000).prop_map(Step::Clock),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against a plain ordered set: the same messages, at the same moment, in the same order.
        #[test]
        fn behaves_like_an_ordered_set(steps in steps(), start in -5_000i64..2_000_000_000_000) {
            let mut wheel = Wheel::new();
            let mut model = BTreeSet::new();
            let mut now = start;
            for (lsn, step) in (1..).zip(steps) {
                match step {
                    Step::Insert(delay) => {
                        wheel.insert(due(now + delay, lsn));
                        model.insert(due(now + delay, lsn));
                    }
                    Step::Clock(by) => now += by,
                }
                let mut out = Vec::new();
                wheel.advance(now, &mut out);
                let mut want = Vec::new();
                while let Some(first) = model.first().copied().filter(|first| first.due_ms <= now) {
                    want.push(first);
                    model.pop_first();
                }
                prop_assert_eq!(out, want);
                match (wheel.next_deadline(), model.first()) {
                    (None, None) => {}
                    // May wake early to sort, never late, never in the past without reason.
                    (Some(deadline), Some(first)) => {
                        prop_assert!(deadline <= first.due_ms);
                        prop_assert!(deadline > now, "{} at {}", deadline, now);
                    }
                    (deadline, first) => prop_assert!(false, "{:?} {:?}", deadline, first),
                }
            }
        }
    }

    #[test]
    fn extreme_times_neither_overflow_nor_leave_early() {
        let mut wheel = Wheel::new();
        for (lsn, at) in [(1, i64::MAX), (2, i64::MIN), (3, 0)] {
            wheel.insert(due(at, lsn));
        }
        let mut out = Vec::new();
        wheel.advance(-1, &mut out);
        assert_eq!(out, [due(i64::MIN, 2)]);
        wheel.advance(i64::MAX - 1, &mut out);
        assert_eq!(out.last(), Some(&due(0, 3)));
        wheel.advance(i64::MAX, &mut out);
        assert_eq!(out.last(), Some(&due(i64::MAX, 1)));
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn boundaries_of_a_slot_are_kept_to_the_millisecond() {
        for at in [999, 1_000, 1_001, 1_999, 2_000] {
            let mut wheel = Wheel::new();
            wheel.insert(due(at, 1));
            let mut out = Vec::new();
            for now in 0..at {
                wheel.advance(now, &mut out);
                assert!(out.is_empty(), "due {at} left at {now}");
            }
            wheel.advance(at, &mut out);
            assert_eq!(out.len(), 1);
        }
    }
}
