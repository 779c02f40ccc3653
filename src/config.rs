//! What the user asked for, validated: types that cannot hold a senseless value. No clap below this
//! line; one default per field.
//!
//! Made by [`crate::cli`], read by everyone. Parsing of single values lives here with their types,
//! so that a value means the same wherever it is read.

pub mod broker_map;
pub mod units;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use broker_map::BrokerMap;
use units::{Bytes, Millis, parse_duration};

/// Default of `--listen`.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9877";
/// Default of `--broker-ports`.
pub const DEFAULT_BROKER_PORTS: &str = "20000-20999";
/// Default of `--data-dir`.
pub const DEFAULT_DATA_DIR: &str = "./timer-data";
/// Default of `--delay-levels`: the table of a stock broker.
pub const DEFAULT_DELAY_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// Default of `--max-delay`.
pub const DEFAULT_MAX_DELAY: &str = "366d";
/// Default of `--flush`.
pub const DEFAULT_FLUSH: &str = "sync";
/// Default of `--bad-delay`.
pub const DEFAULT_BAD_DELAY: &str = "refuse";
/// Default of `--park-after`.
pub const DEFAULT_PARK_AFTER: &str = "15m";
/// Default of `--lame-duck`.
pub const DEFAULT_LAME_DUCK: &str = "0s";
/// Default of `--grace`.
pub const DEFAULT_GRACE: &str = "10s";
/// Default of `--near-memory`.
pub const DEFAULT_NEAR_MEMORY: &str = "128MiB";
/// Default of `--admin`.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:9878";

/// Most levels a table may have. Brokers set no limit; a longer list is a mistake in a file.
const MAX_LEVELS: usize = 256;

/// A value or a combination of values that makes no sense; the text says what would.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// Everything `serve` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Upstream name servers, `host:port`, at least one.
    pub namesrv: Vec<String>,
    /// Where clients find "their" name server.
    pub listen: SocketAddr,
    /// Host put into routes: an IP address or a name, without a port.
    pub advertise: String,
    /// Local ports that stand for brokers.
    pub broker_ports: BrokerPorts,
    /// Ports chosen for some brokers.
    pub broker_map: BrokerMap,
    /// Where held messages live.
    pub data_dir: PathBuf,
    /// The delay policy.
    pub policy: Policy,
    /// When holds are acknowledged.
    pub flush: Flush,
    /// How long a refused message is retried before it is parked.
    pub park_after: Duration,
    /// On SIGTERM, how long broker ports stay open after the name-server port closed.
    pub lame_duck: Duration,
    /// Limit for draining.
    pub grace: Duration,
    /// Budget of the near level, bytes.
    pub near_memory: u64,
    /// Admin HTTP.
    pub admin: SocketAddr,
}

/// Local ports that stand for brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerPorts {
    /// Any free ports.
    Any,
    /// From this range, both ends included.
    Range(u16, u16),
}

/// When a hold is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// After the sync.
    Sync,
    /// After the write; synced every 500 ms.
    Async,
}

/// What to do with a delay that cannot be read or is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadDelay {
    /// Answer code 13.
    Refuse,
    /// Relay it to the broker, counted.
    Relay,
}

/// The rules by which sends are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Milliseconds of each delay level, level 1 first; empty: levels are relayed. Levels are not
    /// cut by `max_delay_ms`.
    pub delay_levels_ms: Vec<i64>,
    /// Longest delay accepted, ms.
    pub max_delay_ms: i64,
    /// P1, P3, P12.
    pub bad_delay: BadDelay,
}

impl Default for Policy {
    fn default() -> Self {
        const S: i64 = 1_000;
        const M: i64 = 60 * S;
        const H: i64 = 60 * M;
        let minutes = (1..=10).chain([20, 30]).map(|m| m * M);
        Self {
            delay_levels_ms: [S, 5 * S, 10 * S, 30 * S]
                .into_iter()
                .chain(minutes)
                .chain([H, 2 * H])
                .collect(),
            max_delay_ms: 366 * 24 * H,
            bad_delay: BadDelay::Refuse,
        }
    }
}

// === single values ===

impl std::str::FromStr for BrokerPorts {
    type Err = Invalid;

    /// `20000-20999`, or `0` for any free ports. A range must have room for one broker: a port P
    /// and the port P-2 beside it, which clients with the VIP channel use.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text == "0" {
            return Ok(Self::Any);
        }
        let range = text.split_once('-').and_then(|(first, last)| {
            let (first, last) = (port(first)?, port(last)?);
            (first.checked_add(2)? <= last).then_some(Self::Range(first, last))
        });
        range.ok_or_else(|| {
            Invalid(
                "a range FIRST-LAST of ports from 1 to 65535 with at least 3 ports (a broker takes \
                 P and P-2), such as 20000-20999, or 0 for any free ports"
                    .to_owned(),
            )
        })
    }
}

/// A port above 0, in plain digits.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| plain && *port > 0)
}

/// `host:port`, and more of them after semicolons, as clients write the addresses of name servers.
pub fn parse_name_servers(text: &str) -> Result<Vec<String>, Invalid> {
    let mut servers = Vec::new();
    // Clients accept a semicolon at the end.
    for (i, server) in text.trim_end_matches(';').split(';').enumerate() {
        let good = server.rsplit_once(':').is_some_and(|(host, digits)| {
            let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let is_ip6 = |host: &str| host.parse::<std::net::Ipv6Addr>().is_ok();
            port(digits).is_some() && (is_host(host) || bracketed.is_some_and(is_ip6))
        });
        if !good {
            return Err(Invalid(format!(
                "address {} ({server:?}) is not HOST:PORT; several are separated by semicolons, \
                 such as 10.0.0.1:9876;10.0.0.2:9876",
                i + 1
            )));
        }
        servers.push(server.to_owned());
    }
    Ok(servers)
}

/// An IP address or a host name without a port, fit to be put into routes.
pub fn parse_advertise(text: &str) -> Result<String, Invalid> {
    match text.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err(Invalid(
            "clients cannot connect to a wildcard address; give the address or name under which \
             they reach this machine"
                .to_owned(),
        )),
        Ok(_) => Ok(text.to_owned()),
        Err(_) if is_host(text) => Ok(text.to_owned()),
        Err(_) => Err(Invalid(
            "an IP address or a host name, without scheme or port, such as 10.0.0.7".to_owned(),
        )),
    }
}

fn is_host(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(letter)
}

/// A table in the syntax of the broker's `messageDelayLevel`: numbers with one of the units s, m, h
/// and d, separated by blanks, in any order. `off` is the empty table.
pub fn parse_delay_levels(text: &str) -> Result<Vec<i64>, Invalid> {
    if text == "off" {
        return Ok(Vec::new());
    }
    let allowed = "levels are numbers with one of the units s, m, h, d, separated by blanks, such \
                   as \"1s 5s 10s 1m 1h\"; or off";
    let levels: Vec<_> = text.split(' ').filter(|level| !level.is_empty()).collect();
    if levels.is_empty() {
        return Err(Invalid(format!("the table is empty; {allowed}")));
    }
    if levels.len() > MAX_LEVELS {
        let count = levels.len();
        return Err(Invalid(format!("{count} levels; a table has {MAX_LEVELS} at most")));
    }
    let mut table = Vec::with_capacity(levels.len());
    for (i, level) in levels.into_iter().enumerate() {
        let one_unit = level.bytes().filter(u8::is_ascii_alphabetic).count() == 1;
        let read = parse_duration(level).ok().filter(|_| one_unit);
        match read.and_then(|read| i64::try_from(read.as_millis()).ok()) {
            Some(ms) => table.push(ms),
            None => return Err(Invalid(format!("level {} is {level:?}; {allowed}", i + 1))),
        }
    }
    Ok(table)
}

// === the whole ===

impl Config {
    /// Refuses what makes no sense together.
    ///
    /// The stock level table stands whatever `--max-delay` says, since levels are not cut by it; but
    /// whoever writes a table and a maximum that contradict each other made a mistake.
    pub fn check(&self) -> Result<(), Invalid> {
        self.check_ports()?;
        let max = self.policy.max_delay_ms;
        let levels = &self.policy.delay_levels_ms;
        let own = *levels != Policy::default().delay_levels_ms;
        match levels.iter().enumerate().find(|(_, ms)| **ms > max) {
            Some((i, ms)) if own => Err(Invalid(format!(
                "level {} of --delay-levels is {}, over --max-delay {}: raise --max-delay, or take \
                 the level out of the table",
                i + 1,
                Millis(i128::from(*ms)),
                Millis(i128::from(max)),
            ))),
            _ => Ok(()),
        }
    }

    fn check_ports(&self) -> Result<(), Invalid> {
        let listeners = [("--listen", self.listen), ("--admin", self.admin)];
        if let BrokerPorts::Range(first, last) = self.broker_ports {
            for (flag, address) in listeners {
                if (first..=last).contains(&address.port()) {
                    return Err(Invalid(format!(
                        "the port of {flag} {address} lies in --broker-ports {first}-{last}: choose \
                         a port outside of the range"
                    )));
                }
            }
        }
        let (listen, admin) = (self.listen.ip(), self.admin.ip());
        for (flag, address) in listeners {
            // Broker ports are bound on the address of --listen.
            let shared =
                address.ip() == listen || listen.is_unspecified() || address.ip().is_unspecified();
            let taking = self.broker_map.taking(address.port());
            if let Some(entry) = taking.filter(|_| shared) {
                return Err(Invalid(format!(
                    "--broker-map {entry} takes the port of {flag} {address} (a broker takes PORT \
                     and PORT-2): choose another for one of the two"
                )));
            }
        }
        let shared = listen == admin || listen.is_unspecified() || admin.is_unspecified();
        if shared && self.listen.port() != 0 && self.listen.port() == self.admin.port() {
            return Err(Invalid(format!(
                "--listen {} and --admin {} have the same port: give each its own",
                self.listen, self.admin
            )));
        }
        let own = [self.listen.to_string(), format!("{}:{}", self.advertise, self.listen.port())];
        if let Some(server) = self.namesrv.iter().find(|server| own.contains(server)) {
            return Err(Invalid(format!(
                "--namesrv {server} is this proxy's own address: it takes the address of the real \
                 name server"
            )));
        }
        Ok(())
    }

    /// Every flag of `serve` and its value, as it could be typed again.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let ms = |duration: Duration| Millis::from(duration).to_string();
        let levels = &self.policy.delay_levels_ms;
        let levels: Vec<_> = levels.iter().map(|ms| level(*ms)).collect();
        vec![
            ("namesrv", self.namesrv.join(";")),
            ("listen", self.listen.to_string()),
            ("advertise", self.advertise.clone()),
            (
                "broker-ports",
                match self.broker_ports {
                    BrokerPorts::Any => "0".to_owned(),
                    BrokerPorts::Range(first, last) => format!("{first}-{last}"),
                },
            ),
            ("broker-map", self.broker_map.to_string()),
            ("data-dir", self.data_dir.display().to_string()),
            ("delay-levels", if levels.is_empty() { "off".to_owned() } else { levels.join(" ") }),
            ("max-delay", Millis(i128::from(self.policy.max_delay_ms)).to_string()),
            (
                "flush",
                match self.flush {
                    Flush::Sync => "sync",
                    Flush::Async => "async",
                }
                .to_owned(),
            ),
            (
                "bad-delay",
                match self.policy.bad_delay {
                    BadDelay::Refuse => "refuse",
                    BadDelay::Relay => "relay",
                }
                .to_owned(),
            ),
            ("park-after", ms(self.park_after)),
            ("lame-duck", ms(self.lame_duck)),
            ("grace", ms(self.grace)),
            ("near-memory", Bytes(self.near_memory).to_string()),
            ("admin", self.admin.to_string()),
        ]
    }
}

/// A level as a broker's table has it: one number, one unit.
fn level(ms: i64) -> String {
    let seconds = ms / 1_000;
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    let fitting = units.into_iter().find(|(_, unit)| seconds != 0 && seconds % unit == 0);
    let (unit, of) = fitting.unwrap_or(("s", 1));
    format!("{}{unit}", seconds / of)
}

#[cfg(test)]
mod tests;
