//! A send becomes a held record; a receipt becomes the producer's answer.

use std::net::IpAddr;

use crate::clock::EpochMs;
use crate::remoting::command::Command;
use crate::store::{Hold, HoldError, TimerId};

/// The record for a send that [`super::decide::decide`] wants held.
pub fn record(
    send: &Command,
    broker: &str,
    due_ms: EpochMs,
    arrival_ms: EpochMs,
    client: String,
) -> Hold {
    let _ = (send, broker, due_ms, arrival_ms, client);
    todo!()
}

/// What is needed to answer a held send, kept small while the commit is under way.
#[derive(Debug, Clone)]
pub struct Pending {}

impl Pending {
    /// For this send, arriving at the listener `host:port` (the address put into the id).
    pub fn of(send: &Command, host: IpAddr, port: u16) -> Self {
        let _ = (send, host, port);
        todo!()
    }

    /// The answer; `None` for one-way sends.
    pub fn answer(&self, outcome: Result<TimerId, HoldError>) -> Option<Command> {
        let _ = outcome;
        todo!()
    }
}
