//! What becomes of a send: every kind of delay in every kind of frame, each as it comes off the wire.

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::config::{BadDelay, Policy};
use rocketmq_timer_proxy::intercept::decide::{Decision, decide};
use rocketmq_timer_proxy::intercept::delay::Kind;
use rocketmq_timer_proxy::metrics::why;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, SerializeType};
use rocketmq_timer_proxy::remoting::header::{ExtFields, FLAG_ONEWAY, Header};
use rocketmq_timer_proxy::remoting::send::SendField;

const NOW: i64 = 1_800_000_000_000;
const CODES: [i32; 3] = [10, 310, 320];

/// A send to be decided on; the default asks for nothing.
#[derive(Debug, Clone)]
struct Case {
    code: i32,
    oneway: bool,
    serialize: SerializeType,
    topic: &'static str,
    properties: Vec<u8>,
    batch: &'static str,
    body: Vec<u8>,
    master: bool,
    policy: Policy,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            code: 310,
            oneway: false,
            serialize: SerializeType::Json,
            topic: "T",
            properties: Vec::new(),
            batch: "false",
            body: b"body".to_vec(),
            master: true,
            policy: Policy::default(),
        }
    }
}

impl Case {
    fn with(properties: impl AsRef<[u8]>) -> Self {
        Self { properties: properties.as_ref().to_vec(), ..Self::default() }
    }

    fn oneway(properties: impl AsRef<[u8]>) -> Self {
        Self { oneway: true, ..Self::with(properties) }
    }

    /// Encodes the send, reads it back as a server would, and decides.
    fn decide(&self) -> Decision {
        let mut ext = ExtFields::default();
        for (field, value) in [
            (SendField::ProducerGroup, b"g".as_slice()),
            (SendField::Topic, self.topic.as_bytes()),
            (SendField::QueueId, b"0"),
            (SendField::Properties, &self.properties),
            (SendField::Batch, self.batch.as_bytes()),
        ] {
            ext.set(field.key(self.code).into(), Bytes::copy_from_slice(value));
        }
        let header = Header {
            code: self.code,
            language: Bytes::from_static(b"JAVA"),
            version: 407,
            opaque: 7,
            flag: if self.oneway { FLAG_ONEWAY } else { 0 },
            remark: None,
            ext,
        };
        let sent = Command { serialize: self.serialize, header, body: self.body.clone().into() };
        let mut wire = BytesMut::from(&sent.encode()[..]);
        let frame = Frame::take(&mut wire).unwrap().unwrap();
        let decision = decide(&Command::decode(&frame).unwrap(), NOW, self.master, &self.policy);
        let known = match &decision {
            Decision::Relay { why } => why.is_none_or(|why| why::RELAYED.contains(&why)),
            Decision::Hold { kind, .. } => why::HELD.contains(kind),
            Decision::Refuse { why, .. } => why::REFUSED.contains(why),
        };
        assert!(known, "a label without a counter: {decision:?}");
        decision
    }

    fn remark(&self) -> String {
        match self.decide() {
            Decision::Refuse { code: 13, remark, .. } => remark,
            other => panic!("{self:?}: {other:?}"),
        }
    }
}

fn relayed(why: &'static str) -> Decision {
    Decision::Relay { why: Some(why) }
}

const UNTOUCHED: Decision = Decision::Relay { why: None };

/// The label of a refusal.
fn refused(decision: &Decision) -> Option<&'static str> {
    match decision {
        Decision::Refuse { code: 13, why, .. } => Some(why),
        _ => None,
    }
}

/// A property of each kind that asks for the same time.
fn asking_for_5_s() -> [(Kind, String); 5] {
    Kind::ALL.map(|kind| {
        let value = match kind {
            Kind::Level => "2".to_owned(),
            Kind::StartDeliverTime | Kind::DeliverMs => (NOW + 5_000).to_string(),
            Kind::DelaySec => "5".to_owned(),
            Kind::DelayMs => "5000".to_owned(),
        };
        (kind, format!("KEYS\x01k\x02{}\x01{value}\x02TAGS\x01t", kind.property()))
    })
}

/// One entry of a batch.
fn entry(properties: &str) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend(5_i32.to_be_bytes());
    bytes.extend(b"DELAY");
    bytes.extend(i16::try_from(properties.len()).unwrap().to_be_bytes());
    bytes.extend(properties.as_bytes());
    bytes
}

fn batch(entries: &[&str]) -> Case {
    Case {
        code: 320,
        batch: "true",
        body: entries.iter().flat_map(|properties| entry(properties)).collect(),
        properties: b"WAIT\x01true".to_vec(),
        ..Case::default()
    }
}

#[test]
fn every_kind_in_every_frame() {
    for (kind, properties) in asking_for_5_s() {
        for code in CODES {
            for oneway in [false, true] {
                for serialize in [SerializeType::Json, SerializeType::RocketMq] {
                    for topic in ["T", "MQ_INST_1%T", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC"] {
                        let case =
                            Case { code, oneway, serialize, topic, ..Case::with(&properties) };
                        let decision = case.decide();
                        if topic.starts_with("%") || topic.starts_with("RMQ") {
                            assert_eq!(decision, relayed("system_topic"), "{case:?}");
                        } else {
                            let due_ms = NOW + 5_000;
                            let kind = kind.property();
                            assert_eq!(decision, Decision::Hold { due_ms, kind }, "{case:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_metrics_know_all_kinds() {
    assert_eq!(why::HELD, Kind::ALL.map(Kind::property));
}

#[test]
fn what_asks_for_no_delay_is_untouched() {
    for properties in ["", "KEYS\x01DELAY\x02", "DELAY\x010", "DELAY\x01-1\x02", "DELAY\x01"] {
        for code in CODES {
            for topic in ["T", "%RETRY%g"] {
                let case = Case { code, topic, master: code == 10, ..Case::with(properties) };
                assert_eq!(case.decide(), UNTOUCHED, "{case:?}");
            }
        }
    }
    let other = Command::request(36, &[("delayLevel", "3"), ("i", "DELAY\x013")], Bytes::new());
    assert_eq!(decide(&other, NOW, true, &Policy::default()), UNTOUCHED);
}

#[test]
fn a_time_that_has_come_is_relayed() {
    for properties in [
        "__STARTDELIVERTIME\x011799999999999",
        "TIMER_DELIVER_MS\x011800000000000",
        "__STARTDELIVERTIME\x010",
        "TIMER_DELIVER_MS\x01-9223372036854775808",
        "TIMER_DELAY_SEC\x010",
        "TIMER_DELAY_MS\x010",
    ] {
        for serialize in [SerializeType::Json, SerializeType::RocketMq] {
            let case = Case { serialize, ..Case::with(properties) };
            assert_eq!(case.decide(), relayed("past"), "{case:?}");
        }
        assert_eq!(Case::oneway(properties).decide(), relayed("past"));
        assert_eq!(batch(&[properties, ""]).decide(), relayed("past"));
        let half = Case::with(format!("TRAN_MSG\x01true\x02{properties}"));
        assert_eq!(half.decide(), relayed("past"));
    }
}

#[test]
fn a_delay_over_the_maximum() {
    let policy = Policy { max_delay_ms: 7_200_000, ..Policy::default() };
    for (kind, within, over) in [
        ("TIMER_DELAY_SEC", "7198".to_owned(), "7202".to_owned()),
        ("TIMER_DELAY_MS", "7198000".to_owned(), "7202000".to_owned()),
        ("TIMER_DELIVER_MS", (NOW + 7_198_000).to_string(), (NOW + 7_202_000).to_string()),
        ("__STARTDELIVERTIME", (NOW + 7_198_000).to_string(), (NOW + 7_202_000).to_string()),
    ] {
        let case = |value: &str| Case {
            policy: policy.clone(),
            ..Case::with(format!("{kind}\x01{value}"))
        };
        let due_ms = NOW + 7_198_000;
        assert_eq!(case(&within).decide(), Decision::Hold { due_ms, kind });
        let remark = case(&over).remark();
        assert_eq!(
            remark,
            format!(
                "{kind}=\"{over}\" asks for a delay of 2h2s; the longest delay is 2h (--max-delay)"
            )
        );
        let oneway = Case { oneway: true, ..case(&over) };
        assert_eq!(refused(&oneway.decide()), Some("over_max_delay"), "else it came early");
    }
    let own_table = Case {
        policy: Policy { delay_levels_ms: vec![10_800_000], ..policy },
        ..Case::with("DELAY\x0118")
    };
    let due_ms = NOW + 10_800_000;
    let kind = "DELAY";
    assert_eq!(own_table.decide(), Decision::Hold { due_ms, kind }, "levels are not cut");
}

#[test]
fn values_that_cannot_be_read() {
    let digits = "9".repeat(65_536);
    let zeros = format!("x{}", "0".repeat(65_536));
    let values: [(&[u8], &str); 14] = [
        (b" ", "unreadable"),
        (b"5e3", "unreadable"),
        (b"5000L", "unreadable"),
        (b"0x10", "unreadable"),
        (b"1,000", "unreadable"),
        (b"2026-01-01 00:00:00", "unreadable"),
        (b"TIMER_DELAY_MS", "unreadable"),
        (zeros.as_bytes(), "unreadable"),
        (b"50\0", "unreadable"),
        (b"-99999999999999999999", "unreadable"),
        (digits.as_bytes(), "over_max_delay"),
        (b"9223372036854775808", "over_max_delay"),
        (b"-9223372036854775809", "unreadable"),
        (b"1000000000000000000000000000000", "over_max_delay"),
    ];
    for kind in ["__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"] {
        for (value, why) in values {
            let properties = [kind.as_bytes(), b"\x01", value].concat();
            let case = Case::with(&properties);
            assert_eq!(
                refused(&case.decide()),
                Some(why),
                "{kind} {:?}",
                Bytes::copy_from_slice(value)
            );
            let remark = case.remark();
            assert!(remark.starts_with(&format!("{kind}=\"")), "{remark}");
            assert!(remark.ends_with("the longest delay is 366d (--max-delay)"), "{remark}");
            assert!(remark.len() < 300 && !remark.contains(char::is_control), "{remark}");
            let oneway = Case::oneway(&properties).decide();
            match why {
                "unreadable" => assert_eq!(oneway, relayed("oneway_unreadable")),
                _ => assert_eq!(refused(&oneway), Some(why), "far ahead, so never relayed"),
            }
        }
    }
    for kind in ["TIMER_DELAY_SEC", "TIMER_DELAY_MS"] {
        let properties = format!("{kind}\x01-1");
        assert!(Case::with(&properties).remark().contains("is negative"));
        assert_eq!(Case::oneway(&properties).decide(), relayed("oneway_unreadable"));
    }
    let too_small = Case::with("TIMER_DELIVER_MS\x01-9223372036854775809").remark();
    assert!(too_small.contains(" is below the smallest 64-bit number; "), "{too_small}");
    // A binary header may hold what is no UTF-8.
    let broken =
        Case { serialize: SerializeType::RocketMq, ..Case::with(b"TIMER_DELAY_MS\x0150\xff") };
    assert_eq!(refused(&broken.decide()), Some("unreadable"));
}

#[test]
fn values_that_java_reads_are_held() {
    for (value, delay_ms) in [
        ("+5000", 5_000),
        ("\u{ff15}\u{ff10}\u{ff10}\u{ff10}", 5_000),
        ("0000000000000000000000000001", 1),
    ] {
        let due_ms = NOW + delay_ms;
        let kind = "TIMER_DELAY_MS";
        let case = Case::with(format!("TIMER_DELAY_MS\x01{value}"));
        assert_eq!(case.decide(), Decision::Hold { due_ms, kind });
    }
}

#[test]
fn a_level_that_is_no_number_is_left_to_the_broker() {
    // The last is what an agent leaves that appends to a string without a separator at its end.
    for value in ["x", "5e3", " ", "2147483648", "3sw8"] {
        let properties = format!("DELAY\x01{value}");
        assert_eq!(Case::with(&properties).decide(), relayed("bad_level"));
        assert_eq!(Case::oneway(&properties).decide(), relayed("bad_level"));
    }
}

#[test]
fn seconds_are_refused_and_the_unit_is_named() {
    for kind in ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"] {
        let properties = format!("{kind}\x011800000005");
        let case = Case::with(&properties);
        assert_eq!(refused(&case.decide()), Some("seconds"));
        let remark = case.remark();
        assert!(remark.contains("is a time in seconds"), "{remark}");
        assert!(remark.contains("takes milliseconds since 1970"), "{remark}");
        assert_eq!(Case::oneway(&properties).decide(), relayed("oneway_unreadable"));
    }
}

#[test]
fn bad_delays_are_relayed_where_the_user_says_so() {
    let policy = Policy { bad_delay: BadDelay::Relay, ..Policy::default() };
    for properties in [
        "TIMER_DELAY_SEC\x0199999999",
        "TIMER_DELAY_MS\x01x",
        "TIMER_DELAY_SEC\x01-1",
        "TIMER_DELIVER_MS\x011800000005",
        "__STARTDELIVERTIME\x0199999999999999999999",
    ] {
        for oneway in [false, true] {
            let case = Case { oneway, policy: policy.clone(), ..Case::with(properties) };
            assert_eq!(case.decide(), relayed("bad_delay"), "{properties:?}");
        }
        let in_batch = Case { policy: policy.clone(), ..batch(&["", properties]) };
        assert_eq!(in_batch.decide(), relayed("bad_delay"));
    }
    let ahead =
        Case { policy: policy.clone(), ..batch(&["TIMER_DELAY_MS\x01x", "TIMER_DELAY_MS\x0150"]) };
    assert_eq!(refused(&ahead.decide()), Some("batch"), "the second would come early");
    let half = Case { policy, ..Case::with("TRAN_MSG\x01true\x02TIMER_DELAY_MS\x0150") };
    assert_eq!(refused(&half.decide()), Some("half"));
}

#[test]
fn without_a_level_table_only_levels_are_relayed() {
    for (kind, properties) in asking_for_5_s() {
        let case = Case {
            policy: Policy { delay_levels_ms: Vec::new(), ..Policy::default() },
            ..Case::with(&properties)
        };
        let held = Decision::Hold { due_ms: NOW + 5_000, kind: kind.property() };
        let expected = if kind == Kind::Level { relayed("levels_off") } else { held };
        assert_eq!(case.decide(), expected);
    }
}

#[test]
fn requests_and_slaves_are_relayed() {
    for (_, properties) in asking_for_5_s() {
        let slave = Case { master: false, ..Case::with(&properties) };
        assert_eq!(slave.decide(), relayed("slave"));
        for request in ["REPLY_TO_CLIENT\x01c\x02", "CORRELATION_ID\x01c\x02TTL\x013000\x02"] {
            let case = Case::with(format!("{request}{properties}"));
            assert_eq!(case.decide(), relayed("request"));
        }
        for no_request in ["CORRELATION_ID\x01c\x02", "TTL\x013000\x02"] {
            let case = Case::with(format!("{no_request}{properties}"));
            assert!(matches!(case.decide(), Decision::Hold { .. }), "{no_request:?}");
        }
    }
}

#[test]
fn half_messages_with_a_time_ahead_are_refused() {
    for (kind, properties) in asking_for_5_s() {
        for mark in ["true", "TRUE"] {
            let case = Case::with(format!("TRAN_MSG\x01{mark}\x02{properties}"));
            assert_eq!(refused(&case.decide()), Some("half"));
            let remark = case.remark();
            assert!(remark.contains("transactional message with a delay"), "{remark}");
            assert!(remark.contains(kind.property()), "{remark}");
        }
        let oneway = Case::oneway(format!("TRAN_MSG\x01true\x02{properties}"));
        assert_eq!(refused(&oneway.decide()), Some("half"), "dropped, as it would come early");
        let no_half = Case::with(format!("TRAN_MSG\x01false\x02{properties}"));
        assert!(matches!(no_half.decide(), Decision::Hold { .. }));
    }
    assert_eq!(Case::with("TRAN_MSG\x01true").decide(), UNTOUCHED);
}

#[test]
fn batches_with_a_time_ahead_are_refused_whole() {
    for (kind, properties) in asking_for_5_s() {
        for entries in
            [vec![&*properties, ""], vec!["", &properties], vec!["TAGS\x01a", &properties]]
        {
            for code in CODES {
                for serialize in [SerializeType::Json, SerializeType::RocketMq] {
                    for oneway in [false, true] {
                        let case = Case { code, serialize, oneway, ..batch(&entries) };
                        assert_eq!(refused(&case.decide()), Some("batch"), "{case:?}");
                    }
                }
            }
            let remark = batch(&entries).remark();
            assert!(remark.contains(&format!("({}=", kind.property())), "{remark}");
        }
        let in_header = Case { properties: properties.clone().into_bytes(), ..batch(&["", ""]) };
        assert_eq!(refused(&in_header.decide()), Some("batch"));
        let as_one = Case { batch: "false", ..batch(&[&properties]) };
        assert_eq!(as_one.decide(), UNTOUCHED, "the body of one message is its own affair");
    }
    for unreadable in ["TIMER_DELAY_MS\x01x", "DELAY\x01x", "TIMER_DELAY_SEC\x0199999999999"] {
        assert_eq!(refused(&batch(&["", unreadable]).decide()), Some("batch"));
    }
}

#[test]
fn batches_without_a_delay_are_untouched() {
    assert_eq!(batch(&["KEYS\x01DELAY", "TAGS\x01a"]).decide(), UNTOUCHED);
    assert_eq!(batch(&[]).decide(), UNTOUCHED);
    assert_eq!(batch(&["DELAY\x010"]).decide(), UNTOUCHED);
    let levels_off = Case {
        policy: Policy { delay_levels_ms: Vec::new(), ..Policy::default() },
        ..batch(&["DELAY\x013"])
    };
    assert_eq!(levels_off.decide(), relayed("levels_off"));
}

#[test]
fn a_malformed_batch_passes_only_without_a_delay() {
    let cut = |properties: &str| {
        let mut case = batch(&["", properties]);
        case.body.pop();
        case
    };
    assert_eq!(cut("TAGS\x01a").decide(), UNTOUCHED);
    for properties in ["TIMER_DELAY_MS\x0150", "__STARTDELIVERTIME\x010"] {
        let case = cut(properties);
        assert_eq!(refused(&case.decide()), Some("batch"));
        assert!(case.remark().contains("malformed"), "{}", case.remark());
    }
}
