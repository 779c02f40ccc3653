//! The wheel's thread: sleeps until the next message falls due, hands over what is due, and takes
//! new messages in between. Wakes within 0.2 ms of a due time, and never before it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use super::Due;
use super::wheel::Wheel;
use crate::clock::{Alarm, Clock, EpochMs};

/// The inserting threads' end.
pub(super) struct Timer {
    inbox: Mutex<Inbox>,
    alarm: Arc<dyn Alarm>,
    /// What [`Timer::overdue_since`] tells: the earliest due time not handed over, or `i64::MAX`.
    next_due: AtomicI64,
}

struct Inbox {
    arrived: Vec<Due>,
    /// Set while the thread sleeps: what is due before this must wake it.
    asleep_until: Option<EpochMs>,
    stopped: bool,
}

impl Timer {
    pub(super) fn new(alarm: Arc<dyn Alarm>) -> Self {
        let inbox = Inbox { arrived: Vec::new(), asleep_until: None, stopped: false };
        Self { inbox: Mutex::new(inbox), alarm, next_due: AtomicI64::new(i64::MAX) }
    }

    /// Adds messages; wakes the thread only if one of them is due before it wakes by itself.
    pub(super) fn insert(&self, mut dues: Vec<Due>) {
        let earliest = dues.iter().map(|due| due.due_ms).min();
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.arrived.append(&mut dues);
        let wake = matches!((earliest, inbox.asleep_until), (Some(e), Some(until)) if e < until);
        drop(inbox);
        if wake {
            self.alarm.ring();
        }
    }

    /// Ends the thread; what has not fallen due stays on disk.
    pub(super) fn stop(&self) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.alarm.ring();
    }

    /// The earliest due time that has not been handed over: long past only if the thread is stuck.
    pub(super) fn next_due(&self) -> Option<EpochMs> {
        Some(self.next_due.load(Ordering::Relaxed)).filter(|due| *due != i64::MAX)
    }

    /// The thread's loop; `due` receives what falls due, in order of (due, LSN).
    pub(super) fn run(&self, clock: &dyn Clock, due: &UnboundedSender<Vec<Due>>) {
        let mut wheel = Wheel::new();
        loop {
            while let Some(arrived) = self.take_arrived() {
                arrived.into_iter().for_each(|due| wheel.insert(due));
            }
            let mut out = Vec::new();
            wheel.advance(clock.wall_ms(), &mut out);
            if !out.is_empty() && due.send(out).is_err() {
                return;
            }
            let deadline = wheel.next_deadline();
            self.next_due.store(deadline.unwrap_or(i64::MAX), Ordering::Relaxed);
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if inbox.stopped {
                return;
            }
            if !inbox.arrived.is_empty() {
                continue;
            }
            inbox.asleep_until = Some(deadline.unwrap_or(i64::MAX));
            drop(inbox);
            self.alarm.wait(deadline);
            self.inbox.lock().unwrap_or_else(PoisonError::into_inner).asleep_until = None;
        }
    }

    fn take_arrived(&self) -> Option<Vec<Due>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        (!inbox.arrived.is_empty()).then(|| std::mem::take(&mut inbox.arrived))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{LaneId, Lsn};
    use super::*;
    use crate::clock::ManualClock;

    fn due(due_ms: i64, lsn: u64) -> Due {
        Due { due_ms, lsn: Lsn(lsn), len: 8, lane: LaneId(0) }
    }

    #[test]
    fn hands_over_at_the_millisecond_through_jumps_of_the_clock() {
        let clock = ManualClock::new(1_000_000);
        let timer = Arc::new(Timer::new(clock.alarm().unwrap()));
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let thread = {
            let (timer, clock) = (Arc::clone(&timer), clock.clone());
            std::thread::spawn(move || timer.run(&clock, &sender))
        };
        timer.insert(vec![due(1_000_500, 2), due(1_000_500, 1), due(900, 3)]);
        assert_eq!(receiver.blocking_recv().unwrap(), [due(900, 3)]);
        clock.advance(Duration::from_millis(499));
        // A clock that was set back, and one that is a year ahead.
        clock.set_wall(5);
        timer.insert(vec![due(6, 4)]);
        clock.set_wall(6);
        assert_eq!(receiver.blocking_recv().unwrap(), [due(6, 4)]);
        timer.insert(vec![due(31_000_000_000, 5)]);
        clock.set_wall(31_000_000_000);
        let mut last = Vec::new();
        while last.len() < 3 {
            last.extend(receiver.blocking_recv().unwrap());
        }
        assert_eq!(last, [due(1_000_500, 1), due(1_000_500, 2), due(31_000_000_000, 5)]);
        timer.stop();
        thread.join().unwrap();
        assert!(receiver.blocking_recv().is_none());
    }
}
