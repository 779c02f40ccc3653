//! Client to broker: finds the frames that may ask for a delay, and lets everything else through.
//!
//! A plain frame is never buffered whole: once its header was looked at, header and body are passed
//! on as they arrive, and all plain frames of one read leave in one write. A frame that may ask for
//! a delay is read whole, paid for by the byte budget, and judged by [`crate::intercept`]. Owns the
//! client's read half and the broker's write half.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout_at};

use super::chunk::{CHUNK, Chunk, read_now};
use super::outbox::{Answer, Permit};
use super::twin::{Ended, Session};
use crate::budget::Spent;
use crate::clock::EpochMs;
use crate::intercept::decide::{Decision, decide};
use crate::intercept::hold::{self, Pending};
use crate::metrics::Why;
use crate::remoting::command::Command;
use crate::remoting::frame::{
    Frame, FrameError, PREFIX_LEN, Prefix, SerializeType, foreign_protocol,
};
use crate::remoting::scan;
use crate::shutdown::Stage;

/// A frame that holds a part of the byte budget has to be whole within this time, however steadily
/// it comes: its sender gave up long ago, and others wait for the budget.
const STALLED: Duration = Duration::from_secs(30);

/// Why a client's bytes cannot be relayed.
#[derive(Debug)]
pub(super) struct Rejection {
    /// What it looks like; a metric label.
    pub(super) guess: &'static str,
    /// What is wrong, for the log.
    pub(super) detail: String,
}

/// The direction from client to broker.
pub(super) struct Inbound<'a> {
    session: &'a Session,
    client: ReadHalf<'a>,
    broker: WriteHalf<'a>,
    /// Bytes of a plain frame under way that are still to come.
    body_left: usize,
    /// The start of a frame whose header is not complete; shorter than a chunk.
    begun: Vec<u8>,
    /// Whether any frame of this connection has been understood.
    spoke: bool,
}

/// What the bytes at hand ask for.
enum Step {
    /// That many bytes go on to the broker.
    Pass(usize),
    /// The rest is the start of a frame, or nothing.
    More,
    /// A whole frame to look into.
    Judge(Prefix),
    /// The start of a frame that has to be buffered beyond a chunk.
    Collect(Prefix),
}

/// Where a frame may name a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Header,
    Body,
}

/// What became of a frame that was looked into.
enum Fate {
    Relay(Frame),
    Taken,
}

/// The right to look into a frame: bytes of the budget, and an answer.
struct Admission {
    spent: Spent,
    permit: Permit,
}

impl<'a> Inbound<'a> {
    pub(super) fn new(session: &'a Session, client: ReadHalf<'a>, broker: WriteHalf<'a>) -> Self {
        Self { session, client, broker, body_left: 0, begun: Vec::new(), spoke: false }
    }

    /// Runs until either side is gone or the client sends what cannot be relayed. When a drain has
    /// reached the end of a frame, tells the outbox and never returns.
    pub(super) async fn run(mut self) -> Ended {
        match self.pump().await {
            Ok(()) => {
                self.session.outbox.drain();
                pending().await
            }
            Err(ended) => ended,
        }
    }

    async fn pump(&mut self) -> Result<(), Ended> {
        let mut stopping = self.session.shared.stopping.clone();
        let mut draining = pin!(stopping.reached(Stage::Draining));
        let mut drains = false;
        loop {
            if drains && self.between_frames() {
                return Ok(());
            }
            tokio::select! {
                biased;
                // An error shows itself in the read.
                _ = self.client.readable() => {}
                () = &mut draining, if !drains => {
                    drains = true;
                    continue;
                }
            }
            self.read(drains).await?;
        }
    }

    fn between_frames(&self) -> bool {
        self.body_left == 0 && self.begun.is_empty()
    }

    async fn read(&mut self, drains: bool) -> Result<(), Ended> {
        let mut chunk = Chunk::take();
        let begun = self.begun.len();
        let end = if drains { (begun + self.missing()).min(CHUNK) } else { CHUNK };
        let into = chunk.get_mut(begun..end).unwrap_or_default();
        let n = match read_now(&mut self.client, into).await {
            None => return Ok(()),
            Some(read) => received(read)?,
        };
        self.session.heard();
        if let Some(start) = chunk.get_mut(..begun) {
            start.copy_from_slice(&self.begun);
        }
        self.begun = Vec::new();
        self.walk(&mut chunk, begun + n).await
    }

    /// Bytes up to the next place where more is known about the frame under way: a drain reads no
    /// further than that.
    fn missing(&self) -> usize {
        if self.body_left > 0 {
            return self.body_left;
        }
        match Prefix::parse(&self.begun) {
            Ok(Some(prefix)) => PREFIX_LEN + prefix.header_len,
            _ => PREFIX_LEN,
        }
        .saturating_sub(self.begun.len())
        .max(1)
    }

    /// Takes the first `filled` bytes of the chunk apart. What is relayed is moved together at its
    /// front, so that it leaves in one write even with held frames in between.
    async fn walk(&mut self, chunk: &mut Chunk, filled: usize) -> Result<(), Ended> {
        let mut relayed = 0;
        let mut at = 0;
        let mut arrival = None;
        loop {
            let rest = chunk.get(at..filled).unwrap_or_default();
            let step = match self.step(rest) {
                Ok(step) => step,
                Err(rejected) => {
                    self.flush(chunk, &mut relayed).await?;
                    return Err(rejected);
                }
            };
            let len = match step {
                Step::More => {
                    self.begun = rest.to_vec();
                    return self.flush(chunk, &mut relayed).await;
                }
                Step::Collect(prefix) => {
                    self.flush(chunk, &mut relayed).await?;
                    let begun = chunk.get(at..filled).unwrap_or_default();
                    return self.collect(prefix, begun).await;
                }
                Step::Judge(prefix) => {
                    let len = prefix.frame_len();
                    let arrival = *arrival.get_or_insert_with(|| self.session.wall_ms());
                    let admission = self.admitted(len, chunk, &mut relayed).await?;
                    let whole = BytesMut::from(chunk.get(at..at + len).unwrap_or_default());
                    match self.judge(whole, arrival, admission) {
                        Ok(Fate::Relay(_)) => len,
                        Ok(Fate::Taken) => {
                            at += len;
                            continue;
                        }
                        Err(ended) => {
                            self.flush(chunk, &mut relayed).await?;
                            return Err(ended);
                        }
                    }
                }
                Step::Pass(len) => len,
            };
            if at > relayed {
                chunk.copy_within(at..at + len, relayed);
            }
            at += len;
            relayed += len;
        }
    }

    fn step(&mut self, bytes: &[u8]) -> Result<Step, Ended> {
        if self.body_left > 0 {
            let len = self.body_left.min(bytes.len());
            self.body_left -= len;
            return Ok(if len == 0 { Step::More } else { Step::Pass(len) });
        }
        let prefix = match Prefix::parse(bytes) {
            Ok(Some(prefix)) => prefix,
            Ok(None) => return Ok(Step::More),
            Err(err) => return Err(self.reject(err, bytes)),
        };
        self.spoke = true;
        let head = PREFIX_LEN + prefix.header_len;
        if head > CHUNK {
            return Ok(Step::Collect(prefix));
        }
        let Some(header) = bytes.get(PREFIX_LEN..head) else {
            return Ok(Step::More);
        };
        let len = prefix.frame_len();
        match doubt(prefix.serialize, header) {
            None => {
                let here = len.min(bytes.len());
                self.body_left = len - here;
                Ok(Step::Pass(here))
            }
            Some(_) if bytes.len() < len => Ok(Step::Collect(prefix)),
            Some(Doubt::Body) if !body_names_a_delay(bytes, head, len) => Ok(Step::Pass(len)),
            Some(_) => Ok(Step::Judge(prefix)),
        }
    }

    async fn flush(&mut self, chunk: &Chunk, relayed: &mut usize) -> Result<(), Ended> {
        let len = std::mem::take(relayed);
        self.write(chunk.get(..len).unwrap_or_default()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.broker.write_all(bytes).await.map_err(|err| Ended::Broker(Some(err)))
    }

    /// Waits until a frame may be looked into; what is relayed does not wait with it.
    async fn admitted(
        &mut self,
        len: usize,
        chunk: &Chunk,
        relayed: &mut usize,
    ) -> Result<Admission, Ended> {
        let mut admission = pin!(admit(self.session, len));
        if let Some(at_once) = poll_once(admission.as_mut()).await {
            return Ok(at_once);
        }
        self.flush(chunk, relayed).await?;
        Ok(admission.await)
    }

    /// Reads a frame beyond a chunk: its header, and its body only if the header leaves a doubt.
    /// The whole of it is paid for at once, since two that each wait for the other's second half
    /// would wait for ever.
    async fn collect(&mut self, prefix: Prefix, begun: &[u8]) -> Result<(), Ended> {
        let admission = admit(self.session, prefix.frame_len()).await;
        let whole_by = Instant::now() + STALLED;
        let head = PREFIX_LEN + prefix.header_len;
        let len = prefix.frame_len();
        let mut bytes = BytesMut::from(begun);
        self.read_up_to(&mut bytes, head, whole_by).await?;
        let header = bytes.get(PREFIX_LEN..head).unwrap_or_default();
        let Some(doubt) = doubt(prefix.serialize, header) else {
            self.body_left = len - bytes.len();
            return self.write(&bytes).await;
        };
        bytes.reserve(len - bytes.len());
        self.read_up_to(&mut bytes, len, whole_by).await?;
        let arrival = self.session.wall_ms();
        if doubt == Doubt::Body && !body_names_a_delay(&bytes, head, len) {
            return self.write(&bytes).await;
        }
        match self.judge(bytes, arrival, admission)? {
            Fate::Relay(frame) => self.write(frame.bytes()).await,
            Fate::Taken => Ok(()),
        }
    }

    async fn read_up_to(
        &mut self,
        frame: &mut BytesMut,
        len: usize,
        whole_by: Instant,
    ) -> Result<(), Ended> {
        while frame.len() < len {
            let left = len - frame.len();
            let mut rest = (&mut *frame).limit(left);
            let read = self.client.read_buf(&mut rest);
            received(timeout_at(whole_by, read).await.map_err(|_| Ended::Stalled)?)?;
            self.session.heard();
        }
        Ok(())
    }

    /// Decides on a whole frame, and holds or answers it.
    fn judge(
        &mut self,
        mut bytes: BytesMut,
        arrival: EpochMs,
        admission: Admission,
    ) -> Result<Fate, Ended> {
        let frame = match Frame::take(&mut bytes) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(unreadable("incomplete frame")),
            Err(err) => return Err(unreadable(err)),
        };
        let command = Command::decode(&frame).map_err(unreadable)?;
        let door = &self.session.door;
        let shared = &self.session.shared;
        let metrics = &shared.metrics;
        let master = door.broker.id == 0;
        match decide(&command, arrival, master, &shared.policy) {
            Decision::Relay { why } => {
                if let Some(why) = why {
                    let relayed = &metrics.intercept_relayed;
                    relayed.get_or_create(&Why { why }).inc();
                }
                return Ok(Fate::Relay(frame));
            }
            Decision::Hold { due_ms, kind } => {
                hold::check(&command).map_err(unreadable)?;
                let held = &metrics.intercept_held;
                held.get_or_create(&Why { why: kind }).inc();
                let pending = Pending::of(&command, self.session.host, door.port);
                let client = self.session.client.clone();
                let record = hold::record(&command, &door.broker.name, due_ms, arrival, client);
                let receipt =
                    self.session.outbox.receipt(pending, admission.permit, admission.spent);
                shared.holder.hold(record, receipt);
            }
            Decision::Refuse { code, remark, why } if command.is_oneway() => {
                let dropped = &metrics.intercept_dropped;
                dropped.get_or_create(&Why { why }).inc();
                if let Some(unlogged) = self.session.may_log(why) {
                    let client = &self.session.client;
                    tracing::warn!(client, code, remark, unlogged, "one-way delayed send dropped");
                }
            }
            Decision::Refuse { code, remark, why } => {
                let refused = &metrics.intercept_refused;
                refused.get_or_create(&Why { why }).inc();
                let answer = command.reply(code, Some(&remark)).encode();
                let outbox = &self.session.outbox;
                outbox.push(Answer::Frame(answer), admission.permit);
            }
        }
        Ok(Fate::Taken)
    }

    fn reject(&self, err: FrameError, bytes: &[u8]) -> Ended {
        let foreign = (!self.spoke).then(|| foreign_protocol(bytes)).flatten();
        let guess = foreign.unwrap_or(match err {
            FrameError::TooLong(_) => "frame too long",
            FrameError::TooShort(_) => "frame too short",
            FrameError::HeaderTooLong { .. } => "header longer than its frame",
            FrameError::SerializeType(_) => "unknown serialize type",
        });
        Ended::Rejected(Rejection { guess, detail: err.to_string() })
    }
}

/// The permit first: a client that does not read its answers must not keep budget meanwhile.
async fn admit(session: &Session, len: usize) -> Admission {
    let permit = session.outbox.permit().await;
    let spent = session.shared.budget.take(len).await;
    Admission { spent, permit }
}

/// One look at whether a future is ready.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Where a frame with this header may name a delay; `None` is certain.
fn doubt(serialize: SerializeType, header: &[u8]) -> Option<Doubt> {
    if scan::may_ask_for_delay(serialize, header) {
        Some(Doubt::Header)
    } else {
        scan::may_be_batch(serialize, header).then_some(Doubt::Body)
    }
}

fn body_names_a_delay(frame: &[u8], head: usize, len: usize) -> bool {
    scan::body_names_a_delay(frame.get(head..len).unwrap_or_default())
}

/// A frame that names a delay and cannot be read: a stock broker would close the connection, and
/// relayed it might come early.
fn unreadable(why: impl ToString) -> Ended {
    Ended::Rejected(Rejection { guess: "unreadable delayed send", detail: why.to_string() })
}

fn received(read: io::Result<usize>) -> Result<usize, Ended> {
    match read {
        Ok(0) => Err(Ended::Client(None)),
        Ok(n) => Ok(n),
        Err(err) => Err(Ended::Client(Some(err))),
    }
}
