//! One lane: the due messages of one queue of one topic on one broker, and when each may be tried.
//!
//! A state machine without I/O or clock: times are arguments, `now` monotonic, `wall` the wall
//! clock. A message is always in exactly one place: waiting, under way (a [`Try`] that must be
//! given back), slow (refused), or parked. Driven by [`super::dispatcher`] alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::EpochMs;
use crate::store::Due;

/// Longest time between two looks at a wall clock that was set back.
const CLOCK_CHECK: Duration = Duration::from_millis(500);

/// The numbers by which lanes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// Messages under way at first, and at most.
    pub window: (usize, usize),
    /// Wait after a failure of the lane: first, and at most. Doubled from failure to failure.
    pub pause: (Duration, Duration),
    /// Wait after a refusal of a message: first, and at most. Doubled from refusal to refusal.
    pub slow: (Duration, Duration),
    /// How long a refused message is tried before it is parked.
    pub park_after: Duration,
}

impl Pace {
    /// The usual numbers.
    pub fn new(park_after: Duration) -> Self {
        Self {
            window: (64, 256),
            pause: (Duration::from_millis(10), Duration::from_secs(30)),
            slow: (Duration::from_secs(1), Duration::from_secs(60)),
            park_after,
        }
    }
}

/// A message under way. Not `Clone`: it goes back to its lane by exactly one of the methods that
/// take it, so that it is neither lost nor sent twice at once.
#[derive(Debug)]
#[must_use = "a try that is not given back is a lost message"]
pub struct Try {
    /// The message.
    pub due: Due,
    era: u32,
    refusals: Option<Refusals>,
}

/// What is remembered of a refused message.
#[derive(Debug, Clone, Copy)]
struct Refusals {
    first: Duration,
    count: u32,
}

/// Why a message is tried no more, until [`Lane::redrive`] or a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// A broker refused it for [`Pace::park_after`], last with this code.
    Refused(i32),
    /// A broker has hung up on it, and on nothing else, for [`Pace::park_after`].
    HungUp,
    /// It cannot be read back from disk.
    Unreadable,
}

/// See the module.
#[derive(Debug)]
pub struct Lane {
    /// By (due, LSN).
    waiting: VecDeque<Due>,
    /// By the time of the next try.
    slow: BTreeMap<(Duration, Due), Refusals>,
    parked: Vec<(Due, Parked)>,
    under_way: usize,
    slow_under_way: usize,
    window: usize,
    pause: Option<Pause>,
    /// Counts pauses. The failures of tries that started before the last pause belong to the event
    /// that caused it: they neither double the wait nor halve the window again.
    era: u32,
    /// Of `under_way`, those started in this era.
    of_this_era: usize,
}

/// The lane failed: nothing starts before `until`, then one message goes ahead of the others.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Duration,
    wait: Duration,
}

impl Lane {
    /// An empty lane.
    pub fn new(pace: &Pace) -> Self {
        Self {
            waiting: VecDeque::new(),
            slow: BTreeMap::new(),
            parked: Vec::new(),
            under_way: 0,
            slow_under_way: 0,
            window: pace.window.0,
            pause: None,
            era: 0,
            of_this_era: 0,
        }
    }

    // === In ===

    /// Takes a message that fell due.
    pub fn push(&mut self, due: Due) {
        // Nearly always at an end: the latest so far, or back after a try.
        if self.waiting.back().is_none_or(|last| *last < due) {
            self.waiting.push_back(due);
        } else {
            let at = self.waiting.partition_point(|other| *other < due);
            self.waiting.insert(at, due);
        }
    }

    // === Out ===

    /// The next message to try, if one may start now. Never one that is not due by `wall`.
    pub fn start(&mut self, now: Duration, wall: EpochMs) -> Option<Try> {
        if self.room(now) == 0 {
            return None;
        }
        let slow = self.slow.first_key_value();
        let slow = slow
            .filter(|((at, due), _)| self.slow_room() > 0 && *at <= now && due.due_ms <= wall)
            .map(|(key, refusals)| (*key, *refusals));
        let (due, refusals) = if let Some((key, refusals)) = slow {
            self.slow.remove(&key);
            self.slow_under_way += 1;
            (key.1, Some(refusals))
        } else {
            let first = self.waiting.front()?;
            if first.due_ms > wall {
                return None;
            }
            (self.waiting.pop_front()?, None)
        };
        self.under_way += 1;
        self.of_this_era += 1;
        Some(Try { due, era: self.era, refusals })
    }

    /// The monotonic time at which [`Lane::start`] may have more to give though nothing comes back;
    /// `None` when only an event can change that.
    pub fn wake(&self, now: Duration, wall: EpochMs) -> Option<Duration> {
        let start = match self.pause {
            Some(pause) if now < pause.until => pause.until,
            _ if self.room(now) == 0 => return None,
            _ => now,
        };
        let slow = self.slow.keys().next().filter(|_| self.slow_room() > 0);
        let slow = slow.map(|(at, due)| (*at).max(reached(due.due_ms, now, wall)));
        let waiting = self.waiting.front();
        let waiting = waiting.map(|due| reached(due.due_ms, now, wall));
        let first = slow.into_iter().chain(waiting).min()?;
        Some(first.max(start))
    }

    /// Messages that may start now, were they there.
    fn room(&self, now: Duration) -> usize {
        match self.pause {
            Some(pause) if now < pause.until => 0,
            Some(_) => 1usize.saturating_sub(self.of_this_era),
            None => self.window.saturating_sub(self.under_way),
        }
    }

    /// Refused messages take at most a quarter of the window, so that the others always pass.
    fn slow_room(&self) -> usize {
        (self.window / 4).max(1).saturating_sub(self.slow_under_way)
    }

    // === Back ===

    /// A broker has it.
    pub fn stored(&mut self, done: Try, pace: &Pace) {
        self.answered(&done);
        if self.pause.is_none() {
            self.window = (self.window + 1).min(pace.window.1);
        }
    }

    /// The lane failed: the message goes back to its place, and all wait. `jitter` is from 0 to 1.
    pub fn failed(&mut self, back: Try, busy: bool, now: Duration, pace: &Pace, jitter: f64) {
        let news = back.era == self.era;
        self.untried(back, now);
        if news {
            if busy {
                self.window = (self.window / 2).max(1);
            }
            self.stall(now, pace, jitter);
        }
    }

    /// The message goes back to its place, as if it had not been tried.
    pub fn untried(&mut self, back: Try, now: Duration) {
        self.returned(&back);
        match back.refusals {
            // It has waited for its turn before; only the lane's own state holds it up now.
            Some(refusals) => drop(self.slow.insert((now, back.due), refusals)),
            None => self.push(back.due),
        }
    }

    /// The broker refuses this message: it is tried again later, and parked when that has been
    /// going on for long, for `cause`. Answers whether it is parked now. The others of the lane go
    /// on.
    pub fn refused(&mut self, back: Try, cause: Parked, now: Duration, pace: &Pace) -> bool {
        self.answered(&back);
        let refusals = match back.refusals {
            Some(Refusals { first, count }) => Refusals { first, count: count.saturating_add(1) },
            None => Refusals { first: now, count: 1 },
        };
        if now.saturating_sub(refusals.first) >= pace.park_after {
            self.parked.push((back.due, cause));
            return true;
        }
        let doublings = refusals.count.saturating_sub(1).min(30);
        let wait = pace.slow.0.saturating_mul(1 << doublings).min(pace.slow.1);
        self.slow.insert((now.saturating_add(wait), back.due), refusals);
        false
    }

    /// The message cannot be read back: it is parked at once.
    pub fn unreadable(&mut self, back: Try) {
        self.returned(&back);
        self.parked.push((back.due, Parked::Unreadable));
    }

    /// A broker answered, whatever it said of the message: the lane is well.
    fn answered(&mut self, done: &Try) {
        if done.era == self.era {
            self.pause = None;
        }
        self.returned(done);
    }

    fn returned(&mut self, done: &Try) {
        self.under_way = self.under_way.saturating_sub(1);
        if done.era == self.era {
            self.of_this_era = self.of_this_era.saturating_sub(1);
        }
        if done.refusals.is_some() {
            self.slow_under_way = self.slow_under_way.saturating_sub(1);
        }
    }

    // === The lane as a whole ===

    /// Nothing starts for a while: twice as long as the last time, unless a broker has answered
    /// since.
    pub fn stall(&mut self, now: Duration, pace: &Pace, jitter: f64) {
        let wait = match self.pause {
            Some(last) => last.wait.saturating_mul(2).min(pace.pause.1),
            None => pace.pause.0,
        };
        let jittered = wait.mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0));
        self.pause = Some(Pause { until: now.saturating_add(jittered), wait });
        self.era = self.era.wrapping_add(1);
        self.of_this_era = 0;
    }

    /// Ends the wait of a pause: there is reason to believe that its cause is gone.
    pub fn hurry(&mut self, now: Duration) {
        if let Some(pause) = &mut self.pause {
            pause.until = pause.until.min(now);
        }
    }

    /// Parked messages are tried again, as if they had just fallen due. Answers how many.
    pub fn redrive(&mut self) -> usize {
        let parked = std::mem::take(&mut self.parked);
        for (due, _) in &parked {
            self.push(*due);
        }
        parked.len()
    }

    /// What is parked, and why.
    pub fn parked(&self) -> &[(Due, Parked)] {
        &self.parked
    }

    /// Refused messages, waiting or under way.
    pub fn refused_now(&self) -> usize {
        self.slow.len() + self.slow_under_way
    }

    /// Whether a pause is on.
    pub fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Messages in the lane, wherever they are.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.slow.len() + self.parked.len() + self.under_way
    }

    /// Whether the lane can be forgotten.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// When to look whether the wall clock has reached `due_ms`. It was reached before, or the message
/// would not be here, so the clock was set back, and may be set again without a notice.
fn reached(due_ms: EpochMs, now: Duration, wall: EpochMs) -> Duration {
    let left = u64::try_from(due_ms.saturating_sub(wall)).unwrap_or(0);
    now.saturating_add(Duration::from_millis(left).min(CLOCK_CHECK))
}

#[cfg(test)]
mod tests;
