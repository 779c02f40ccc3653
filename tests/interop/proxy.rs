//! The proxy's own binary as a process that can be killed and started again in place.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use crate::leash::{append_to, free_ports, tail};

const READY_WITHIN: Duration = Duration::from_secs(30);
const BROKER_PORTS: u16 = 8;

/// A running proxy with its own data folder. Killed on drop; a failing test gets the end of its log.
pub(crate) struct ProxyProcess {
    /// Where clients find their name server.
    pub(crate) namesrv: String,
    admin: String,
    upstream: String,
    extra: Vec<String>,
    broker_ports: u16,
    dir: TempDir,
    child: Child,
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
        let extra = extra.iter().map(|&flag| flag.to_owned()).collect();
        let child = Command::new("true").spawn().expect("true starts");
        let any = "127.0.0.1:0".to_owned();
        let mut proxy = ProxyProcess {
            namesrv: any.clone(),
            admin: any,
            upstream: upstream.to_owned(),
            extra,
            broker_ports,
            dir,
            child,
        };
        proxy.spawn();
        proxy
    }

    /// Ends it as a crash would: no drain, no goodbye.
    pub(crate) fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("the proxy dies");
    }

    /// Starts it again on the same ports and data; returns once it is ready.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Whether the port is one that stands for a broker.
    pub(crate) fn owns_port(&self, port: u16) -> bool {
        (self.broker_ports..self.broker_ports + BROKER_PORTS).contains(&port)
    }

    fn spawn(&mut self) {
        let ports = format!("{}-{}", self.broker_ports, self.broker_ports + BROKER_PORTS - 1);
        self.child = Command::new(env!("CARGO_BIN_EXE_rocketmq-timer-proxy"))
            .args(["serve", "--namesrv", &self.upstream, "--listen", &self.namesrv])
            .args(["--admin", &self.admin, "--broker-ports", &ports])
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(&self.extra)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(append_to(&self.log()))
            .spawn()
            .expect("the proxy's binary starts");
        let line = self.ready_line();
        let (namesrv, admin) = parse_ready(&line).unwrap_or_else(|| {
            panic!("not the ready line: {line:?}; its log: {}", self.last_words())
        });
        self.namesrv = namesrv;
        self.admin = admin;
    }

    fn ready_line(&mut self) -> String {
        let stdout = self.child.stdout.take().expect("stdout is piped");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // Nobody listens any more where the wait below has given up.
            tell.send(read.map(|_| line)).unwrap_or_default();
        });
        match told.recv_timeout(READY_WITHIN) {
            Ok(line) => line.expect("the proxy's output is text"),
            Err(_) => panic!("not ready within {READY_WITHIN:?}; its log: {}", self.last_words()),
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("stderr.log")
    }

    fn last_words(&self) -> String {
        tail(&self.log(), 4000)
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the end of the proxy's log:\n{}", self.last_words());
        }
    }
}

/// The two addresses of `ready namesrv=IP:PORT admin=IP:PORT`.
fn parse_ready(line: &str) -> Option<(String, String)> {
    let rest = line.trim_end().strip_prefix("ready namesrv=")?;
    let (namesrv, admin) = rest.split_once(" admin=")?;
    Some((namesrv.to_owned(), admin.to_owned()))
}
