//! What a broker gets when a held message falls due: the send as it came, byte for byte, less what
//! would delay it again.

use std::fmt::Write;

use rocketmq_timer_proxy::clock::EpochMs;
use rocketmq_timer_proxy::remoting::command::Command;

use super::rig::{Proxy, START, TestClock, is_ours, until};
use crate::support::peer::ScriptedPeer;

/// A send as a Java client writes it.
#[derive(Clone)]
struct Sent {
    code: i32,
    /// `key:value` pairs; the value of the properties is a `?`.
    ext: Vec<(&'static str, &'static str)>,
    properties: String,
    flag: i32,
    language: &'static str,
    version: i32,
    body: Vec<u8>,
}

impl Sent {
    fn of(code: i32, properties: impl Into<String>) -> Self {
        let ext: &[_] = match code {
            10 => &[
                ("batch", "false"),
                ("bornTimestamp", "1700000000123"),
                ("defaultTopic", "TBW102"),
                ("defaultTopicQueueNums", "4"),
                ("flag", "7"),
                ("maxReconsumeTimes", "0"),
                ("producerGroup", "group"),
                ("properties", "?"),
                ("queueId", "2"),
                ("reconsumeTimes", "0"),
                ("sysFlag", "3"),
                ("topic", "Orders"),
                ("unitMode", "false"),
            ],
            _ => &[
                ("a", "group"),
                ("b", "Orders"),
                ("c", "TBW102"),
                ("d", "4"),
                ("e", "2"),
                ("f", "3"),
                ("g", "1700000000123"),
                ("h", "7"),
                ("i", "?"),
                ("j", "0"),
                ("k", "false"),
                ("m", "false"),
                ("n", "broker-a"),
            ],
        };
        Self {
            code,
            ext: ext.to_vec(),
            properties: properties.into(),
            flag: 0,
            language: "JAVA",
            version: 409,
            body: b"body".to_vec(),
        }
    }

    /// The frame with a binary header, by hand. Java's encoder writes ext fields twice where a hook
    /// has set them too, so each stands here twice, and only the last counts.
    fn binary_frame(&self, opaque: i32) -> Vec<u8> {
        let low_16 = |value: i32| [value.to_be_bytes()[2], value.to_be_bytes()[3]];
        let long = |text: &str| {
            [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
        };
        let mut ext = Vec::new();
        for round in 0..2 {
            for (key, value) in &self.ext {
                let value = value.replace('?', &self.properties);
                let value = if round == 0 { "overwritten".to_owned() } else { value };
                ext.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
                ext.extend([key.as_bytes(), &long(&value)].concat());
            }
        }
        let mut header = low_16(self.code).to_vec();
        header.push(if self.language == "GO" { 9 } else { 0 });
        header.extend(low_16(self.version));
        header.extend([opaque, self.flag, 0].map(i32::to_be_bytes).concat());
        header.extend(u32::try_from(ext.len()).unwrap().to_be_bytes());
        header.extend(ext);
        let len = u32::try_from(4 + header.len() + self.body.len()).unwrap();
        let header_len = u32::try_from(header.len()).unwrap() | 1 << 24;
        let mut frame = [len.to_be_bytes(), header_len.to_be_bytes()].concat();
        frame.extend([&header[..], &self.body].concat());
        frame
    }

    /// The frame, by hand: nothing of ours writes what is compared.
    fn frame(&self, opaque: i32) -> Vec<u8> {
        let properties = self.properties.replace('\u{1}', "\\u0001").replace('\u{2}', "\\u0002");
        let mut ext = String::new();
        for (key, value) in &self.ext {
            let value = value.replace('?', &properties);
            write!(ext, r#","{key}":"{value}""#).unwrap();
        }
        let Self { code, flag, language, version, .. } = self;
        let header = format!(
            r#"{{"code":{code},"extFields":{{{}}},"flag":{flag},"language":"{language}","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{version}}}"#,
            &ext[1..]
        );
        let len = u32::try_from(4 + header.len() + self.body.len()).unwrap();
        let header_len = u32::try_from(header.len()).unwrap();
        let mut frame = [len.to_be_bytes(), header_len.to_be_bytes()].concat();
        frame.extend_from_slice(header.as_bytes());
        frame.extend_from_slice(&self.body);
        frame
    }

    /// As it is forwarded: these properties, and an answer is wanted.
    fn with(&self, properties: impl Into<String>) -> Self {
        Self { properties: properties.into(), flag: 0, ..self.clone() }
    }
}

/// Holds every first one, lets it fall due, and expects the second one at the broker, whichever
/// form of header it came with.
async fn assert_forwarded(pairs: &[(Sent, Sent)]) {
    assert_forwarded_from(Sent::frame, pairs).await;
    let in_16_bits = |(sent, expected): &(Sent, Sent)| {
        let version = i32::from(expected.version as i16);
        (sent.clone(), Sent { version, ..expected.clone() })
    };
    let pairs: Vec<_> = pairs.iter().map(in_16_bits).collect();
    assert_forwarded_from(Sent::binary_frame, &pairs).await;
}

async fn assert_forwarded_from(form: fn(&Sent, i32) -> Vec<u8>, pairs: &[(Sent, Sent)]) {
    let clock = TestClock::new();
    let broker = ScriptedPeer::broker().await;
    let proxy = Proxy::before(&broker.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    for (n, (sent, expected)) in (0..).zip(pairs) {
        let opaque = i32::try_from(n).unwrap();
        clock.set(START);
        client.send_bytes(&form(sent, opaque)).await;
        if sent.flag == 0 {
            let answer = client.answer(opaque).await;
            assert!(answer.header.code == 0 && is_ours(&answer), "{answer:?}");
            assert_eq!(answer.encode()[4], form(sent, 0)[4], "answered in the form it came in");
        } else {
            until("it to be accepted", || proxy.metrics.store_accepted.get() > n as u64).await;
        }
        assert_eq!(broker.requests().len(), n, "relayed");
        clock.set(DUE);
        let log = broker.until("a message", |log| log.requests.len() > n).await;
        let seen = &log.requests[n];
        let expected = expected.frame(seen.request.header.opaque);
        assert!(
            seen.frame.bytes() == &expected,
            "sent     {}\nexpected {}\ngot      {}",
            sent.properties.escape_debug(),
            String::from_utf8_lossy(&expected[8..]).escape_debug(),
            String::from_utf8_lossy(&seen.frame.bytes()[8..]).escape_debug(),
        );
        proxy.pending(0).await;
    }
    // One-way sends had no answer: the next frame answers the next request.
    client.send_bytes(&form(&Sent::of(310, "KEYS\u{1}last"), i32::MAX)).await;
    let next = Command::decode(&client.next_frame().await.unwrap()).unwrap();
    assert_eq!(next.header.opaque, i32::MAX);
    drop(client);
    proxy.stop().await;
}

/// When all of these fall due.
const DUE: EpochMs = START + 10_000;
/// Each way to ask for that time.
const KINDS: [(&str, &str); 5] = [
    ("DELAY", "3"),
    ("__STARTDELIVERTIME", "1800000010000"),
    ("TIMER_DELAY_SEC", "10"),
    ("TIMER_DELAY_MS", "10000"),
    ("TIMER_DELIVER_MS", "1800000010000"),
];

fn is_absolute(kind: &str) -> bool {
    matches!(kind, "__STARTDELIVERTIME" | "TIMER_DELIVER_MS")
}

/// A property string, ended with a separator (Go, Java up to 4.9.0) or not.
fn joined(parts: &[String], ended: bool) -> String {
    let mut text = parts.join("\u{2}");
    if ended && !parts.is_empty() {
        text.push('\u{2}');
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_delay_property_is_left_over_wherever_it_stood() {
    let others = ["UNIQ_KEY\u{1}AC11", "KEYS\u{1}k1 k2 k3", "WAIT\u{1}false"].map(str::to_owned);
    let mut pairs = Vec::new();
    for code in [10, 310] {
        for (kind, value) in KINDS {
            for ended in [false, true] {
                for place in [Some(0), Some(1), Some(3), None] {
                    let delay = format!("{kind}\u{1}{value}");
                    let mut parts = place.map_or_else(Vec::new, |_| others.to_vec());
                    let without = if is_absolute(kind) {
                        let mut parts = parts.clone();
                        parts.insert(place.unwrap_or(0), delay.clone());
                        parts
                    } else {
                        parts.clone()
                    };
                    parts.insert(place.unwrap_or(0), delay);
                    let sent = Sent::of(code, joined(&parts, ended));
                    let expected = sent.with(joined(&without, ended));
                    pairs.push((sent, expected));
                }
            }
        }
    }
    assert_eq!(pairs.len(), 80);
    assert_forwarded(&pairs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_delays_on_one_message_leave_nothing_either() {
    let all = KINDS.map(|(kind, value)| format!("{kind}\u{1}{value}"));
    let absolute = [all[1].clone(), all[4].clone()];
    let mut pairs = Vec::new();
    for code in [10, 310] {
        for ended in [false, true] {
            let mut add = |parts: &[&str], left: &[&str]| {
                let own = |parts: &[&str]| parts.iter().map(|p| (*p).to_owned()).collect();
                let (parts, left): (Vec<_>, Vec<_>) = (own(parts), own(left));
                let sent = Sent::of(code, joined(&parts, ended));
                let expected = sent.with(joined(&left, ended));
                pairs.push((sent, expected));
            };
            let [level, start, sec, ms, deliver] = all.each_ref().map(String::as_str);
            add(&[ms, start, level, deliver, sec], &[&absolute[0], &absolute[1]]);
            for other in [start, sec, ms, deliver] {
                let kind = other.split('\u{1}').next().unwrap();
                let left: &[&str] = if is_absolute(kind) { &[other] } else { &[] };
                add(&[level, other], left);
                add(&[other, level], left);
            }
            // The same name twice, and names that only look alike.
            add(&["DELAY\u{1}9", "A\u{1}b", level], &["A\u{1}b"]);
            add(&["DELAY\u{1}0", ms, "DELAY\u{1}-1"], &[]);
            let alike = ["DELAYS\u{1}1", "XDELAY\u{1}1", "TIMER_DELAY_MSX\u{1}1", "delay\u{1}1"];
            add(&[alike[0], sec, alike[1], alike[2], alike[3]], &alike);
        }
    }
    assert_forwarded(&pairs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_message_is_does_not_change() {
    let mut pairs = Vec::new();
    let mut properties =
        "UNIQ_KEY\u{1}7F00000100002A9F18B4AAC2000001\u{2}TAGS\u{1}A||B\u{2}KEYS\u{1}one two three\u{2}WAIT\u{1}false".to_owned();
    for n in 0..20 {
        write!(properties, "\u{2}user-{n}\u{1}gr\u{fc}n {n} \u{1f34f}").unwrap();
    }
    for code in [10, 310] {
        let delayed = |properties: &str| format!("{properties}\u{2}TIMER_DELAY_MS\u{1}10000");
        let java = Sent::of(code, delayed(&properties));
        pairs.push((java.clone(), java.with(&properties)));
        // `TAGS` with the text null, as a real dump had it.
        let null = Sent::of(code, delayed("KEYS\u{1}4711\u{2}TAGS\u{1}null\u{2}WAIT\u{1}false"));
        pairs.push((null.clone(), null.with("KEYS\u{1}4711\u{2}TAGS\u{1}null\u{2}WAIT\u{1}false")));
        let mut go = Sent { language: "GO", version: 317, ..java.clone() };
        go.properties.push('\u{2}');
        pairs.push((go.clone(), go.with(format!("{properties}\u{2}"))));
        // The ONS client writes releases near 2^31.
        let ons = Sent { version: 2_147_483_459, ..java.clone() };
        pairs.push((ons.clone(), ons.with(&properties)));
        let oneway = Sent { flag: 2, ..java.clone() };
        pairs.push((oneway.clone(), oneway.with(&properties)));
        let mut more = java.clone();
        more.ext.push(("zz-later", "field"));
        more.ext.insert(0, ("AccessKey", "key"));
        pairs.push((more.clone(), more.with(&properties)));
        // Compressed by its sysFlag; sizes in one read, in several, and as large as brokers take.
        for len in [0, 256, 100_000, 4 << 20] {
            let body = (0..len).map(|n: usize| (n ^ (n >> 8)) as u8).collect();
            let sized = Sent { body, ..java.clone() };
            pairs.push((sized.clone(), sized.with(&properties)));
        }
    }
    assert_forwarded(&pairs).await;
}
