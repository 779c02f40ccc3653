//! The writer thread: group commit. Takes all that waits, writes it, syncs once, answers everybody,
//! and only then lets the wheel have the messages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::commit::{CommitQueue, Gather, Waiting, Work};
use super::lanes::Lanes;
use super::record::{COMPLETE_MAX, HEADER_LEN};
use super::timer::Timer;
use super::timerlog::{Timerlog, is_full, record_len};
use super::{Counts, Due, HoldError, Lsn, TimerId};
use crate::clock::Clock;
use crate::config::Flush;
use crate::metrics::Metrics;

/// Bytes written at once: more would only make the first in the batch wait for the last.
const BATCH_BYTES: usize = 4 << 20;
/// An idle log is synced this long after its last write.
const IDLE_SYNC: Duration = Duration::from_secs(1);
/// `--flush async`: how long an acknowledged message may be unsynced.
const ASYNC_SYNC: Duration = Duration::from_millis(500);

/// Longest wait of a hold for others to share its sync.
const GATHER: Duration = Duration::from_millis(1);

/// Everything the writer thread owns.
pub(super) struct Writer {
    pub(super) queue: Arc<CommitQueue>,
    pub(super) log: Timerlog,
    pub(super) timer: Arc<Timer>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) counts: Arc<Counts>,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) flush: Flush,
    /// Monotonic time of the oldest write that is not synced.
    pub(super) dirty_since: Option<Duration>,
    /// Completions that found no room on a full disk.
    pub(super) backlog: Vec<Due>,
    /// Holds of the last commit.
    pub(super) last_batch: usize,
    /// How long the last sync took.
    pub(super) last_sync: Duration,
    /// Holds refused since the disk became full.
    pub(super) refused_full: u64,
}

/// A hold whose record is in the batch.
struct Placed {
    waiting: Waiting,
    lsn: Lsn,
}

impl Writer {
    /// Runs until the queue closes; the log is synced when it returns.
    pub(super) fn run(mut self) {
        // What recovery found may still be the kernel's: it has to last before anything is built on
        // it. This also lets go of what had finished by then, since nothing may come for long.
        if let Err(err) = self.sync() {
            self.poison(&err);
        }
        self.metrics.store_segments.set(self.log.segments() as i64);
        loop {
            let work = self.queue.take(self.sync_in(), self.gather());
            let last = work.last;
            if self.queue.poisoned().is_some() {
                self.deliver_only(work);
            } else if let Err(err) = self.round(work, last) {
                self.poison(&err);
            }
            if last {
                return;
            }
        }
    }

    /// How long until what is written must be synced.
    fn sync_in(&self) -> Option<Duration> {
        let limit = match self.flush {
            Flush::Sync => IDLE_SYNC,
            Flush::Async => ASYNC_SYNC,
        };
        let waited = self.clock.monotonic().saturating_sub(self.dirty_since?);
        Some(limit.saturating_sub(waited))
    }

    /// Half a sync is worth waiting for as many as came together last time.
    fn gather(&self) -> Gather {
        Gather { holds: self.last_batch, within: (self.last_sync / 2).min(GATHER) }
    }

    fn round(&mut self, work: Work, last: bool) -> io::Result<()> {
        let idle = work.holds.is_empty() && work.completes.is_empty();
        self.backlog.extend(work.completes);
        self.add_completes()?;
        let mut placed = Vec::with_capacity(work.holds.len());
        for waiting in work.holds {
            if self.log.batch_len() >= BATCH_BYTES {
                self.commit(&mut placed)?;
            }
            self.place(waiting, &mut placed)?;
        }
        self.commit(&mut placed)?;
        let overdue = self.sync_in().is_some_and(|left| left.is_zero());
        if self.log.is_dirty() && (last || idle || overdue) {
            self.sync()?;
        }
        self.metrics.store_segments.set(self.log.segments() as i64);
        Ok(())
    }

    /// Puts one hold into the batch, in the next segment if this one is full.
    fn place(&mut self, waiting: Waiting, placed: &mut Vec<Placed>) -> io::Result<()> {
        let lsn = match self.log.add_hold(&waiting.hold, waiting.len) {
            Some(lsn) => lsn,
            None => {
                self.commit(placed)?;
                match self.rotate()? {
                    Ok(()) => {}
                    Err(full) => {
                        if self.refused_full == 0 {
                            tracing::error!(%full, "no room for another segment: holds are refused");
                        }
                        self.refused_full += 1;
                        self.counts.release(1);
                        self.queue.answer(vec![Err(HoldError::NoSpace(full.to_string()))]);
                        return Ok(());
                    }
                }
                match self.log.add_hold(&waiting.hold, waiting.len) {
                    Some(lsn) => lsn,
                    // The record was measured against a segment before it was queued.
                    None => return Err(io::Error::other("a new segment has no room for a record")),
                }
            }
        };
        placed.push(Placed { waiting, lsn });
        Ok(())
    }

    /// Puts the completions into the batch. On a full disk they wait for the next round.
    fn add_completes(&mut self) -> io::Result<()> {
        while !self.backlog.is_empty() {
            let count = self.backlog.len().min(COMPLETE_MAX).min(self.complete_fits());
            if self.log.add_complete(&self.backlog[..count]).is_none() {
                self.commit(&mut Vec::new())?;
                if self.rotate()?.is_err() {
                    return Ok(());
                }
                continue;
            }
            for due in self.backlog.drain(..count) {
                self.lanes.give_back(due.lane);
                self.counts.release(1);
            }
        }
        Ok(())
    }

    /// Entries of a COMPLETE record that a segment of any size has room for.
    fn complete_fits(&self) -> usize {
        let room = usize::try_from(self.log.largest_record()).unwrap_or(usize::MAX);
        (room.saturating_sub(HEADER_LEN + 8) / 16).max(1)
    }

    /// Writes the batch, syncs it unless the flush mode says otherwise, answers, and hands the
    /// messages to the wheel.
    fn commit(&mut self, placed: &mut Vec<Placed>) -> io::Result<()> {
        if self.log.batch_len() == 0 {
            return Ok(());
        }
        self.log.write()?;
        self.dirty_since.get_or_insert_with(|| self.clock.monotonic());
        if placed.is_empty() {
            return Ok(());
        }
        if self.flush == Flush::Sync {
            self.sync()?;
        }
        self.last_batch = placed.len();
        self.metrics.store_commit_records.observe(placed.len() as f64);
        let outcomes = placed.iter().map(|placed| Ok(TimerId(placed.lsn.0))).collect();
        let told = self.queue.answer(outcomes);
        self.metrics.store_accepted.inc_by(told);
        let mut dues = Vec::with_capacity(placed.len());
        // Clients send to one queue for a while: a lane's name is looked up once for all of those.
        for run in placed.chunk_by(|a, b| a.waiting.hold.lane == b.waiting.hold.lane) {
            let Some(first) = run.first() else { continue };
            let lane = self.lanes.take(&first.waiting.hold.lane, run.len() as u64);
            for Placed { waiting: Waiting { hold, len }, lsn } in run {
                let (lsn, len) = (*lsn, record_len(*len));
                self.log.note_hold(hold, lane, lsn, len);
                dues.push(Due { due_ms: hold.due_ms, lsn, len, lane });
            }
        }
        placed.clear();
        self.timer.insert(dues);
        Ok(())
    }

    /// `Ok(Err(..))` when the disk is full, which is no failure of the store.
    fn rotate(&mut self) -> io::Result<Result<(), io::Error>> {
        if self.log.is_dirty() {
            self.sync()?;
        }
        match self.log.rotate() {
            Ok(()) => {
                let refused = std::mem::take(&mut self.refused_full);
                if refused > 0 {
                    tracing::info!(refused, "there is room again: holds are accepted");
                }
                Ok(Ok(()))
            }
            Err(err) if is_full(&err) => Ok(Err(err)),
            Err(err) => Err(err),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let start = self.clock.monotonic();
        self.log.sync()?;
        self.dirty_since = None;
        let took = self.clock.monotonic().saturating_sub(start);
        self.last_sync = took;
        self.metrics.store_sync_seconds.observe(took.as_secs_f64());
        Ok(())
    }

    /// After a failed write or sync nothing is written any more: what the kernel did with the pages
    /// is unknown, and a later sync that succeeds would prove nothing.
    fn poison(&mut self, err: &io::Error) {
        tracing::error!(
            %err,
            "the store failed: no holds are accepted until a restart; due messages still go out \
             and may come again after the restart; relayed traffic is not affected"
        );
        self.metrics.store_poisoned.set(1);
        self.dirty_since = None;
        self.queue.poison(&err.to_string());
    }

    /// Completions after the store failed: nothing to write, only to count.
    fn deliver_only(&mut self, work: Work) {
        for due in self.backlog.drain(..).chain(work.completes) {
            self.lanes.give_back(due.lane);
            self.counts.release(1);
        }
    }
}
