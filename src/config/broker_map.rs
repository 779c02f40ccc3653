//! Ports that the user chose for brokers: `--broker-map`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Invalid;

/// How far below a broker's port its VIP port is [protocol: MixAll.brokerVIPChannel].
pub const VIP: u16 = 2;

const ALLOWED: &str = "entries are NAME:ID=PORT with ID 0 for the master and a PORT from 3 to 65535 \
                       (a broker takes PORT and PORT-2), separated by commas, such as \
                       broker-a:0=20011,broker-a:1=20015";

/// Pinned ports by broker name and id. No two of them overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BrokerMap(BTreeMap<(String, i64), u16>);

impl BrokerMap {
    /// The port pinned for this broker.
    pub fn port(&self, name: &str, id: i64) -> Option<u16> {
        self.0.get(&(name.to_owned(), id)).copied()
    }

    /// Whether this port, or the one 2 below it, belongs to a pinned broker.
    pub fn touches(&self, port: u16) -> bool {
        self.0.values().any(|pinned| overlap(*pinned, port))
    }

    /// The entry that takes `port`, as it was written.
    pub(super) fn taking(&self, port: u16) -> Option<String> {
        let mut pins = self.0.iter();
        let (broker, pinned) =
            pins.find(|(_, pinned)| **pinned == port || **pinned - VIP == port)?;
        Some(entry(broker, *pinned))
    }
}

/// Whether the pairs of these two ports have one in common.
fn overlap(one: u16, other: u16) -> bool {
    matches!(one.abs_diff(other), 0 | VIP)
}

fn entry((name, id): &(String, i64), port: u16) -> String {
    format!("{name}:{id}={port}")
}

impl FromStr for BrokerMap {
    type Err = Invalid;

    /// `NAME:ID=PORT`, and more of them after commas; nothing pins nothing.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mut map = BTreeMap::new();
        if text.is_empty() {
            return Ok(Self(map));
        }
        // A comma at the end is taken, as semicolons are in lists of name servers.
        let entries = text.strip_suffix(',').unwrap_or(text).split(',');
        for (i, text) in entries.enumerate() {
            let refuse = |why: &str| Invalid(format!("entry {} ({text:?}) {why}", i + 1));
            let (broker, port) =
                parsed(text).ok_or_else(|| refuse(&format!("cannot be read: {ALLOWED}")))?;
            if map.contains_key(&broker) {
                return Err(refuse("names a broker that has an entry: one port for each"));
            }
            let other = map.iter().find(|(_, other)| overlap(**other, port));
            if let Some((other, at)) = other {
                let other = entry(other, *at);
                return Err(refuse(&format!(
                    "overlaps {other}: a broker takes PORT and PORT-2, so that ports must differ, \
                     and not by 2"
                )));
            }
            map.insert(broker, port);
        }
        Ok(Self(map))
    }
}

fn parsed(text: &str) -> Option<((String, i64), u16)> {
    let (broker, port) = text.rsplit_once('=')?;
    let (name, id) = broker.rsplit_once(':')?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    // A name with these in it is an entry written wrongly, not a broker.
    let odd = name.is_empty() || name.contains(['=', ';', ' ']);
    let id = id.parse().ok().filter(|_| digits(id) && !odd)?;
    let port = port.parse().ok().filter(|at| digits(port) && *at > VIP)?;
    Some(((name.to_owned(), id), port))
}

impl fmt::Display for BrokerMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.0.iter().map(|(broker, port)| entry(broker, *port)).collect();
        f.write_str(&entries.join(","))
    }
}
