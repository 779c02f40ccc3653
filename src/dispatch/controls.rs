//! Operators' hand on a running dispatcher: what is parked, and trying it again.
//!
//! Called by [`crate::admin`]; answered by [`super::dispatcher`].

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::lane::Parked;
use crate::store::{Due, LaneKey};

/// A message that is tried no more.
#[derive(Debug, Clone)]
pub struct ParkedMessage {
    /// The message.
    pub due: Due,
    /// Where it should go.
    pub lane: Arc<LaneKey>,
    /// Why it does not.
    pub why: Parked,
}

/// Operators' hand on a running dispatcher; clones reach the same.
#[derive(Debug, Clone)]
pub struct Controls(mpsc::Sender<Ask>);

/// A pair: what operators hold, and where their wishes come out.
pub(super) fn controls() -> (Controls, mpsc::Receiver<Ask>) {
    let (asks, incoming) = mpsc::channel(8);
    (Controls(asks), incoming)
}

impl Controls {
    /// What is parked; empty once dispatch has ended.
    pub async fn parked(&self) -> Vec<ParkedMessage> {
        self.ask(Ask::Parked).await.unwrap_or_default()
    }

    /// Tries everything parked again, and answers how many that are.
    pub async fn redrive(&self) -> usize {
        self.ask(Ask::Redrive).await.unwrap_or_default()
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.0.send(ask(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// What operators want of the dispatcher, and where to answer.
#[derive(Debug)]
pub(super) enum Ask {
    Parked(oneshot::Sender<Vec<ParkedMessage>>),
    Redrive(oneshot::Sender<usize>),
}
