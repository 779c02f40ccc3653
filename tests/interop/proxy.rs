//! The proxy under test: the shared guard around its binary, with a data folder and broker ports of
//! its own.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;

use tempfile::TempDir;

use crate::leash::free_ports;
use crate::process::{self, Settings};
use crate::sockets;

const BROKER_PORTS: u16 = 8;

/// A running proxy with its own data folder. Killed on drop; a failing test gets the end of its log.
pub(crate) struct ProxyProcess {
    process: process::ProxyProcess,
    broker_ports: u16,
    _dir: TempDir,
}

impl ProxyProcess {
    /// Returns once it says that it is ready.
    pub(crate) fn start(upstream: &str) -> ProxyProcess {
        ProxyProcess::start_with(upstream, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_with(upstream: &str, extra: &[&str]) -> ProxyProcess {
        let dir = tempfile::Builder::new().prefix("interop-proxy").tempdir().expect("a folder");
        let broker_ports = free_ports(BROKER_PORTS);
        let mut settings = Settings::new(upstream, dir.path()).flags(extra);
        settings.broker_ports = format!("{}-{}", broker_ports, broker_ports + BROKER_PORTS - 1);
        ProxyProcess { process: process::ProxyProcess::start(settings), broker_ports, _dir: dir }
    }

    /// Kills it, no drain, no goodbye, and starts it again on the same ports and data.
    pub(crate) fn restart(&mut self) {
        self.process.restart();
    }

    /// Its open connections to that port of loopback, by the port on its own side.
    pub(crate) fn connections_to(&self, port: u16) -> BTreeSet<u16> {
        sockets::of_process(self.process.pid())
            .into_iter()
            .filter(|socket| socket.remote == port)
            .map(|socket| socket.local)
            .collect()
    }

    /// What `/metrics` says of a family: the sum over its labels, 0 where it is not there.
    pub(crate) fn metric(&self, family: &str) -> u64 {
        let name = format!("rocketmq_timer_proxy_{family}");
        self.page("/metrics")
            .lines()
            .filter_map(|line| line.strip_prefix(&name))
            .filter(|rest| rest.starts_with([' ', '{']))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("the admin port answers");
        let request = format!("GET {path} HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the request is written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the page is text");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Whether the port is one that stands for a broker.
    pub(crate) fn owns_port(&self, port: u16) -> bool {
        (self.broker_ports..self.broker_ports + BROKER_PORTS).contains(&port)
    }
}

impl Deref for ProxyProcess {
    type Target = process::ProxyProcess;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}
