use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::ports::{Ports, candidates, hash};
use super::*;

fn broker(name: &str, id: i64) -> BrokerId {
    BrokerId { cluster: "DefaultCluster".to_owned(), name: name.to_owned(), id }
}

#[test]
fn pairs_of_a_range_never_overlap_and_fill_it() {
    for (first, last, pairs) in [
        (20_000, 20_999, 500),
        (20_000, 20_002, 1),
        (20_000, 20_001, 0),
        (20_001, 20_008, 4),
        (65_530, 65_535, 2),
        (1, 4, 2),
    ] {
        let mut seen = BTreeSet::new();
        let mut count = 0;
        for port in candidates(first, last, 12_345) {
            assert!((first..=last).contains(&port) && (first..=last).contains(&(port - 2)));
            assert!(seen.insert(port) && seen.insert(port - 2), "{port} overlaps");
            count += 1;
        }
        assert_eq!(count, pairs, "{first}-{last}");
    }
}

#[test]
fn the_first_choice_is_the_same_everywhere() {
    // Fixed numbers: another hash would give every proxy that lost its file other ports.
    assert_eq!(hash(&broker("broker-a", 0)), 0xAF14_5619);
    let first = candidates(20_000, 20_999, hash(&broker("broker-a", 0))).next();
    assert_eq!(first, Some(20_123));
}

#[test]
fn the_table_on_disk_reads_back_and_damage_gives_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("endpoints.json");
    let table = BTreeMap::from([(broker("broker-a", 0), 20_002), (broker("b\"\u{e9}", 1), 3)]);
    assert_eq!(saved::read(&file), BTreeMap::new());
    Disk::default().replace(&file, &saved::to_text(&table)).unwrap();
    assert_eq!(saved::read(&file), table);
    for damage in ["", "{", r#"{"format":2,"endpoints":[]}"#] {
        std::fs::write(&file, damage).unwrap();
        assert_eq!(saved::read(&file), BTreeMap::new(), "{damage:?}");
    }
}

#[tokio::test]
async fn a_pair_takes_both_ports_or_none() {
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut any = Ports::new(ip, BrokerPorts::Any, BrokerMap::default());
    let pair = any.open(&broker("broker-a", 0), &BTreeMap::new()).unwrap();
    let port = pair.port;
    // The same pair is wanted by name: its main port is free again, its VIP port is not.
    let [main, vip] = pair.listeners();
    assert_eq!((main.vip, vip.vip, vip.port), (false, true, port - 2));
    assert_eq!(vip.listener.local_addr().unwrap().port(), port - 2);
    drop(main);
    let kept = BTreeMap::from([(broker("broker-a", 0), port)]);
    let mut again = Ports::new(ip, BrokerPorts::Range(port - 2, port), BrokerMap::default());
    assert!(again.open(&broker("broker-a", 0), &kept).is_err());
    drop(vip);
    let pair = again.open(&broker("broker-a", 0), &kept).unwrap();
    assert_eq!(pair.port, port);
}

#[tokio::test]
async fn ports_kept_for_others_are_left_alone() {
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut any = Ports::new(ip, BrokerPorts::Any, BrokerMap::default());
    let pair = any.open(&broker("x", 0), &BTreeMap::new()).unwrap();
    let port = pair.port;
    drop(pair);
    let kept = BTreeMap::from([(broker("broker-a", 0), port)]);
    let mut range = Ports::new(ip, BrokerPorts::Range(port - 2, port), BrokerMap::default());
    let refused = range.open(&broker("broker-b", 0), &kept).unwrap_err();
    let words =
        "no free pair of ports in --broker-ports for broker broker-b (id 0, DefaultCluster)";
    assert_eq!(refused.to_string(), words);
    assert_eq!(range.open(&broker("broker-a", 0), &kept).unwrap().port, port);
}
