//! The proxy under test: the shared guard around its binary, with a data folder and broker ports of
//! its own.

use std::ops::Deref;

use tempfile::TempDir;

use crate::leash::free_ports;
use crate::process::{self, Settings};

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
