//! One multiplexed connection.

use std::time::Duration;

use bytes::Bytes;
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::header::FLAG_ONEWAY;
use rocketmq_timer_proxy::upstream::UpstreamError;
use rocketmq_timer_proxy::upstream::client::{Client, Request, Silence};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::fault::{Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{PATIENCE, bytes, soon};

const SHORT: Duration = Duration::from_millis(80);

fn ask(code: i32, opaque: i32, body: &str) -> Command {
    let mut command = Command::request(code, &[("topic", "T")], bytes(body));
    command.header.opaque = opaque;
    command
}

async fn connect(address: &str, metrics: &Metrics) -> Client {
    Client::connect(address, PATIENCE, metrics).await.unwrap()
}

async fn echo() -> ScriptedPeer {
    ScriptedPeer::start(|seen| Act::Reply(Reply::body(seen.request.body.clone()))).await
}

fn why_closed(err: UpstreamError, address: &str) -> String {
    match err {
        UpstreamError::Closed { address: at, why } => {
            assert_eq!(at, address);
            why
        }
        other => panic!("expected a closed connection, got {other}"),
    }
}

#[tokio::test]
async fn equal_opaques_never_mix() {
    let peer = ScriptedPeer::start(|_| Act::Never).await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let mut calls = JoinSet::new();
    for caller in 0..50 {
        let client = client.clone();
        calls.spawn(async move {
            let request = ask(105, 7, &format!("caller {caller}"));
            (caller, client.request(request, PATIENCE).await.unwrap())
        });
    }
    let mut seen = peer.until_requests(105, 50).await;
    let mut opaques: Vec<_> = seen.iter().map(|s| s.request.header.opaque).collect();
    opaques.sort_unstable();
    opaques.dedup();
    assert_eq!(opaques.len(), 50, "each request has an opaque of its own");
    seen.reverse();
    for request in &seen {
        peer.answer(request, &Reply::body(request.request.body.clone()));
    }
    while let Some(call) = soon("the answers", calls.join_next()).await {
        let (caller, answer) = call.unwrap();
        assert_eq!(answer.header.opaque, 7);
        assert_eq!(answer.body, format!("caller {caller}"));
    }
    assert_eq!(client.pending(), 0);
}

#[tokio::test]
async fn requests_are_written_in_the_order_they_were_started() {
    let peer = echo().await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let mut in_flight = Vec::new();
    for number in 0..3_000 {
        let zeros = if number % 500 == 7 { 100_000 } else { 10 };
        let body = format!("{}{number}", "0".repeat(zeros));
        let request = Request::Command(ask(10, number, &body));
        let started = client.start(request, PATIENCE, Silence::Ends).await;
        in_flight.push((number, body, started.unwrap()));
    }
    for (number, body, in_flight) in in_flight {
        let answer = in_flight.answer().await.unwrap().into_command();
        assert_eq!(answer.header.opaque, number);
        assert_eq!(answer.body, body);
    }
    let numbers = peer.requests();
    let numbers = numbers.iter().map(|s| &s.request.body);
    let numbers: Vec<i32> = numbers.map(|b| str::from_utf8(b).unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (0..3_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn strays_are_dropped_and_counted() {
    let peer = ScriptedPeer::start(|seen| match seen.code() {
        1 => Act::UnknownOpaqueFirst(Reply::body("one")),
        2 => Act::Twice(Reply::body("two")),
        _ => Act::Reply(Reply::body("other")),
    })
    .await;
    let metrics = Metrics::new();
    let client = connect(&peer.address(), &metrics).await;
    for (code, body) in [(1, "one"), (2, "two"), (3, "other")] {
        let answer = client.request(ask(code, 5, ""), PATIENCE).await.unwrap();
        assert_eq!((answer.header.opaque, answer.body), (5, bytes(body)));
    }
    assert_eq!(metrics.upstream_late_answers.get(), 2);
    assert_eq!(client.pending(), 0);
    assert!(client.is_open());
}

#[tokio::test]
async fn a_late_answer_reaches_nobody() {
    let peer = ScriptedPeer::start(|seen| match seen.code() {
        1 => Act::Never,
        _ => Act::Reply(Reply::body("other")),
    })
    .await;
    let metrics = Metrics::new();
    let client = connect(&peer.address(), &metrics).await;
    let slow = Request::Command(ask(1, 9, ""));
    let slow = client.start(slow, SHORT, Silence::Allowed).await.unwrap();
    let err = slow.answer().await.unwrap_err();
    let words = format!("no answer from {} within 80ms", peer.address());
    assert_eq!(err.to_string(), words);
    assert_eq!(client.pending(), 0);
    let late = peer.until_requests(1, 1).await.remove(0);
    peer.answer(&late, &Reply::body("late"));
    let answer = client.request(ask(2, 9, ""), PATIENCE).await.unwrap();
    assert_eq!(answer.body, "other");
    assert_eq!(metrics.upstream_late_answers.get(), 1);
}

#[tokio::test]
async fn an_ended_connection_fails_everything_in_flight() {
    let acts: [(Act, &str); 5] = [
        (Act::Close, "the peer closed it"),
        (Act::Reset, "the peer reset it"),
        (Act::HalfThenClose(Reply::body("half")), "the peer closed it in the middle of a frame"),
        (Act::HalfThenReset(Reply::body("half")), "the peer reset it"),
        (
            Act::Raw(Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            "frame length 1213486160 is over 16777212",
        ),
    ];
    for (act, expected) in acts {
        let peer = ScriptedPeer::start(|_| Act::Never).await;
        let client = connect(&peer.address(), &Metrics::new()).await;
        let mut calls = JoinSet::new();
        for opaque in 0..50 {
            let client = client.clone();
            calls.spawn(async move { client.request(ask(1, opaque, ""), PATIENCE).await });
        }
        peer.until_requests(1, 50).await;
        peer.script(move |_| act.clone());
        let err = client.request(ask(2, 0, ""), PATIENCE).await.unwrap_err();
        assert_eq!(why_closed(err, &peer.address()), expected);
        while let Some(call) = soon("the failures", calls.join_next()).await {
            assert_eq!(why_closed(call.unwrap().unwrap_err(), &peer.address()), expected);
        }
        assert_eq!(client.pending(), 0);
        assert!(!client.is_open());
        let err = client.request(ask(3, 0, ""), PATIENCE).await.unwrap_err();
        assert_eq!(why_closed(err, &peer.address()), expected);
    }
}

#[tokio::test]
async fn a_refused_connection_names_the_address() {
    let mut peer = ScriptedPeer::start(|_| Act::Never).await;
    peer.stop().await;
    let address = peer.address();
    let outcome = Client::connect(&address, PATIENCE, &Metrics::new()).await;
    let err = outcome.unwrap_err().to_string();
    assert_eq!(err, format!("cannot connect to {address}: Connection refused (os error 111)"));
}

#[tokio::test]
async fn what_is_given_up_before_it_is_written_is_not_sent() {
    let peer = echo().await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let start = |number| {
        let request = Request::Command(ask(1, number, &number.to_string()));
        client.start(request, PATIENCE, Silence::Ends)
    };
    // On this runtime the writer runs only when we wait.
    let (first, second) = (start(1).await.unwrap(), start(2).await.unwrap());
    assert_eq!(client.pending(), 2);
    drop(first);
    assert_eq!(client.pending(), 1);
    assert_eq!(second.answer().await.unwrap().into_command().body, "2");
    assert_eq!(client.pending(), 0);
    let seen = peer.requests();
    assert_eq!((seen.len(), &seen[0].request.body), (1, &bytes("2")));
}

#[tokio::test]
async fn silence_ends_a_connection_only_where_an_answer_was_certain() {
    let peer = echo().await;
    let relay = FaultRelay::start(peer.address()).await;
    let client = connect(&relay.address(), &Metrics::new()).await;
    client.request(ask(1, 0, ""), PATIENCE).await.unwrap();
    relay.set(Fault::BlackHole).await;
    let start = |silence, within| {
        let request = Request::Command(ask(2, 0, ""));
        client.start(request, within, silence)
    };
    let unknown = start(Silence::Allowed, SHORT).await.unwrap();
    assert!(matches!(unknown.answer().await, Err(UpstreamError::Timeout { .. })));
    assert!(client.is_open());
    let patient = start(Silence::Ends, PATIENCE).await.unwrap();
    let certain = start(Silence::Ends, SHORT).await.unwrap();
    assert!(matches!(certain.answer().await, Err(UpstreamError::Timeout { .. })));
    assert!(!client.is_open());
    let err = patient.answer().await.unwrap_err();
    assert_eq!(why_closed(err, &relay.address()), "nothing received for 80ms");
    assert_eq!(client.pending(), 0);
}

#[tokio::test]
async fn requests_of_the_broker_get_a_refusal_and_no_answer_of_ours() {
    let peer = echo().await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    client.request(ask(1, 0, ""), PATIENCE).await.unwrap();
    // Opaque 1 is what our next request will use.
    let mut oneway = ask(40, 1, "");
    oneway.header.flag = FLAG_ONEWAY;
    peer.push(0, &oneway);
    peer.push(0, &ask(307, 1, ""));
    let answer = client.request(ask(2, 77, "mine"), PATIENCE).await.unwrap();
    assert_eq!(answer.body, "mine");
    let log = peer.until("the refusal", |log| !log.answers.is_empty()).await;
    let [refusal] = &log.answers[..] else { panic!("expected one refusal: {:?}", log.answers) };
    assert_eq!((refusal.header.code, refusal.header.opaque), (3, 1));
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_connection() {
    let peer = echo().await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let other = client.clone();
    let ended = client.ended();
    drop(client);
    other.request(ask(1, 0, ""), PATIENCE).await.unwrap();
    assert_eq!(peer.log().open, 1);
    drop(other);
    peer.until("the end", |log| log.open == 0).await;
    soon("the end on our side", ended).await;
}

#[tokio::test]
async fn an_answer_tells_when_its_request_was_written() {
    let peer = echo().await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let before = Instant::now();
    let request = Request::Command(ask(1, 0, ""));
    let in_flight = client.start(request, PATIENCE, Silence::Ends).await;
    let answer = in_flight.unwrap().answer().await.unwrap();
    assert!(before <= answer.written && answer.written <= Instant::now());
}

#[tokio::test]
async fn a_oneway_request_leaves_no_entry() {
    let peer = ScriptedPeer::start(|_| Act::Never).await;
    let client = connect(&peer.address(), &Metrics::new()).await;
    let mut oneway = ask(15, 3, "offset");
    oneway.header.flag = FLAG_ONEWAY;
    let request = Request::Command(oneway);
    client.notify(request, PATIENCE).await.unwrap();
    assert_eq!(client.pending(), 0);
    let seen = peer.until_requests(15, 1).await.remove(0);
    assert_eq!(seen.request.body, "offset");
    assert!(seen.request.is_oneway());
}
