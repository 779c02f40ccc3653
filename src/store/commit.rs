//! The queue in front of the log: what waits for the next commit, and the patience of those who wait.
//!
//! Any thread pushes; the writer thread takes all that waits at once. A hold that has waited longer
//! than the stall limit is answered "not now", whether it is still queued (then it is dropped) or
//! already with the disk (then it may still be delivered).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::{Counts, Due, Hold, HoldError, Receipt, TimerId};
use crate::clock::Clock;

/// How long a COMPLETE may wait for a commit to go out with.
const COMPLETE_WITHIN: Duration = Duration::from_millis(5);

/// A message that waits for the commit, with the bytes of its record.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) hold: Hold,
    pub(super) len: u64,
}

/// Who waits for the outcome, and since when by the monotonic clock.
struct Answer {
    receipt: Receipt,
    since: Duration,
}

/// What one round of the writer has to do.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) holds: Vec<Waiting>,
    pub(super) completes: Vec<Due>,
    /// Nothing will come after this.
    pub(super) last: bool,
}

/// How long the first hold may wait for others to share its sync. Those who were answered together
/// send again one after the other: without this, the first would get a sync of its own each time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gather {
    /// Enough to go on at once.
    pub(super) holds: usize,
    /// And this long at most.
    pub(super) within: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Recovering,
    Open,
    Closing,
}

struct State {
    phase: Phase,
    /// A failed write or sync, for good.
    poisoned: Option<String>,
    holds: VecDeque<(Waiting, Answer)>,
    completes: Vec<Due>,
    first_complete: Duration,
    /// Answers of the holds the writer has taken, in order; `None` where patience ran out.
    in_flight: VecDeque<Option<Answer>>,
    /// The writer sleeps until so many holds wait: a condition variable makes a system call of every
    /// notice, so that one is given only to a sleeper, and only when it has what it waits for.
    writer_wants: Option<usize>,
    /// The watch has nothing to wait for and sleeps until it is called.
    watch_sleeps: bool,
}

impl State {
    /// Wakes the writer if it sleeps.
    fn call_writer(&mut self, bell: &Condvar) {
        if self.writer_wants.take().is_some() {
            bell.notify_one();
        }
    }
}

/// The queue. Shared by reference; all state is behind one mutex that is never held over a system
/// call of the disk.
pub(super) struct CommitQueue {
    state: Mutex<State>,
    work: Condvar,
    patience: Condvar,
    failed: watch::Sender<bool>,
    stall: Duration,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
}

impl CommitQueue {
    pub(super) fn new(clock: Arc<dyn Clock>, stall: Duration, counts: Arc<Counts>) -> Self {
        let state = State {
            phase: Phase::Recovering,
            poisoned: None,
            holds: VecDeque::new(),
            completes: Vec::new(),
            first_complete: Duration::ZERO,
            in_flight: VecDeque::new(),
            writer_wants: None,
            watch_sleeps: false,
        };
        let (work, patience) = (Condvar::new(), Condvar::new());
        let failed = watch::Sender::new(false);
        Self { state: Mutex::new(state), work, patience, failed, stall, clock, counts }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // === callers' side ===

    pub(super) fn push(&self, waiting: Waiting, receipt: Receipt) {
        let mut state = self.lock();
        let refusal = match (state.phase, &state.poisoned) {
            (_, Some(why)) => HoldError::Poisoned(why.clone()),
            (Phase::Open, None) => {
                let answer = Answer { receipt, since: self.clock.monotonic() };
                state.holds.push_back((waiting, answer));
                if std::mem::take(&mut state.watch_sleeps) {
                    self.patience.notify_one();
                }
                if state.writer_wants.is_some_and(|wanted| state.holds.len() >= wanted) {
                    state.call_writer(&self.work);
                }
                return;
            }
            (Phase::Recovering, None) => HoldError::Recovering,
            (Phase::Closing, None) => HoldError::Closed,
        };
        drop(state);
        self.counts.release(1);
        receipt(Err(refusal));
    }

    pub(super) fn complete(&self, due: Due) {
        let mut state = self.lock();
        if state.completes.is_empty() {
            state.first_complete = self.clock.monotonic();
            state.call_writer(&self.work);
        }
        state.completes.push(due);
    }

    /// Holds are accepted from now on.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Recovering {
            state.phase = Phase::Open;
        }
    }

    /// No new holds; the writer finishes what waits and ends.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closing;
        state.call_writer(&self.work);
        self.patience.notify_one();
    }

    /// Whether a failed write or sync has ended the acceptance of holds.
    pub(super) fn poisoned(&self) -> Option<String> {
        self.lock().poisoned.clone()
    }

    /// Becomes true when the disk fails.
    pub(super) fn failed(&self) -> watch::Receiver<bool> {
        self.failed.subscribe()
    }

    // === the writer's side ===

    /// Waits for work: until `gather` says that enough holds wait, 5 ms when only completions do,
    /// `idle_limit` when nothing does.
    pub(super) fn take(&self, idle_limit: Option<Duration>, gather: Gather) -> Work {
        let mut state = self.lock();
        let mut gathered = false;
        loop {
            let closing = state.phase == Phase::Closing;
            let completes_in = (!state.completes.is_empty()).then(|| {
                let waited = self.clock.monotonic().saturating_sub(state.first_complete);
                COMPLETE_WITHIN.saturating_sub(waited)
            });
            let enough = gathered || state.holds.len() >= gather.holds;
            let waiting = !state.holds.is_empty();
            if closing || (waiting && enough) || completes_in == Some(Duration::ZERO) {
                return take_all(&mut state, closing);
            }
            gathered = waiting;
            state.writer_wants = Some(if waiting { gather.holds } else { 1 });
            let gather_in = waiting.then_some(gather.within);
            let limit = completes_in.into_iter().chain(idle_limit).chain(gather_in).min();
            let Some(limit) = limit else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (guard, timeout) =
                self.work.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.writer_wants = None;
            if timeout.timed_out() {
                let closing = state.phase == Phase::Closing;
                return take_all(&mut state, closing);
            }
        }
    }

    /// Tells the next holds taken their outcomes, in order; returns how many were still waiting.
    pub(super) fn answer(&self, outcomes: Vec<Result<TimerId, HoldError>>) -> u64 {
        let answers: Vec<_> = self.lock().in_flight.drain(..outcomes.len()).collect();
        let mut told = 0;
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            if let Some(answer) = answer {
                (answer.receipt)(outcome);
                told += 1;
            }
        }
        told
    }

    /// The disk failed: nothing is accepted until a restart. Everybody who waits is told.
    pub(super) fn poison(&self, why: &str) {
        let mut state = self.lock();
        state.poisoned = Some(why.to_owned());
        self.failed.send_replace(true);
        let mut answers: Vec<_> = state.in_flight.drain(..).collect();
        answers.extend(state.holds.drain(..).map(|(_, answer)| Some(answer)));
        drop(state);
        self.counts.release(answers.len() as u64);
        for answer in answers.into_iter().flatten() {
            (answer.receipt)(Err(HoldError::Poisoned(why.to_owned())));
        }
    }

    // === the watch ===

    /// Answers holds whose wait has passed the stall limit; returns when the queue closes.
    pub(super) fn watch(&self) {
        let mut state = self.lock();
        while state.phase != Phase::Closing {
            let waiting = state.holds.front().map(|(_, answer)| answer.since);
            let in_flight = state.in_flight.iter().flatten().next().map(|answer| answer.since);
            let Some(oldest) = waiting.into_iter().chain(in_flight).min() else {
                state.watch_sleeps = true;
                state = self.patience.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = self.stall.saturating_sub(self.clock.monotonic().saturating_sub(oldest));
            if left.is_zero() {
                let impatient = self.take_impatient(&mut state);
                drop(state);
                let limit = u64::try_from(self.stall.as_millis()).unwrap_or(u64::MAX);
                for answer in impatient {
                    (answer.receipt)(Err(HoldError::Stalled(limit)));
                }
                state = self.lock();
                continue;
            }
            state =
                self.patience.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take_impatient(&self, state: &mut State) -> Vec<Answer> {
        let now = self.clock.monotonic();
        let expired = |answer: &Answer| now.saturating_sub(answer.since) >= self.stall;
        let mut impatient = Vec::new();
        for slot in &mut state.in_flight {
            impatient.extend(slot.take_if(|answer| expired(answer)));
        }
        while let Some((_, answer)) = state.holds.pop_front_if(|(_, answer)| expired(answer)) {
            self.counts.release(1);
            impatient.push(answer);
        }
        impatient
    }
}

fn take_all(state: &mut State, last: bool) -> Work {
    let mut work =
        Work { last, completes: std::mem::take(&mut state.completes), ..Work::default() };
    for (waiting, answer) in state.holds.drain(..) {
        work.holds.push(waiting);
        state.in_flight.push_back(Some(answer));
    }
    work
}
