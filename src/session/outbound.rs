//! Broker to client: bytes pass as they come, and the proxy's own answers go between two frames.
//!
//! Of the broker's frames only the length words are read, to know where one ends. Owns the broker's
//! read half and the client's write half.

use std::future::pending;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

use super::chunk::{Chunk, read_now};
use super::outbox::{Answer, Owed};
use super::twin::{Ended, Session};
use crate::metrics::Why;

/// When stopping: the broker is done with what it was asked once it was quiet for this long.
const QUIET: Duration = Duration::from_millis(500);
/// Bytes of answers collected for one write.
const GATHER: usize = 64 * 1024;

/// The direction from broker to client.
pub(super) struct Outbound<'a> {
    session: &'a Session,
    broker: ReadHalf<'a>,
    client: WriteHalf<'a>,
    frames: Frames,
}

impl<'a> Outbound<'a> {
    pub(super) fn new(session: &'a Session, broker: ReadHalf<'a>, client: WriteHalf<'a>) -> Self {
        Self { session, broker, client, frames: Frames::default() }
    }

    /// Runs until either side is gone, or a drain is through.
    pub(super) async fn run(mut self) -> Ended {
        match self.pump().await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn pump(&mut self) -> Result<std::convert::Infallible, Ended> {
        let mut quiet_at = None;
        loop {
            if quiet_at.is_none() && self.session.outbox.is_drained() {
                quiet_at = Some(Instant::now() + QUIET);
            }
            // In this order: on a busy machine the quiet is over and an answer is there at once, and
            // the answer counts. Our own answers go out below whichever came.
            tokio::select! {
                biased;
                // An error shows itself in the read.
                _ = self.broker.readable() => {
                    self.relay().await?;
                    quiet_at = None;
                }
                () = self.session.outbox.rung() => {}
                () = at(quiet_at) => return Err(Ended::Drained),
            }
            if self.session.outbox.any() && self.frames.between() {
                self.answer().await?;
            }
        }
    }

    /// Passes on what is there, with the answers that wait at the last place where they fit.
    async fn relay(&mut self) -> Result<(), Ended> {
        let mut chunk = Chunk::take();
        let n = match read_now(&mut self.broker, &mut chunk).await {
            None => return Ok(()),
            Some(Ok(0)) => return Err(Ended::Broker(None)),
            Some(Ok(n)) => n,
            Some(Err(err)) => return Err(Ended::Broker(Some(err))),
        };
        self.session.heard();
        let bytes = chunk.get(..n).unwrap_or_default();
        let last_end = self.frames.pass(bytes);
        match last_end {
            Some(at) if at < n && self.session.outbox.any() => {
                let (whole, begun) = bytes.split_at(at);
                self.write(whole).await?;
                self.answer().await?;
                self.write(begun).await
            }
            _ => self.write(bytes).await,
        }
    }

    /// Writes every answer that waits, several at once.
    async fn answer(&mut self) -> Result<(), Ended> {
        let mut frames = Vec::new();
        // Held until they are written: the permits in them are what bounds a slow reader.
        let mut unwritten = Vec::new();
        for owed in self.session.outbox.take() {
            self.encode(&owed, &mut frames);
            unwritten.push(owed);
            if frames.len() >= GATHER {
                self.write(&frames).await?;
                frames.clear();
                unwritten.clear();
            }
        }
        self.write(&frames).await
    }

    fn encode(&self, owed: &Owed, frames: &mut Vec<u8>) {
        let (pending, outcome) = match &owed.answer {
            Answer::Frame(frame) => return frames.extend_from_slice(frame),
            Answer::Held { pending, outcome } => (pending, outcome),
        };
        if let Some(answer) = pending.answer(outcome.clone()) {
            frames.extend_from_slice(&answer.encode());
        } else if let Err(err) = outcome {
            let why = "not held";
            let dropped = &self.session.shared.metrics.intercept_dropped;
            dropped.get_or_create(&Why { why }).inc();
            if let Some(unlogged) = self.session.may_log(why) {
                let client = &self.session.client;
                tracing::warn!(client, %err, unlogged, "one-way delayed send dropped");
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.client.write_all(bytes).await.map_err(|err| Ended::Client(Some(err)))
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Where frames end in a stream that is passed on as it comes.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the frame under way that are still to come.
    left: u64,
    /// What is there of the next length word.
    word: [u8; 4],
    have: usize,
}

impl Frames {
    /// Whether nothing of a frame is under way.
    fn between(&self) -> bool {
        self.left == 0 && self.have == 0
    }

    /// Moves on over `bytes`; the last place in them where a frame ended.
    fn pass(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let total = bytes.len();
        let mut last_end = None;
        while let Some((&first, rest)) = bytes.split_first() {
            if self.left == 0 {
                if let Some(slot) = self.word.get_mut(self.have) {
                    *slot = first;
                }
                self.have += 1;
                bytes = rest;
                if self.have < self.word.len() {
                    continue;
                }
                self.left = u64::from(u32::from_be_bytes(self.word));
                self.have = 0;
            } else {
                let here = usize::try_from(self.left).map_or(bytes.len(), |n| n.min(bytes.len()));
                self.left -= here as u64;
                bytes = bytes.get(here..).unwrap_or_default();
            }
            if self.left == 0 {
                last_end = Some(total - bytes.len());
            }
        }
        last_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: u32) -> Vec<u8> {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.resize(4 + len as usize, 0xff);
        bytes
    }

    #[test]
    fn ends_are_found_however_the_stream_is_cut() {
        let lengths = [4, 300, 5, 70_000, 0, 4];
        let stream: Vec<u8> = lengths.iter().flat_map(|&len| frame(len)).collect();
        let mut ends = vec![];
        let mut at = 0;
        for len in lengths {
            at += 4 + len as usize;
            ends.push(at);
        }
        for cut in [1, 2, 3, 5, 7, 64, 1024, 65_536, stream.len()] {
            let mut frames = Frames::default();
            let mut at = 0;
            for piece in stream.chunks(cut) {
                let found = frames.pass(piece).map(|end| at + end);
                let within = at + 1..=at + piece.len();
                let expected = ends.iter().rev().find(|end| within.contains(end));
                assert_eq!(found.as_ref(), expected, "pieces of {cut}, at {at}");
                at += piece.len();
                assert_eq!(frames.between(), ends.contains(&at));
            }
        }
    }
}
