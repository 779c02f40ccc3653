//! What the reader, the writer and the waiting requests of one connection share: the pending table
//! and how the connection ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Silence;
use crate::remoting::frame::Frame;
use crate::remoting::header::Header;
use crate::upstream::UpstreamError;

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    address: String,
    table: Mutex<Table>,
    /// Answers that nobody waits for.
    strays: Counter,
    /// Cancelled once the connection is over.
    pub(super) ended: CancellationToken,
}

/// An answer as the reader got it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) frame: Frame,
    pub(super) header: Header,
    pub(super) written: Instant,
}

/// Locked only between awaits, for a few table operations.
#[derive(Debug)]
struct Table {
    waiting: HashMap<i32, Waiting>,
    next: i32,
    heard: Instant,
    /// Why the connection ended.
    end: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Received, UpstreamError>>,
    written: Option<Instant>,
}

// === impl Link ===

impl Link {
    pub(super) fn new(address: &str, strays: Counter) -> Self {
        Self {
            address: address.to_owned(),
            table: Mutex::new(Table {
                waiting: HashMap::new(),
                next: 0,
                heard: Instant::now(),
                end: None,
            }),
            strays,
            ended: CancellationToken::new(),
        }
    }

    /// A fresh opaque with a place for its answer.
    pub(super) fn register(
        &self,
    ) -> Result<(i32, oneshot::Receiver<Result<Received, UpstreamError>>), UpstreamError> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.lock();
        if let Some(why) = &table.end {
            return Err(self.error(why));
        }
        let opaque = table.fresh();
        let waiting = Waiting { answer: sender, written: None };
        table.waiting.insert(opaque, waiting);
        Ok((opaque, receiver))
    }

    /// An opaque for a request without an answer.
    pub(super) fn unused_opaque(&self) -> i32 {
        self.lock().fresh()
    }

    /// Nobody waits for this answer any more.
    pub(super) fn forget(&self, opaque: i32) {
        self.lock().waiting.remove(&opaque);
    }

    /// Keeps those for which `opaque_of` says nothing, or whose requester still waits.
    pub(super) fn retain_wanted<T>(
        &self,
        items: &mut Vec<T>,
        opaque_of: impl Fn(&T) -> Option<i32>,
    ) {
        let table = self.lock();
        items.retain(|item| opaque_of(item).is_none_or(|o| table.waiting.contains_key(&o)));
    }

    /// These have been handed to the socket.
    pub(super) fn written(&self, opaques: impl Iterator<Item = i32>) {
        let now = Instant::now();
        let mut table = self.lock();
        for opaque in opaques {
            // The answer may have come before this note: then the entry is gone.
            if let Some(waiting) = table.waiting.get_mut(&opaque) {
                waiting.written = Some(now);
            }
        }
    }

    /// Something was received.
    pub(super) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// Hands answers to those who wait for them, and counts the others.
    pub(super) fn deliver(&self, answers: &mut Vec<(Frame, Header)>) {
        let now = Instant::now();
        let mut deliveries = Vec::with_capacity(answers.len());
        let mut table = self.lock();
        for (frame, header) in answers.drain(..) {
            let Some(waiting) = table.waiting.remove(&header.opaque) else {
                self.strays.inc();
                continue;
            };
            let written = waiting.written.unwrap_or(now);
            let received = Received { frame, header, written };
            deliveries.push((waiting.answer, received));
        }
        drop(table);
        for (answer, received) in deliveries {
            if answer.send(Ok(received)).is_err() {
                // Given up between the two steps.
                self.strays.inc();
            }
        }
    }

    /// The connection is over; the first reason counts.
    pub(super) fn end(&self, why: &str) {
        let mut table = self.lock();
        if table.end.is_some() {
            return;
        }
        table.end = Some(why.to_owned());
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        self.ended.cancel();
        for waiting in waiting.into_values() {
            // Whoever gave up meanwhile does not need to know.
            drop(waiting.answer.send(Err(self.error(why))));
        }
    }

    /// What a request that ran out of time gets. Ends the connection when all of it was silent.
    pub(super) fn timed_out(
        &self,
        started: Instant,
        within: Duration,
        silence: Silence,
    ) -> UpstreamError {
        if silence == Silence::Ends && self.last_heard() < started {
            self.end(&format!("nothing received for {within:?}"));
        }
        UpstreamError::Timeout { address: self.address.clone(), after: within }
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.lock().heard
    }

    pub(super) fn pending(&self) -> usize {
        self.lock().waiting.len()
    }

    pub(super) fn closed_error(&self) -> UpstreamError {
        let table = self.lock();
        let why = table.end.as_deref().unwrap_or("no longer used");
        self.error(why)
    }

    pub(super) fn error(&self, why: &str) -> UpstreamError {
        UpstreamError::Closed { address: self.address.clone(), why: why.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    fn fresh(&mut self) -> i32 {
        loop {
            let opaque = self.next;
            self.next = self.next.wrapping_add(1);
            if !self.waiting.contains_key(&opaque) {
                return opaque;
            }
        }
    }
}
