//! Sessions between bare clients and a scripted broker, with all that may break between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rocketmq_timer_proxy::budget::Budget;
use rocketmq_timer_proxy::clock::SystemClock;
use rocketmq_timer_proxy::config::Policy;
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::namesrv::endpoints::Lease;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::route::BrokerId;
use rocketmq_timer_proxy::session::{Door, Holder, Parts, Shared, listener};
use rocketmq_timer_proxy::shutdown::{Stage, Stop, stop};
use rocketmq_timer_proxy::store::{Hold, Receipt, TimerId};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::client::{RawClient, send_v1, send_v2};
use crate::support::fault::{BlackHole, Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{bytes, soon};

const DELAYED: &str = "UNIQ_KEY\u{1}U1\u{2}DELAY\u{1}3";
const PULL: i32 = 11;

/// Accepts every hold at once.
struct Accepts;

impl Holder for Accepts {
    fn hold(&self, _: Hold, receipt: Receipt) {
        receipt(Ok(TimerId(0x0102_0304)));
    }
}

struct Proxy {
    address: SocketAddr,
    stop: Stop,
    shared: Arc<Shared>,
    metrics: Metrics,
    _target: watch::Sender<Option<String>>,
}

impl Proxy {
    async fn before(broker: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (target, seen) = watch::channel(Some(broker));
        let (stop, stopping) = stop();
        let metrics = Metrics::new();
        let shared = Shared::new(Parts {
            clock: Arc::new(SystemClock::new()),
            policy: Policy::default(),
            holder: Arc::new(Accepts),
            budget: Budget::new(1024 * 1024),
            metrics: metrics.clone(),
            stopping,
            max_connections: 1_000,
        });
        let door = Door {
            broker: BrokerId { cluster: "DefaultCluster".into(), name: "broker-a".into(), id: 0 },
            host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: 20_000,
            vip: false,
            lease: Lease::default(),
            target: seen,
        };
        listener::spawn(listener, door, Arc::clone(&shared));
        Self { address, stop, shared, metrics, _target: target }
    }

    async fn client(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    /// Every session comes to its end by itself: none leaks.
    async fn ended(self) {
        self.stop.enter(Stage::Draining);
        soon("the sessions to end", self.shared.ended()).await;
        assert_eq!(self.metrics.session_open.get(), 0);
    }
}

fn ask(code: i32) -> Command {
    Command::request(code, &[("topic", "T")], bytes("question"))
}

#[tokio::test]
async fn delayed_sends_of_both_codes_are_held_and_plain_ones_reach_the_broker() {
    let broker = ScriptedPeer::broker().await;
    let proxy = Proxy::before(broker.address()).await;
    let mut client = proxy.client().await;
    for (opaque, send) in [(1, send_v1("T", 2, DELAYED, "x")), (2, send_v2("T", 3, DELAYED, "x"))] {
        let answer = client.call(send, opaque).await;
        assert_eq!(answer.header.code, 0);
        // 127.0.0.1, port 20000, the timer's id with bit 62 set.
        let id = answer.header.ext.get("msgId").unwrap();
        assert_eq!(id, "7F00000100004E204000000001020304");
        let queue = answer.header.ext.get("queueId").unwrap();
        assert_eq!(queue.as_ref(), (opaque + 1).to_string().as_bytes());
    }
    assert_eq!(broker.requests().len(), 0);
    let mut plain = send_v2("T", 1, "KEYS\u{1}k", "x");
    plain.header.opaque = 3;
    let sent = plain.encode();
    let answer = client.call(plain, 3).await;
    assert_eq!(answer.header.ext.get("queueOffset").unwrap(), "0");
    assert_eq!(broker.requests()[0].frame.bytes(), &sent);
    proxy.ended().await;
}

#[tokio::test]
async fn two_clients_with_equal_opaques_never_see_each_others_answers() {
    let broker = ScriptedPeer::start(|_| Act::Never).await;
    let proxy = Proxy::before(broker.address()).await;
    let mut clients = [proxy.client().await, proxy.client().await];
    for (n, client) in clients.iter_mut().enumerate() {
        let body = Bytes::from(n.to_string());
        client.send(send_v2("T", 0, "", body), 0).await;
    }
    let mut requests = broker.until_requests(310, 2).await;
    requests.reverse();
    for seen in &requests {
        broker.answer(seen, &Reply::body(seen.request.body.clone()));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.answer(0).await.body, n.to_string());
    }
    assert_eq!(broker.log().accepted, 2);
    proxy.ended().await;
}

#[tokio::test]
async fn a_long_poll_is_answered_after_later_requests() {
    let broker = ScriptedPeer::start(|seen| match seen.code() {
        PULL => Act::Never,
        _ => Act::Reply(Reply::code(0)),
    })
    .await;
    let proxy = Proxy::before(broker.address()).await;
    let mut client = proxy.client().await;
    client.send(ask(PULL), 1).await;
    let poll = broker.until_requests(PULL, 1).await.remove(0);
    for opaque in 2..100 {
        client.call(ask(34), opaque).await;
        let held = client.call(send_v2("T", 0, DELAYED, "x"), -opaque).await;
        assert_eq!(held.header.code, 0);
    }
    broker.answer(&poll, &Reply::code(19));
    assert_eq!(client.answer(1).await.header.code, 19);
    proxy.ended().await;
}

/// What the broker's side does to a connection with requests in flight, the client sees at once;
/// other connections go on.
#[tokio::test]
async fn each_fault_upstream_reaches_its_own_client_only() {
    let acts: [fn() -> Act; 6] = [
        || Act::Close,
        || Act::Reset,
        || Act::HalfThenClose(Reply::body(vec![7; 100_000])),
        || Act::HalfThenReset(Reply::body(vec![7; 100_000])),
        || Act::Twice(Reply::code(0)),
        || Act::UnknownOpaqueFirst(Reply::code(0)),
    ];
    for (n, act) in acts.into_iter().enumerate() {
        let broker = ScriptedPeer::start(move |seen| match seen.code() {
            34 => Act::Reply(Reply::code(0)),
            99 => act(),
            _ => Act::Never,
        })
        .await;
        let proxy = Proxy::before(broker.address()).await;
        let mut other = proxy.client().await;
        other.call(ask(34), 1).await;
        let mut client = proxy.client().await;
        for opaque in 0..50 {
            client.send(ask(PULL), opaque).await;
        }
        client.send(ask(99), 50).await;
        if n < 4 {
            // Be it before or within an answer, as a direct client would see it.
            client.closed().await;
        } else if n == 4 {
            client.answer(50).await;
            client.answer(50).await;
        } else {
            client.answer(50 + 1_000_000_007).await;
            client.answer(50).await;
        }
        assert_eq!(other.call(ask(34), 2).await.header.code, 0);
        drop((client, other));
        broker.until("all twins to end", |log| log.open == 0).await;
        proxy.ended().await;
    }
}

#[tokio::test]
async fn requests_of_the_broker_that_nobody_answers_are_no_trouble() {
    let broker = ScriptedPeer::broker().await;
    let proxy = Proxy::before(broker.address()).await;
    let mut client = proxy.client().await;
    client.call(ask(34), 1).await;
    for code in [39, 40, 220, 221, 307, 309, 326] {
        let mut request = ask(code);
        request.header.opaque = 2;
        broker.push(0, &request);
    }
    assert_eq!(client.call(ask(34), 2).await.header.code, 0);
    let pushed: Vec<i32> = client.pushed.iter().map(|request| request.header.code).collect();
    assert_eq!(pushed, [39, 40, 220, 221, 307, 309, 326]);
    proxy.ended().await;
}

#[tokio::test]
async fn a_broken_line_breaks_both_ends_and_a_mended_one_serves_again() {
    let broker = ScriptedPeer::broker().await;
    let line = FaultRelay::start(broker.address()).await;
    let proxy = Proxy::before(line.address()).await;
    for fault in
        [Fault::Refuse, Fault::ResetAfterRequest(0), Fault::CutAfter(0), Fault::ResetAfter(0)]
    {
        let mut client = proxy.client().await;
        client.call(ask(34), 1).await;
        line.set(fault).await;
        client.closed().await;
        if fault == Fault::Refuse {
            // Not even a delayed send, since a direct client would not get through either.
            let mut refused = proxy.client().await;
            refused.closed().await;
        }
        line.set(Fault::Pass).await;
    }
    let mut client = proxy.client().await;
    client.call(ask(34), 2).await;
    drop(client);
    proxy.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_never_answers_the_connect_is_given_three_seconds() {
    let nowhere = BlackHole::new();
    let proxy = Proxy::before(nowhere.address()).await;
    let begun = tokio::time::Instant::now();
    let mut client = proxy.client().await;
    client.closed().await;
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_went_dead_is_cut_at_both_ends() {
    let broker = ScriptedPeer::broker().await;
    let line = FaultRelay::start(broker.address()).await;
    let proxy = Proxy::before(line.address()).await;
    let mut client = proxy.client().await;
    client.call(ask(34), 1).await;
    line.set(Fault::BlackHole).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(client.socket.read(&mut [0]).await.unwrap(), 0);
    assert!(begun.elapsed() >= Duration::from_secs(120));
    assert!(begun.elapsed() <= Duration::from_secs(150));
    broker.until("the twin to end", |log| log.open == 0).await;
}
