//! Clients on raw frames: several connections that send at a steady pace without waiting for
//! answers, and come back whenever the proxy does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::ledger::{Answer, Ledger};
use crate::support::{next_frame, soon};

const CONNECTIONS: usize = 4;
/// Each connection sends so many at once ...
const BURST: usize = 4;
/// ... so often: 1,600 messages a second in all.
const PACE: Duration = Duration::from_millis(10);

/// Where the proxy's listener for the broker is, for each time that it came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Door {
    pub(crate) run: usize,
    pub(crate) address: Option<SocketAddr>,
}

/// The clients. They go on until [`Load::stop`].
pub(crate) struct Load {
    clients: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Load {
    pub(crate) fn start(ledger: &Arc<Ledger>, door: &watch::Receiver<Door>) -> Self {
        let mut clients = JoinSet::new();
        let stop = watch::Sender::new(false);
        for _ in 0..CONNECTIONS {
            let client = Client {
                ledger: Arc::clone(ledger),
                door: door.clone(),
                stop: stop.subscribe(),
                waiting: HashMap::new(),
                opaque: 0,
            };
            clients.spawn(client.run());
        }
        Self { clients, stop }
    }

    /// No new sends; returns when all answers are there that will come.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = soon("the last answers", self.clients.join_next()).await {
            ended.unwrap();
        }
    }
}

struct Client {
    ledger: Arc<Ledger>,
    door: watch::Receiver<Door>,
    stop: watch::Receiver<bool>,
    /// Numbers of sent messages by opaque.
    waiting: HashMap<i32, u64>,
    opaque: i32,
}

impl Client {
    async fn run(mut self) {
        let mut run = 0;
        let mut stop = self.stop.clone();
        loop {
            let door = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                door = self.door.wait_for(|door| door.run > run && door.address.is_some()) => {
                    *door.unwrap()
                }
            };
            run = door.run;
            // A proxy that died again before anybody came is no matter.
            if let Ok(socket) = TcpStream::connect(door.address.unwrap()).await {
                self.talk(socket, run).await;
            }
            self.waiting.clear();
        }
    }

    /// Returns when the connection ends, or when all is answered and nothing more is to be sent.
    async fn talk(&mut self, mut socket: TcpStream, run: usize) {
        socket.set_nodelay(true).unwrap();
        let (mut reader, mut writer) = socket.split();
        let mut buffer = BytesMut::new();
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let stopping = *self.stop.borrow();
            if stopping && self.waiting.is_empty() {
                return;
            }
            tokio::select! {
                frame = next_frame(&mut reader, &mut buffer) => match frame {
                    Some(frame) => self.answered(&frame),
                    None => return,
                },
                _ = pace.tick(), if !stopping => {
                    if writer.write_all(&self.burst(run)).await.is_err() {
                        return;
                    }
                }
                _ = self.stop.changed(), if !stopping => {}
            }
        }
    }

    fn burst(&mut self, run: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..BURST {
            let plan = self.ledger.next(run);
            let mut send = plan.sent();
            self.opaque += 1;
            send.header.opaque = self.opaque;
            self.waiting.insert(self.opaque, plan.number);
            bytes.extend_from_slice(&send.encode());
        }
        bytes
    }

    fn answered(&mut self, frame: &Frame) {
        let answer = Command::decode(frame).unwrap();
        let number = self.waiting.remove(&answer.header.opaque).expect("an answer to a send");
        self.ledger.answered(number, judged(&answer));
    }
}

/// What an answer to a send says.
pub(crate) fn judged(answer: &Command) -> Answer {
    if answer.header.code != 0 {
        return Answer::Refused(answer.header.code);
    }
    let id = answer.header.ext.get("msgId").expect("an id");
    let id = std::str::from_utf8(id).unwrap();
    let offset = u64::from_str_radix(&id[id.len() - 16..], 16).unwrap();
    if offset & (1 << 62) != 0 { Answer::Held } else { Answer::Relayed }
}
