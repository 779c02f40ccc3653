//! A broker or name server that does what a script says, on raw frames.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::clock::{Clock, EpochMs, SystemClock};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which connection it came on: 0 is the first that was accepted.
    pub connection: usize,
    /// Wall time when the frame was complete.
    pub at_ms: EpochMs,
    pub request: Command,
    /// The frame's bytes.
    pub frame: Frame,
}

impl Seen {
    pub fn code(&self) -> i32 {
        self.request.header.code
    }

    /// The ext field `key` as text; empty when absent.
    pub fn ext(&self, key: &str) -> String {
        let value = self.request.header.ext.get(key);
        value.map_or_else(String::new, |v| String::from_utf8_lossy(v).into_owned())
    }
}

/// What an answer says.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub code: i32,
    pub remark: Option<String>,
    pub ext: Vec<(String, String)>,
    pub body: Bytes,
}

impl Reply {
    pub fn code(code: i32) -> Self {
        Self { code, ..Self::default() }
    }

    pub fn body(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// What a broker answers to a stored send.
    pub fn stored(queue: i32, offset: i64) -> Self {
        Self::code(0)
            .with("msgId", "7F000001000078BF0000000000000000")
            .with("queueId", &queue.to_string())
            .with("queueOffset", &offset.to_string())
            .with("MSG_REGION", "DefaultRegion")
            .with("TRACE_ON", "true")
    }

    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.ext.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn remark(mut self, remark: &str) -> Self {
        self.remark = Some(remark.to_owned());
        self
    }

    /// The answer to `request`, as a command.
    pub fn to(&self, request: &Command) -> Command {
        let mut answer = request.reply(self.code, self.remark.as_deref());
        for (key, value) in &self.ext {
            let key = Bytes::copy_from_slice(key.as_bytes());
            answer.header.ext.set(key, Bytes::copy_from_slice(value.as_bytes()));
        }
        answer.body = self.body.clone();
        answer
    }
}

/// What the peer does about one request.
#[derive(Debug, Clone)]
pub enum Act {
    Reply(Reply),
    /// After so long; other requests are answered meanwhile.
    Later(Duration, Reply),
    /// Nothing. The test may still answer with [`ScriptedPeer::answer`].
    Never,
    Twice(Reply),
    /// Once with an opaque nobody uses, then rightly.
    UnknownOpaqueFirst(Reply),
    /// Only with an opaque nobody uses.
    UnknownOpaque(Reply),
    /// Exactly these bytes.
    Raw(Bytes),
    /// A FIN.
    Close,
    /// A RST.
    Reset,
    /// Half of the answer's bytes, then a FIN.
    HalfThenClose(Reply),
    /// Half of the answer's bytes, then a RST.
    HalfThenReset(Reply),
}

type Script = Arc<dyn Fn(&Seen) -> Act + Send + Sync>;

/// What the peer has seen so far.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub requests: Vec<Seen>,
    /// Answers to what [`ScriptedPeer::push`] sent.
    pub answers: Vec<Command>,
    pub accepted: usize,
    pub open: usize,
}

/// A listener on 127.0.0.1 that answers by a script. Dropping it closes everything.
pub struct ScriptedPeer {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

struct Shared {
    script: Mutex<Script>,
    log: watch::Sender<Log>,
    connections: Mutex<HashMap<usize, mpsc::UnboundedSender<Out>>>,
    clock: SystemClock,
}

enum Out {
    Bytes(Bytes),
    Close,
    Reset,
}

// === impl ScriptedPeer ===

impl ScriptedPeer {
    /// A peer on a free port.
    pub async fn start(script: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_at(any, script).await
    }

    /// A peer on this address: one that comes back.
    pub async fn start_at(
        address: SocketAddr,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = listen(address);
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(script)),
            log: watch::Sender::new(Log::default()),
            connections: Mutex::default(),
            clock: SystemClock::new(),
        });
        let listening = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, listening: Some(listening) }
    }

    /// A broker that stores every send and answers everything else with 0.
    pub async fn broker() -> Self {
        Self::start(|seen| {
            let queue = ["e", "queueId"].map(|key| seen.ext(key));
            let queue = queue.iter().find_map(|q| q.parse().ok()).unwrap_or(0);
            Act::Reply(match seen.code() {
                10 | 310 | 320 => Reply::stored(queue, 0),
                _ => Reply::code(0),
            })
        })
        .await
    }

    /// A name server that answers 105 and 106 with these bodies, 304 and writes with 0.
    pub async fn name_server(route: &str, cluster: &str) -> Self {
        let (route, cluster) = (route.to_owned(), cluster.to_owned());
        Self::start(move |seen| {
            Act::Reply(match seen.code() {
                105 => Reply::body(route.clone()),
                106 => Reply::body(cluster.clone()),
                _ => Reply::code(0),
            })
        })
        .await
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn socket_address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, this script.
    pub fn script(&self, script: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
    }

    pub fn log(&self) -> Log {
        self.shared.log.borrow().clone()
    }

    /// All requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Seen> {
        self.log().requests
    }

    pub fn requests_of(&self, code: i32) -> Vec<Seen> {
        let mut requests = self.requests();
        requests.retain(|seen| seen.code() == code);
        requests
    }

    /// Drops the requests seen so far: a script of a long run keeps its own account.
    pub fn forget(&self) {
        self.shared.log.send_modify(|log| log.requests.clear());
    }

    /// Waits until the log is as `done` wants it.
    pub async fn until(&self, what: &str, mut done: impl FnMut(&Log) -> bool) -> Log {
        let mut log = self.shared.log.subscribe();
        super::soon(what, log.wait_for(|log| done(log)))
            .await
            .expect("the peer lives as long as its log")
            .clone()
    }

    /// Waits for `count` requests with `code`.
    pub async fn until_requests(&self, code: i32, count: usize) -> Vec<Seen> {
        let of = |log: &Log| log.requests.iter().filter(|s| s.code() == code).count();
        let what = format!("{count} requests with code {code}");
        self.until(&what, |log| of(log) >= count).await;
        self.requests_of(code)
    }

    /// Answers a request that the script left unanswered.
    pub fn answer(&self, seen: &Seen, reply: &Reply) {
        self.send_bytes(seen.connection, reply.to(&seen.request).encode());
    }

    /// Sends a request of the peer's own on a connection.
    pub fn push(&self, connection: usize, request: &Command) {
        self.send_bytes(connection, request.encode());
    }

    pub fn send_bytes(&self, connection: usize, bytes: Bytes) {
        self.shared.send(connection, Out::Bytes(bytes));
    }

    /// Closes all connections with a FIN; new ones are accepted.
    pub fn cut(&self) {
        self.shared.send_all(|| Out::Close);
    }

    /// Closes all connections with a RST; new ones are accepted.
    pub fn reset(&self) {
        self.shared.send_all(|| Out::Reset);
    }

    /// Closes the port and all connections.
    pub async fn stop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            drop(listening.await);
        }
        self.cut();
        self.until("the connections to end", |log| log.open == 0).await;
    }
}

impl Drop for ScriptedPeer {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
        self.cut();
    }
}

impl Shared {
    fn send(&self, connection: usize, out: Out) {
        if let Some(sender) = self.connections.lock().unwrap().get(&connection) {
            // A connection that just ended takes nothing any more.
            drop(sender.send(out));
        }
    }

    fn send_all(&self, out: impl Fn() -> Out) {
        for sender in self.connections.lock().unwrap().values() {
            drop(sender.send(out()));
        }
    }
}

/// A listener whose port can be taken again at once.
pub(super) fn listen(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket.listen(1024).unwrap()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        let connection = shared.log.borrow().accepted;
        let mut connections = shared.connections.lock().unwrap();
        connections.insert(connection, sender);
        drop(connections);
        shared.log.send_modify(|log| {
            log.accepted += 1;
            log.open += 1;
        });
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            serve(socket, connection, &shared, receiver).await;
            shared.connections.lock().unwrap().remove(&connection);
            shared.log.send_modify(|log| log.open -= 1);
        });
    }
}

async fn serve(
    mut socket: TcpStream,
    connection: usize,
    shared: &Arc<Shared>,
    mut out: mpsc::UnboundedReceiver<Out>,
) {
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = Frame::take(&mut buffer).expect("the peer got no frame") {
            receive(frame, connection, shared);
        }
        tokio::select! {
            read = socket.read_buf(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            },
            next = out.recv() => match next {
                Some(Out::Bytes(bytes)) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Some(Out::Reset) => {
                    // Dropping the socket now sends a RST.
                    drop(socket.set_zero_linger());
                    return;
                }
                Some(Out::Close) | None => {
                    drop(socket.shutdown().await);
                    return;
                }
            },
        }
    }
}

fn receive(frame: Frame, connection: usize, shared: &Arc<Shared>) {
    let command = Command::decode(&frame).expect("the peer got no header");
    if command.is_response() {
        shared.log.send_modify(|log| log.answers.push(command));
        return;
    }
    let seen = Seen { connection, at_ms: shared.clock.wall_ms(), request: command, frame };
    let script = Arc::clone(&shared.script.lock().unwrap());
    let act = script(&seen);
    shared.log.send_modify(|log| log.requests.push(seen.clone()));
    act_on(act, &seen, shared);
}

fn act_on(act: Act, seen: &Seen, shared: &Arc<Shared>) {
    let send = |out| shared.send(seen.connection, out);
    let answer = |reply: &Reply| reply.to(&seen.request).encode();
    let stray = |reply: &Reply| {
        let mut answer = reply.to(&seen.request);
        answer.header.opaque = answer.header.opaque.wrapping_add(1_000_000_007);
        answer.encode()
    };
    let half = |reply: &Reply| {
        let bytes = answer(reply);
        bytes.slice(..bytes.len() / 2)
    };
    match act {
        Act::Reply(reply) => send(Out::Bytes(answer(&reply))),
        Act::Later(wait, reply) => {
            let (shared, seen) = (Arc::clone(shared), seen.clone());
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let bytes = reply.to(&seen.request).encode();
                shared.send(seen.connection, Out::Bytes(bytes));
            });
        }
        Act::Never => {}
        Act::Twice(reply) => {
            send(Out::Bytes(answer(&reply)));
            send(Out::Bytes(answer(&reply)));
        }
        Act::UnknownOpaqueFirst(reply) => {
            send(Out::Bytes(stray(&reply)));
            send(Out::Bytes(answer(&reply)));
        }
        Act::UnknownOpaque(reply) => send(Out::Bytes(stray(&reply))),
        Act::Raw(bytes) => send(Out::Bytes(bytes)),
        Act::Close => send(Out::Close),
        Act::Reset => send(Out::Reset),
        Act::HalfThenClose(reply) => {
            send(Out::Bytes(half(&reply)));
            send(Out::Close);
        }
        Act::HalfThenReset(reply) => {
            send(Out::Bytes(half(&reply)));
            send(Out::Reset);
        }
    }
}
