//! Chooses and binds pairs of ports: P, named in routes, and P-2, which clients with the VIP channel
//! derive from it.
//!
//! A range is cut into groups of four, which hold two pairs each (P and P+1 with P-2 and P-1), so
//! that no choice leaves a gap that fits nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

use super::{EndpointError, EndpointListener, is_taken};
use crate::config::BrokerPorts;
use crate::config::broker_map::{BrokerMap, VIP};
use crate::remoting::route::BrokerId;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Random tries before we give up on any free pair.
const ANY_TRIES: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Ports {
    ip: IpAddr,
    choice: BrokerPorts,
    map: BrokerMap,
    /// Ports that are bound.
    bound: BTreeSet<u16>,
}

/// Two bound ports.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) port: u16,
    main: TcpListener,
    vip: TcpListener,
}

impl Ports {
    pub(super) fn new(ip: IpAddr, choice: BrokerPorts, map: BrokerMap) -> Self {
        Self { ip, choice, map, bound: BTreeSet::new() }
    }

    /// Binds the ports pinned for `broker`; without a pin those kept for it, or else others that are
    /// kept or pinned for nobody.
    pub(super) fn open(
        &mut self,
        broker: &BrokerId,
        kept: &BTreeMap<BrokerId, u16>,
    ) -> Result<Pair, EndpointError> {
        if let Some(port) = self.map.port(&broker.name, broker.id) {
            return self.bind(port).ok_or_else(|| EndpointError::Pinned {
                broker: broker.name.clone(),
                id: broker.id,
                port,
            });
        }
        if let Some(&port) = kept.get(broker)
            && self.allows(port)
            && let Some(pair) = self.bind(port)
        {
            return Ok(pair);
        }
        let others = kept.iter().filter(|(other, _)| *other != broker);
        let reserved: BTreeSet<u16> =
            others.flat_map(|(_, &port)| [port, port.saturating_sub(VIP)]).collect();
        let map = self.map.clone();
        let free = |port: &u16| {
            !reserved.contains(port) && !reserved.contains(&(port - VIP)) && !map.touches(*port)
        };
        let pair = match self.choice {
            BrokerPorts::Range(first, last) => {
                let mut candidates = candidates(first, last, hash(broker));
                candidates.find_map(|port| free(&port).then(|| self.bind(port)).flatten())
            }
            BrokerPorts::Any => (0..ANY_TRIES).find_map(|_| self.bind_any(free)),
        };
        pair.ok_or_else(|| EndpointError::NoPorts {
            broker: broker.name.clone(),
            cluster: broker.cluster.clone(),
            id: broker.id,
        })
    }

    /// Closes a pair that was not handed on.
    pub(super) fn release(&mut self, pair: Pair) {
        self.freed(pair.port);
    }

    /// The listeners of this pair have been closed, or will be at once.
    pub(super) fn freed(&mut self, port: u16) {
        self.bound.remove(&port);
        self.bound.remove(&(port - VIP));
    }

    fn allows(&self, port: u16) -> bool {
        if self.map.touches(port) {
            return false;
        }
        match self.choice {
            BrokerPorts::Any => port > VIP,
            BrokerPorts::Range(first, last) => {
                port <= last && port.checked_sub(VIP).is_some_and(|vip| vip >= first)
            }
        }
    }

    fn bind(&mut self, port: u16) -> Option<Pair> {
        let vip_port = port.checked_sub(VIP).filter(|vip| *vip > 0)?;
        if self.bound.contains(&port) || self.bound.contains(&vip_port) {
            return None;
        }
        let main = self.listen(port)?;
        let vip = self.listen(vip_port)?;
        self.bound.extend([port, vip_port]);
        Some(Pair { port, main, vip })
    }

    fn bind_any(&mut self, free: impl Fn(&u16) -> bool) -> Option<Pair> {
        let main = self.listen(0)?;
        let port = main.local_addr().ok()?.port();
        let vip_port = port.checked_sub(VIP).filter(|vip| *vip > 0)?;
        if !free(&port) {
            return None;
        }
        let vip = self.listen(vip_port)?;
        self.bound.extend([port, vip_port]);
        Some(Pair { port, main, vip })
    }

    fn listen(&self, port: u16) -> Option<TcpListener> {
        let address = SocketAddr::new(self.ip, port);
        match listen(address) {
            Ok(listener) => Some(listener),
            Err(err) if is_taken(&err) => {
                tracing::debug!(%address, %err, "port is taken");
                None
            }
            Err(err) => {
                tracing::warn!(%address, %err, "cannot listen");
                None
            }
        }
    }
}

impl Pair {
    pub(super) fn listeners(self) -> [EndpointListener; 2] {
        let main = EndpointListener { listener: self.main, port: self.port, vip: false };
        let vip = EndpointListener { listener: self.vip, port: self.port - VIP, vip: true };
        [main, vip]
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Connections of an earlier run that linger in TIME_WAIT must not keep a port from us.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Every P in the range whose P-2 is in it too, without overlaps, beginning where `hash` says.
pub(super) fn candidates(first: u16, last: u16, hash: u32) -> impl Iterator<Item = u16> {
    let all: Vec<u16> =
        (first..=last).filter(|port| (port - first) % 4 >= VIP && port - VIP > 0).collect();
    let start = (hash as usize).checked_rem(all.len()).unwrap_or(0);
    let (before, after) = all.split_at(start);
    let turned: Vec<u16> = after.iter().chain(before).copied().collect();
    turned.into_iter()
}

/// The same on every machine and in every release.
pub(super) fn hash(broker: &BrokerId) -> u32 {
    let text = format!("{}\0{}\0{}", broker.cluster, broker.name, broker.id);
    crc32fast::hash(text.as_bytes())
}
