use super::*;

/// As captured from a 4.9.8 name server: asked by version 399, and by 401.
const UNQUOTED: &str = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
const QUOTED: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
/// 304, as captured.
const SYSTEM_TOPICS: &str =
    r#"{"brokerAddr":"127.0.0.1:30911","topicList":["broker-a","DefaultCluster"]}"#;
/// 106: never quoted on 4.x.
const CLUSTER: &str = r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"C"},"b":{"brokerAddrs":{0:"10.0.0.3:10911"},"brokerName":"b","cluster":"D"}},"clusterAddrTable":{"C":["broker-a"],"D":["b"]}}"#;

/// Stands for everything that is named or addressed here.
struct Listeners(Vec<(BrokerId, &'static str, &'static str)>);

impl Ours for Listeners {
    fn by_id(&self, broker: &BrokerId) -> Option<String> {
        let found = self.0.iter().find(|(id, ..)| id == broker);
        found.map(|(_, _, listener)| (*listener).to_owned())
    }

    fn by_address(&self, address: &str) -> Option<String> {
        let found = self.0.iter().find(|(_, real, _)| *real == address);
        found.map(|(_, _, listener)| (*listener).to_owned())
    }
}

fn broker(cluster: &str, name: &str, id: i64) -> BrokerId {
    BrokerId { cluster: cluster.to_owned(), name: name.to_owned(), id }
}

fn one() -> Listeners {
    let id = broker("DefaultCluster", "broker-a", 0);
    Listeners(vec![(id, "127.0.0.1:30911", "192.168.0.1:20003")])
}

fn rewritten(body: &str, ours: &dyn Ours) -> String {
    String::from_utf8(rewrite(body.as_bytes(), ours).unwrap()).unwrap()
}

#[test]
fn only_the_address_changes_and_the_quoting_stays() {
    for body in [UNQUOTED, QUOTED, SYSTEM_TOPICS] {
        let expected = body.replace("127.0.0.1:30911", "192.168.0.1:20003");
        assert_eq!(rewritten(body, &one()), expected);
    }
}

#[test]
fn slaves_clusters_and_members_of_later_releases_are_kept() {
    let ours = Listeners(vec![
        (broker("C", "broker-a", 0), "10.0.0.1:10911", "p:1"),
        (broker("C", "broker-a", 1), "10.0.0.2:10911", "p:4"),
        (broker("D", "b", 0), "10.0.0.3:10911", "p:7"),
    ]);
    let expected = CLUSTER
        .replace("10.0.0.1:10911", "p:1")
        .replace("10.0.0.2:10911", "p:4")
        .replace("10.0.0.3:10911", "p:7");
    assert_eq!(rewritten(CLUSTER, &ours), expected);

    let body = r#" {"brokerDatas": [{"cluster":"C","zoneName":null,"enableActingMaster":false,
        brokerAddrs:{ '1' : '10.0.0.2:10911' , 0:"10.0.0.1\u003a10911"},'brokerName':'broker\u002da'}],
        "filterServerTable":{"10.0.0.3:10911":["f:1","10.0.0.3:10911"]},"new":{0:[{"x":{1:2}}]},
        "orderTopicConf":"broker-a:4","topicQueueMappingByBroker":{}} "#;
    let expected = body
        .replace("'10.0.0.2:10911'", "\"p:4\"")
        .replace(r"10.0.0.1\u003a10911", "p:1")
        .replace("{\"10.0.0.3:10911\":", "{\"p:7\":");
    assert_eq!(rewritten(body, &ours), expected);
}

#[test]
fn an_address_nobody_stands_for_is_never_handed_out() {
    let none = Listeners(Vec::new());
    let filters = r#"{"brokerDatas":[],"filterServerTable":{"10.0.0.9:1":[]}}"#;
    for (body, why) in [
        (UNQUOTED, "unreadable route body: nobody stands for 127.0.0.1:30911"),
        (SYSTEM_TOPICS, "unreadable route body: nobody stands for 127.0.0.1:30911"),
        (filters, "unreadable route body: nobody stands for 10.0.0.9:1"),
    ] {
        assert_eq!(rewrite(body.as_bytes(), &none).unwrap_err().to_string(), why);
    }
    let other_cluster = UNQUOTED.replace("DefaultCluster", "Other");
    assert!(rewrite(other_cluster.as_bytes(), &one()).is_err());
}

#[test]
fn what_has_no_address_stays_as_it_is() {
    let none = Listeners(Vec::new());
    for body in [
        "{}",
        r#"{"topicList":["a"]}"#,
        r#"{"brokerAddr":null,"topicList":[]}"#,
        r#"{"brokerDatas":null,"filterServerTable":null,"queueDatas":null}"#,
        r#"{"brokerDatas":[{"brokerAddrs":{},"brokerName":"b","cluster":"C"}]}"#,
    ] {
        assert_eq!(rewritten(body, &none), body);
        assert!(broker_addresses(body.as_bytes()).unwrap().is_empty());
    }
}

#[test]
fn addresses_and_queues_are_read() {
    let expected = BTreeMap::from([
        (broker("C", "broker-a", 0), "10.0.0.1:10911".to_owned()),
        (broker("C", "broker-a", 1), "10.0.0.2:10911".to_owned()),
        (broker("D", "b", 0), "10.0.0.3:10911".to_owned()),
    ]);
    assert_eq!(broker_addresses(CLUSTER.as_bytes()).unwrap(), expected);
    let id = broker("DefaultCluster", "broker-a", 0);
    let expected = BTreeMap::from([(id, "127.0.0.1:30911".to_owned())]);
    let queue = QueueData { broker: "broker-a".to_owned(), write_queues: 4, perm: 6 };
    for body in [UNQUOTED, QUOTED] {
        assert_eq!(broker_addresses(body.as_bytes()).unwrap(), expected);
        assert_eq!(queues(body.as_bytes()).unwrap(), std::slice::from_ref(&queue));
    }
    assert_eq!(queues(CLUSTER.as_bytes()), Ok(Vec::new()));
}

#[test]
fn other_shapes_are_errors() {
    for (body, why) in [
        ("", "expected an object at byte 0"),
        (r#"{"brokerDatas":{}}"#, "expected an array at byte 15"),
        (r#"{"brokerDatas":[{"brokerAddrs":{"x":"a:1"}}]}"#, "a broker id is no number"),
        (r#"{"brokerDatas":[{"brokerAddrs":{0:null}}]}"#, "an address is null"),
        (r#"{"brokerDatas":[{"brokerAddrs":{}}]}"#, "a broker without brokerName"),
        (r#"{}x"#, "expected the end at byte 2"),
    ] {
        let expected = RouteError(why.to_owned());
        assert_eq!(broker_addresses(body.as_bytes()), Err(expected.clone()), "{body}");
        assert_eq!(rewrite(body.as_bytes(), &one()), Err(expected), "{body}");
    }
    for (body, why) in [
        (r#"{"queueDatas":[{"perm":6}]}"#, "a queue without brokerName"),
        (r#"{"queueDatas":[{"perm":"rw"}]}"#, "\"rw\" is no number"),
    ] {
        assert_eq!(queues(body.as_bytes()), Err(RouteError(why.to_owned())), "{body}");
    }
}

#[test]
fn ids_change_their_quotes_and_nothing_else() {
    let body = |q: &str| {
        format!(
            r#"{{"x":{{1:2}}, "brokerDatas":[{{"brokerAddrs":{{{q}0{q}:"a:1",{q}12{q} :"b:2"}},"brokerName":"n"}},{{"brokerAddrs":null}}],"orderTopicConf":"n:4"}}"#
        )
    };
    let (plain, quoted) = (body(""), body("\""));
    for from in [&plain, &quoted] {
        assert_eq!(with_ids_quoted(from.as_bytes(), false).unwrap(), plain.as_bytes());
        assert_eq!(with_ids_quoted(from.as_bytes(), true).unwrap(), quoted.as_bytes());
    }
    assert_eq!(ids_are_quoted(plain.as_bytes()), Ok(Some(false)));
    assert_eq!(ids_are_quoted(quoted.as_bytes()), Ok(Some(true)));
    assert_eq!(ids_are_quoted(b"{}"), Ok(None));
    let name = br#"{"brokerDatas":[{"brokerAddrs":{"a b":"c:1"}}]}"#;
    assert!(with_ids_quoted(name, false).is_err());
}

#[test]
fn a_cluster_is_written_as_a_name_server_writes_it() {
    let brokers = BTreeMap::from([
        (broker("c", "a", 0), "h:1".to_owned()),
        (broker("c", "a", 1), "h:2".to_owned()),
        (broker("c", "b\"", 0), "h:3".to_owned()),
        (broker("d", "e", 0), "h:4".to_owned()),
    ]);
    let body = cluster_body(&brokers);
    let expected = r#"{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a","cluster":"c"},"b\"":{"brokerAddrs":{0:"h:3"},"brokerName":"b\"","cluster":"c"},"e":{"brokerAddrs":{0:"h:4"},"brokerName":"e","cluster":"d"}},"clusterAddrTable":{"c":["a","b\""],"d":["e"]}}"#;
    assert_eq!(String::from_utf8_lossy(&body), expected);
    assert_eq!(broker_addresses(&body).unwrap(), brokers);
}
