//! One multiplexed connection: our own opaques, a pending table, one writer, one reader.
//!
//! Called by the pool and by the name servers. Never reconnects and never repeats a request: a
//! connection that ended is over, and what was in flight on it has an unknown fate.

mod link;
mod reader;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::WaitForCancellationFutureOwned;

use self::link::{Link, Received};
use self::writer::Outgoing;
use super::UpstreamError;
use super::opaque::readdressed;
use crate::metrics::Metrics;
use crate::remoting::command::Command;
use crate::remoting::frame::Frame;
use crate::remoting::header::Header;

/// Frames that wait for the socket. Their bytes are bounded by the callers' own budgets.
const QUEUE: usize = 1024;

/// An open connection; clones share it. Dropping the last handle closes it.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Arc<Link>,
    outgoing: mpsc::Sender<Outgoing>,
}

/// A request in either form in which callers have it.
#[derive(Debug, Clone)]
pub enum Request {
    /// Written by us.
    Command(Command),
    /// Relayed: leaves as it came, apart from the opaque.
    Frame {
        /// The bytes.
        frame: Frame,
        /// Its header.
        header: Header,
    },
}

/// Whether silence says something about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// The peer always answers this request: if nothing at all comes in time, it is dead.
    Ends,
    /// The peer may leave this request unanswered (a 4.x name server: any code it does not know).
    Allowed,
}

/// An answer with what is known about its request.
#[derive(Debug)]
pub struct Answer {
    /// The answer's frame, still under the opaque of this connection.
    pub frame: Frame,
    /// Its header, with the opaque of the request as it was given to us.
    pub header: Header,
    /// When the request had been handed to the socket.
    pub written: Instant,
}

/// A request on its way. Dropping it gives it up: if it still waits for the socket, it is not sent.
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<Shared>,
    opaque: i32,
    original: i32,
    started: Instant,
    within: Duration,
    silence: Silence,
    answer: oneshot::Receiver<Result<Received, UpstreamError>>,
}

// === impl Client ===

impl Client {
    /// Connects, at most `within`; TCP_NODELAY on. Answers that nobody waits for are counted in
    /// `metrics`.
    pub async fn connect(
        address: &str,
        within: Duration,
        metrics: &Metrics,
    ) -> Result<Self, UpstreamError> {
        let failed = |why: String| UpstreamError::Connect { address: address.to_owned(), why };
        let socket = match timeout(within, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(err)) => return Err(failed(err.to_string())),
            Err(_) => return Err(failed(format!("no connection within {within:?}"))),
        };
        socket.set_nodelay(true).map_err(|err| failed(err.to_string()))?;
        let link = Arc::new(Link::new(address, metrics.upstream_late_answers.clone()));
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let (read, write) = socket.into_split();
        tokio::spawn(writer::run(write, queue, Arc::clone(&link)));
        tokio::spawn(reader::run(read, outgoing.clone().downgrade(), Arc::clone(&link)));
        let shared = Arc::new(Shared { link, outgoing });
        Ok(Self { shared })
    }

    /// Sends a request under an opaque of ours and waits for its answer. When this returns, the
    /// pending entry is gone; a later answer is dropped and counted. A connection on which nothing
    /// at all was received for `within` while an answer was due is closed, so that half-dead peers
    /// are found.
    pub async fn request(
        &self,
        request: Command,
        within: Duration,
    ) -> Result<Command, UpstreamError> {
        let request = Request::Command(request);
        let in_flight = self.start(request, within, Silence::Ends).await?;
        Ok(in_flight.answer().await?.into_command())
    }

    /// Hands a request to the writer; requests are written in the order in which this is first
    /// polled. `within` counts from now and includes the wait for room in the queue.
    pub async fn start(
        &self,
        request: Request,
        within: Duration,
        silence: Silence,
    ) -> Result<InFlight, UpstreamError> {
        let started = Instant::now();
        let original = request.header().opaque;
        let place = self.place(started, within, silence).await?;
        let (opaque, answer) = self.shared.link.register()?;
        let in_flight = InFlight {
            shared: Arc::clone(&self.shared),
            opaque,
            original,
            started,
            within,
            silence,
            answer,
        };
        // From here on a dropped `in_flight` takes its entry away again.
        let bytes = self.encoded(request, opaque)?;
        place.send(Outgoing { bytes, opaque: Some(opaque) });
        Ok(in_flight)
    }

    /// Sends a request that gets no answer.
    pub async fn notify(&self, request: Request, within: Duration) -> Result<(), UpstreamError> {
        let place = self.place(Instant::now(), within, Silence::Allowed).await?;
        let bytes = self.encoded(request, self.shared.link.unused_opaque())?;
        place.send(Outgoing { bytes, opaque: None });
        Ok(())
    }

    /// Whether the connection has not ended yet.
    pub fn is_open(&self) -> bool {
        !self.shared.link.ended.is_cancelled()
    }

    /// Waits for the end of the connection, without keeping it open.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.shared.link.ended.clone().cancelled_owned()
    }

    /// When something was last received, or the time of connecting.
    pub fn last_heard(&self) -> Instant {
        self.shared.link.last_heard()
    }

    /// Requests without an answer yet.
    pub fn pending(&self) -> usize {
        self.shared.link.pending()
    }

    async fn place(
        &self,
        started: Instant,
        within: Duration,
        silence: Silence,
    ) -> Result<mpsc::Permit<'_, Outgoing>, UpstreamError> {
        // Never overtakes: freed room goes to those who wait first.
        if let Ok(place) = self.shared.outgoing.try_reserve() {
            return Ok(place);
        }
        match timeout_at(started + within, self.shared.outgoing.reserve()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(self.shared.link.closed_error()),
            Err(_) => Err(self.shared.link.timed_out(started, within, silence)),
        }
    }

    fn encoded(&self, request: Request, opaque: i32) -> Result<Bytes, UpstreamError> {
        let bytes = request.encode(opaque);
        if bytes.is_empty() {
            let why = "the request does not fit into a frame";
            return Err(self.shared.link.error(why));
        }
        Ok(bytes)
    }
}

// === impl Request ===

impl Request {
    /// The header.
    pub fn header(&self) -> &Header {
        match self {
            Self::Command(command) => &command.header,
            Self::Frame { header, .. } => header,
        }
    }

    /// The whole frame under another opaque; empty when it does not fit into one.
    fn encode(self, opaque: i32) -> Bytes {
        let mut command = match self {
            Self::Command(command) => command,
            Self::Frame { frame, header } => {
                if let Some(bytes) = readdressed(&frame, opaque, None) {
                    return bytes;
                }
                Command { serialize: frame.serialize(), header, body: frame.body() }
            }
        };
        command.header.opaque = opaque;
        command.encode()
    }
}

// === impl InFlight ===

impl InFlight {
    /// Waits for the answer, until the time given at the start has passed.
    pub async fn answer(mut self) -> Result<Answer, UpstreamError> {
        let received = match timeout_at(self.started + self.within, &mut self.answer).await {
            Ok(Ok(received)) => received?,
            Ok(Err(_)) => return Err(self.shared.link.closed_error()),
            Err(_) => {
                let link = &self.shared.link;
                return Err(link.timed_out(self.started, self.within, self.silence));
            }
        };
        let Received { frame, mut header, written } = received;
        header.opaque = self.original;
        Ok(Answer { frame, header, written })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shared.link.forget(self.opaque);
    }
}

// === impl Answer ===

impl Answer {
    /// The answer as a command.
    pub fn into_command(self) -> Command {
        Command { serialize: self.frame.serialize(), body: self.frame.body(), header: self.header }
    }

    /// The answer's bytes under the request's opaque, with another body if given; `None` when they
    /// do not fit into a frame.
    pub fn to_bytes(&self, body: Option<&[u8]>) -> Option<Bytes> {
        readdressed(&self.frame, self.header.opaque, body)
    }
}
