//! The scripted peer, the relay and the client themselves: a harness that cannot fail proves nothing.

use rocketmq_timer_proxy::remoting::command::Command;
use tokio::net::TcpStream;

use crate::support::client::RawClient;
use crate::support::fault::{BlackHole, Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{bytes, soon};

fn ask(code: i32) -> Command {
    Command::request(code, &[("topic", "T")], bytes("question"))
}

#[tokio::test]
async fn a_script_decides_each_answer() {
    let peer = ScriptedPeer::start(|seen| match seen.code() {
        1 => Act::Reply(Reply::body("one").with("k", "v").remark("r")),
        2 => Act::Twice(Reply::code(2)),
        3 => Act::UnknownOpaqueFirst(Reply::code(3)),
        4 => Act::HalfThenClose(Reply::code(4)),
        _ => Act::Never,
    })
    .await;
    let mut client = RawClient::connect(peer.socket_address()).await;
    let one = client.call(ask(1), 11).await;
    assert_eq!(one.body, "one");
    assert_eq!(one.header.ext.get("k").unwrap(), "v");
    assert_eq!(one.header.remark.unwrap(), "r");
    client.call(ask(2), 12).await;
    assert_eq!(client.answer(12).await.header.code, 2);
    client.call(ask(3), 13).await;
    assert_eq!(client.answer(13 + 1_000_000_007).await.header.code, 3);
    client.send(ask(9), 14).await;
    let held = peer.until_requests(9, 1).await.remove(0);
    assert_eq!(held.ext("topic"), "T");
    peer.answer(&held, &Reply::code(99));
    assert_eq!(client.answer(14).await.header.code, 99);
    client.send(ask(4), 15).await;
    client.closed().await;
    let log = peer.until("the end", |log| log.open == 0).await;
    assert_eq!((log.accepted, log.requests.len()), (1, 5));
}

#[tokio::test]
async fn the_relay_breaks_what_it_is_told_to() {
    let peer = ScriptedPeer::broker().await;
    let relay = FaultRelay::start(peer.address()).await;
    let mut client = RawClient::connect(relay.address()).await;
    assert_eq!(client.call(ask(28), 1).await.header.code, 0);
    relay.set(Fault::Stall).await;
    client.send(ask(28), 2).await;
    relay.set(Fault::Pass).await;
    assert_eq!(client.answer(2).await.header.opaque, 2);
    relay.set(Fault::CutAfter(10)).await;
    client.send(ask(28), 3).await;
    client.closed().await;
    relay.set(Fault::Refuse).await;
    assert!(TcpStream::connect(relay.address()).await.is_err());
    relay.set(Fault::Pass).await;
    soon("the relay's port to open", async {
        while TcpStream::connect(relay.address()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(peer.requests().len(), 3);
}

#[tokio::test]
async fn a_black_hole_neither_accepts_nor_refuses() {
    let hole = BlackHole::new();
    let connect = TcpStream::connect(hole.address());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), connect).await;
    assert!(waited.is_err(), "expected no outcome");
}
