//! Bytes that are no frames, on both kinds of port: the connection is closed, nothing that a length
//! only announces is allocated, and everybody else is served.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rocketmq_timer_proxy::metrics::count;
use rocketmq_timer_proxy::remoting::command::Command;
use tokio::io::AsyncWriteExt;

use super::rig::{Proxy, TestClock, hold_all, until};
use crate::support::bytes;
use crate::support::client::{RawClient, send_v2};
use crate::support::peer::{Act, Reply, ScriptedPeer};

const HTTP_1: &str = "an HTTP/1 request";
const HTTP_2: &str = "an HTTP/2 preface (a gRPC client?)";
const TLS: &str = "a TLS handshake";
const PROXY: &str = "a PROXY protocol header";

/// What is sent, and what it is taken for on a broker's port; the other names only protocols.
fn garbage() -> Vec<(Vec<u8>, &'static str)> {
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 500]].concat();
    let mut garbage: Vec<(Vec<u8>, &str)> = [
        (&b"GET / HTTP/1.1\r\nHost: broker:10911\r\n\r\n"[..], HTTP_1),
        (b"POST /send HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", HTTP_1),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0", HTTP_2),
        (&hello, TLS),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 56324 10911\r\n", PROXY),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\xdc\x04\x2a\x9f", PROXY),
        (b"\0\0\0\0", "frame too short"),
        (b"\0\0\0\x03\0\0\0", "frame too short"),
        (b"\x7f\xff\xff\xff", "frame too long"),
        (b"\xff\xff\xff\xff", "frame too long"),
        (b"\x00\xff\xff\xfd", "frame too long"),
        (b"\0\0\0\x0a\0\0\0\x07", "header longer than its frame"),
        (b"\0\0\0\x04\x02\0\0\0", "unknown serialize type"),
    ]
    .map(|(bytes, guess)| (bytes.to_vec(), guess))
    .into();
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..20 {
        let mut noise: Vec<u8> =
            (0..random.random_range(4..5_000)).map(|_| random.random()).collect();
        // Over every legal length, and no start that anybody knows.
        noise[0] = random.random_range(0x80..=0xff);
        garbage.push((noise, "frame too long"));
    }
    garbage
}

/// Writes what is taken of it; the other side may close at any byte.
async fn dribble(client: &mut RawClient, bytes: &[u8]) {
    for byte in bytes {
        if client.socket.write_all(&[*byte]).await.is_err() {
            return;
        }
    }
}

struct Neighbours {
    broker: RawClient,
    names: RawClient,
    calls: i32,
}

impl Neighbours {
    async fn new(proxy: &Proxy) -> Self {
        Self { broker: proxy.client().await, names: proxy.names_client().await, calls: 0 }
    }

    async fn assert_served(&mut self) {
        self.calls += 1;
        let plain = self.broker.call(send_v2("Orders", 0, "", "plain"), self.calls).await;
        assert_eq!(plain.header.code, 0);
        let names = self.names.call(Command::request(106, &[], bytes("")), self.calls).await;
        assert_eq!(names.header.code, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_no_frame_closes_its_connection_and_no_other() {
    let broker = ScriptedPeer::start(|seen| match seen.code() {
        11 => Act::Never,
        _ => Act::Reply(Reply::stored(0, 0)),
    })
    .await;
    let proxy = Proxy::before(&broker.address(), TestClock::new()).await;
    let mut neighbours = Neighbours::new(&proxy).await;
    // One that waits all the time.
    let mut waiting = proxy.client().await;
    waiting.send(Command::request(11, &[], bytes("")), 77).await;
    let poll = broker.until_requests(11, 1).await.remove(0);
    let rejected = &proxy.metrics.session_rejected;
    for (bytes, guess) in garbage() {
        let on_names =
            if [HTTP_1, HTTP_2, TLS, PROXY].contains(&guess) { guess } else { "not a frame" };
        let before = [count(rejected, guess), count(rejected, on_names)];
        for dribbled in [false, true] {
            let clients = [proxy.client().await, proxy.names_client().await];
            for mut client in clients {
                if dribbled {
                    dribble(&mut client, &bytes[..bytes.len().min(64)]).await;
                } else {
                    client.send_bytes(&bytes).await;
                }
                client.closed().await;
            }
        }
        let more = || [count(rejected, guess) - before[0], count(rejected, on_names) - before[1]];
        let expected = if guess == on_names { [4, 4] } else { [2, 2] };
        until(guess, || more() == expected).await;
        neighbours.assert_served().await;
    }
    // After a good frame too, and then nothing is guessed.
    for mut client in [proxy.client().await, proxy.names_client().await] {
        let before = count(rejected, HTTP_1);
        assert_eq!(client.call(Command::request(106, &[], bytes("")), 1).await.header.code, 0);
        client.send_bytes(b"GET / HTTP/1.1\r\n\r\n").await;
        client.closed().await;
        assert_eq!(count(rejected, HTTP_1), before);
    }
    // A header that cannot be read. Where it names a delay, relaying it could be early.
    let header = br#"{"extFields":{"i":"DELAY\u00013"#;
    let len = u8::try_from(header.len()).unwrap();
    let mut client = proxy.client().await;
    client.send_bytes(&[&[0, 0, 0, 4 + len, 0, 0, 0, len], &header[..]].concat()).await;
    client.closed().await;
    assert_eq!(count(rejected, "unreadable delayed send"), 1);
    let mut client = proxy.names_client().await;
    client.send_bytes(b"\0\0\0\x08\0\0\0\x04nope").await;
    client.closed().await;
    neighbours.assert_served().await;
    // Nothing of all this reached the broker.
    let foreign: Vec<_> = broker
        .requests()
        .iter()
        .map(|s| s.code())
        .filter(|c| ![11, 106, 310].contains(c))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    broker.answer(&poll, &Reply::code(19));
    assert_eq!(waiting.answer(77).await.header.code, 19);
    drop((waiting, neighbours));
    proxy.stop().await;
}

/// A figure of `/proc/self/status`, in MiB.
fn status_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1_024
}

/// Loose bounds, since other tests run in this process: a hundred announcements of 2 GiB each would
/// be far beyond them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_lengths_and_silent_connections_cost_no_memory() {
    let broker = ScriptedPeer::broker().await;
    let proxy = Proxy::before(&broker.address(), TestClock::new()).await;
    let mut neighbours = Neighbours::new(&proxy).await;
    let before = [status_mib("VmPeak"), status_mib("VmRSS")];
    for _ in 0..50 {
        for mut client in [proxy.client().await, proxy.names_client().await] {
            client.send_bytes(b"\x7f\xff\xff\xff\0\x7f\xff\xff").await;
            client.closed().await;
        }
    }
    // As long as a frame may be, and then nothing more of it.
    let header = br#"{"code":310,"opaque":1,"extFields":{"b":"T","i":"DELAY\u00013"}}"#;
    let prefix = [0, 0xff, 0xff, 0xfc, 0, 0, 0, u8::try_from(header.len()).unwrap()];
    let begun = [&prefix[..], header].concat();
    let plain = [&prefix[..7], &[2], b"{}"].concat();
    let mut silent = Vec::new();
    // More than the budget has: those who wait for it are large, and small ones pass them.
    for _ in 0..8 {
        let (mut client, mut names) = (proxy.client().await, proxy.names_client().await);
        client.send_bytes(&begun).await;
        names.send_bytes(&begun[..40]).await;
        silent.extend([client, names]);
    }
    for _ in 0..50 {
        let mut client = proxy.client().await;
        client.send_bytes(&plain).await;
        silent.push(client);
    }
    for _ in 0..200 {
        silent.push(proxy.client().await);
        silent.push(proxy.names_client().await);
    }
    neighbours.assert_served().await;
    hold_all(&mut neighbours.broker, vec![send_v2("Orders", 0, "DELAY\u{1}3", "x")]).await;
    let after = [status_mib("VmPeak"), status_mib("VmRSS")];
    assert!(after[0] < before[0] + 8_192, "VmPeak in MiB: {} -> {}", before[0], after[0]);
    assert!(after[1] < before[1] + 256, "VmRSS in MiB: {} -> {}", before[1], after[1]);
    drop(silent);
    let open = &proxy.metrics.session_open;
    until("silent sessions to end", || open.get() == 1).await;
    neighbours.assert_served().await;
    drop(neighbours);
    proxy.stop().await;
}
