//! A suspect goes over a connection of its own, so that an end of it blames exactly this message.
//!
//! The broker first answers something harmless there. A broker that is down, or a balancer in front
//! of it that accepts and closes, fails that and blames nobody. Called by [`super::courier`], for
//! one suspect of its broker at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::attempt::{ANSWER_WITHIN, Fate, Job, deliver, request};
use super::dispatcher::DispatchError;
use super::source::Source;
use crate::clock::Clock;
use crate::remoting::code::request::GET_BROKER_RUNTIME_INFO;
use crate::remoting::command::Command;
use crate::shutdown::{Stage, Stopping};
use crate::upstream::UpstreamError;
use crate::upstream::client::Client;
use crate::upstream::pool::Pool;

/// What one suspect needs on its way.
pub(super) struct Alone<S> {
    pub(super) source: S,
    pub(super) pool: Pool,
    /// The broker's address; `Err` is what to tell where it has none.
    pub(super) address: Result<String, Fate>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stopping: Stopping,
}

impl<S: Source> Alone<S> {
    /// Tries it, and gives it back with what came of it.
    pub(super) async fn run(mut self, job: Job) -> Result<(Job, Fate), DispatchError> {
        let mut stopping = self.stopping.clone();
        let connected = tokio::select! {
            connected = self.connect() => connected,
            () = stopping.reached(Stage::Draining) => Err(Fate::NotStarted),
        };
        let client = match connected {
            Ok(client) => client,
            Err(fate) => return Ok((job, fate)),
        };
        let mut held = self.source.read(vec![job.tried.due]).await;
        let (_, held) = held.pop().ok_or(DispatchError::StoreGone)?;
        let fate = match request(&held, &job) {
            Ok(request) => deliver(&client, &job, request, &*self.clock).await,
            Err(fate) => fate,
        };
        Ok((job, fate))
    }

    /// A connection on which the broker has answered.
    async fn connect(&mut self) -> Result<Client, Fate> {
        let address = self.address.clone()?;
        let answered = async {
            let client = self.pool.own(&address).await?;
            let harmless = Command::request(GET_BROKER_RUNTIME_INFO, &[], Bytes::new());
            client.request(harmless, ANSWER_WITHIN).await?;
            Ok::<_, UpstreamError>(client)
        };
        answered.await.map_err(|err| Fate::Unreachable { why: "connect", words: err.to_string() })
    }
}
