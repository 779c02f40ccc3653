//! Brokers that refuse, break off, stall and come back: nothing held is lost or forgotten, nobody
//! gets another's answer, and what breaks for one client breaks for nobody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rocketmq_timer_proxy::remoting::command::Command;

use super::rig::{Proxy, START, TestClock, body_of, hold_all, is_ours, until};
use crate::support::client::{RawClient, send_v2};
use crate::support::fault::{Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer};

const PULL: i32 = 11;

/// `count` sends over eight queues, due one after the other within five seconds from `START + 1 s`.
fn spread(count: usize) -> Vec<Command> {
    let due = |n: usize| START + 1_000 + i64::try_from(n * 5_000 / count).unwrap();
    let queue = |n: usize| i32::try_from(n % 8).unwrap();
    let send = |n| {
        let properties = format!("UNIQ_KEY\u{1}{n}\u{2}__STARTDELIVERTIME\u{1}{}", due(n));
        send_v2("Orders", queue(n), &properties, n.to_string())
    };
    (0..count).map(send).collect()
}

fn ask(code: i32, body: impl Into<Bytes>) -> Command {
    Command::request(code, &[("topic", "Orders")], body.into())
}

/// What a broker has done with forwards.
#[derive(Default)]
struct Ledger {
    forwards: usize,
    refused: u64,
    busy: u64,
    cut: u64,
    /// Bodies, and how often each was stored.
    stored: HashMap<String, usize>,
    /// The lowest that the gauge of pending messages was above what the broker had confirmed.
    margin: Option<i64>,
}

/// Fails every 7th and 11th forward, and every 13th by a cut, for the first so many.
async fn failing_broker(ledger: &Arc<Mutex<Ledger>>, cuts: bool, faults: usize) -> ScriptedPeer {
    let ledger = Arc::clone(ledger);
    ScriptedPeer::start(move |seen| {
        if seen.code() != 310 {
            return Act::Reply(Reply::code(0));
        }
        let mut ledger = ledger.lock().unwrap();
        ledger.forwards += 1;
        match ledger.forwards {
            n if n > faults => {}
            n if cuts && n % 13 == 0 => {
                ledger.cut += 1;
                return Act::Close;
            }
            n if n % 11 == 0 => {
                ledger.busy += 1;
                return Act::Reply(Reply::code(2).remark("[OVERLOAD]"));
            }
            n if n % 7 == 0 => {
                ledger.refused += 1;
                return Act::Reply(Reply::code(1).remark("no idea"));
            }
            _ => {}
        }
        *ledger.stored.entry(body_of(seen)).or_default() += 1;
        Act::Reply(Reply::stored(0, 0))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refused_forward_is_tried_again_and_counted() {
    const COUNT: usize = 3_000;
    let ledger = Arc::<Mutex<Ledger>>::default();
    let broker = failing_broker(&ledger, false, COUNT).await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    hold_all(&mut client, spread(COUNT)).await;
    for second in 1..=6 {
        clock.set(START + second * 1_000);
    }
    proxy.delivered(COUNT).await;
    proxy.pending(0).await;
    let ledger = std::mem::take(&mut *ledger.lock().unwrap());
    assert_eq!(ledger.stored.len(), COUNT);
    assert!(ledger.stored.values().all(|times| *times == 1), "sent again though stored");
    assert!(ledger.refused > 200 && ledger.busy > 200);
    let counted = [proxy.retries("refused"), proxy.retries("busy")];
    assert_eq!(counted, [ledger.refused, ledger.busy]);
    assert_eq!(ledger.forwards as u64, COUNT as u64 + ledger.refused + ledger.busy);
    assert_eq!(proxy.metrics.dispatch_parked.get(), 0);
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_between_refusals_lose_nothing() {
    const COUNT: usize = 3_000;
    let ledger = Arc::<Mutex<Ledger>>::default();
    let broker = failing_broker(&ledger, true, COUNT).await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    hold_all(&mut client, spread(COUNT)).await;
    clock.set(START + 6_000);
    proxy.delivered(COUNT).await;
    proxy.pending(0).await;
    let ledger = std::mem::take(&mut *ledger.lock().unwrap());
    assert_eq!(ledger.stored.len(), COUNT);
    assert!(ledger.cut > 100, "{} cuts", ledger.cut);
    // An answer may have been lost with its connection, so these are upper bounds.
    assert!((1..=ledger.refused).contains(&proxy.retries("refused")));
    assert!((1..=ledger.busy).contains(&proxy.retries("busy")));
    assert!(proxy.retries("closed") >= ledger.cut);
    drop(client);
    proxy.stop().await;
}

/// Down, then mute, then well: without a restart everything arrives, and what no broker has
/// confirmed is pending all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_refused_then_mute_then_well_gets_everything() {
    const COUNT: usize = 1_500;
    let ledger: Arc<Mutex<Ledger>> = Arc::default();
    let broker = ScriptedPeer::broker().await;
    let line = FaultRelay::start(broker.address()).await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&line.address(), clock.clone()).await;
    broker.script({
        let (ledger, pending) = (Arc::clone(&ledger), proxy.metrics.store_pending.clone());
        move |seen| {
            let mut ledger = ledger.lock().unwrap();
            let unconfirmed = i64::try_from(COUNT - ledger.stored.len()).unwrap();
            let margin = pending.get() - unconfirmed;
            ledger.margin = Some(ledger.margin.unwrap_or(margin).min(margin));
            *ledger.stored.entry(body_of(seen)).or_default() += 1;
            Act::Reply(Reply::stored(0, 0))
        }
    });
    let mut client = proxy.client().await;
    hold_all(&mut client, spread(COUNT)).await;
    let overdue = &proxy.metrics.dispatch_overdue;
    let pending = || proxy.metrics.store_pending.get();
    let all = i64::try_from(COUNT).unwrap();

    line.set(Fault::Refuse).await;
    client.closed().await;
    // A broker that is down looks down to its clients.
    proxy.client().await.closed().await;
    clock.set(START + 2_000);
    until("refused connections", || proxy.retries("connect") >= 8).await;
    assert!(overdue.get() > 200 && pending() == all);

    line.set(Fault::BlackHole).await;
    clock.set(START + 4_000);
    // The first that gives up ends the connection, and with it the others of all eight queues.
    let given_up = || proxy.retries("timeout") + proxy.retries("closed");
    until("time-outs", || proxy.retries("timeout") > 0 && given_up() >= 8).await;
    assert!(overdue.get() > 800 && pending() == all);
    assert_eq!(proxy.metrics.dispatch_delivered.get(), 0);

    // Whatever was half sent into the hole goes with its connection.
    line.set(Fault::Refuse).await;
    line.set(Fault::Pass).await;
    clock.set(START + 6_000);
    proxy.delivered(COUNT).await;
    proxy.pending(0).await;
    let ledger = std::mem::take(&mut *ledger.lock().unwrap());
    assert_eq!(ledger.stored.len(), COUNT);
    assert!(ledger.stored.values().all(|times| *times == 1));
    // Each queue in order, however often its first message was tried alone.
    let mut queues: HashMap<String, Vec<usize>> = HashMap::new();
    for seen in broker.requests() {
        queues.entry(seen.ext("e")).or_default().push(body_of(&seen).parse().unwrap());
    }
    assert!(queues.len() == 8 && queues.values().all(|numbers| numbers.is_sorted()), "{queues:?}");
    assert!(
        ledger.margin.unwrap() >= 0,
        "pending fell below what was unconfirmed: {:?}",
        ledger.margin
    );
    proxy.stop().await;
}

/// An answer that comes twice, under a foreign number, or after its time completes nothing twice
/// and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_answers_to_forwards_are_dropped_and_counted() {
    let first: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let broker = ScriptedPeer::start({
        let first = Arc::clone(&first);
        move |seen| {
            let mut tries = first.lock().unwrap();
            let tries = tries.entry(body_of(seen)).or_default();
            *tries += 1;
            let stored = Reply::stored(0, 0);
            match body_of(seen).as_str() {
                "twice" => Act::Twice(stored),
                "stray" => Act::UnknownOpaqueFirst(stored),
                "late" if *tries == 1 => Act::Never,
                _ => Act::Reply(stored),
            }
        }
    })
    .await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let send = |queue, body: &'static str| send_v2("Orders", queue, "TIMER_DELAY_MS\u{1}5", body);
    hold_all(&mut client, vec![send(0, "late"), send(1, "twice"), send(2, "stray")]).await;
    clock.advance(5);
    let seen = broker.until_requests(310, 4).await;
    assert_eq!(body_of(&seen[3]), "late", "tried again");
    proxy.delivered(3).await;
    let late = seen.iter().find(|seen| body_of(seen) == "late").unwrap();
    broker.answer(late, &Reply::stored(0, 0));
    let strays = &proxy.metrics.upstream_late_answers;
    until("three strays", || strays.get() == 3).await;
    proxy.delivered(3).await;
    proxy.pending(0).await;
    assert_eq!(proxy.retries("timeout"), 1);
    assert_eq!(broker.requests().len(), 4);
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_whose_connection_breaks_at_any_point_are_sent_again() {
    let tries: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let broker = ScriptedPeer::start({
        let tries = Arc::clone(&tries);
        move |seen| {
            let mut tries = tries.lock().unwrap();
            let tries = tries.entry(body_of(seen)).or_default();
            *tries += 1;
            let stored = Reply::stored(0, 0);
            match (body_of(seen).as_str(), *tries) {
                ("close", 1) => Act::Close,
                ("reset", 1) => Act::Reset,
                ("half close", 1) => Act::HalfThenClose(stored),
                ("half reset", 1) => Act::HalfThenReset(stored),
                ("no frame", 1) => Act::Raw(Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n")),
                ("no header", 1) => Act::Raw(Bytes::from_static(b"\0\0\0\x08\0\0\0\x04nope")),
                _ => Act::Reply(stored),
            }
        }
    })
    .await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let faults = ["close", "reset", "half close", "half reset", "no frame", "no header"];
    for (n, fault) in (1..).zip(faults) {
        let properties = "TIMER_DELAY_MS\u{1}5";
        hold_all(&mut client, vec![send_v2("Orders", 0, properties, fault)]).await;
        clock.advance(5);
        proxy.delivered(n).await;
        assert_eq!(tries.lock().unwrap()[fault], 2, "{fault}");
        assert_eq!(proxy.retries("closed"), n as u64, "{fault}");
    }
    proxy.pending(0).await;
    drop(client);
    proxy.stop().await;
}

/// Fifty requests in flight on each of twenty connections, all under the same numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_upstream_ends_its_own_connection_and_no_other() {
    const CLIENTS: usize = 20;
    const IN_FLIGHT: i32 = 50;
    let broker = ScriptedPeer::broker().await;
    let line = FaultRelay::start(broker.address()).await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&line.address(), clock.clone()).await;
    let faults: [fn() -> Act; 6] = [
        || Act::Close,
        || Act::Reset,
        || Act::HalfThenClose(Reply::body(vec![7; 100_000])),
        || Act::HalfThenReset(Reply::body(vec![7; 100_000])),
        || Act::Twice(Reply::body("now")),
        || Act::UnknownOpaqueFirst(Reply::body("now")),
    ];
    let mut pulled = 0;
    for (round, fault) in faults.into_iter().enumerate() {
        broker.script(move |seen| match seen.code() {
            99 => fault(),
            _ => Act::Never,
        });
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let mut client = proxy.client().await;
            for opaque in 0..IN_FLIGHT {
                client.send(ask(PULL, format!("{round}/{n}/{opaque}")), opaque).await;
            }
            clients.push(client);
        }
        pulled += CLIENTS * IN_FLIGHT as usize;
        let pulls = broker.until_requests(PULL, pulled).await;
        let (struck, well) = clients.split_at_mut(CLIENTS / 2);
        for client in &mut *struck {
            client.send(ask(99, "now"), IN_FLIGHT).await;
            if round < 4 {
                // Be it before or within an answer, as a direct client would see it.
                client.closed().await;
                continue;
            }
            let (first, second) = match round {
                4 => (IN_FLIGHT, IN_FLIGHT),
                _ => (IN_FLIGHT + 1_000_000_007, IN_FLIGHT),
            };
            assert_eq!(client.answer(first).await.body, "now");
            assert_eq!(client.answer(second).await.body, "now");
        }
        // The answers come late and in another order.
        for seen in pulls[pulled - CLIENTS * IN_FLIGHT as usize..].iter().rev() {
            broker.answer(seen, &Reply::body(seen.request.body.clone()));
        }
        let answered = if round < 4 { well } else { &mut clients[..] };
        let offset = if round < 4 { CLIENTS / 2 } else { 0 };
        for (n, client) in (offset..).zip(answered) {
            for opaque in 0..IN_FLIGHT {
                assert_eq!(client.answer(opaque).await.body, format!("{round}/{n}/{opaque}"));
            }
        }
        drop(clients);
        let log = broker.until("all twins to end", |log| log.open == 0).await;
        assert_eq!(log.accepted, (round + 1) * CLIENTS, "one twin each");
        until("the sessions to end", || proxy.metrics.session_open.get() == 0).await;
    }
    // Nobody home: each learns it at once, and the next one after the repair is served.
    broker.script(|_| Act::Reply(Reply::code(0)));
    let mut open = proxy.client().await;
    open.call(ask(34, ""), 1).await;
    line.set(Fault::Refuse).await;
    open.closed().await;
    for _ in 0..CLIENTS {
        proxy.client().await.closed().await;
    }
    line.set(Fault::Pass).await;
    served(&proxy).await;
    proxy.stop().await;
}

/// Waits until a client is served; the port behind may take a moment to open.
async fn served(proxy: &Proxy) {
    loop {
        let mut client = proxy.client().await;
        let mut request = ask(34, "");
        request.header.opaque = 1;
        client.send_bytes(&request.encode()).await;
        if client.next_frame().await.is_some() {
            return;
        }
    }
}

/// What the proxy answers itself and what brokers answer, under one number on many connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_numbers_of_several_clients_never_mix() {
    let broker = ScriptedPeer::start(|_| Act::Never).await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(proxy.client().await);
    }
    for (n, client) in (0..).zip(&mut clients) {
        // Odd ones are held under the number that even ones wait on.
        let delay = if n % 2 == 1 { "\u{2}DELAY\u{1}18" } else { "" };
        let send = send_v2("Orders", n, &format!("UNIQ_KEY\u{1}{n}{delay}"), n.to_string());
        client.send(send, 7).await;
        client.send(ask(PULL, n.to_string()), 8).await;
    }
    let mut waiting = broker.until_requests(PULL, 8).await;
    waiting.extend(broker.until_requests(310, 4).await);
    waiting.reverse();
    for seen in &waiting {
        broker.answer(
            seen,
            &Reply::stored(seen.ext("e").parse().unwrap_or(0), 5).with("to", &body_of(seen)),
        );
    }
    let mut ids = Vec::new();
    for (n, client) in (0..).zip(&mut clients) {
        let ext = |answer: &Command, key: &str| {
            answer.header.ext.get(key).map(|v| String::from_utf8(v.to_vec()).unwrap())
        };
        let (sent, pulled) = (client.answer(7).await, client.answer(8).await);
        assert_eq!(ext(&pulled, "to"), Some(n.to_string()));
        assert_eq!(ext(&sent, "queueId"), Some(n.to_string()));
        assert_eq!(is_ours(&sent), n % 2 == 1);
        let to = (n % 2 == 0).then(|| n.to_string());
        assert_eq!(ext(&sent, "to"), to);
        ids.extend(ext(&sent, "msgId").filter(|_| n % 2 == 1));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "ids of held messages");
    drop(clients);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_own_requests_reach_their_client_and_harm_nobody_when_it_is_silent() {
    const ASKED: [i32; 5] = [39, 40, 220, 307, 309];
    let broker = ScriptedPeer::broker().await;
    let clock = TestClock::new();
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut clients: [RawClient; 2] = [proxy.client().await, proxy.client().await];
    // Whose twin is whose: each has asked once.
    for (n, client) in (0..).zip(&mut clients) {
        client.call(ask(34, format!("client {n}")), 1).await;
    }
    let twin = |n: usize| {
        let requests = broker.requests();
        requests.iter().find(|seen| body_of(seen) == format!("client {n}")).unwrap().connection
    };
    let twins = [twin(0), twin(1)];
    let send = send_v2("Orders", 0, "DELAY\u{1}1", "held");
    hold_all(&mut clients[0], vec![send]).await;
    clock.advance(1_000);
    let own = broker.until_requests(310, 1).await[0].connection;
    assert!(!twins.contains(&own), "a forward on a client's connection");
    for connection in [twins[0], own] {
        for (opaque, code) in (1..).zip(ASKED) {
            let mut request = ask(code, format!("to {connection}"));
            request.header.opaque = opaque;
            broker.push(connection, &request);
        }
    }
    // Nobody stands behind our own connection: the broker is told so, five times.
    let log = broker.until("five refusals", |log| log.answers.len() == 5).await;
    let refusals: Vec<_> = log.answers.iter().map(|a| (a.header.code, a.header.opaque)).collect();
    assert_eq!(refusals, [(3, 1), (3, 2), (3, 3), (3, 4), (3, 5)]);
    // The silent client's connection goes on, with the same numbers in use in both directions.
    for opaque in 1..=5 {
        assert_eq!(clients[0].call(ask(34, ""), opaque).await.header.code, 0);
        assert_eq!(clients[1].call(ask(34, ""), opaque).await.header.code, 0);
    }
    let got: Vec<_> = clients[0].pushed.iter().map(|request| request.header.code).collect();
    assert_eq!(got, ASKED);
    assert!(clients[0].pushed.iter().all(|request| request.body == format!("to {}", twins[0])));
    assert!(clients[1].pushed.is_empty());
    assert_eq!(broker.log().answers.len(), 5);
    // And forwards go on over the connection that was asked.
    hold_all(&mut clients[1], vec![send_v2("Orders", 0, "DELAY\u{1}1", "held")]).await;
    clock.advance(1_000);
    assert_eq!(broker.until_requests(310, 2).await[1].connection, own);
    proxy.pending(0).await;
    drop(clients);
    proxy.stop().await;
}
