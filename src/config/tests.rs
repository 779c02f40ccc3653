use super::*;

fn config() -> Config {
    Config {
        namesrv: vec!["10.0.0.1:9876".to_owned()],
        listen: DEFAULT_LISTEN.parse().unwrap(),
        advertise: "127.0.0.1".to_owned(),
        broker_ports: DEFAULT_BROKER_PORTS.parse().unwrap(),
        broker_map: BrokerMap::default(),
        data_dir: DEFAULT_DATA_DIR.into(),
        policy: Policy::default(),
        flush: Flush::Sync,
        park_after: parse_duration(DEFAULT_PARK_AFTER).unwrap(),
        lame_duck: Duration::ZERO,
        grace: parse_duration(DEFAULT_GRACE).unwrap(),
        near_memory: units::parse_size(DEFAULT_NEAR_MEMORY).unwrap(),
        admin: DEFAULT_ADMIN.parse().unwrap(),
    }
}

fn refusal(change: impl FnOnce(&mut Config)) -> String {
    let mut config = config();
    change(&mut config);
    config.check().unwrap_err().to_string()
}

#[test]
fn the_stock_table_is_the_default() {
    let table = parse_delay_levels(DEFAULT_DELAY_LEVELS).unwrap();
    assert_eq!(table, Policy::default().delay_levels_ms);
    assert_eq!(table.len(), 18);
    assert_eq!(table[17], 7_200_000);
}

#[test]
fn level_tables_are_read_as_the_broker_reads_them() {
    assert!(parse_delay_levels("off").unwrap().is_empty());
    assert_eq!(
        parse_delay_levels("1d 1s 90m 0s ").unwrap(),
        [86_400_000, 1_000, 5_400_000, 0],
        "unsorted is legal"
    );
    for (text, position) in [
        ("1s 1x 5s", "level 2 is \"1x\""),
        ("1s,5s", "level 1 is \"1s,5s\""),
        ("1s, 5s", "level 1 is \"1s,\""),
        ("1s 5", "level 2 is \"5\""),
        ("0", "level 1 is \"0\""),
        ("5ms", "level 1 is \"5ms\""),
        ("1h30m", "level 1 is \"1h30m\""),
        ("-1s", "level 1 is \"-1s\""),
        ("1s\t5s", "level 1 is \"1s\\t5s\""),
        ("99999999999999d", "level 1 is"),
        ("", "the table is empty"),
        ("  ", "the table is empty"),
    ] {
        let refusal = parse_delay_levels(text).unwrap_err().to_string();
        assert!(refusal.starts_with(position), "{text:?}: {refusal}");
    }
    let long = parse_delay_levels(&"1s ".repeat(300)).unwrap_err();
    assert_eq!(long.to_string(), "300 levels; a table has 256 at most");
}

#[test]
fn broker_ports_hold_at_least_one_pair() {
    assert_eq!("0".parse(), Ok(BrokerPorts::Any));
    assert_eq!("20000-20002".parse(), Ok(BrokerPorts::Range(20_000, 20_002)));
    for text in [
        "",
        "20000",
        "20000-20001",
        "20002-20000",
        "0-5",
        "20000-65536",
        "a-b",
        "1-2-9",
        "-1-5",
        "+1-+9",
        "65534-65535",
    ] {
        assert!(text.parse::<BrokerPorts>().is_err(), "{text:?}");
    }
}

#[test]
fn name_servers_are_addresses_with_ports() {
    assert_eq!(
        parse_name_servers("10.0.0.1:9876;ns-2.example:9876;[::1]:9876;").unwrap(),
        ["10.0.0.1:9876", "ns-2.example:9876", "[::1]:9876"]
    );
    for text in [
        "",
        ";",
        "10.0.0.1",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        ":9876",
        "a:9876,b:9876",
        "http://a:9876",
        "a:9876;;b:9876",
        "a :9876",
        "::1:9876",
    ] {
        assert!(parse_name_servers(text).is_err(), "{text:?}");
    }
}

#[test]
fn what_is_advertised_can_be_reached() {
    for text in ["10.0.0.7", "::1", "proxy-0.mq.svc"] {
        assert_eq!(parse_advertise(text).unwrap(), text);
    }
    for text in ["", "0.0.0.0", "::", "10.0.0.7:9877", "http://a", "a b"] {
        assert!(parse_advertise(text).is_err(), "{text:?}");
    }
}

#[test]
fn contradictions_are_refused_with_both_sides_named() {
    let said = refusal(|c| {
        c.policy.delay_levels_ms = vec![1_000, 90 * 60_000];
        c.policy.max_delay_ms = 3_600_000;
    });
    assert!(said.contains("level 2 of --delay-levels is 1h30m, over --max-delay 1h"), "{said}");
    let said = refusal(|c| c.listen.set_port(20_999));
    assert!(said.contains("--listen 127.0.0.1:20999 lies in --broker-ports 20000-20999"), "{said}");
    let said = refusal(|c| c.admin.set_port(20_000));
    assert!(said.contains("--admin 127.0.0.1:20000 lies in"), "{said}");
    let said = refusal(|c| c.admin.set_port(9877));
    assert!(said.contains("the same port"), "{said}");
    let said = refusal(|c| c.namesrv.push("127.0.0.1:9877".to_owned()));
    assert!(said.contains("this proxy's own address"), "{said}");

    let mut stock = config();
    stock.policy.max_delay_ms = 1_000;
    assert_eq!(stock.check(), Ok(()), "nobody wrote the stock table");
    stock.admin = "127.0.0.2:9877".parse().unwrap();
    assert_eq!(stock.check(), Ok(()), "one port on two addresses");
}

#[test]
fn a_broker_map_is_read_and_shown() {
    let map: BrokerMap = "broker-b:1=3,broker-a:0=65535,a:b:0=20011,".parse().unwrap();
    assert_eq!(map.port("broker-a", 0), Some(65_535));
    assert_eq!(map.port("broker-b", 1), Some(3));
    assert_eq!(map.port("a:b", 0), Some(20_011), "a name may hold what separates");
    assert_eq!(map.port("broker-a", 1), None);
    assert_eq!(map.to_string(), "a:b:0=20011,broker-a:0=65535,broker-b:1=3");
    assert_eq!(map.to_string().parse(), Ok(map.clone()));
    assert_eq!("".parse(), Ok(BrokerMap::default()));
    for (port, touched) in [(20_008, false), (20_009, true), (20_010, false), (20_011, true)] {
        assert_eq!(map.touches(port), touched, "{port}");
    }
    assert!(map.touches(20_013), "its VIP port is pinned");
}

#[test]
fn a_broker_map_that_clashes_is_refused_with_the_entry_and_what_is_allowed() {
    for bad in [
        "a",
        "a:0",
        "a=5",
        ":0=5",
        " a:0=5",
        "a:x=5",
        "a:-1=5",
        "a:+1=5",
        "a:=5",
        "a:0=",
        "a:0=x",
        "a:0=0",
        "a:0=2",
        "a:0=65536",
        "a:0=+5",
        "a:0=5,,b:0=9",
        ",",
        "a:0=5;b:0=9",
        "a:9223372036854775808=5",
    ] {
        let said = bad.parse::<BrokerMap>().unwrap_err().to_string();
        assert!(said.contains("NAME:ID=PORT with ID 0 for the master and a PORT from 3 to 65535"));
    }
    let said = |text: &str| text.parse::<BrokerMap>().unwrap_err().to_string();
    assert!(said("a:0=x").starts_with(r#"entry 1 ("a:0=x") cannot be read: "#));
    let twice = said("a:0=20011,b:0=20015,a:0=20020");
    assert!(twice.starts_with(r#"entry 3 ("a:0=20020") names a broker that has an entry"#));
    for (port, clash) in [(20_011, true), (20_013, true), (20_009, true), (20_012, false)] {
        let text = format!("a:0=20011,b:0={port}");
        let refused = text.parse::<BrokerMap>().map_err(|err| err.to_string());
        let words =
            format!(r#"entry 2 ("b:0={port}") overlaps a:0=20011: a broker takes PORT and"#);
        assert_eq!(refused.is_err(), clash, "{port}");
        assert!(refused.err().is_none_or(|said| said.starts_with(&words)));
    }
}

#[test]
fn pinned_ports_keep_clear_of_the_proxys_own() {
    let pin = |text: &str| text.parse::<BrokerMap>().unwrap();
    for (flag, port) in [("--listen 127.0.0.1:9877", 9_877), ("--admin 127.0.0.1:9878", 9_878)] {
        for at in [port, port + 2] {
            let said = refusal(|c| c.broker_map = pin(&format!("a:0={at}")));
            let words = format!("--broker-map a:0={at} takes the port of {flag} (a broker takes");
            assert!(said.starts_with(&words), "{said}");
        }
    }
    let mut fine = config();
    fine.broker_map = pin("a:0=9881,b:0=20001,c:0=65535");
    assert_eq!(fine.check(), Ok(()), "in the range and out of it");
    fine.broker_map = pin("a:0=9878");
    fine.admin = "127.0.0.2:9878".parse().unwrap();
    assert_eq!(fine.check(), Ok(()), "one port on two addresses");
    fine.listen = "0.0.0.0:9877".parse().unwrap();
    assert!(fine.check().is_err(), "a wildcard takes it everywhere");
}

#[test]
fn effective_values_can_be_typed_again() {
    let mut config = config();
    config.policy.delay_levels_ms = vec![90_000, 86_400_000, 0, 7_200_000];
    let flags = config.flags();
    let value = |flag: &str| flags.iter().find(|(name, _)| *name == flag).unwrap().1.clone();
    assert_eq!(value("delay-levels"), "90s 1d 0s 2h");
    assert_eq!(value("max-delay"), "366d");
    assert_eq!(value("near-memory"), "128MiB");
    assert_eq!(value("park-after"), "15m");
    assert_eq!(value("lame-duck"), "0s");
    assert_eq!(value("broker-ports"), "20000-20999");
}
