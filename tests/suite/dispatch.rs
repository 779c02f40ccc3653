//! Due messages reach brokers that fail in every way, exactly as they were sent.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step fails the test")]

mod rig;
mod round_trip;
mod shelf;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq_timer_proxy::clock::{Clock, EpochMs, ManualClock, SystemClock};
use rocketmq_timer_proxy::dispatch::dispatcher::DispatchError;
use rocketmq_timer_proxy::dispatch::lane::{Pace, Parked};
use rocketmq_timer_proxy::metrics::count;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::shutdown::Stage;
use rocketmq_timer_proxy::store::{Due, ReadError};

use self::rig::{Rig, pace};
use self::shelf::Shelf;
use crate::support::client::send_v2;
use crate::support::fault::{BlackHole, Fault, FaultRelay};
use crate::support::peer::{Act, Reply, ScriptedPeer, Seen};
use crate::support::soon;

fn send(queue: i32, number: usize) -> Command {
    let properties = format!("UNIQ_KEY\u{1}{number}\u{2}DELAY\u{1}3");
    send_v2("Orders", queue, &properties, number.to_string())
}

fn past() -> EpochMs {
    SystemClock::new().wall_ms() - 5
}

/// `count` messages over four queues, due in this order.
fn fill(shelf: &Shelf, broker: &str, count: usize) -> Vec<Due> {
    let first = past() - i64::try_from(count).unwrap();
    (0..count)
        .map(|number| {
            let queue = i32::try_from(number % 4).unwrap();
            let due_ms = first + i64::try_from(number).unwrap();
            shelf.hold(&send(queue, number), broker, due_ms)
        })
        .collect()
}

fn bodies(requests: &[Seen]) -> Vec<String> {
    let text = |seen: &Seen| String::from_utf8(seen.request.body.to_vec()).unwrap();
    requests.iter().map(text).collect()
}

// === Brokers that fail ===

/// B08: a failed forward is tried again, whatever its neighbours do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_seventh_eleventh_and_thirteenth_forward_fails_and_all_arrive() {
    const COUNT: usize = 2_000;
    let forwards = Arc::new(Mutex::new((0, [0u64; 3], HashSet::new())));
    let broker = ScriptedPeer::start({
        let forwards = Arc::clone(&forwards);
        move |seen| {
            if seen.request.header.code != 310 {
                return Act::Reply(Reply::code(0));
            }
            let (forward, failed, stored) = &mut *forwards.lock().unwrap();
            *forward += 1;
            let faults_are_over = *forward > 4 * COUNT;
            let mut fail = |which: usize, act| {
                failed[which] += 1;
                act
            };
            match *forward {
                _ if faults_are_over => {}
                n if n % 13 == 0 => return fail(2, Act::Close),
                n if n % 11 == 0 => {
                    return fail(1, Act::Reply(Reply::code(2).remark("[OVERLOAD]")));
                }
                n if n % 7 == 0 => return fail(0, Act::Reply(Reply::code(1).remark("?"))),
                _ => {}
            }
            stored.insert(seen.request.body.clone());
            Act::Reply(Reply::stored(0, 0))
        }
    })
    .await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    rig.fall_due(fill(&rig.shelf, "a", COUNT));
    rig.shelf.until_completed(COUNT).await;
    let (_, [refused, busy, _], stored) = &*forwards.lock().unwrap();
    assert_eq!(stored.len(), COUNT);
    // An answer may have been lost with a connection, so these are upper bounds.
    let counted = [rig.retries("refused"), rig.retries("busy")];
    assert!(counted[0] > 0 && counted[0] <= *refused, "{counted:?}");
    assert!(counted[1] > 0 && counted[1] <= *busy, "{counted:?}");
    assert!(rig.retries("closed") > 0);
    rig.assert_idle(u64::try_from(COUNT).unwrap());
}

/// The same without cut connections, where every answer arrives: the metrics are exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_forwards_are_counted_one_by_one() {
    const COUNT: usize = 1_000;
    let forwards = Arc::new(Mutex::new((0, [0u64; 2])));
    let broker = ScriptedPeer::start({
        let forwards = Arc::clone(&forwards);
        move |_| {
            let (forward, failed) = &mut *forwards.lock().unwrap();
            *forward += 1;
            if *forward % 11 == 0 {
                failed[1] += 1;
                return Act::Reply(Reply::code(2));
            }
            if *forward % 7 == 0 {
                failed[0] += 1;
                return Act::Reply(Reply::code(13));
            }
            Act::Reply(Reply::stored(0, 0))
        }
    })
    .await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    rig.fall_due(fill(&rig.shelf, "a", COUNT));
    rig.shelf.until_completed(COUNT).await;
    let (forwards, [refused, busy]) = *forwards.lock().unwrap();
    assert_eq!([rig.retries("refused"), rig.retries("busy")], [refused, busy]);
    assert_eq!(u64::try_from(forwards - COUNT).unwrap(), refused + busy);
    rig.assert_idle(1_000);
}

/// B13: nothing is forgotten while a broker is down, half-open and back, without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_refused_then_half_open_then_well_gets_everything() {
    const COUNT: usize = 400;
    let broker = ScriptedPeer::broker().await;
    let relay = FaultRelay::start(broker.address()).await;
    relay.set(Fault::Refuse).await;
    let rig = Rig::start(&[("a", relay.address())]).await;
    let due = fill(&rig.shelf, "a", COUNT * 3);
    let mut parts = due.chunks(COUNT).map(<[Due]>::to_vec);
    rig.fall_due(parts.next().unwrap());
    soon("a refused connection", until(|| rig.retries("connect") > 3)).await;
    relay.set(Fault::BlackHole).await;
    rig.fall_due(parts.next().unwrap());
    soon("a time-out", until(|| rig.retries("timeout") > 0)).await;
    assert_eq!(rig.metrics.dispatch_overdue.get(), 800);
    assert_eq!(rig.metrics.dispatch_delivered.get(), 0);
    relay.set(Fault::Pass).await;
    rig.fall_due(parts.next().unwrap());
    rig.shelf.until_completed(COUNT * 3).await;
    let stored: HashSet<_> = bodies(&broker.requests()).into_iter().collect();
    assert_eq!(stored.len(), COUNT * 3);
    rig.assert_idle(1_200);
}

/// B14: codes 10, 11 and 12 mean stored; nothing is sent twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lesser_guarantee_is_counted_and_not_repeated() {
    let broker = ScriptedPeer::start(|seen| {
        let number: i32 = std::str::from_utf8(&seen.request.body).unwrap().parse().unwrap();
        Act::Reply(Reply::code(10 + number % 3))
    })
    .await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    rig.fall_due(fill(&rig.shelf, "a", 300));
    rig.shelf.until_completed(300).await;
    for code in ["10", "11", "12"] {
        assert_eq!(count(&rig.metrics.dispatch_stored_less, code), 100);
    }
    assert_eq!(broker.requests().len(), 300);
    rig.assert_idle(300);
}

/// Brokers that are black holes, half-open, refused or unknown delay nobody else's messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_brokers_beside_a_healthy_one() {
    let healthy = ScriptedPeer::broker().await;
    let mute = ScriptedPeer::start(|_| Act::Never).await;
    let hole = BlackHole::new();
    let mut gone = ScriptedPeer::broker().await;
    gone.stop().await;
    let dead = [("mute", mute.address()), ("hole", hole.address()), ("gone", gone.address())];
    let rig = Rig::start(&dead).await;
    rig.meet("healthy", healthy.address());
    let mut due = Vec::new();
    for name in ["mute", "hole", "gone", "unknown"] {
        due.extend(fill(&rig.shelf, name, 2_000));
    }
    let well = fill(&rig.shelf, "healthy", 2_000);
    due.extend(&well);
    due.sort();
    rig.fall_due(due);
    rig.shelf.until_completed(2_000).await;
    // All of it while the dead ones had not even timed out.
    assert_eq!(rig.retries("timeout"), 0);
    let completed: BTreeSet<_> = rig.shelf.completed().into_iter().collect();
    assert_eq!(completed, well.into_iter().collect());
    assert_eq!(rig.metrics.dispatch_overdue.get(), 8_000);
    // The unknown one becomes known, and is not waited for.
    soon("unknown", until(|| rig.retries("no_master") > 3)).await;
    rig.meet("unknown", healthy.address());
    rig.shelf.until_completed(4_000).await;
}

/// Lanes do not sit out their pauses once there is reason to believe that the broker is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_end_when_the_broker_is_back() {
    let hour = Duration::from_secs(3_600);
    let pace = Pace { pause: (hour, hour), ..pace() };
    let broker = ScriptedPeer::broker().await;
    let relay = FaultRelay::start(broker.address()).await;
    relay.set(Fault::Refuse).await;
    let name_server = ScriptedPeer::name_server("{}", "{}").await;
    let brokers = [("a", relay.address())];
    let rig = Rig::start_with(&brokers, &name_server, Arc::new(SystemClock::new()), pace);
    rig.fall_due(fill(&rig.shelf, "a", 40));
    rig.fall_due(fill(&rig.shelf, "b", 40));
    soon("failures", until(|| rig.retries("connect") == 40)).await;
    soon("failures", until(|| rig.retries("no_master") == 40)).await;
    // Another lane of the broker gets through, and takes the paused ones along.
    relay.set(Fault::Pass).await;
    rig.fall_due(vec![rig.shelf.hold(&send(9, 0), "a", past())]);
    rig.shelf.until_completed(41).await;
    // The other broker appears in the cluster.
    rig.meet("b", broker.address());
    rig.shelf.until_completed(81).await;
    rig.assert_idle(81);
}

/// A topic that is refused stays slow and is parked; others of the same broker pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_topic_beside_others() {
    let broker = ScriptedPeer::start(|seen| {
        Act::Reply(match seen.ext("b").as_str() {
            "Gone" => Reply::code(17).remark("topic[Gone] not exist"),
            _ => Reply::stored(0, 0),
        })
    })
    .await;
    let pace = Pace { park_after: Duration::from_millis(30), ..pace() };
    let name_server = ScriptedPeer::name_server("{}", "{}").await;
    let brokers = [("a", broker.address())];
    let rig = Rig::start_with(&brokers, &name_server, Arc::new(SystemClock::new()), pace);
    let gone: Vec<_> =
        (0..20).map(|n| rig.shelf.hold(&send_v2("Gone", n % 2, "", "x"), "a", past())).collect();
    rig.fall_due(gone.clone());
    rig.fall_due(fill(&rig.shelf, "a", 500));
    rig.shelf.until_completed(500).await;
    soon("parking", until(|| rig.metrics.dispatch_parked.get() == 20)).await;
    assert!(rig.retries("refused") >= 20);
    let mut parked = rig.controls.parked().await;
    parked.sort_by_key(|parked| parked.due.lsn);
    assert_eq!(parked.iter().map(|p| p.due).collect::<Vec<_>>(), gone);
    assert!(parked.iter().all(|p| p.why == Parked::Refused(17)));
    assert_eq!(parked[0].lane.topic, "Gone");
    assert_eq!(rig.metrics.dispatch_overdue.get(), 20);
    // Nobody tries them until an operator says so.
    let tries = broker.requests().len();
    broker.script(|_| Act::Reply(Reply::stored(0, 0)));
    assert_eq!(rig.controls.redrive().await, 20);
    rig.shelf.until_completed(520).await;
    assert_eq!(broker.requests().len(), tries + 20);
    rig.assert_idle(520);
}

/// How a poison and those that must not suffer from it are laid out.
struct Poisoned {
    /// Lanes of its neighbours; with one, the poison is in that lane too.
    lanes: usize,
    neighbours: usize,
    /// Neighbours due before the poison.
    before: usize,
    park_after: Duration,
}

/// A broker hangs up whenever it sees one message: that one is parked, all others are stored, and
/// come at most a few times.
async fn only_the_poison_is_parked(case: Poisoned) {
    let broker = ScriptedPeer::start(|seen| match &seen.request.body[..] {
        b"poison" => Act::Close,
        _ => Act::Reply(Reply::stored(0, 0)),
    })
    .await;
    let pace = Pace { park_after: case.park_after, ..pace() };
    let name_server = ScriptedPeer::name_server("{}", "{}").await;
    let brokers = [("a", broker.address())];
    let rig = Rig::start_with(&brokers, &name_server, Arc::new(SystemClock::new()), pace);
    let lane = |n: usize| i32::try_from(n % case.lanes).unwrap();
    let poison = if case.lanes == 1 { "Orders" } else { "Poison" };
    let first = past() - 10_000;
    let mut due: Vec<_> = (0..case.before).map(|n| (send(lane(n), n), first)).collect();
    due.push((send_v2(poison, 0, "", "poison"), first + 1));
    due.extend((case.before..case.neighbours).map(|n| (send(lane(n), n), first + 2)));
    let due: Vec<_> = due.iter().map(|(send, due)| rig.shelf.hold(send, "a", *due)).collect();
    let poison = due[case.before];
    rig.fall_due(due);
    soon("parking", until(|| rig.metrics.dispatch_parked.get() == 1)).await;
    soon("the others", rig.shelf.until_completed(case.neighbours)).await;
    let parked = rig.controls.parked().await;
    assert_eq!((parked.len(), parked[0].due, parked[0].why), (1, poison, Parked::HungUp));
    assert!(rig.retries("hung_up") > 0);
    let mut sends = BTreeMap::<_, u32>::new();
    for seen in broker.requests().iter().filter(|seen| seen.request.header.code == 310) {
        *sends.entry(seen.request.body.clone()).or_default() += 1;
    }
    sends.remove(&b"poison"[..]);
    assert_eq!(sends.len(), case.neighbours);
    // In flight at an end, at another one, and alone.
    assert!(sends.values().all(|sends| *sends <= 3), "{sends:?}");
    let before = broker.requests().len();
    rig.fall_due(fill(&rig.shelf, "a", 200));
    rig.shelf.until_completed(case.neighbours + 200).await;
    assert_eq!(broker.requests().len(), before + 200, "nobody is disturbed any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_on_which_the_broker_hangs_up_is_parked_and_nothing_else() {
    let layouts = [(1, 0, 0), (1, 500, 0), (1, 500, 250), (4, 500, 0), (4, 500, 250)];
    for (lanes, neighbours, before) in layouts {
        for park_after in [1, 40, 400].map(Duration::from_millis) {
            only_the_poison_is_parked(Poisoned { lanes, neighbours, before, park_after }).await;
        }
    }
}

/// Whatever accepts connections and closes them, for longer than it takes to park: nothing is held
/// against the messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_hangs_up_on_everybody_is_down() {
    let broker = ScriptedPeer::start(|_| Act::Close).await;
    let pace = Pace { park_after: Duration::from_millis(1), ..pace() };
    let name_server = ScriptedPeer::name_server("{}", "{}").await;
    let brokers = [("a", broker.address())];
    let rig = Rig::start_with(&brokers, &name_server, Arc::new(SystemClock::new()), pace);
    rig.fall_due(fill(&rig.shelf, "a", 400));
    // Ends of a message in flight, and then ends before a suspect was sent.
    let many = || rig.retries("closed") > 8 && rig.retries("connect") > 40;
    soon("tries", until(many)).await;
    broker.script(|_| Act::Reply(Reply::stored(0, 0)));
    rig.shelf.until_completed(400).await;
    assert_eq!(rig.retries("hung_up"), 0);
    rig.assert_idle(400);
}

/// After a topic shrank, messages of one queue go to one other queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_gone() {
    let route = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:1"},"brokerName":"a","cluster":"c"}],
        "filterServerTable":{},"queueDatas":[
        {"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8},
        {"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    let name_server = ScriptedPeer::name_server(route, "{}").await;
    let broker = ScriptedPeer::start(|seen| {
        let queue: i32 = seen.ext("e").parse().unwrap();
        Act::Reply(match queue {
            ..4 => Reply::stored(queue, 0),
            _ => {
                Reply::code(1).remark(&format!("request queueId[{queue}] is illegal, TopicConfig"))
            }
        })
    })
    .await;
    let brokers = [("a", broker.address())];
    let clock = Arc::new(SystemClock::new());
    let rig = Rig::start_with(&brokers, &name_server, clock, pace());
    let due = (0..80).map(|n| rig.shelf.hold(&send(7 - n % 2, 0), "a", past() + i64::from(n) - 80));
    rig.fall_due(due.collect());
    rig.shelf.until_completed(80).await;
    let mut stored = BTreeMap::new();
    for seen in broker.requests() {
        *stored.entry(seen.ext("e")).or_insert(0) += 1;
    }
    assert_eq!((stored["3"], stored["2"]), (40, 40));
    // One question per lane, not one per message.
    let asked = name_server.requests_of(105);
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].ext("topic"), "Orders");
    assert_eq!(rig.retries("queue"), stored["6"] + stored["7"]);
    rig.assert_idle(80);
}

// === Time ===

/// B01: the clock is set back between the wheel and the socket; nothing leaves early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_before_sending() {
    let clock = ManualClock::new(1_000_000);
    let broker = ScriptedPeer::broker().await;
    let name_server = ScriptedPeer::name_server("{}", "{}").await;
    let brokers = [("a", broker.address())];
    let rig = Rig::start_with(&brokers, &name_server, Arc::new(clock.clone()), pace());
    rig.shelf.on_read({
        let clock = clock.clone();
        let mut first = true;
        move || {
            if std::mem::take(&mut first) {
                clock.set_wall(999_500);
            }
        }
    });
    let due = [(999_400, 1), (999_990, 2), (1_000_000, 3)]
        .map(|(due_ms, number)| rig.shelf.hold(&send(0, number), "a", due_ms));
    rig.fall_due(due.to_vec());
    rig.shelf.until_completed(1).await;
    soon("the others to come back", until(|| rig.retries("clock") == 2)).await;
    assert_eq!(bodies(&broker.requests()), ["1"]);
    clock.advance(Duration::from_millis(499));
    rig.shelf.until_completed(2).await;
    assert_eq!(bodies(&broker.requests()), ["1", "2"]);
    clock.advance(Duration::from_millis(1));
    rig.shelf.until_completed(3).await;
    assert_eq!(bodies(&broker.requests()), ["1", "2", "3"]);
}

/// Messages of one queue reach the wire in order of due time and acceptance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_queue_leaves_in_order() {
    let broker = ScriptedPeer::broker().await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    let first = past() - 1_000;
    let due: Vec<_> = (0..1_000usize)
        .map(|n| {
            let due_ms = first + i64::try_from(n / 10).unwrap();
            rig.shelf.hold(&send(1, n), "a", due_ms)
        })
        .collect();
    for part in due.chunks(37) {
        rig.fall_due(part.to_vec());
    }
    rig.shelf.until_completed(1_000).await;
    let expected: Vec<_> = (0..1_000).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&broker.requests()), expected);
}

// === What goes wrong on our side ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_is_set_aside() {
    let broker = ScriptedPeer::broker().await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    let due = fill(&rig.shelf, "a", 100);
    let damaged = ReadError::Damaged { file: "log/7".into(), offset: 4_096, why: "crc" };
    rig.shelf.spoil(due[40], damaged);
    rig.fall_due(due.clone());
    rig.shelf.until_completed(99).await;
    soon("parking", until(|| rig.metrics.dispatch_parked.get() == 1)).await;
    let parked = rig.controls.parked().await;
    assert_eq!((parked[0].due, parked[0].why), (due[40], Parked::Unreadable));
    assert!(!rig.shelf.completed().contains(&due[40]));
    assert_eq!(rig.metrics.dispatch_overdue.get(), 1);
}

/// B82: never alive and mute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_dispatch_with_an_error() {
    let broker = ScriptedPeer::broker().await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    rig.shelf.on_read(|| panic!("out of memory"));
    rig.fall_due(fill(&rig.shelf, "a", 1));
    let outcome = soon("the end", rig.task).await.unwrap();
    let Err(DispatchError::Panicked(words)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(words, "out of memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ends_ends_dispatch() {
    let rig = Rig::start(&[]).await;
    drop(rig.due);
    let outcome = soon("the end", rig.task).await.unwrap();
    assert!(matches!(outcome, Err(DispatchError::StoreGone)), "{outcome:?}");
}

/// What is under way when the process stops is answered and completed; nothing new starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_answers() {
    let broker = ScriptedPeer::start(|_| Act::Never).await;
    let rig = Rig::start(&[("a", broker.address())]).await;
    let due = fill(&rig.shelf, "a", 2_000);
    rig.fall_due(due);
    let seen = broker.until_requests(310, 256).await;
    rig.stop.enter(Stage::Draining);
    rig.fall_due(fill(&rig.shelf, "a", 10));
    for seen in &seen {
        broker.answer(seen, &Reply::stored(0, 0));
    }
    rig.shelf.until_completed(seen.len()).await;
    soon("the end", rig.task).await.unwrap().unwrap();
    assert_eq!(rig.shelf.completed().len(), seen.len());
    assert_eq!(broker.requests().len(), seen.len());
}

/// Returns once `done`; metrics tell nobody that they change.
async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
