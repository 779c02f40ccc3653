//! Answers of the proxy itself to one client, on their way from the store's threads to the session.
//!
//! Bounded by permits: a frame that may need an answer takes one before it is judged and gives it
//! back when the answer is written. An idle session's outbox owns no memory beyond itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::budget::Spent;
use crate::intercept::hold::Pending;
use crate::store::{HoldError, Receipt, TimerId};

/// Answers a client may be owed at the same time; it is not read any further until some are taken.
pub(super) const MAX_OWED: usize = 4096;

/// Answers waiting to be written.
#[derive(Debug)]
pub(super) struct Outbox {
    answers: Mutex<Vec<Owed>>,
    any: AtomicBool,
    drained: AtomicBool,
    bell: Notify,
    permits: Arc<Semaphore>,
}

/// One answer; the permit goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) answer: Answer,
    _permit: Permit,
}

/// What to answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// What became of a hold.
    Held { pending: Pending, outcome: Result<TimerId, HoldError> },
    /// A complete frame.
    Frame(Bytes),
}

/// The right to owe the client one more answer.
#[derive(Debug)]
pub(super) struct Permit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Outbox {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::default(),
            any: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            bell: Notify::new(),
            permits: Arc::new(Semaphore::new(MAX_OWED)),
        })
    }

    /// Waits until the client is owed fewer than [`MAX_OWED`] answers.
    pub(super) async fn permit(&self) -> Permit {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        // The semaphore is never closed.
        Permit { _permit: permit.ok() }
    }

    /// Adds an answer, from any thread.
    pub(super) fn push(&self, answer: Answer, permit: Permit) {
        let owed = Owed { answer, _permit: permit };
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(owed);
        let first = answers.len() == 1;
        drop(answers);
        if first {
            self.any.store(true, Ordering::Release);
            self.bell.notify_one();
        }
    }

    /// A receipt that brings the outcome of a hold here. One that is dropped uncalled says that the
    /// store is gone, so that every client gets exactly one answer. `spent` pays for the message
    /// until then.
    pub(super) fn receipt(
        self: &Arc<Self>,
        pending: Pending,
        permit: Permit,
        spent: Spent,
    ) -> Receipt {
        let mut ticket =
            Ticket { outbox: Arc::clone(self), owed: Some((pending, permit)), _spent: spent };
        Box::new(move |outcome| ticket.settle(outcome))
    }

    /// Takes all answers.
    pub(super) fn take(&self) -> Vec<Owed> {
        self.any.store(false, Ordering::Release);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *answers)
    }

    /// Whether answers wait, as far as one atomic tells.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns after answers were added or the client was read to the end of a drain.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// The client is not read any more, and what it is owed is all it will be owed.
    pub(super) fn drain(&self) {
        self.drained.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Whether [`Outbox::drain`] was called and every answer has been written.
    pub(super) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire) && self.permits.available_permits() == MAX_OWED
    }
}

struct Ticket {
    outbox: Arc<Outbox>,
    owed: Option<(Pending, Permit)>,
    _spent: Spent,
}

impl Ticket {
    fn settle(&mut self, outcome: Result<TimerId, HoldError>) {
        if let Some((pending, permit)) = self.owed.take() {
            self.outbox.push(Answer::Held { pending, outcome }, permit);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(Err(HoldError::Closed));
    }
}
