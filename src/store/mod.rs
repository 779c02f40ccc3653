//! Durable holding of messages: bytes, a due time and an id. Knows nothing of the wire protocol.
//!
//! ```text
//! hold ─► commit queue ─► writer thread ─► timerlog (write, sync) ─► receipt
//!                                               └─► wheel thread ─► due channel ─► dispatch
//! dispatch ─► complete ─► commit queue ─► COMPLETE record with the next commit
//! ```
//!
//! [`Store`] is the only type others talk to. Formats, positions and write orders are in
//! `docs/DESIGN.md`.

mod commit;
mod error;
mod format;
mod index;
mod keeper;
mod lanes;
mod open;
mod reader;
mod record;
mod recovery;
mod scan;
mod segment;
mod timer;
mod timerlog;
mod wheel;
mod writer;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{oneshot, watch};

use self::commit::{CommitQueue, Waiting};
pub use self::error::OpenError;
use self::lanes::Lanes;
use self::reader::Reader;
pub use self::recovery::Recovery;
use self::timer::Timer;
use crate::clock::{Clock, EpochMs};
use crate::config::Flush;
use crate::disk::{Fault, NoFault};
use crate::metrics::Metrics;

/// Memory of one pending message, by which `--near-memory` is counted.
pub const NEAR_BYTES: u64 = 32;

/// A place in the timerlog: segment number times segment size plus offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// A timer's identity for life: the LSN of its first HOLD record. Below 2^62.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

/// Where a message goes: one broker's queue of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey {
    /// Broker name.
    pub broker: String,
    /// Topic, as sent.
    pub topic: Bytes,
    /// Queue asked for; -1 leaves the choice to the broker.
    pub queue: i32,
}

/// Short name of a [`LaneKey`] while the process runs and messages for it are pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// A message to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// When it may leave.
    pub due_ms: EpochMs,
    /// When its frame was completely read.
    pub accepted_ms: EpochMs,
    /// Where it goes.
    pub lane: LaneKey,
    /// The client's id for it; may be empty and need not be unique.
    pub unique_key: Bytes,
    /// Index keys, separated by blanks; may be empty.
    pub keys: Bytes,
    /// Address of the client, for operators.
    pub client: String,
    /// The send's header fields, opaque to the store.
    pub header: Bytes,
    /// The message body.
    pub body: Bytes,
}

/// A message read back from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Identity.
    pub id: TimerId,
    /// As it was held; `header` and `body` share one buffer.
    pub hold: Hold,
}

/// One pending message in 32 bytes: when, where in the log, for which lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// When it may leave.
    pub due_ms: EpochMs,
    /// Its HOLD record.
    pub lsn: Lsn,
    /// Bytes of that record.
    pub len: u32,
    /// Where it goes.
    pub lane: LaneId,
}

/// Why a message was not accepted. All of these are "not now": nothing is wrong with the message,
/// except for [`HoldError::TooLong`] and [`HoldError::TooLarge`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The log is still being read.
    #[error("recovering: held messages are being read from disk")]
    Recovering,
    /// The near level's budget is used up.
    #[error("full: {pending} messages are pending, --near-memory allows {limit}")]
    Full {
        /// Messages pending.
        pending: u64,
        /// Messages that fit.
        limit: u64,
    },
    /// The disk has no room for another segment.
    #[error("disk full: {0}")]
    NoSpace(String),
    /// The disk has not confirmed a write within 2 s. The message may still be delivered.
    #[error("the disk has not confirmed the write within {0} ms")]
    Stalled(u64),
    /// A write or sync failed; nothing is accepted until a restart.
    #[error("the store failed and accepts nothing until a restart: {0}")]
    Poisoned(String),
    /// The process is stopping.
    #[error("shutting down")]
    Closed,
    /// A part is too long for the record's layout.
    #[error("a {part} of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// Its bytes.
        len: usize,
        /// Bytes it may have.
        limit: u16,
    },
    /// Larger than a segment can take.
    #[error("a record of {len} bytes does not fit a segment of {limit}")]
    TooLarge {
        /// Bytes of the record.
        len: u64,
        /// Bytes a segment has for records.
        limit: u64,
    },
}

/// Why a held message cannot be read back. The message stays pending and is never dropped.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The disk says no.
    #[error("cannot read {file} at {offset}: {why}")]
    Io {
        /// The segment file.
        file: PathBuf,
        /// Offset of the record.
        offset: u64,
        /// The system's words.
        why: String,
    },
    /// The bytes are not what was written.
    #[error("damaged record in {file} at {offset}: {why}")]
    Damaged {
        /// The segment file.
        file: PathBuf,
        /// Offset of the record.
        offset: u64,
        /// What does not fit.
        why: &'static str,
    },
}

/// Called once, from the store's threads, with the outcome of a hold; must not block.
pub type Receipt = Box<dyn FnOnce(Result<TimerId, HoldError>) + Send>;

/// How a store is opened.
pub struct Options {
    /// The data directory.
    pub dir: PathBuf,
    /// When holds are acknowledged.
    pub flush: Flush,
    /// Budget of the near level, in bytes: one pending message costs [`NEAR_BYTES`].
    pub near_memory: u64,
    /// Bytes of a segment, for a new directory.
    pub segment_bytes: u64,
    /// How long a hold waits for the disk before it is answered "not now".
    pub stall: Duration,
    /// What goes wrong on purpose.
    pub fault: Arc<dyn Fault>,
}

impl Options {
    /// The usual geometry and patience, nothing going wrong on purpose.
    pub fn new(dir: PathBuf, flush: Flush, near_memory: u64) -> Self {
        Self {
            dir,
            flush,
            near_memory,
            segment_bytes: segment::SEGMENT_BYTES,
            stall: Duration::from_secs(2),
            fault: Arc::new(NoFault),
        }
    }
}

/// A store that is being opened.
pub struct Opening {
    /// The handle: refuses holds with [`HoldError::Recovering`] until the log has been read.
    pub store: Store,
    /// What falls due, in order of (due, LSN).
    pub due: UnboundedReceiver<Vec<Due>>,
    /// Tells when the log has been read, or why it cannot be.
    pub recovered: oneshot::Receiver<Result<Recovery, OpenError>>,
}

/// Handle to the store; clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<CommitQueue>,
    timer: Arc<Timer>,
    lanes: Arc<Lanes>,
    counts: Arc<Counts>,
    reader: Reader,
    largest_record: u64,
    ended: watch::Receiver<bool>,
}

impl Store {
    /// Takes the directory and starts reading its log in the background. Fails at once, with
    /// nothing changed, if the directory is locked, newer, or cannot be written.
    pub fn open(
        options: Options,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Result<Opening, OpenError> {
        open::open(options, clock, metrics)
    }

    /// Queues a message for the next commit. The receipt tells the outcome after the sync.
    pub fn hold(&self, hold: Hold, receipt: Receipt) {
        let limit = self.shared.largest_record;
        let fits = record::hold_len(&hold).and_then(|len| match len {
            len if len > limit => Err(HoldError::TooLarge { len, limit }),
            len => self.shared.counts.reserve().map(|()| len),
        });
        match fits {
            Ok(len) => self.shared.queue.push(Waiting { hold, len }, receipt),
            Err(refusal) => receipt(Err(refusal)),
        }
    }

    /// Reads records, in file order, on the store's reader threads; answers in the order asked.
    pub async fn read(&self, due: Vec<Due>) -> Vec<(Due, Result<Held, ReadError>)> {
        // The reader threads live as long as this handle.
        self.shared.reader.read(due).await.unwrap_or_default()
    }

    /// The broker has it: a COMPLETE record goes out within 5 ms. Once per message.
    pub fn complete(&self, due: Due) {
        self.shared.queue.complete(due);
    }

    /// What a lane id of a pending message stands for.
    pub fn lane(&self, id: LaneId) -> Option<Arc<LaneKey>> {
        self.shared.lanes.get(id)
    }

    /// Messages accepted and not yet confirmed by a broker.
    pub fn pending(&self) -> u64 {
        self.shared.counts.pending()
    }

    /// Messages that fit the near level's budget.
    pub fn limit(&self) -> u64 {
        self.shared.counts.limit
    }

    /// The earliest due time that has not been handed over; long past only if the wheel is stuck.
    pub fn next_due(&self) -> Option<EpochMs> {
        self.shared.timer.next_due()
    }

    /// The failure that ended the acceptance of holds, if one did.
    pub fn poisoned(&self) -> Option<String> {
        self.shared.queue.poisoned()
    }

    /// Returns when a write or sync fails, which ends the acceptance of holds until a restart.
    pub async fn failed(&self) {
        // The sender lives as long as this handle.
        drop(self.shared.queue.failed().wait_for(|failed| *failed).await);
    }

    /// Lanes with pending messages.
    pub fn lanes(&self) -> usize {
        self.shared.lanes.len()
    }

    /// Refuses new holds, finishes what waits, syncs. Messages that have not fallen due stay on disk.
    pub async fn close(&self) {
        self.shared.queue.close();
        self.shared.timer.stop();
        let mut ended = self.shared.ended.clone();
        // An error means that the threads are gone already.
        drop(ended.wait_for(|ended| *ended).await);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// Messages in the near level, against its budget.
struct Counts {
    pending: AtomicU64,
    limit: u64,
    gauge: Gauge,
}

impl Counts {
    fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// One more message, if it fits.
    fn reserve(&self) -> Result<(), HoldError> {
        let pending = self.pending.fetch_add(1, Ordering::Relaxed);
        if pending >= self.limit {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            return Err(HoldError::Full { pending, limit: self.limit });
        }
        self.gauge.inc();
        Ok(())
    }

    /// What recovery found, whether it fits or not.
    fn found(&self, count: u64) {
        self.pending.fetch_add(count, Ordering::Relaxed);
        self.gauge.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn release(&self, count: u64) {
        self.pending.fetch_sub(count, Ordering::Relaxed);
        self.gauge.dec_by(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
