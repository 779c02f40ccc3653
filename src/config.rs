//! What the user asked for, validated: types that cannot hold a senseless value. No clap below this
//! line; one default per field.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything `serve` needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Upstream name servers, `host:port`, at least one.
    pub namesrv: Vec<String>,
    /// Where clients find "their" name server.
    pub listen: SocketAddr,
    /// Host put into routes.
    pub advertise: String,
    /// Local ports that stand for brokers.
    pub broker_ports: BrokerPorts,
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
    /// Milliseconds of each delay level, level 1 first; empty: levels are relayed.
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
        Self {
            delay_levels_ms: vec![
                S,
                5 * S,
                10 * S,
                30 * S,
                M,
                2 * M,
                3 * M,
                4 * M,
                5 * M,
                6 * M,
                7 * M,
                8 * M,
                9 * M,
                10 * M,
                20 * M,
                30 * M,
                H,
                2 * H,
            ],
            max_delay_ms: 366 * 24 * H,
            bad_delay: BadDelay::Refuse,
        }
    }
}
