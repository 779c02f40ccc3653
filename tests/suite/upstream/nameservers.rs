//! Several name servers behind one request.

use std::time::Duration;

use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::upstream::UpstreamError;
use rocketmq_timer_proxy::upstream::client::Request;
use rocketmq_timer_proxy::upstream::nameservers::{NameServerSettings, NameServers};

use crate::support::fault::{BlackHole, Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{PATIENCE, bytes};

fn ask(code: i32) -> Command {
    Command::request(code, &[("topic", "T")], bytes(""))
}

/// Limits that nothing here may run into: only a failure moves a request on.
fn settings() -> NameServerSettings {
    NameServerSettings {
        next_after: PATIENCE,
        read_within: Duration::from_secs(15),
        connect_within: Duration::from_millis(200),
        answer_within: Duration::from_secs(15),
    }
}

async fn answering(body: &'static str) -> ScriptedPeer {
    ScriptedPeer::start(move |_| Act::Reply(Reply::body(body))).await
}

fn servers(addresses: &[String], metrics: &Metrics) -> NameServers {
    NameServers::new(addresses, settings(), metrics.clone())
}

/// The same, where silence moves a read on as well.
fn hasty(addresses: &[String]) -> NameServers {
    let settings = NameServerSettings { next_after: HASTE, ..settings() };
    NameServers::new(addresses, settings, Metrics::new())
}

const HASTE: Duration = Duration::from_millis(50);

async fn closed_port() -> String {
    let mut peer = ScriptedPeer::start(|_| Act::Never).await;
    peer.stop().await;
    peer.address()
}

#[tokio::test]
async fn one_server_is_used_while_it_answers() {
    let mut first = answering("first").await;
    let second = answering("second").await;
    let metrics = Metrics::new();
    let names = servers(&[first.address(), second.address()], &metrics);
    for _ in 0..3 {
        assert_eq!(names.request(ask(105)).await.unwrap().body, "first");
    }
    first.stop().await;
    for _ in 0..3 {
        assert_eq!(names.request(ask(105)).await.unwrap().body, "second");
    }
    let _first =
        ScriptedPeer::start_at(first.socket_address(), |_| Act::Reply(Reply::body("first again")))
            .await;
    // It is not left for one that came back.
    assert_eq!(names.request(ask(105)).await.unwrap().body, "second");
    assert_eq!(metrics.upstream_failovers.get(), 1);
}

#[tokio::test]
async fn dead_servers_delay_a_read_little_in_whatever_order() {
    let hole = BlackHole::new();
    let refusing = closed_port().await;
    let healthy = answering("route").await;
    let all = [hole.address(), refusing, healthy.address()];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let names = hasty(&order.map(|i| all[i].clone()));
        let answers = tokio::join!(names.request(ask(105)), names.request(ask(106)));
        assert_eq!(answers.0.unwrap().body, "route", "{order:?}");
        assert_eq!(answers.1.unwrap().body, "route", "{order:?}");
    }
}

#[tokio::test]
async fn a_silent_server_is_left_and_a_slow_one_is_waited_for() {
    let silent = ScriptedPeer::start(|_| Act::Never).await;
    let healthy = answering("route").await;
    let names = hasty(&[silent.address(), healthy.address()]);
    assert_eq!(names.request(ask(105)).await.unwrap().body, "route");
    assert_eq!(silent.requests().len(), 1);
    assert_eq!(names.request(ask(105)).await.unwrap().body, "route");
    let expected = format!("{} (no answer in time), {}", silent.address(), healthy.address());
    assert_eq!(names.describe(), expected);

    let slow = ScriptedPeer::start(|_| Act::Later(HASTE * 4, Reply::body("slow"))).await;
    let names = hasty(&[closed_port().await, slow.address()]);
    assert_eq!(names.request(ask(105)).await.unwrap().body, "slow");
}

#[tokio::test]
async fn a_server_whose_connection_ends_is_not_the_end_of_a_read() {
    for act in [Act::Close, Act::Reset, Act::HalfThenReset(Reply::body("half"))] {
        let broken = ScriptedPeer::start(move |_| act.clone()).await;
        let healthy = answering("route").await;
        let names = servers(&[broken.address(), healthy.address()], &Metrics::new());
        assert_eq!(names.request(ask(106)).await.unwrap().body, "route");
    }
}

#[tokio::test]
async fn when_all_are_down_the_error_comes_at_once_and_names_them() {
    let (first, second) = (closed_port().await, closed_port().await);
    let names = servers(&[first.clone(), second.clone()], &Metrics::new());
    for code in [105, 206] {
        let err = names.request(ask(code)).await.unwrap_err();
        assert!(matches!(err, UpstreamError::Connect { .. }), "{err}");
    }
    let why = |address: &str| {
        format!("{address} (cannot connect to {address}: Connection refused (os error 111))")
    };
    assert_eq!(names.describe(), format!("{}, {}", why(&first), why(&second)));
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_again() {
    let broken = ScriptedPeer::start(|_| Act::Close).await;
    let healthy = answering("done").await;
    let addresses = [broken.address(), healthy.address()];
    let names = servers(&addresses, &Metrics::new());
    let err = names.request(ask(101)).await.unwrap_err();
    assert!(matches!(err, UpstreamError::Closed { .. }), "{err}");
    assert_eq!(healthy.requests().len(), 0);

    // Where no connection can be made nothing can have been done.
    let hole = BlackHole::new();
    for dead in [closed_port().await, hole.address()] {
        let names = servers(&[dead, healthy.address()], &Metrics::new());
        assert_eq!(names.request(ask(101)).await.unwrap().body, "done");
    }
}

#[tokio::test]
async fn an_unknown_code_expires_and_harms_nobody() {
    let peer = ScriptedPeer::start(|seen| match seen.code() {
        105 => Act::Reply(Reply::body("route")),
        _ => Act::Never,
    })
    .await;
    let settings = NameServerSettings { answer_within: Duration::from_millis(80), ..settings() };
    let names = NameServers::new(&[peer.address()], settings, Metrics::new());
    let err = names.request(ask(9999)).await.unwrap_err();
    assert!(matches!(err, UpstreamError::Timeout { .. }), "{err}");
    assert_eq!(names.request(ask(105)).await.unwrap().body, "route");
    let log = peer.log();
    assert_eq!((log.accepted, log.requests.len()), (1, 2));
}

#[tokio::test]
async fn a_write_reaches_every_server_and_tells_each_outcome() {
    let good = answering("ok").await;
    let bad = ScriptedPeer::start(|_| Act::Reply(Reply::code(1).remark("no"))).await;
    let relay = FaultRelay::start(good.address()).await;
    relay.set(Fault::Refuse).await;
    let addresses = [good.address(), bad.address(), relay.address()];
    let names = servers(&addresses, &Metrics::new());
    let request = Request::Command(ask(100));
    let outcomes = names.ask_all(&request).await;
    let outcomes: Vec<_> = outcomes
        .into_iter()
        .map(|(address, outcome)| (address, outcome.ok().map(|answer| answer.header.code)))
        .collect();
    let codes = [Some(0), Some(1), None];
    let expected: Vec<_> = addresses.into_iter().zip(codes).collect();
    assert_eq!(outcomes, expected);
}
