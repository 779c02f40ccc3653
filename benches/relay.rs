//! What a session costs beside a bare copy relay: the same load through both in this run,
//! alternating, so that the ratio means something on any machine.
//!
//! `cargo bench --bench relay [-- ROUNDS]`. The relay under test has a thread of its own, whose CPU
//! time is what counts; clients and broker share another.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "a measuring program")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::budget::Budget;
use rocketmq_timer_proxy::clock::{Clock, SystemClock};
use rocketmq_timer_proxy::config::Policy;
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::namesrv::endpoints::Lease;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::session::{Door, Holder, Parts, Shared, listener};
use rocketmq_timer_proxy::shutdown::{Stage, stop};
use rocketmq_timer_proxy::store::{Hold, Receipt, TimerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

/// Connections, requests in flight on each, requests on each.
const SHAPES: [(usize, usize, usize); 3] = [(1, 1, 20_000), (4, 16, 40_000), (4, 512, 100_000)];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Direct,
    Copy,
    Session,
    /// A session whose every send is held, by a store that accepts at once.
    Holding,
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    println!("connections x in flight | way | us per request | relay CPU us per request");
    for shape in SHAPES {
        let kinds = [Kind::Direct, Kind::Copy, Kind::Session, Kind::Holding];
        let mut taken = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            for (kind, taken) in kinds.iter().zip(&mut taken) {
                taken.push(measure(*kind, shape));
            }
        }
        for (name, mut taken) in ["direct", "copy", "session", "holding"].iter().zip(taken) {
            let mut cpu: Vec<f64> = taken.iter().map(|taken| taken.1).collect();
            cpu.sort_by(f64::total_cmp);
            taken.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (wall, cpu) = (taken[rounds / 2].0, cpu[rounds / 2]);
            println!("{:>2} x {:>3} | {name:8} | {wall:8.2} | {cpu:8.2}", shape.0, shape.1);
        }
    }
}

/// Microseconds of wall time and of the relay's CPU per request.
fn measure(kind: Kind, (connections, window, each): (usize, usize, usize)) -> (f64, f64) {
    let load = single_threaded();
    let broker = load.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let behind = broker.local_addr().unwrap();
    load.spawn(async move {
        loop {
            let (socket, _) = broker.accept().await.unwrap();
            tokio::spawn(answer(socket));
        }
    });
    let (front, relay) = start(kind, behind);
    let send = request(kind == Kind::Holding);
    let clock = SystemClock::new();
    load.block_on(async {
        let clients: Vec<_> = (0..connections)
            .map(|_| tokio::spawn(ask(front, window, each, send.clone())))
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
    let total = (connections * each) as f64;
    let wall = clock.monotonic().as_secs_f64() * 1e6 / total;
    let cpu = relay.map_or(0.0, |(end, thread)| {
        end.send(()).unwrap();
        thread.join().unwrap().as_secs_f64() * 1e6 / total
    });
    (wall, cpu)
}

fn single_threaded() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

type Relay = (oneshot::Sender<()>, thread::JoinHandle<Duration>);

fn start(kind: Kind, behind: SocketAddr) -> (SocketAddr, Option<Relay>) {
    if kind == Kind::Direct {
        return (behind, None);
    }
    let (end, ended) = oneshot::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = single_threaded();
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            if kind == Kind::Copy {
                tokio::spawn(copy(listener, behind));
                ended.await.unwrap();
            } else {
                sessions(listener, behind, ended).await;
            }
        });
        cpu_time()
    });
    (told.recv().unwrap(), Some((end, thread)))
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

async fn copy(listener: TcpListener, behind: SocketAddr) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut broker = TcpStream::connect(behind).await.unwrap();
        client.set_nodelay(true).unwrap();
        broker.set_nodelay(true).unwrap();
        tokio::spawn(async move { copy_bidirectional(&mut client, &mut broker).await });
    }
}

struct Accepts;

impl Holder for Accepts {
    fn hold(&self, _: Hold, receipt: Receipt) {
        receipt(Ok(TimerId(1)));
    }
}

async fn sessions(listener: TcpListener, behind: SocketAddr, ended: oneshot::Receiver<()>) {
    let (_target, seen) = watch::channel(Some(behind.to_string()));
    let (stop, stopping) = stop();
    let shared = Shared::new(Parts {
        clock: Arc::new(SystemClock::new()),
        policy: Policy::default(),
        holder: Arc::new(Accepts),
        budget: Budget::new(64 * 1024 * 1024),
        metrics: Metrics::new(),
        stopping,
        max_connections: 100,
    });
    let door = Door {
        broker: BrokerId { cluster: "c".into(), name: "b".into(), id: 0 },
        host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        port: 20_000,
        vip: false,
        lease: Lease::default(),
        target: seen,
    };
    listener::spawn(listener, door, Arc::clone(&shared));
    ended.await.unwrap();
    stop.enter(Stage::Cut);
    shared.ended().await;
}

/// A send of 1 KiB with the properties that a Java client gives it.
fn request(delayed: bool) -> Bytes {
    let mut properties = "UNIQ_KEY\u{1}7F00000100002A139A8F3C5D00010000\u{2}WAIT\u{1}true\u{2}\
        KEYS\u{1}order-4711\u{2}TAGS\u{1}paid"
        .to_owned();
    if delayed {
        properties.push_str("\u{2}DELAY\u{1}5");
    }
    let ext = [
        ("a", "please_rename_unique_group_name"),
        ("b", "TopicTest"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties.as_str()),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let mut send = Command::request(310, &ext, vec![b'x'; 1024].into());
    send.header.opaque = 1;
    send.encode()
}

async fn answer(mut socket: TcpStream) {
    socket.set_nodelay(true).unwrap();
    let ext = [
        ("msgId", "7F000001000078BF000000000000ABCD"),
        ("queueId", "3"),
        ("queueOffset", "12345"),
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
    ];
    let one = Command::request(0, &ext, Bytes::new()).encode();
    let (mut buffer, mut answers) = (BytesMut::with_capacity(256 * 1024), Vec::new());
    while matches!(socket.read_buf(&mut buffer).await, Ok(1..)) {
        answers.clear();
        while Frame::take(&mut buffer).unwrap().is_some() {
            answers.extend_from_slice(&one);
        }
        if socket.write_all(&answers).await.is_err() {
            return;
        }
    }
}

async fn ask(front: SocketAddr, window: usize, each: usize, send: Bytes) {
    let mut socket = TcpStream::connect(front).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let mut buffer = BytesMut::with_capacity(256 * 1024);
    let (mut sent, mut answered, mut batch) = (0, 0, Vec::new());
    while answered < each {
        batch.clear();
        while sent < each && sent - answered < window {
            batch.extend_from_slice(&send);
            sent += 1;
        }
        socket.write_all(&batch).await.unwrap();
        assert_ne!(socket.read_buf(&mut buffer).await.unwrap(), 0);
        while Frame::take(&mut buffer).unwrap().is_some() {
            answered += 1;
        }
    }
}
