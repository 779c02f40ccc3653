//! A client on raw frames.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::soon;

/// One connection. Frames that were not asked for are kept until they are.
pub struct RawClient {
    pub socket: TcpStream,
    buffer: BytesMut,
    answers: HashMap<i32, Vec<Frame>>,
    /// Requests from the server (no response flag), in the order of arrival.
    pub pushed: Vec<Command>,
}

impl RawClient {
    pub async fn connect(address: impl tokio::net::ToSocketAddrs) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        Self::over(socket)
    }

    /// A connection from a loopback address of its own, as another host would have.
    pub async fn connect_from(from: [u8; 4], address: std::net::SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        Self::over(socket.connect(address).await.unwrap())
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        Self { socket, buffer: BytesMut::new(), answers: HashMap::new(), pushed: Vec::new() }
    }

    /// Sends a request under this opaque.
    pub async fn send(&mut self, mut request: Command, opaque: i32) {
        request.header.opaque = opaque;
        self.send_bytes(&request.encode()).await;
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// The frame that answers `opaque`.
    pub async fn answer_frame(&mut self, opaque: i32) -> Frame {
        loop {
            if let Some(frame) = self.answers.get_mut(&opaque).and_then(Vec::pop) {
                return frame;
            }
            let frame = self.next_frame().await.expect("closed before the answer");
            let command = Command::decode(&frame).unwrap();
            if command.is_response() {
                let waiting = self.answers.entry(command.header.opaque).or_default();
                waiting.insert(0, frame);
            } else {
                self.pushed.push(command);
            }
        }
    }

    pub async fn answer(&mut self, opaque: i32) -> Command {
        Command::decode(&self.answer_frame(opaque).await).unwrap()
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&mut self, request: Command, opaque: i32) -> Command {
        self.send(request, opaque).await;
        self.answer(opaque).await
    }

    /// The next frame, whatever it is; `None` once the other side has closed.
    pub async fn next_frame(&mut self) -> Option<Frame> {
        let (socket, buffer) = (&mut self.socket, &mut self.buffer);
        soon("a frame", super::next_frame(socket, buffer)).await
    }

    /// Waits for the end of the connection; fails when a frame comes first.
    pub async fn closed(&mut self) {
        assert_eq!(self.next_frame().await, None, "expected the end");
    }
}

/// A send (code 310) as the Java client writes it, with these properties.
pub fn send_v2(topic: &str, queue: i32, properties: &str, body: impl Into<Bytes>) -> Command {
    let queue = queue.to_string();
    let ext = [
        ("a", "group"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue.as_str()),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    Command::request(310, &ext, body.into())
}

/// A send (code 10) with long names.
pub fn send_v1(topic: &str, queue: i32, properties: &str, body: impl Into<Bytes>) -> Command {
    let queue = queue.to_string();
    let ext = [
        ("producerGroup", "group"),
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", queue.as_str()),
        ("sysFlag", "0"),
        ("bornTimestamp", "1700000000000"),
        ("flag", "0"),
        ("properties", properties),
        ("reconsumeTimes", "0"),
        ("unitMode", "false"),
        ("batch", "false"),
    ];
    Command::request(10, &ext, body.into())
}
