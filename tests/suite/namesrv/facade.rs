//! What clients are told.

use std::time::Duration;

use rocketmq_timer_proxy::config::BrokerPorts;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::SerializeType;
use rocketmq_timer_proxy::remoting::header::FLAG_ONEWAY;
use rocketmq_timer_proxy::shutdown::Stage;
use rocketmq_timer_proxy::upstream::nameservers::NameServerSettings;
use tokio::net::TcpStream;

use super::{Proxy, broker, own_ip, patient};
use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer};
use crate::support::{bytes, soon};

/// What a 4.9.8 name server answers to a client before 4.9.4: keys without quotes.
fn route(address: &str) -> String {
    format!(
        r#"{{"brokerDatas":[{{"brokerAddrs":{{0:"{address}",1:"10.0.0.9:10911"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}]}}"#
    )
}

fn cluster(address: &str) -> String {
    format!(
        r#"{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{0:"{address}"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}}},"clusterAddrTable":{{"DefaultCluster":["broker-a"]}}}}"#
    )
}

const MASTER: &str = "10.0.0.8:10911";

async fn upstream() -> ScriptedPeer {
    ScriptedPeer::name_server(&route(MASTER), &cluster(MASTER)).await
}

fn ask(code: i32) -> Command {
    Command::request(code, &[("topic", "T")], bytes(""))
}

fn text(command: &Command) -> String {
    let remark = command.header.remark.clone().unwrap_or_default();
    String::from_utf8(remark.to_vec()).unwrap()
}

#[tokio::test]
async fn routes_name_our_ports_and_every_other_byte_stays() {
    let names = upstream().await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client = proxy.client().await;
    for code in [105, 106] {
        let answer = client.call(ask(code), 7).await;
        let master = proxy.ours(&broker("broker-a", 0));
        let slave = proxy.ours(&broker("broker-a", 1));
        let expected = match code {
            105 => route(&master).replace("10.0.0.9:10911", &slave),
            _ => cluster(&master),
        };
        assert_eq!(answer.header.code, 0);
        assert_eq!(answer.body, expected, "code {code}");
    }
    // The request left as it came, apart from the opaque.
    let seen = names.requests_of(105).remove(0);
    let mut request = ask(105);
    request.header.opaque = seen.request.header.opaque;
    assert_eq!(seen.frame.bytes(), &request.encode());
}

#[tokio::test]
async fn ports_listen_and_lead_to_the_broker_before_the_answer_names_them() {
    let names = upstream().await;
    let mut proxy = Proxy::start(&[names.address()]).await;
    proxy.client().await.call(ask(105), 1).await;
    let port = proxy.port(&broker("broker-a", 0));
    TcpStream::connect((own_ip(), port)).await.unwrap();
    TcpStream::connect((own_ip(), port - 2)).await.unwrap();
    let endpoint = soon("the endpoint", proxy.created.recv()).await.unwrap();
    assert_eq!(endpoint.broker, broker("broker-a", 0));
    assert_eq!(endpoint.target.borrow().as_deref(), Some(MASTER));
}

#[tokio::test]
async fn the_one_address_in_304_is_rewritten_even_when_nobody_asked_for_a_route() {
    let names = ScriptedPeer::start(|seen| {
        Act::Reply(match seen.code() {
            106 => Reply::body(cluster(MASTER)),
            _ => Reply::body(r#"{"brokerAddr":"10.0.0.8:10911","topicList":["broker-a"]}"#),
        })
    })
    .await;
    let proxy = Proxy::start(&[names.address()]).await;
    let answer = proxy.client().await.call(ask(304), 1).await;
    let ours = proxy.ours(&broker("broker-a", 0));
    let expected = format!(r#"{{"brokerAddr":"{ours}","topicList":["broker-a"]}}"#);
    assert_eq!(answer.body, expected);
    // An address that no broker has is not handed out.
    names.script(|seen| {
        Act::Reply(match seen.code() {
            106 => Reply::body(cluster(MASTER)),
            _ => Reply::body(r#"{"brokerAddr":"10.6.6.6:1","topicList":[]}"#),
        })
    });
    let answer = proxy.client().await.call(ask(304), 1).await;
    assert_eq!((answer.header.code, answer.body.len()), (1, 0));
    assert!(text(&answer).contains("nobody stands for 10.6.6.6:1"), "{}", text(&answer));
}

#[tokio::test]
async fn everything_else_comes_back_as_the_name_server_wrote_it() {
    // Member order, blanks and unknown members that our own encoder would not write.
    let names = ScriptedPeer::start(|seen| {
        let opaque = seen.request.header.opaque;
        let header = format!(
            r#"{{"version":409, "opaque":{opaque} ,"flag":1,"code":17,"remark":"No topic route info","x":[{{"opaque":1}}]}}"#
        );
        let mut frame = (4 + header.len() as u32 + 3).to_be_bytes().to_vec();
        frame.extend_from_slice(&(header.len() as u32).to_be_bytes());
        frame.extend_from_slice(header.as_bytes());
        frame.extend_from_slice(b"\0\xff\x01");
        Act::Raw(frame.into())
    })
    .await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client = proxy.client().await;
    for code in [105, 206, 999] {
        client.send(ask(code), -3).await;
        let frame = client.answer_frame(-3).await;
        let expected = r#"{"version":409, "opaque":-3 ,"flag":1,"code":17,"remark":"No topic route info","x":[{"opaque":1}]}"#;
        assert_eq!(frame.header(), expected.as_bytes());
        assert_eq!(frame.body().as_ref(), b"\0\xff\x01");
    }
}

#[tokio::test]
async fn binary_requests_are_relayed_and_refused_in_binary() {
    let names = upstream().await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client = proxy.client().await;
    let binary = |code| {
        let mut request = ask(code);
        request.serialize = SerializeType::RocketMq;
        request
    };
    let answer = client.call(binary(105), 1).await;
    assert_eq!((answer.serialize, answer.header.code), (SerializeType::RocketMq, 0));
    let answer = client.call(binary(103), 2).await;
    assert_eq!((answer.serialize, answer.header.code), (SerializeType::RocketMq, 3));
}

#[tokio::test]
async fn what_only_brokers_may_say_is_refused() {
    let names = upstream().await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client = proxy.client().await;
    for code in [103, 104, 322] {
        let answer = client.call(ask(code), code).await;
        let remark = format!(
            "rocketmq-timer-proxy: code {code} is for brokers, which must be given the real name servers as namesrvAddr"
        );
        assert_eq!((answer.header.code, text(&answer)), (3, remark));
    }
    assert!(names.requests().iter().all(|seen| seen.code() == 106));
}

#[tokio::test]
async fn equal_opaques_of_two_clients_never_mix_and_answers_need_no_order() {
    let names = ScriptedPeer::start(|_| Act::Never).await;
    let proxy = Proxy::start(&[names.address()]).await;
    let (mut first, mut second) = (proxy.client().await, proxy.client().await);
    for opaque in 0..20 {
        let request = |who: &str| Command::request(206, &[("who", who)], bytes(""));
        first.send(request("first"), opaque).await;
        second.send(request("second"), opaque).await;
    }
    let mut seen = names.until_requests(206, 40).await;
    seen.reverse();
    for request in &seen {
        names.answer(request, &Reply::body(request.ext("who")));
    }
    for opaque in 0..20 {
        assert_eq!(first.answer(opaque).await.body, "first");
        assert_eq!(second.answer(opaque).await.body, "second");
    }
}

#[tokio::test]
async fn one_connection_may_ask_more_than_the_limit_at_once() {
    let names = upstream().await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client = proxy.client().await;
    let mut burst = Vec::new();
    for opaque in 0..500 {
        let mut request = ask(105);
        request.header.opaque = opaque;
        burst.extend_from_slice(&request.encode());
    }
    client.send_bytes(&burst).await;
    for opaque in 0..500 {
        assert_eq!(client.answer(opaque).await.header.code, 0);
    }
}

#[tokio::test]
async fn writes_reach_every_name_server_and_fail_with_the_first_that_failed() {
    let (first, mut second) = (upstream().await, upstream().await);
    let proxy = Proxy::start(&[first.address(), second.address()]).await;
    let mut client = proxy.client().await;
    for code in [100, 102, 205, 216, 318, 327] {
        assert_eq!(client.call(ask(code), 1).await.header.code, 0);
        for names in [&first, &second] {
            assert_eq!(names.requests_of(code).len(), 1, "code {code}");
        }
    }
    second.script(|_| Act::Reply(Reply::code(22).remark("no such key")));
    let answer = client.call(ask(102), 2).await;
    let words =
        format!("rocketmq-timer-proxy: name server {} refused: no such key", second.address());
    assert_eq!((answer.header.code, text(&answer)), (22, words));
    second.stop().await;
    let answer = client.call(ask(102), 3).await;
    assert_eq!(answer.header.code, 1);
    let address = second.address();
    let words = format!(
        "rocketmq-timer-proxy: name server {address} failed: cannot connect to {address}: Connection refused (os error 111)"
    );
    assert_eq!(text(&answer), words);
    assert_eq!(first.requests_of(102).len(), 3);
}

#[tokio::test]
async fn without_name_servers_a_route_query_is_answered_with_the_reason() {
    let mut names = ScriptedPeer::start(|_| Act::Never).await;
    let address = names.address();
    names.stop().await;
    let proxy = Proxy::start(std::slice::from_ref(&address)).await;
    let mut client = proxy.client().await;
    for code in [105, 106, 206] {
        let answer = client.call(ask(code), 1).await;
        assert_eq!(answer.header.code, 1);
        let why = format!("cannot connect to {address}: Connection refused (os error 111)");
        let words = format!(
            "rocketmq-timer-proxy: no name server answered: {why}; asked: {address} ({why})"
        );
        assert_eq!(text(&answer), words);
    }
}

#[tokio::test]
async fn a_full_range_refuses_the_route() {
    let names = upstream().await;
    let ports = BrokerPorts::Range(24_100, 24_102);
    let proxy = Proxy::with(&[names.address()], ports, patient()).await;
    let answer = proxy.client().await.call(ask(105), 1).await;
    let words = "rocketmq-timer-proxy: no free pair of ports in --broker-ports for broker broker-a (id 1, DefaultCluster)";
    assert_eq!((answer.header.code, text(&answer).as_str()), (1, words));
    assert_eq!(answer.body.len(), 0);
}

#[tokio::test]
async fn nobody_answers_a_oneway_request_or_an_unknown_code() {
    let names = ScriptedPeer::start(|seen| match seen.code() {
        105 => Act::Reply(Reply::body(route(MASTER))),
        _ => Act::Never,
    })
    .await;
    let settings = NameServerSettings { answer_within: Duration::from_millis(50), ..patient() };
    let proxy = Proxy::with(&[names.address()], BrokerPorts::Any, settings).await;
    let mut client = proxy.client().await;
    for code in [103, 9_999] {
        let mut oneway = ask(code);
        oneway.header.flag = FLAG_ONEWAY;
        client.send(oneway, code).await;
    }
    client.send(ask(9_998), 3).await;
    names.until_requests(9_999, 1).await;
    names.until_requests(9_998, 1).await;
    // The limit of unanswered requests is not used up by those that expired.
    for opaque in 1_000..1_100 {
        client.send(ask(9_998), opaque).await;
    }
    assert_eq!(client.call(ask(105), 5_000).await.header.code, 0);
    assert_eq!(names.requests_of(103).len(), 0);
}

#[tokio::test]
async fn stopping_closes_the_port_first_and_answers_what_was_accepted() {
    let names = ScriptedPeer::start(|_| Act::Never).await;
    let proxy = Proxy::start(&[names.address()]).await;
    let (mut idle, mut busy) = (proxy.client().await, proxy.client().await);
    busy.send(ask(206), 1).await;
    let held = names.until_requests(206, 1).await.remove(0);
    proxy.stop.enter(Stage::LameDuck);
    soon("the port to close", async {
        while TcpStream::connect(&proxy.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Open connections are served on.
    idle.send(ask(206), 2).await;
    let second = names.until_requests(206, 2).await.remove(1);
    names.answer(&second, &Reply::body("served"));
    assert_eq!(idle.answer(2).await.body, "served");
    proxy.stop.enter(Stage::Draining);
    idle.closed().await;
    names.answer(&held, &Reply::body("held"));
    assert_eq!(busy.answer(1).await.body, "held");
    busy.closed().await;
    soon("the end", proxy.served).await.unwrap();
}

#[tokio::test]
async fn the_last_stage_cuts_what_is_still_open() {
    let names = ScriptedPeer::start(|_| Act::Never).await;
    let proxy = Proxy::start(&[names.address()]).await;
    let mut client: RawClient = proxy.client().await;
    client.send(ask(206), 1).await;
    names.until_requests(206, 1).await;
    proxy.stop.enter(Stage::Draining);
    proxy.stop.enter(Stage::Cut);
    client.closed().await;
    soon("the end", proxy.served).await.unwrap();
}
