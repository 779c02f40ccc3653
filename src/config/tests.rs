use super::*;

fn config() -> Config {
    Config {
        namesrv: vec!["10.0.0.1:9876".to_owned()],
        listen: DEFAULT_LISTEN.parse().unwrap(),
        advertise: "127.0.0.1".to_owned(),
        broker_ports: DEFAULT_BROKER_PORTS.parse().unwrap(),
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
