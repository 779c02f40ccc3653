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

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::{Clock, EpochMs};

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
/// except for [`HoldError::TooLarge`].
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

/// Handle to the store; clones share it.
#[derive(Clone)]
pub struct Store {
    _shared: Arc<dyn Clock>,
}

impl Store {
    /// Queues a message for the next commit. The receipt tells the outcome after the sync.
    pub fn hold(&self, hold: Hold, receipt: Receipt) {
        let _ = (hold, receipt);
        todo!()
    }

    /// Reads records, in file order, on the store's reader thread; answers in the order asked.
    pub async fn read(&self, due: Vec<Due>) -> Vec<(Due, Result<Held, ReadError>)> {
        let _ = due;
        todo!()
    }

    /// The broker has it: a COMPLETE record goes out within 5 ms. Idempotent.
    pub fn complete(&self, due: Due) {
        let _ = due;
        todo!()
    }

    /// What a lane id of a pending message stands for.
    pub fn lane(&self, id: LaneId) -> Option<Arc<LaneKey>> {
        let _ = id;
        todo!()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}
