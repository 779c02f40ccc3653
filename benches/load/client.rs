//! The generator's side of a connection: sends made from one template, and their answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;

use crate::ledger::{Ledger, wall_ns};
use crate::stub;

/// So that every opaque has ten digits.
const FIRST_OPAQUE: usize = 1_000_000_000;
/// Queues of the topic.
const QUEUES: usize = 8;
/// So that a broker that makes the topic gives it these.
const QUEUES_ASKED_FOR: &str = "8";
/// Stands where the due time will.
const DUE: &str = "1000000000000";
const PROPERTIES: &str = "KEYS\u{1}order-4711 user-17\u{2}\
    UNIQ_KEY\u{1}7F0000010A2B63947C6B1A2B3C4D0000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}created";

pub(crate) struct Connection {
    socket: TcpStream,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(crate) fn shut(&self) {
        self.socket.shutdown(Shutdown::Both).unwrap_or_default();
    }

    pub(crate) fn answers(&self) -> Answers {
        Answers {
            socket: self.socket.try_clone().unwrap(),
            buffer: BytesMut::new(),
            read: vec![0; 64 * 1024],
        }
    }
}

/// The read half.
pub(crate) struct Answers {
    socket: TcpStream,
    buffer: BytesMut,
    read: Vec<u8>,
}

impl Answers {
    /// Notes answers until the connection ends.
    pub(crate) fn all(&mut self, ledger: &Ledger) {
        while self.some(ledger).is_some() {}
    }

    /// Notes those of one read.
    pub(crate) fn some(&mut self, ledger: &Ledger) -> Option<usize> {
        let n = self.socket.read(&mut self.read).ok().filter(|n| *n > 0)?;
        let now = wall_ns();
        self.buffer.extend_from_slice(&self.read[..n]);
        let mut answers = 0;
        while let Some(frame) = Frame::take(&mut self.buffer).unwrap() {
            let code = stub::integer(frame.header(), b"\"code\":");
            let opaque = stub::integer(frame.header(), b"\"opaque\":") as usize;
            ledger.answered(opaque - FIRST_OPAQUE, code as i32, now);
            answers += 1;
        }
        Some(answers)
    }
}

/// Makes sends like a Java client's by changing digits in one that is complete.
pub(crate) struct Sends {
    frame: Vec<u8>,
    opaque: usize,
    /// Where the due time stands, if there is one.
    due: Option<usize>,
    queue: usize,
    body: usize,
}

impl Sends {
    /// Sends with an absolute due time.
    pub(crate) fn new(body: usize) -> Self {
        let delayed = format!("{PROPERTIES}\u{2}__STARTDELIVERTIME\u{1}{DUE}");
        Self::with(&delayed, body)
    }

    /// Sends without a delay.
    pub(crate) fn plain(body: usize) -> Self {
        Self::with(PROPERTIES, body)
    }

    fn with(properties: &str, body: usize) -> Self {
        let ext = [
            ("a", "please_rename_unique_group_name"),
            ("b", "load"),
            ("c", "TBW102"),
            ("d", QUEUES_ASKED_FOR),
            ("e", "0"),
            ("f", "0"),
            ("g", "1700000000123"),
            ("h", "0"),
            ("i", properties),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
            ("n", "load"),
        ];
        let body = vec![b'x'; body.max(8)];
        let mut command = Command::request(310, &ext, Bytes::from(body));
        command.header.opaque = FIRST_OPAQUE as i32;
        let frame = command.encode().to_vec();
        let find = |needle: &[u8]| memchr::memmem::find(&frame, needle).unwrap() + needle.len();
        Self {
            opaque: find(b"\"opaque\":"),
            due: memchr::memmem::find(&frame, DUE.as_bytes()),
            queue: find(b"\"e\":\""),
            body: frame.len() - command.body.len(),
            frame,
        }
    }

    /// Message `id`, which also stands in its body.
    pub(crate) fn make(&mut self, id: usize, due_ms: i64) -> &[u8] {
        put(&mut self.frame[self.opaque..self.opaque + 10], FIRST_OPAQUE + id);
        if let Some(due) = self.due {
            put(&mut self.frame[due..due + DUE.len()], due_ms as usize);
        }
        put(&mut self.frame[self.queue..self.queue + 1], id % QUEUES);
        self.frame[self.body..self.body + 8].copy_from_slice(&(id as u64).to_be_bytes());
        &self.frame
    }
}

fn put(digits: &mut [u8], mut number: usize) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}
