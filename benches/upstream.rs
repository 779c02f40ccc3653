//! What one multiplexed connection costs: pipelined sends to a peer that answers at once.
//!
//! Prints requests per second and the CPU time of the thread that runs the client, its reader and
//! its writer. The peer runs on a thread of its own with as little work as can be.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on stops")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::clock::{Clock, SystemClock};
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, SerializeType};
use rocketmq_timer_proxy::upstream::client::{Client, Request, Silence};
use rustix::time::{ClockId, clock_gettime};

const REQUESTS: usize = 400_000;
const WINDOW: usize = 512;
const WITHIN: Duration = Duration::from_secs(3);

fn main() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port").to_string();
    thread::spawn(move || {
        for socket in listener.incoming() {
            answer_all(socket.expect("a connection"));
        }
    });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for body in [16, 1024] {
        runtime.block_on(measure(&address, body));
    }
}

async fn measure(address: &str, body: usize) {
    let client = Client::connect(address, WITHIN, &Metrics::new()).await.expect("the peer listens");
    let request = send(Bytes::from(vec![b'x'; body]));
    let clock = SystemClock::new();
    let (wall, cpu) = (clock.monotonic(), thread_cpu());
    let mut window = VecDeque::with_capacity(WINDOW);
    for _ in 0..REQUESTS {
        if window.len() == WINDOW {
            finish(&mut window).await;
        }
        let request = Request::Command(request.clone());
        let started = client.start(request, WITHIN, Silence::Ends).await;
        window.push_back(started.expect("an open connection"));
    }
    while !window.is_empty() {
        finish(&mut window).await;
    }
    let (wall, cpu) = (clock.monotonic() - wall, thread_cpu() - cpu);
    let each = cpu.as_nanos() / REQUESTS as u128;
    let rate = REQUESTS as f64 / wall.as_secs_f64();
    println!("upstream/pipelined body={body}: {rate:.0} requests/s, {each} ns of CPU each");
}

async fn finish(window: &mut VecDeque<rocketmq_timer_proxy::upstream::client::InFlight>) {
    if let Some(in_flight) = window.pop_front() {
        let answer = in_flight.answer().await.expect("an answer");
        assert_eq!(answer.header.code, 0);
    }
}

fn send(body: Bytes) -> Command {
    let ext = [
        ("a", "group"),
        ("b", "Topic"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", "UNIQ_KEY\u{1}7F0000010000000000000000000000\u{2}WAIT\u{1}true"),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    Command::request(310, &ext, body)
}

/// Answers every frame with code 0, a few ext fields and its opaque.
fn answer_all(mut socket: TcpStream) {
    socket.set_nodelay(true).expect("a TCP socket");
    let mut template = Command::request(0, &[], Bytes::new());
    template.header.flag = 1;
    for (key, value) in
        [("msgId", "7F000001000078BF0000000000000000"), ("queueId", "1"), ("queueOffset", "123456")]
    {
        template.header.ext.set(key.into(), value.into());
    }
    template.serialize = SerializeType::Json;
    template.header.opaque = 1_000_000_000;
    let template = template.encode();
    let place = memchr::memmem::find(&template, b"1000000000").expect("the opaque");
    let mut buffer = BytesMut::new();
    let mut chunk = vec![0; 256 * 1024];
    let mut out = Vec::new();
    while let Ok(n @ 1..) = socket.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..n]);
        out.clear();
        while let Some(frame) = Frame::take(&mut buffer).expect("frames") {
            let header = frame.header();
            let at = memchr::memmem::find(header, b"\"opaque\":").expect("an opaque") + 9;
            let digits = header[at..].iter().take_while(|b| b.is_ascii_digit());
            let opaque: Vec<u8> = digits.copied().collect();
            let start = out.len();
            out.extend_from_slice(&template);
            // Right-aligned; the blanks before a number are legal JSON.
            let field = &mut out[start + place..start + place + 10];
            field.fill(b' ');
            field[10 - opaque.len()..].copy_from_slice(&opaque);
        }
        if socket.write_all(&out).is_err() {
            return;
        }
    }
}

fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
