//! The port where clients find "their" name server.
//!
//! Started by the composition root. Accepts connections, reads frames within their limits, and lets
//! [`answer`] say what comes back; several requests of one connection are under way at once and
//! answered as they come. Never allocates what a peer only announces, and never waits for one
//! connection on behalf of another.

mod answer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use self::answer::Answering;
use super::endpoints::Endpoints;
use super::routes::LastRoutes;
use crate::budget::{Budget, Spent};
use crate::clock::Clock;
use crate::metrics::{Metrics, Why};
use crate::quiet::Quiet;
use crate::remoting::frame::{Frame, PREFIX_LEN, Prefix, foreign_protocol};
use crate::remoting::header::Header;
use crate::shutdown::{Stage, Stopping};
use crate::upstream::cluster::Cluster;
use crate::upstream::nameservers::NameServers;

/// A connection that sends nothing for so long is closed, as a stock name server does it.
const IDLE: Duration = Duration::from_secs(120);
/// Requests of one connection that may wait for their answers; further ones wait in the socket.
const IN_FLIGHT: usize = 64;
/// A large frame has to be whole within this time, since it holds a part of the budget.
const STALLED: Duration = Duration::from_secs(30);
/// Frames up to this size are not counted against the budget.
const SMALL: usize = 16 * 1024;
/// Room for one read.
const READ: usize = 4 * 1024;
/// Largest step in which the buffer of a large frame grows.
const GROW: usize = 256 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the facade works with.
#[derive(Clone)]
pub struct Parts {
    /// Whom to ask.
    pub nameservers: NameServers,
    /// Learns from route answers.
    pub cluster: Cluster,
    /// Which ports to name.
    pub endpoints: Endpoints,
    /// What to say while no name server answers.
    pub routes: LastRoutes,
    /// For frames over 16 KiB.
    pub budget: Budget,
    /// Rejected connections.
    pub metrics: Metrics,
    /// Paces the log.
    pub clock: Arc<dyn Clock>,
    /// When to stop.
    pub stopping: Stopping,
    /// Connections at once; further ones are closed as they come.
    pub max_connections: usize,
}

/// Serves until stopping reaches [`Stage::LameDuck`], then closes the port and returns once every
/// connection has ended: at [`Stage::Draining`] with what it has accepted answered, at
/// [`Stage::Cut`] in any case.
pub async fn serve(listener: TcpListener, parts: Parts) {
    let facade = Arc::new(Facade {
        answering: Answering {
            nameservers: parts.nameservers,
            cluster: parts.cluster,
            endpoints: parts.endpoints,
            routes: parts.routes,
        },
        budget: parts.budget,
        metrics: parts.metrics,
        clock: parts.clock,
        quiet: Quiet::default(),
        connections: Arc::new(Semaphore::new(parts.max_connections)),
        tasks: TaskTracker::new(),
    });
    facade.accept(listener, parts.stopping).await;
    facade.tasks.close();
    facade.tasks.wait().await;
    facade.answering.routes.flush().await;
}

struct Facade {
    answering: Answering,
    budget: Budget,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    quiet: Quiet,
    connections: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Facade {
    async fn accept(self: &Arc<Self>, listener: TcpListener, mut stopping: Stopping) {
        let mut pause = FIRST_PAUSE;
        let connections_stop = stopping.clone();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopping.reached(Stage::LameDuck) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => {
                    pause = FIRST_PAUSE;
                    self.open(socket, peer, connections_stop.clone());
                }
                Err(err) if is_the_clients(&err) => tracing::debug!(%err, "gone before accept"),
                Err(err) => {
                    // Out of file descriptors or memory: only time helps, a tight loop does not.
                    if let Some(unlogged) = self.may_log("accept") {
                        tracing::error!(%err, unlogged, "cannot accept on the name-server port");
                    }
                    // Running into the timeout is the ordinary case.
                    drop(timeout(pause, stopping.reached(Stage::LameDuck)).await);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn open(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr, stopping: Stopping) {
        let Ok(place) = Arc::clone(&self.connections).try_acquire_owned() else {
            if let Some(unlogged) = self.may_log("full") {
                tracing::error!(%peer, unlogged, "refused: too many name-server connections");
            }
            return;
        };
        let facade = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut connection = Connection::new(socket, &facade);
            let why = connection.run(stopping).await;
            if let Err(Rejected { kind, why }) = why {
                facade.metrics.session_rejected.get_or_create(&Why { why: kind }).inc();
                if let Some(unlogged) = facade.may_log(kind) {
                    tracing::warn!(%peer, kind, why, unlogged, "name-server connection closed");
                }
            }
            drop(place);
        });
    }

    fn may_log(&self, kind: &'static str) -> Option<u64> {
        self.quiet.may_log(kind, self.clock.monotonic())
    }
}

/// Why a connection was closed for what it sent.
struct Rejected {
    /// From a fixed set: the protocol it looks like, or what was wrong.
    kind: &'static str,
    why: String,
}

/// The share of the budget that a large frame under way has.
struct Share {
    spent: Spent,
    whole_by: Instant,
}

struct Connection<'a> {
    socket: TcpStream,
    facade: &'a Arc<Facade>,
    buffer: BytesMut,
    /// For the large frame that is being read.
    spent: Option<Share>,
    /// No frame has been complete yet: what is wrong may be another protocol.
    fresh: bool,
    requests: JoinSet<Option<Bytes>>,
}

impl<'a> Connection<'a> {
    fn new(socket: TcpStream, facade: &'a Arc<Facade>) -> Self {
        Self {
            socket,
            facade,
            buffer: BytesMut::new(),
            spent: None,
            fresh: true,
            requests: JoinSet::new(),
        }
    }

    /// Ends with `Ok` when the peer or the process ends it. Requests under way are given up then.
    async fn run(&mut self, mut stopping: Stopping) -> Result<(), Rejected> {
        // Without it answers wait for the peer's delayed acknowledgement; nothing else depends on it.
        drop(self.socket.set_nodelay(true));
        let mut draining = false;
        let mut stopping_soon = stopping.clone();
        let mut idle_at = Instant::now() + IDLE;
        loop {
            if !draining {
                self.take_requests()?;
            }
            let busy = !self.requests.is_empty();
            if draining && !busy {
                return Ok(());
            }
            let reading = !draining && self.requests.len() < IN_FLIGHT;
            tokio::select! {
                () = stopping.reached(Stage::Cut) => return Ok(()),
                () = stopping_soon.reached(Stage::Draining), if !draining => draining = true,
                Some(done) = self.requests.join_next(), if busy => {
                    let answer = done.unwrap_or_default().unwrap_or_default();
                    if !self.write(&answer, &mut stopping).await {
                        return Ok(());
                    }
                }
                read = read(&self.socket, &mut self.buffer, &mut self.spent, &self.facade.budget),
                    if reading =>
                {
                    match read {
                        Ok(1..) => idle_at = Instant::now() + IDLE,
                        Ok(0) | Err(_) => return Ok(()),
                    }
                }
                () = sleep_until(idle_at), if !busy => return Ok(()),
            }
        }
    }

    /// Whether the peer took it: one that is gone, or that has stopped reading, does not.
    async fn write(&mut self, answer: &[u8], stopping: &mut Stopping) -> bool {
        tokio::select! {
            written = timeout(IDLE, self.socket.write_all(answer)) => matches!(written, Ok(Ok(()))),
            () = stopping.reached(Stage::Cut) => false,
        }
    }

    /// Starts what is complete, up to the limit.
    fn take_requests(&mut self) -> Result<(), Rejected> {
        while self.requests.len() < IN_FLIGHT {
            let taken = Frame::take(&mut self.buffer);
            let Some(frame) = taken.map_err(|err| self.rejected(&err.to_string()))? else {
                break;
            };
            let header = Header::decode_shared(frame.serialize(), &frame.shared_header())
                .map_err(|err| self.rejected(&err.to_string()))?;
            self.fresh = false;
            let facade = Arc::clone(self.facade);
            let spent = self.spent.take().map(|share| share.spent);
            self.requests.spawn(async move {
                let answer = facade.answering.answer(frame, header).await;
                drop(spent);
                answer
            });
        }
        if self.buffer.is_empty() {
            // A connection that is silent holds no memory.
            self.buffer = BytesMut::new();
        }
        Ok(())
    }

    fn rejected(&self, why: &str) -> Rejected {
        let guess = foreign_protocol(&self.buffer).filter(|_| self.fresh);
        Rejected { kind: guess.unwrap_or("not a frame"), why: why.to_owned() }
    }
}

/// Reads what there is. The rest of a large frame waits for the budget before it takes memory, and
/// takes it only as it comes, up to its deadline. Nothing is lost when this is dropped before it
/// returns.
async fn read(
    socket: &TcpStream,
    buffer: &mut BytesMut,
    share: &mut Option<Share>,
    budget: &Budget,
) -> io::Result<usize> {
    let begun = Prefix::parse(buffer).ok().flatten();
    let frame_len = begun.map_or(PREFIX_LEN, |prefix| prefix.frame_len());
    if frame_len > SMALL && share.is_none() {
        let spent = budget.take(frame_len).await;
        *share = Some(Share { spent, whole_by: Instant::now() + STALLED });
    }
    loop {
        match share {
            Some(share) => timeout_at(share.whole_by, socket.readable()).await??,
            None => socket.readable().await?,
        }
        let missing = frame_len.saturating_sub(buffer.len());
        buffer.reserve(missing.clamp(READ, GROW));
        match socket.try_read_buf(buffer) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

fn is_the_clients(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}
