//! Delays that cannot be read, kept or held yet, and those that have passed: each send is answered
//! at once by one rule, and its connection goes on.

use std::time::Duration;

use bytes::Bytes;
use rocketmq_timer_proxy::clock::{Clock, SystemClock};
use rocketmq_timer_proxy::metrics::{ByWhy, count};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::SerializeType;

use super::rig::{Proxy, START, TestClock, hold_all, is_ours, oneway, until};
use crate::support::client::{RawClient, send_v1, send_v2};
use crate::support::peer::{Act, Reply, ScriptedPeer};

const TIMED: [&str; 4] =
    ["__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// As slow as an answer may be, in real time.
const PROMPT: Duration = Duration::from_millis(100);
/// A machine that is busy makes one answer late; what waits for something makes all of them late.
const TRIES: usize = 5;

/// What becomes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The broker gets it as it is.
    Relayed,
    Held,
    Refused,
    /// One-way, and nobody could be told.
    Dropped,
}

/// A broker that refuses an unreadable level in its own words, as stock ones do.
async fn broker() -> ScriptedPeer {
    ScriptedPeer::start(|seen| match seen.request.body.as_ref() {
        _ if seen.request.is_oneway() => Act::Never,
        b"bad level" => Act::Reply(Reply::code(1).remark("java.lang.NumberFormatException")),
        _ => Act::Reply(Reply::stored(0, 0)),
    })
    .await
}

struct Scene {
    broker: ScriptedPeer,
    proxy: Proxy,
    client: RawClient,
    /// Requests that reached the broker so far.
    relayed: usize,
    /// Sends that were to be held so far.
    held: u64,
}

impl Scene {
    async fn new(clock: impl Clock) -> Self {
        let broker = broker().await;
        let proxy = Proxy::before(&broker.address(), clock).await;
        let client = proxy.client().await;
        Self { broker, proxy, client, relayed: 0, held: 0 }
    }

    /// Expects this fate, and that the connection goes on: the next plain send arrives, and nothing
    /// between.
    async fn assert_fate(&mut self, send: Command, fate: Fate, what: &str) -> Option<Command> {
        let wire = {
            let mut send = send.clone();
            send.header.opaque = 5;
            send.encode()
        };
        let (answer, tries) = self.prompt_answer(&send, what).await;
        match (fate, &answer) {
            (_, None) => {}
            (Fate::Held, Some(answer)) => assert!(is_ours(answer), "{what}: {answer:?}"),
            (Fate::Relayed, Some(answer)) => assert!(!is_ours(answer), "{what}: {answer:?}"),
            (Fate::Refused, Some(answer)) => assert_eq!(answer.header.code, 13, "{what}"),
            (Fate::Dropped, Some(_)) => panic!("{what}: an answer to a one-way send"),
        }
        let plain = self.client.call(send_v2("Orders", 0, "KEYS\u{1}k", "plain"), 6).await;
        assert_eq!(plain.header.code, 0, "{what}");
        let requests = self.broker.requests();
        let tried = requests.len() - self.relayed - 1;
        assert_eq!(requests.last().unwrap().request.body, "plain", "{what}");
        match fate {
            Fate::Relayed => {
                assert_eq!(tried, tries, "{what}: relayed");
                for seen in &requests[self.relayed..self.relayed + tried] {
                    assert!(seen.frame.bytes() == &wire, "{what}: changed");
                }
            }
            _ => assert_eq!(tried, 0, "{what}: relayed"),
        }
        self.held += if fate == Fate::Held { tries as u64 } else { 0 };
        until(what, || self.proxy.metrics.store_accepted.get() == self.held).await;
        self.relayed = requests.len();
        answer
    }

    /// The answer, if one is due, and how often the send was sent: one of several must be answered
    /// quickly.
    async fn prompt_answer(&mut self, send: &Command, what: &str) -> (Option<Command>, usize) {
        let clock = SystemClock::new();
        for tries in 1..=TRIES {
            let begun = clock.monotonic();
            self.client.send(send.clone(), 5).await;
            if send.is_oneway() {
                return (None, tries);
            }
            let answer = self.client.answer(5).await;
            if clock.monotonic() - begun < PROMPT {
                return (Some(answer), tries);
            }
        }
        panic!("{what}: no answer within {PROMPT:?}");
    }
}

/// A send whose properties are any bytes at all: no encoder of JSON would write them.
fn raw_send(oneway: bool, kind: &str, value: &[u8]) -> Vec<u8> {
    let mut header = format!(
        r#"{{"code":310,"extFields":{{"a":"g","b":"Orders","e":"0","f":"0","g":"1","h":"0","i":"{kind}\u0001"#
    )
    .into_bytes();
    header.extend_from_slice(value);
    let flag = if oneway { 2 } else { 0 };
    let rest =
        format!(r#"","m":"false"}},"flag":{flag},"language":"JAVA","opaque":5,"version":409}}"#);
    header.extend_from_slice(rest.as_bytes());
    let len = u32::try_from(4 + header.len() + 3).unwrap();
    let header_len = u32::try_from(header.len()).unwrap();
    let mut frame = [len.to_be_bytes(), header_len.to_be_bytes()].concat();
    frame.extend_from_slice(&header);
    frame.extend_from_slice(b"raw");
    frame
}

/// Values, and what they are as a time, as a delay and as a level.
fn values() -> Vec<(String, [Fate; 3])> {
    use Fate::{Held, Refused, Relayed};
    let no_number = [Refused, Refused, Relayed];
    let mut values: Vec<_> = [
        " ",
        "5e3",
        "5000L",
        "0x10",
        "1,000",
        "5.0",
        "--5",
        " 5000",
        "5000 ",
        "2031-01-01 00:00:00",
        "TIMER_DELAY_SEC",
        "ons-in-house-marker",
        "null",
        "5\0",
        "\0",
        "\u{2167}",
        "\u{1d7d8}",
    ]
    .map(|value| (value.to_owned(), no_number))
    .into();
    // What no broker sees as a property is none.
    values.push((String::new(), [Relayed, Relayed, Relayed]));
    // Java reads these: a time in 1970, and delays.
    let readable = [Relayed, Held, Held];
    values.push(("+5000".to_owned(), readable));
    values.push(("005000".to_owned(), readable));
    values.push(("\u{ff15}\u{ff10}\u{ff10}\u{ff10}".to_owned(), readable));
    // Too long for a number, and too long for a read.
    for digits in ["9223372036854775808".to_owned(), "7".repeat(64 * 1024)] {
        values.push((digits, no_number));
    }
    values
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_value_that_is_no_number_is_answered_at_once() {
    let mut scene = Scene::new(TestClock::new()).await;
    for (value, fates) in values() {
        let excerpt: String = value.chars().take(20).collect();
        for kind in ["DELAY"].iter().chain(&TIMED) {
            let fate = match *kind {
                "DELAY" => fates[2],
                "__STARTDELIVERTIME" | "TIMER_DELIVER_MS" => fates[0],
                _ => fates[1],
            };
            let properties = format!("UNIQ_KEY\u{1}U\u{2}{kind}\u{1}{value}");
            let body = if fate == Fate::Relayed && *kind == "DELAY" { "bad level" } else { "x" };
            for send in [send_v1, send_v2] as [fn(&str, i32, &str, &'static str) -> Command; 2] {
                let send = send("Orders", 0, &properties, body);
                let what = format!("{kind}={excerpt:?}, code {}", send.header.code);
                let answer = scene.assert_fate(send, fate, &what).await.unwrap();
                let remark = answer.header.remark.unwrap_or_default();
                if fate == Fate::Refused {
                    // Bounded and printable, whatever the value was.
                    let text = std::str::from_utf8(&remark).unwrap();
                    assert!(text.contains(kind) && text.len() < 400, "{text}");
                    assert!(!text.chars().any(char::is_control), "{text:?}");
                    assert!(text.contains("--max-delay"), "{text}");
                } else if body == "bad level" {
                    assert_eq!(answer.header.code, 1, "the broker's own answer");
                    assert_eq!(remark, "java.lang.NumberFormatException");
                }
            }
        }
    }
    let Scene { proxy, client, .. } = scene;
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_sends_follow_the_same_rule_without_an_answer() {
    let mut scene = Scene::new(TestClock::new()).await;
    let (mut unreadable, mut too_long) = (0, 0);
    for (value, fates) in values() {
        let excerpt: String = value.chars().take(20).collect();
        let digits = value.len() > 18 && value.bytes().all(|b| b.is_ascii_digit());
        for kind in ["DELAY"].iter().chain(&TIMED) {
            let fate = match *kind {
                "DELAY" => fates[2],
                "__STARTDELIVERTIME" | "TIMER_DELIVER_MS" => fates[0],
                _ => fates[1],
            };
            // Readable and ahead would come early; what is not has no time to be early for.
            let fate = match fate {
                Fate::Refused if digits => Fate::Dropped,
                Fate::Refused => Fate::Relayed,
                fate => fate,
            };
            too_long += u64::from(fate == Fate::Dropped);
            unreadable +=
                u64::from(fates[0] == Fate::Refused && fate == Fate::Relayed && *kind != "DELAY");
            let send = oneway(send_v2("Orders", 0, &format!("{kind}\u{1}{value}"), "x"));
            scene.assert_fate(send, fate, &format!("{kind}={excerpt:?}")).await;
        }
    }
    let metrics = &scene.proxy.metrics;
    assert_eq!(count(&metrics.intercept_relayed, "oneway_unreadable"), unreadable);
    assert_eq!(count(&metrics.intercept_dropped, "over_max_delay"), too_long);
    assert_eq!(total(&metrics.intercept_refused, &["unreadable", "over_max_delay"]), 0);
    assert!(unreadable > 0 && too_long == 8, "{unreadable} {too_long}");
    let Scene { proxy, client, .. } = scene;
    drop(client);
    proxy.stop().await;
}

fn total(family: &ByWhy, reasons: &[&'static str]) -> u64 {
    reasons.iter().map(|why| count(family, why)).sum()
}

/// Bytes that are no UTF-8, and a bare NUL inside the JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_no_text_are_refused_too() {
    let Scene { broker, proxy, mut client, .. } = Scene::new(TestClock::new()).await;
    let mut relayed = 0;
    for kind in TIMED {
        for value in [&b"5\xff"[..], b"\xc3\x28", b"\xed\xa0\x80", b"5000\xf0\x9f"] {
            client.send_bytes(&raw_send(false, kind, value)).await;
            let answer = client.answer(5).await;
            assert_eq!(answer.header.code, 13, "{kind} {value:?}");
            let remark = answer.header.remark.unwrap();
            assert!(remark.starts_with(format!("{kind}=\"").as_bytes()), "{remark:?}");
            assert!(std::str::from_utf8(&remark).unwrap().contains("\\x"), "{remark:?}");
            client.send_bytes(&raw_send(true, kind, value)).await;
            relayed += 1;
            let seen = broker.until_requests(310, relayed).await.pop().unwrap();
            assert!(seen.frame.bytes() == &raw_send(true, kind, value));
        }
    }
    assert_eq!(count(&proxy.metrics.intercept_refused, "unreadable"), relayed as u64);
    drop(client);
    proxy.stop().await;
}

/// A dump from production: a marker where the time belongs, beside a level far above the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_level_beside_an_unreadable_time_is_the_last_level() {
    let clock = TestClock::new();
    let Scene { broker, proxy, mut client, .. } = Scene::new(clock.clone()).await;
    let properties = "__STARTDELIVERTIME\u{1}marker\u{2}DELAY\u{1}2147483647\u{2}KEYS\u{1}k";
    hold_all(&mut client, vec![send_v2("Orders", 0, properties, "x")]).await;
    clock.advance(7_200_000 - 1);
    hold_all(&mut client, vec![send_v2("Orders", 0, "TIMER_DELAY_MS\u{1}1", "after")]).await;
    assert_eq!(broker.requests().len(), 0);
    clock.advance(1);
    let seen = broker.until_requests(310, 2).await;
    assert_eq!(seen[0].request.body, "x");
    assert_eq!(seen[0].ext("i"), "__STARTDELIVERTIME\u{1}marker\u{2}KEYS\u{1}k");
    drop(client);
    proxy.stop().await;
}

// === Times that have passed, and delays of nothing ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_zero_and_negative_times_go_through_untouched() {
    use Fate::{Held, Refused, Relayed};
    let clock = TestClock::new();
    let mut scene = Scene::new(clock.clone()).await;
    let now = START;
    let low = i64::MIN;
    let mut cases = Vec::new();
    for kind in ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"] {
        for past in [now - 1, now, 0, -1, low, 1] {
            cases.push((kind, past, Relayed));
        }
        cases.push((kind, now + 1, Held));
        cases.push((kind, now + 3, Held));
        // Seconds, where milliseconds belong.
        cases.extend([1_000_000_000, now / 1_000, 10_000_000_000].map(|s| (kind, s, Refused)));
    }
    for kind in ["TIMER_DELAY_SEC", "TIMER_DELAY_MS"] {
        cases.push((kind, 0, Relayed));
        cases.extend([-1, low].map(|value| (kind, value, Refused)));
    }
    cases.extend([0, -1, i64::from(i32::MIN)].map(|level| ("DELAY", level, Relayed)));
    for (kind, value, fate) in cases {
        for send in [send_v1, send_v2] as [fn(&str, i32, &str, &'static str) -> Command; 2] {
            let properties = format!("KEYS\u{1}k\u{2}{kind}\u{1}{value}\u{2}");
            let send = send("Orders", 1, &properties, "x");
            let what = format!("{kind}={value}, code {}", send.header.code);
            let answer = scene.assert_fate(send.clone(), fate, &what).await.unwrap();
            let remark = answer.header.remark.unwrap_or_default();
            if fate == Refused && value > 0 {
                assert!(std::str::from_utf8(&remark).unwrap().contains("seconds"), "{remark:?}");
            }
            // One-way, all but the seconds go the same way.
            let fate = if fate == Refused { Relayed } else { fate };
            scene.assert_fate(oneway(send), fate, &format!("{what}, one-way")).await;
        }
    }
    let Scene { broker, proxy, client, .. } = scene;
    let metrics = &proxy.metrics;
    // Tries repeated for a late answer only add.
    assert!(count(&metrics.intercept_relayed, "past") >= 2 * (2 * 12 + 2 * 2));
    assert!(count(&metrics.intercept_refused, "seconds") >= 2 * 6);
    assert!(count(&metrics.intercept_refused, "unreadable") >= 2 * 4);
    assert_eq!(count(&metrics.intercept_relayed, "oneway_unreadable"), 2 * (6 + 4));
    assert_eq!(count(&metrics.intercept_relayed, "bad_level"), 0);
    // What was held leaves at its time, and the gauge is back at its old value.
    let held = usize::try_from(proxy.held()).unwrap();
    assert!(held >= 16);
    assert_eq!(metrics.store_pending.get(), proxy.held().cast_signed());
    let relayed = broker.requests().len();
    clock.set(START + 3);
    proxy.delivered(held).await;
    proxy.pending(0).await;
    assert_eq!(broker.requests().len(), relayed + held);
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_beyond_the_longest_are_refused_in_words_that_name_the_limit() {
    const DAY: i64 = 86_400_000;
    let mut scene = Scene::new(TestClock::new()).await;
    for (kind, longest, unit) in [
        ("__STARTDELIVERTIME", START + 366 * DAY, 1),
        ("TIMER_DELIVER_MS", START + 366 * DAY, 1),
        ("TIMER_DELAY_MS", 366 * DAY, 1),
        ("TIMER_DELAY_SEC", 366 * DAY, 1_000),
    ] {
        let send = |value: i64| send_v2("Orders", 0, &format!("{kind}\u{1}{value}"), "x");
        scene.assert_fate(send(longest / unit), Fate::Held, kind).await;
        for value in [longest / unit + 1, i64::MAX / 1_000, i64::MAX] {
            let answer = scene.assert_fate(send(value), Fate::Refused, kind).await.unwrap();
            let remark = answer.header.remark.unwrap();
            let text = std::str::from_utf8(&remark).unwrap();
            for word in [kind, "366d", "--max-delay", &value.to_string()] {
                assert!(text.contains(word), "{text}");
            }
            scene.assert_fate(oneway(send(value)), Fate::Dropped, kind).await;
        }
    }
    assert_eq!(count(&scene.proxy.metrics.intercept_dropped, "over_max_delay"), 12);
    let Scene { proxy, client, .. } = scene;
    drop(client);
    proxy.stop().await;
}

// === What cannot be held by this version ===

fn batch(entries: &[(&str, &str)]) -> Bytes {
    let mut body = Vec::new();
    for (properties, text) in entries {
        let size = 22 + properties.len() + text.len();
        for word in [size, 0, 0, 0, text.len()] {
            body.extend_from_slice(&u32::try_from(word).unwrap().to_be_bytes());
        }
        body.extend_from_slice(text.as_bytes());
        body.extend_from_slice(&u16::try_from(properties.len()).unwrap().to_be_bytes());
        body.extend_from_slice(properties.as_bytes());
    }
    body.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_halves_with_a_delay_are_refused_in_words() {
    let mut scene = Scene::new(TestClock::new()).await;
    let ahead = format!("__STARTDELIVERTIME\u{1}{}", START + 1_000);
    let past = format!("__STARTDELIVERTIME\u{1}{}", START - 1_000);
    let as_batch = |entries: &[(&str, &str)]| {
        let mut send = send_v2("Orders", 0, "WAIT\u{1}true", batch(entries));
        send.header.ext.set("m".into(), "true".into());
        send.header.code = 320;
        send
    };
    let binary = |mut send: Command| {
        send.serialize = SerializeType::RocketMq;
        send
    };
    let half = |delay: &str| send_v2("Orders", 0, &format!("TRAN_MSG\u{1}true\u{2}{delay}"), "x");
    let level = "KEYS\u{1}k\u{2}DELAY\u{1}1";
    for (send, word) in [
        (as_batch(&[("KEYS\u{1}a", "one"), (&ahead, "two")]), "batch"),
        (as_batch(&[(level, "one"), ("", "two")]), "batch"),
        (binary(as_batch(&[("", "one"), (&ahead, "two")])), "batch"),
        (half(&ahead), "transaction"),
        (half(level), "transaction"),
        (binary(half(&ahead)), "transaction"),
    ] {
        let form = send.serialize;
        let answer = scene.assert_fate(send.clone(), Fate::Refused, word).await.unwrap();
        let remark = answer.header.remark.unwrap();
        let text = std::str::from_utf8(&remark).unwrap();
        assert!(text.contains(word) && text.contains("this version"), "{text}");
        assert_eq!(answer.serialize, form, "answered in the form of the request");
        scene.assert_fate(oneway(send), Fate::Dropped, word).await;
    }
    // Without a time ahead they are the broker's.
    for send in [
        as_batch(&[("KEYS\u{1}a", "one"), (&past, "two")]),
        as_batch(&[("KEYS\u{1}DELAY", "one"), ("", "DELAY\u{2}")]),
        half(&past),
        half("KEYS\u{1}k"),
        binary(send_v2("Orders", 0, &past, "x")),
        binary(send_v2("Orders", 0, "KEYS\u{1}k", "x")),
    ] {
        scene.assert_fate(send, Fate::Relayed, "nothing ahead").await;
    }
    let dropped = &scene.proxy.metrics.intercept_dropped;
    assert_eq!(["batch", "half"].map(|why| count(dropped, why)), [3, 3]);
    let Scene { proxy, client, .. } = scene;
    drop(client);
    proxy.stop().await;
}
