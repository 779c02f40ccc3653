//! Sessions over real sockets: the test is the client and the broker, and says what the store does.

mod ends;
mod garbage;
mod holds;
mod relay;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::{Door, Holder, Parts, Shared, listener};
use crate::budget::Budget;
use crate::clock::{Clock, ManualClock};
use crate::config::Policy;
use crate::metrics::Metrics;
use crate::namesrv::endpoints::Lease;
use crate::remoting::command::Command;
use crate::remoting::frame::Frame;
use crate::remoting::header::FLAG_ONEWAY;
use crate::remoting::route::BrokerId;
use crate::shutdown::{Stop, stop};
use crate::store::{Hold, HoldError, Receipt, TimerId};

const NOW: i64 = 1_700_000_000_000;

/// Hands every hold to the test.
struct ToTest(mpsc::UnboundedSender<(Hold, Receipt)>);

impl Holder for ToTest {
    fn hold(&self, hold: Hold, receipt: Receipt) {
        drop(self.0.send((hold, receipt)));
    }
}

struct Rig {
    address: SocketAddr,
    broker: TcpListener,
    target: watch::Sender<Option<String>>,
    holds: mpsc::UnboundedReceiver<(Hold, Receipt)>,
    stop: Stop,
    budget: Budget,
    metrics: Metrics,
    clock: ManualClock,
    shared: Arc<Shared>,
    door: Door,
}

struct Setup {
    budget: usize,
    connections: usize,
    broker_id: i64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { budget: 64 * 1024 * 1024, connections: 10_000, broker_id: 0 }
    }
}

/// Fails instead of waiting for ever; no measure of speed.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

async fn loopback() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

impl Rig {
    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Self {
        let broker = loopback().await;
        let (target, seen) = watch::channel(Some(broker.local_addr().unwrap().to_string()));
        let (to_test, holds) = mpsc::unbounded_channel();
        let (stop, stopping) = stop();
        let budget = Budget::new(setup.budget);
        let metrics = Metrics::new();
        let clock = ManualClock::new(NOW);
        let shared = Shared::new(Parts {
            clock: Arc::new(clock.clone()),
            policy: Policy::default(),
            holder: Arc::new(ToTest(to_test)),
            budget: budget.clone(),
            metrics: metrics.clone(),
            stopping,
            max_connections: setup.connections,
        });
        let listener = loopback().await;
        let address = listener.local_addr().unwrap();
        let door = Door {
            broker: BrokerId { cluster: "c".into(), name: "broker-a".into(), id: setup.broker_id },
            host: Some(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))),
            port: 20_000,
            vip: false,
            lease: Lease::default(),
            target: seen,
        };
        listener::spawn(listener, door.clone(), Arc::clone(&shared));
        Self { address, broker, target, holds, stop, budget, metrics, clock, shared, door }
    }

    /// A client and the broker's end of its twin.
    async fn pair(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.address).await.unwrap();
        let (broker, _) = self.broker.accept().await.unwrap();
        (client, broker)
    }

    async fn hold(&mut self) -> (Hold, Receipt) {
        soon("a hold", self.holds.recv()).await.unwrap()
    }
}

/// Small numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    /// A seed of its own for each call, printed, so that a failure can be run again.
    fn new() -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let seed = std::env::var("SEED").map_or_else(
            |_| rand::random::<u64>() ^ CALLS.fetch_add(1, Ordering::Relaxed),
            |seed| seed.parse().unwrap(),
        );
        println!("SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// A frame with whatever header and body.
fn raw(serialize: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(4 + header.len() + body.len()).unwrap().to_be_bytes().to_vec();
    let [_, a, b, c] = u32::try_from(header.len()).unwrap().to_be_bytes();
    frame.extend([serialize, a, b, c]);
    frame.extend(header);
    frame.extend(body);
    frame
}

fn send(opaque: i32, properties: &str, body: &[u8]) -> Command {
    let ext = [
        ("a", "group"),
        ("b", "topic"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
    ];
    let mut send = Command::request(310, &ext, Bytes::copy_from_slice(body));
    send.header.opaque = opaque;
    send
}

fn plain(opaque: i32, body: &[u8]) -> Bytes {
    send(opaque, "KEYS\u{1}k\u{2}", body).encode()
}

/// Due 5 s after it arrives.
fn delayed(opaque: i32, body: &[u8]) -> Bytes {
    send(opaque, "DELAY\u{1}2\u{2}", body).encode()
}

fn oneway(mut command: Command) -> Bytes {
    command.header.flag |= FLAG_ONEWAY;
    command.encode()
}

/// A time that no parser takes.
fn refused(opaque: i32) -> Command {
    send(opaque, "__STARTDELIVERTIME\u{1}bad\u{2}", b"x")
}

async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    soon("bytes", stream.read_exact(&mut got)).await.unwrap();
    let differs = got.iter().zip(bytes).position(|(a, b)| a != b);
    assert_eq!(differs, None, "first byte that differs");
}

/// The peer closed, by whichever end.
async fn expect_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    match stream.read(&mut byte).await {
        Ok(n) => assert_eq!(n, 0, "a byte instead of the end"),
        Err(err) => assert_eq!(err.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

struct Commands {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Commands {
    fn of(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    async fn next(&mut self) -> Command {
        loop {
            if let Some(frame) = Frame::take(&mut self.buffer).unwrap() {
                return Command::decode(&frame).unwrap();
            }
            let read = self.stream.read_buf(&mut self.buffer);
            let n = soon("a frame", read).await.unwrap();
            assert_ne!(n, 0, "closed");
        }
    }
}
