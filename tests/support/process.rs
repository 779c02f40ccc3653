//! The proxy's own binary as a process that can be killed, stopped in order, and started again in
//! place. Knows the command line and the ready line, nothing of the library; every call blocks.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its own part of this, and a failure here fails the test"
)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of its log that a failing test shows.
const LAST_WORDS: usize = 4000;
/// Variables that the proxy reads.
const PREFIX: &str = "ROCKETMQ_TIMER_PROXY_";

/// How a proxy is started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Real name servers.
    pub upstream: String,
    pub listen: String,
    pub admin: String,
    pub broker_ports: String,
    pub data_dir: PathBuf,
    /// Its stderr is appended to this file.
    pub log: PathBuf,
    /// More flags.
    pub flags: Vec<String>,
}

impl Settings {
    /// With any free ports of 127.0.0.1, its data and its log in `dir`.
    pub fn new(upstream: impl Into<String>, dir: &Path) -> Self {
        let any = || "127.0.0.1:0".to_owned();
        Self {
            upstream: upstream.into(),
            listen: any(),
            admin: any(),
            broker_ports: "0".to_owned(),
            data_dir: dir.join("data"),
            log: dir.join("stderr.log"),
            flags: Vec::new(),
        }
    }

    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self
    }

    /// The command, with nothing of this process's environment that the proxy would read.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rocketmq-timer-proxy"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(PREFIX) {
                command.env_remove(name);
            }
        }
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command.args(["serve", "--namesrv", &self.upstream, "--listen", &self.listen]);
        command.args(["--admin", &self.admin, "--broker-ports", &self.broker_ports]);
        command.arg("--data-dir").arg(&self.data_dir).args(&self.flags);
        command
    }
}

/// A running proxy. Killed on drop; a failing test gets the end of its log.
#[derive(Debug)]
pub struct ProxyProcess {
    /// Where clients find their name server.
    pub namesrv: String,
    /// Health and metrics.
    pub admin: String,
    pub settings: Settings,
    child: Child,
    stdout: Receiver<String>,
}

impl ProxyProcess {
    /// Returns once it says that it is ready. From then on the settings name the ports it has, so
    /// that it comes back on them.
    pub fn start(settings: Settings) -> Self {
        let (child, stdout) = spawn(&settings);
        let (namesrv, admin) = (settings.listen.clone(), settings.admin.clone());
        let mut proxy = Self { namesrv, admin, settings, child, stdout };
        proxy.await_ready();
        proxy
    }

    /// Ends it as a crash would: no drain, no goodbye.
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("the proxy dies");
    }

    /// Starts it again in the place of one that has ended; does not wait until it is ready.
    pub fn spawn(&mut self) {
        (self.child, self.stdout) = spawn(&self.settings);
    }

    /// Waits for the ready line.
    pub fn await_ready(&mut self) {
        let line = match self.stdout.recv_timeout(READY_WITHIN) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("not ready within {READY_WITHIN:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("ended before it was ready"),
        };
        let Some((namesrv, admin)) = parse_ready(&line) else {
            panic!("not the ready line: {line:?}");
        };
        (self.settings.listen, self.settings.admin) = (namesrv.clone(), admin.clone());
        (self.namesrv, self.admin) = (namesrv, admin);
    }

    /// Kills it and starts it again on the same ports and data; returns once it is ready.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
        self.await_ready();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop in order.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the proxy lives");
    }

    /// Waits for its end, which shows in its stdout.
    pub fn exit_within(&mut self, limit: Duration) -> ExitStatus {
        match self.stdout.recv_timeout(limit) {
            Err(RecvTimeoutError::Disconnected) => self.child.wait().expect("a child ends once"),
            Err(RecvTimeoutError::Timeout) => panic!("it has not ended within {limit:?}"),
            Ok(line) => panic!("more than the ready line on stdout: {line:?}"),
        }
    }

    /// All of its log, of earlier runs too.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.settings.log).unwrap()).into_owned()
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = std::fs::read(&self.settings.log).unwrap_or_default();
            let last = log.get(log.len().saturating_sub(LAST_WORDS)..).unwrap_or_default();
            eprintln!("the end of the proxy's log:\n{}", String::from_utf8_lossy(last));
        }
    }
}

fn spawn(settings: &Settings) -> (Child, Receiver<String>) {
    let log = File::options().create(true).append(true).open(&settings.log);
    let mut child = settings
        .command()
        .stdout(Stdio::piped())
        .stderr(log.expect("the log file opens"))
        .spawn()
        .expect("the proxy's binary starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    (child, lines(stdout))
}

/// Its lines as they come; disconnected at the end.
fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines();
        // Nobody listens any more once the guard is gone.
        lines.map_while(Result::ok).try_for_each(|line| tell.send(line)).unwrap_or_default();
    });
    told
}

/// The two addresses of `ready namesrv=IP:PORT admin=IP:PORT`.
fn parse_ready(line: &str) -> Option<(String, String)> {
    let rest = line.trim_end().strip_prefix("ready namesrv=")?;
    let (namesrv, admin) = rest.split_once(" admin=")?;
    Some((namesrv.to_owned(), admin.to_owned()))
}
