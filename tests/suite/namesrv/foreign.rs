//! What is not our protocol.

use std::time::Duration;

use rocketmq_timer_proxy::metrics::count;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::shutdown::Stage;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::Proxy;
use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{bytes, soon};

fn ask() -> Command {
    Command::request(206, &[], bytes(""))
}

async fn proxy() -> (ScriptedPeer, Proxy) {
    let names = ScriptedPeer::start(|seen| match seen.code() {
        106 => Act::Never,
        _ => Act::Reply(Reply::body("list")),
    })
    .await;
    let proxy = Proxy::start(&[names.address()]).await;
    (names, proxy)
}

#[tokio::test]
async fn other_protocols_are_closed_at_once_and_named() {
    const HTTP: &str = "an HTTP/1 request";
    const PROXY: &str = "a PROXY protocol header";
    const OTHER: &str = "not a frame";
    let (_names, proxy) = proxy().await;
    let mut neighbour = proxy.client().await;
    neighbour.call(ask(), 1).await;
    let cases: [(&[u8], &'static str); 11] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", HTTP),
        (b"POST /a HTTP/1.1\r\n", HTTP),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP/2 preface (a gRPC client?)"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "a TLS handshake"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", PROXY),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", PROXY),
        (&[0; 4], OTHER),
        (b"\x7f\xff\xff\xff", OTHER),
        // The header is longer than the frame; an unknown form; no header.
        (b"\0\0\0\x08\0\0\0\x09", OTHER),
        (b"\0\0\0\x06\x07\0\0\x02{}", OTHER),
        (b"\0\0\0\x06\0\0\0\x02{x", OTHER),
    ];
    let mut counts = std::collections::BTreeMap::new();
    for (first, kind) in cases {
        let mut client = proxy.client().await;
        client.send_bytes(first).await;
        client.closed().await;
        *counts.entry(kind).or_insert(0) += 1;
        assert_eq!(count(&proxy.metrics.session_rejected, kind), counts[kind], "{kind}");
    }
    assert_eq!(neighbour.call(ask(), 2).await.body, "list");
}

#[tokio::test]
async fn garbage_after_a_good_frame_is_no_other_protocol() {
    let (_names, proxy) = proxy().await;
    let mut client = proxy.client().await;
    client.call(ask(), 1).await;
    client.send_bytes(b"GET / HTTP/1.1\r\n\r\n").await;
    client.closed().await;
    assert_eq!(count(&proxy.metrics.session_rejected, "not a frame"), 1);
}

#[tokio::test]
async fn large_frames_take_budget_while_they_are_held_and_no_longer() {
    let (names, proxy) = proxy().await;
    names.script(|_| Act::Never);
    let large = Command::request(206, &[], vec![7; 3 * 1024 * 1024].into());
    let mut client = proxy.client().await;
    client.send(large, 1).await;
    let seen = names.until_requests(206, 1).await.remove(0);
    let held = proxy.budget.used();
    assert!((3 * 1024 * 1024..4 * 1024 * 1024).contains(&held), "{held}");
    names.answer(&seen, &Reply::code(0));
    client.answer(1).await;
    assert_eq!(proxy.budget.used(), 0);
    // What is announced but does not come is given back with the connection.
    let mut liar = proxy.client().await;
    liar.send_bytes(b"\x00\x40\x00\x00\x00\x00\x00\x10{").await;
    drop(liar);
    let mut other = proxy.client().await;
    names.script(|_| Act::Reply(Reply::code(0)));
    other.call(ask(), 1).await;
    while proxy.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connections_that_say_nothing_disturb_nobody_up_to_the_limit() {
    let (_names, proxy) = proxy().await;
    let mut silent = Vec::new();
    // The limit in these tests is 2,000; descriptors of both sides are in this process.
    for _ in 0..300 {
        silent.push(RawClient::connect(&proxy.address).await);
    }
    let mut client = proxy.client().await;
    assert_eq!(client.call(ask(), 1).await.body, "list");
    drop(silent);
    assert_eq!(client.call(ask(), 2).await.body, "list");
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_closed_after_two_minutes() {
    let (_names, proxy) = proxy().await;
    let (mut silent, mut half) = (proxy.client().await, proxy.client().await);
    silent.call(ask(), 1).await;
    half.send_bytes(&ask().encode()[..30]).await;
    // One more round trip: what was sent before it has arrived.
    proxy.client().await.call(ask(), 1).await;
    // From here on waiting for a timer takes no time.
    tokio::time::pause();
    let paused = Instant::now();
    for client in [&mut silent, &mut half] {
        assert_eq!(client.socket.read(&mut [0; 1]).await.unwrap(), 0);
        let waited = paused.elapsed().as_secs();
        assert!((119..=121).contains(&waited), "closed after {waited} s");
    }
}

#[tokio::test]
async fn a_large_frame_has_half_a_minute_to_be_whole() {
    let (_names, proxy) = proxy().await;
    let (mut silent, mut slow) = (proxy.client().await, proxy.client().await);
    for client in [&mut silent, &mut slow] {
        client.send_bytes(b"\x00\x20\x00\x00\x00\x00\x00\x10{").await;
    }
    while proxy.budget.used() < 4 * 1024 * 1024 {
        tokio::task::yield_now().await;
    }
    // From here on waiting for a timer takes no time.
    tokio::time::pause();
    let paused = Instant::now();
    let mut every_7_s = tokio::time::interval(Duration::from_secs(7));
    let mut byte = [0];
    loop {
        tokio::select! {
            read = slow.socket.read(&mut byte) => {
                assert_eq!(read.unwrap(), 0);
                break;
            }
            _ = every_7_s.tick() => slow.send_bytes(b" ").await,
        }
    }
    assert_eq!(silent.socket.read(&mut byte).await.unwrap(), 0);
    let waited = paused.elapsed().as_secs();
    assert!((29..=30).contains(&waited), "closed after {waited} s");
    assert_eq!(proxy.budget.used(), 0);
}

#[tokio::test]
async fn a_client_that_reads_no_answers_does_not_keep_the_process() {
    let (names, proxy) = proxy().await;
    let body = vec![7; 8 * 1024 * 1024];
    names.script(move |_| Act::Reply(Reply::body(body.clone())));
    let mut client = proxy.client().await;
    for opaque in 0..8 {
        client.send(ask(), opaque).await;
    }
    // The first bytes are there; the rest does not fit into the sockets.
    client.socket.readable().await.unwrap();
    proxy.stop.enter(Stage::Cut);
    soon("the end", proxy.served).await.unwrap();
}
