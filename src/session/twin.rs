//! One accepted connection and its upstream twin: opened together, closed together.
//!
//! Nothing is read from a client before its twin is open, so a broker that is down looks down.
//! Called by the listener, once per connection; the two directions are [`super::inbound`] and
//! [`super::outbound`].

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::chunk::Chunk;
use super::inbound::{Inbound, Rejection};
use super::outbound::Outbound;
use super::outbox::Outbox;
use super::{Door, Shared};
use crate::clock::EpochMs;
use crate::metrics::Why;
use crate::shutdown::Stage;

/// For the twin to connect: a Java client's own connect timeout.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Both sides silent for this long: nobody is there any more. A broker closes after 120 s itself.
const SILENCE: Duration = Duration::from_secs(150);
/// For what one side sent before it failed to reach the other.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes thrown away at most so that a close is not turned into a reset by them.
const UNREAD: usize = 1024 * 1024;

/// What both directions know.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) door: Arc<Door>,
    /// Address of the client, as text.
    pub(super) client: String,
    /// IP put into the ids of held messages.
    pub(super) host: IpAddr,
    pub(super) outbox: Arc<Outbox>,
    opened: Instant,
    last_read_ms: AtomicU64,
}

/// Why a session is over.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client closed (`None`) or its connection failed.
    Client(Option<io::Error>),
    /// The broker closed (`None`) or its connection failed.
    Broker(Option<io::Error>),
    /// The client sent what cannot be relayed.
    Rejected(Rejection),
    /// A frame that took part of the byte budget did not go on.
    Stalled,
    /// Stopping, and everything accepted is answered.
    Drained,
    /// Stopping, and the time for it is over.
    Cut,
    /// The broker's address changed.
    Moved,
    /// Nothing came from either side for [`SILENCE`].
    Silent,
}

impl Session {
    fn new(shared: Arc<Shared>, door: Arc<Door>, peer: SocketAddr, local: IpAddr) -> Self {
        Self {
            host: door.host.unwrap_or(local),
            shared,
            door,
            client: peer.to_string(),
            outbox: Outbox::new(),
            opened: Instant::now(),
            last_read_ms: AtomicU64::new(0),
        }
    }

    /// Something was read from either side.
    pub(super) fn heard(&self) {
        let ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_read_ms.store(ms, Ordering::Relaxed);
    }

    pub(super) fn wall_ms(&self) -> EpochMs {
        self.shared.clock.wall_ms()
    }

    /// Logs trouble that a peer can cause at will, at most once a second for each kind.
    pub(super) fn may_log(&self, kind: &'static str) -> Option<u64> {
        self.shared.log.may_log(kind, self.shared.clock.monotonic())
    }

    async fn silence(&self) {
        loop {
            let last = Duration::from_millis(self.last_read_ms.load(Ordering::Relaxed));
            let until = self.opened + last + SILENCE;
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// Serves one accepted connection to its end.
pub(super) async fn serve(
    client: TcpStream,
    peer: SocketAddr,
    door: Arc<Door>,
    shared: Arc<Shared>,
) {
    let mut target = door.target.clone();
    let Some(address) = target.borrow_and_update().clone() else {
        tracing::debug!(client = %peer, broker = %door.broker.name, "closed: no address known");
        return;
    };
    let Ok(local) = client.local_addr() else {
        return;
    };
    let session = Session::new(shared, door, peer, local.ip());
    let mut stopping = session.shared.stopping.clone();
    let broker = tokio::select! {
        biased;
        connected = connect(&address, session.door.vip) => connected,
        () = moved(&mut target, &address) => return,
        () = stopping.reached(Stage::Draining) => return,
    };
    let broker = match broker {
        Ok(broker) => broker,
        Err(err) => {
            if let Some(unlogged) = session.may_log("unreachable") {
                let broker = &session.door.broker.name;
                tracing::warn!(%broker, address, %err, unlogged, "broker down; client closed");
            }
            return;
        }
    };
    if let Err(err) = client.set_nodelay(true) {
        tracing::debug!(%err, "TCP_NODELAY");
    }
    relay(session, client, broker, target, &address).await;
}

/// The broker's port; for the VIP listener its VIP port, or the ordinary one where it has none.
async fn connect(address: &str, vip: bool) -> io::Result<TcpStream> {
    let any = async {
        let twin = match vip.then(|| vip_address(address)).flatten() {
            Some(vip) => match TcpStream::connect(vip).await {
                Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
                    TcpStream::connect(address).await?
                }
                other => other?,
            },
            None => TcpStream::connect(address).await?,
        };
        twin.set_nodelay(true)?;
        Ok(twin)
    };
    timeout(CONNECT_WITHIN, any).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn vip_address(address: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_sub(2)?;
    Some(format!("{host}:{port}"))
}

async fn relay(
    session: Session,
    mut client: TcpStream,
    mut broker: TcpStream,
    mut target: watch::Receiver<Option<String>>,
    address: &str,
) {
    let mut stopping = session.shared.stopping.clone();
    let ended = {
        let (client_read, client_write) = client.split();
        let (broker_read, broker_write) = broker.split();
        let mut inbound = pin!(Inbound::new(&session, client_read, broker_write).run());
        let mut outbound = pin!(Outbound::new(&session, broker_read, client_write).run());
        tokio::select! {
            biased;
            ended = &mut inbound => match ended {
                // The broker may have answered before it went.
                Ended::Broker(_) => last_words(outbound).await.unwrap_or(ended),
                _ => ended,
            },
            ended = &mut outbound => match ended {
                // The client may have sent more before it went.
                Ended::Client(_) => last_words(inbound).await.unwrap_or(ended),
                _ => ended,
            },
            () = moved(&mut target, address) => Ended::Moved,
            () = session.silence() => Ended::Silent,
            () = stopping.reached(Stage::Cut) => Ended::Cut,
        }
    };
    report(&session, &ended);
    // Each side sees the end that the other one made: an orderly close or a reset.
    match ended {
        Ended::Client(Some(_)) => drop(broker.set_zero_linger()),
        Ended::Broker(Some(_)) => drop(client.set_zero_linger()),
        _ => {
            close(&mut client).await;
            close(&mut broker).await;
        }
    }
}

/// The rest of one direction after the other failed.
async fn last_words(direction: impl Future<Output = Ended>) -> Option<Ended> {
    timeout(LAST_WORDS, direction).await.ok()
}

/// Returns when the address is no longer `address`. A table that is gone changes nothing any more.
async fn moved(target: &mut watch::Receiver<Option<String>>, address: &str) {
    if target.wait_for(|now| now.as_deref() != Some(address)).await.is_err() {
        pending().await
    }
}

/// Ends a connection so that what was written still arrives: unread bytes would make the system
/// reset it, and with that drop what the peer has not read yet.
async fn close(stream: &mut TcpStream) {
    // A peer that is gone already needs no goodbye.
    drop(stream.shutdown().await);
    let mut chunk = Chunk::take();
    let mut unread = 0;
    while unread < UNREAD {
        match stream.try_read(&mut chunk) {
            Ok(n) if n > 0 => unread += n,
            _ => return,
        }
    }
}

fn report(session: &Session, ended: &Ended) {
    let client = session.client.as_str();
    let broker = session.door.broker.name.as_str();
    match ended {
        Ended::Rejected(rejection) => {
            let why = rejection.guess;
            let rejected = &session.shared.metrics.session_rejected;
            rejected.get_or_create(&Why { why }).inc();
            if let Some(unlogged) = session.may_log(why) {
                let detail = &rejection.detail;
                tracing::warn!(client, broker, detail, unlogged, "connection closed: {why}");
            }
        }
        Ended::Stalled | Ended::Silent => {
            if let Some(unlogged) = session.may_log("silent") {
                tracing::info!(client, broker, unlogged, "connection closed: {ended:?}");
            }
        }
        Ended::Moved => tracing::info!(client, broker, "connection closed: the broker moved"),
        _ => tracing::debug!(client, broker, "connection closed: {ended:?}"),
    }
}
