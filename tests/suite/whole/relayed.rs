//! What passes: routes with our addresses in them and not a byte else changed, and every other frame
//! as it came.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::SerializeType;
use tokio::net::TcpStream;

use super::rig::{Proxy, TestClock, cluster_body};
use crate::support::bytes;
use crate::support::client::{RawClient, send_v1, send_v2};
use crate::support::peer::{Act, Reply, ScriptedPeer};

/// First release whose name server quotes the ids.
const VERSION_4_9_4: i32 = 401;

/// What a name server answers to 105.
fn route_body(brokers: &[(&str, i64, &str)], quote: &str) -> String {
    let mut names: Vec<_> = brokers.iter().map(|(name, ..)| *name).collect();
    names.dedup();
    let (mut data, mut queues) = (Vec::new(), Vec::new());
    for name in names {
        let own = brokers.iter().filter(|(of, ..)| *of == name);
        let own = own.map(|(_, id, at)| format!("{quote}{id}{quote}:\"{at}\""));
        let own = own.collect::<Vec<_>>().join(",");
        data.push(format!(
            r#"{{"brokerAddrs":{{{own}}},"brokerName":"{name}","cluster":"DefaultCluster","later":[1,{{"x":null}}]}}"#
        ));
        queues.push(format!(
            r#"{{"brokerName":"{name}","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":4}}"#
        ));
    }
    let filter = brokers[0].2;
    format!(
        r#"{{"brokerDatas":[{}],"filterServerTable":{{"{filter}":[]}},"orderTopicConf":"a:4;b:4","queueDatas":[{}]}}"#,
        data.join(","),
        queues.join(",")
    )
}

/// The frame's text with the number under which it went taken out.
fn without_opaque(frame: &[u8]) -> Vec<u8> {
    let at = frame.windows(9).position(|w| w == b"\"opaque\":").unwrap();
    let digits = frame[at + 9..].iter().take_while(|b| b.is_ascii_digit() || **b == b'-').count();
    // The two lengths change with the number of digits.
    [&frame[8..at], &frame[at + 9 + digits..]].concat()
}

/// The name server's words for a topic that is not there.
const UNKNOWN: &str = "No topic route info in name server for the topic: Unknown\nSee http://x";

/// Quotes ids as a 4.9.4 name server does, by the request.
async fn quoting_name_server(brokers: &[(&str, i64, &str)]) -> ScriptedPeer {
    let routes = ["", "\""].map(|quote| route_body(brokers, quote));
    let cluster = cluster_body(brokers, "");
    ScriptedPeer::start(move |seen| {
        let newer = seen.request.header.version >= VERSION_4_9_4;
        let quoted = newer || seen.ext("acceptStandardJsonOnly") == "true";
        Act::Reply(match seen.code() {
            105 if seen.ext("topic") == "Unknown" => Reply::code(17).remark(UNKNOWN),
            105 => Reply::body(routes[usize::from(quoted)].clone()),
            106 => Reply::body(cluster.clone()),
            _ => Reply::code(0),
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_carry_our_addresses_and_nothing_else_is_changed() {
    let mut peers = Vec::new();
    for _ in 0..3 {
        peers.push(ScriptedPeer::broker().await);
    }
    let real: Vec<_> = peers.iter().map(ScriptedPeer::address).collect();
    let brokers = |at: &[String]| {
        let place = |n: usize, name, id| (name, id, at[n].clone());
        [place(0, "broker-a", 0), place(1, "broker-a", 1), place(2, "broker-b", 0)]
    };
    let own = brokers(&real);
    let table = own.each_ref().map(|(name, id, at)| (*name, *id, at.as_str()));
    let names = quoting_name_server(&table).await;
    let mut proxy = Proxy::start(names.address(), TestClock::new()).await;
    proxy.ready().await;
    let ours = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]
        .map(|(name, id)| proxy.port_of(name, id).to_string());
    let different: BTreeSet<_> = ours.iter().chain(&real).collect();
    assert_eq!(different.len(), 6, "{different:?}");
    let expected = brokers(&ours);
    let expected = expected.each_ref().map(|(name, id, at)| (*name, *id, at.as_str()));
    let mut client = proxy.names_client().await;
    let mut opaque = 0;
    for (version, standard, quote) in [
        (399, false, ""),
        (317, false, ""),
        (317, true, "\""),
        (401, false, "\""),
        (409, true, "\""),
        (2_147_483_459, false, "\""),
    ] {
        for form in [SerializeType::Json, SerializeType::RocketMq] {
            let mut request = Command::request(105, &[("topic", "Orders")], bytes(""));
            if standard {
                request.header.ext.set("acceptStandardJsonOnly".into(), "true".into());
            }
            // The binary form has 16 bits for the release.
            request.header.version = version;
            request.serialize = form;
            let quote = match form {
                SerializeType::RocketMq if version > 1 << 15 => "",
                _ => quote,
            };
            opaque += 1;
            let answer = client.call(request, opaque).await;
            let body = std::str::from_utf8(&answer.body).unwrap();
            assert_eq!(body, route_body(&expected, quote), "version {version}");
        }
    }
    let cluster = client.call(Command::request(106, &[], bytes("")), 70).await;
    assert_eq!(cluster.body, cluster_body(&expected, ""));
    let unknown = Command::request(105, &[("topic", "Unknown")], bytes(""));
    let unknown = client.call(unknown, 71).await;
    assert_eq!((unknown.header.code, unknown.header.remark.unwrap()), (17, UNKNOWN.into()));
    // Behind each address, and behind the one for the VIP channel, is that very broker.
    for (n, peer) in (0..).zip(&peers) {
        let port: SocketAddr = ours[n].parse().unwrap();
        for port in [port.port(), port.port() - 2] {
            let mut client = RawClient::connect(("127.0.0.1", port)).await;
            client.call(send_v2("Orders", 0, "", format!("to {n}")), 1).await;
        }
        let bodies: Vec<_> = peer.requests().iter().map(|seen| seen.request.body.clone()).collect();
        assert_eq!(bodies, [format!("to {n}"), format!("to {n}")]);
    }
    drop(client);
    proxy.stop().await;
}

/// On a slave's port nothing is held: it is only read from, or lies idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_to_a_slave_and_topics_of_the_brokers_own_are_relayed() {
    let (master, slave) = (ScriptedPeer::broker().await, ScriptedPeer::broker().await);
    let at = [master.address(), slave.address()];
    let cluster = cluster_body(&[("broker-a", 0, &at[0]), ("broker-a", 1, &at[1])], "");
    let names = ScriptedPeer::name_server("{}", &cluster).await;
    let mut proxy = Proxy::start(names.address(), TestClock::new()).await;
    proxy.ready().await;
    let mut client = RawClient::connect(proxy.port_of("broker-a", 1)).await;
    let delayed = |topic| send_v2(topic, 0, "KEYS\u{1}k\u{2}DELAY\u{1}3", "x");
    client.call(delayed("Orders"), 1).await;
    assert_eq!(slave.requests().len(), 1);
    let mut client = proxy.client().await;
    for (n, topic) in (1..).zip(["%RETRY%group", "%DLQ%group", "RMQ_SYS_TRACE_TOPIC"]) {
        client.call(delayed(topic), 1).await;
        assert_eq!(master.requests().len(), n);
    }
    assert_eq!((proxy.held(), proxy.metrics.store_pending.get()), (0, 0));
    drop(client);
    proxy.stop().await;
}

fn frame_of(form: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(4 + header.len() + body.len()).unwrap();
    let header_len = u32::try_from(header.len()).unwrap() | u32::from(form) << 24;
    let mut frame = [len.to_be_bytes(), header_len.to_be_bytes()].concat();
    frame.extend_from_slice(header);
    frame.extend_from_slice(body);
    frame
}

/// Codes that brokers know, and some that nobody knows.
const CODES: [i32; 27] = [
    10,
    310,
    320,
    324,
    325,
    11,
    12,
    14,
    15,
    31,
    33,
    34,
    35,
    36,
    37,
    38,
    41,
    42,
    46,
    29,
    30,
    200_050,
    361,
    -1,
    0,
    i32::MAX,
    i32::MIN,
];

/// All that clients send to brokers, and what nobody sends yet; each under the number of its place.
fn client_frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut add = |frame: &dyn Fn(i32) -> Vec<u8>| {
        let opaque = i32::try_from(frames.len()).unwrap();
        frames.push(frame(opaque));
    };
    for code in CODES {
        for form in [SerializeType::Json, SerializeType::RocketMq] {
            add(&|opaque| {
                let mut request = Command::request(code, &[("topic", "T")], bytes("body"));
                request.serialize = form;
                request.header.opaque = opaque;
                request.encode().to_vec()
            });
        }
    }
    for send in [send_v1, send_v2] as [fn(&str, i32, &str, &'static str) -> Command; 2] {
        for properties in ["", "KEYS\u{1}DELAY", "DELAYED\u{1}3\u{2}", "a\u{1}TIMER_DELAY_MS 5"] {
            add(&|opaque| {
                let mut request = send("T", 0, properties, "body");
                request.header.opaque = opaque;
                request.encode().to_vec()
            });
        }
    }
    // As fastjson would take it too: quotes of either kind or none, blanks, numbers for texts.
    for header in [
        r#"{code:310,opaque:OPAQUE,extFields:{b:'T',e:3,i:"KEYS\u0001k"}}"#,
        "  {\"code\" : \"28\" ,\t\"opaque\":\"OPAQUE\"\n}  ",
        r#"{"opaque":OPAQUE}"#,
        r#"{"opaque":OPAQUE,"code":34,"extFields":null,"language":"COBOL","flag":0}"#,
        r#"{"opaque":OPAQUE,"code":310,"extFields":{"i":"D\u0045LAY\u00010"}}"#,
    ] {
        add(&|opaque| {
            let header = header.replace("OPAQUE", &opaque.to_string());
            frame_of(0, header.as_bytes(), b"")
        });
    }
    // Bodies that fill several reads, with the names of delays in them.
    for len in [60_000, 70_000, 1_000_000, 4 << 20] {
        add(&|opaque| {
            let body = b"DELAY\x013\x02".repeat(len / 8);
            let header = format!(r#"{{"code":310,"opaque":{opaque},"extFields":{{"b":"T"}}}}"#);
            frame_of(0, header.as_bytes(), &body)
        });
    }
    frames
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_for_brokers_pass_byte_for_byte_in_both_directions() {
    // An answer in a form of its own, odd but legal, of any size.
    let answer = |opaque: i32, len: usize| {
        let header = format!(
            r#"{{ 'code':-7, flag:1,"language":"XX","opaque":{opaque},"extFields":{{"n":1,"b":true,"z":null}},"remark":"\u00e9","more":[1]}}"#
        );
        frame_of(0, header.as_bytes(), &vec![b'a'; len])
    };
    let broker = ScriptedPeer::start(move |seen| {
        let opaque = seen.request.header.opaque;
        let len = usize::try_from(opaque).unwrap() * 7_919;
        Act::Raw(answer(opaque, len).into())
    })
    .await;
    let proxy = Proxy::before(&broker.address(), TestClock::new()).await;
    let mut client = proxy.client().await;
    let frames = client_frames();
    let all = frames.concat();
    let expected: Vec<_> =
        (0..frames.len()).map(|n| answer(i32::try_from(n).unwrap(), n * 7_919)).collect();
    // One after the other, then all at once in pieces that end anywhere.
    for (frame, expected) in frames.iter().zip(&expected) {
        client.send_bytes(frame).await;
        assert!(client.next_frame().await.unwrap().bytes() == expected);
    }
    let mut second = proxy.client().await;
    let (mut reader, mut writer) = tokio::io::split(&mut second.socket);
    let write = async {
        for piece in all.chunks(4_093) {
            tokio::io::AsyncWriteExt::write_all(&mut writer, piece).await.unwrap();
        }
    };
    let read = async {
        let mut buffer = bytes::BytesMut::new();
        for expected in &expected {
            let frame = crate::support::next_frame(&mut reader, &mut buffer).await.unwrap();
            assert!(frame.bytes() == expected);
        }
    };
    crate::support::soon("all answers", async { tokio::join!(write, read) }).await;
    let requests = broker.requests();
    assert_eq!(requests.len(), 2 * frames.len());
    for (n, seen) in requests.iter().enumerate() {
        let sent = &frames[n % frames.len()];
        assert!(seen.frame.bytes() == sent, "frame {n} was changed");
    }
    drop((client, second));
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_for_name_servers_pass_but_for_their_number() {
    let names = ScriptedPeer::start(move |seen| match seen.code() {
        // As 4.x name servers do with what they do not know.
        9_999 => Act::Never,
        106 => Act::Reply(Reply::body(cluster_body(&[("broker-a", 0, "127.0.0.1:1")], ""))),
        code => {
            let opaque = seen.request.header.opaque;
            let header = format!(
                r#"{{"code":{code},"extFields":{{"x":"é\u0001"}},"flag":1,"language":"JAVA","opaque":{opaque},"remark":"r","version":407}}"#
            );
            Act::Raw(frame_of(0, header.as_bytes(), b"{0:\"10.0.0.1:10911\"}").into())
        }
    })
    .await;
    let mut proxy = Proxy::start(names.address(), TestClock::new()).await;
    proxy.ready().await;
    let mut client = proxy.names_client().await;
    let before = names.requests().len();
    let mut sent = Vec::new();
    for (n, code) in (0..).zip([101, 201, 206, 219, 224, 311, 313, 319, 777, -5]) {
        let header = format!(
            r#"{{"code":{code},"extFields":{{"namespace":"N","key":"grün"}},"flag":0,"language":"GO","opaque":{},"version":317}}"#,
            n - 3
        );
        let frame = frame_of(0, header.as_bytes(), b"body");
        client.send_bytes(&frame).await;
        let answer = client.answer_frame(n - 3).await;
        let body = &answer.bytes()[answer.bytes().len() - 20..];
        assert_eq!(body, b"{0:\"10.0.0.1:10911\"}", "code {code}");
        let expected = format!(
            r#"{{"code":{code},"extFields":{{"x":"é\u0001"}},"flag":1,"language":"JAVA","opaque":0,"remark":"r","version":407}}"#
        );
        let expected = frame_of(0, expected.as_bytes(), body);
        assert_eq!(without_opaque(answer.bytes()), without_opaque(&expected), "code {code}");
        sent.push(frame);
    }
    let seen = names.requests().split_off(before);
    let seen: Vec<_> = seen.iter().filter(|seen| seen.code() != 106).collect();
    assert_eq!(seen.len(), sent.len());
    for (seen, sent) in seen.iter().zip(&sent) {
        assert_eq!(without_opaque(seen.frame.bytes()), without_opaque(sent));
    }
    // Unanswered there, unanswered here, and no obstacle to what comes after.
    client.send(Command::request(9_999, &[], Bytes::new()), 40).await;
    names.until_requests(9_999, 1).await;
    client.send(Command::request(201, &[], Bytes::new()), 41).await;
    let next = Command::decode(&client.next_frame().await.unwrap()).unwrap();
    assert_eq!(next.header.opaque, 41);
    // What only brokers may say is refused, and the name server never hears of it.
    for code in [103, 104, 322] {
        let answer = client.call(Command::request(code, &[], Bytes::new()), code).await;
        assert_eq!(answer.header.code, 3);
        assert!(names.requests_of(code).is_empty());
    }
    assert!(TcpStream::connect("127.0.0.1:1").await.is_err());
    drop(client);
    proxy.stop().await;
}
