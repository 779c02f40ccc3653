//! The proxy's own binary as a child process, and what it uses of the machine.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;
use tempfile::TempDir;

/// A running proxy with a data directory of its own. Killed on drop.
pub(crate) struct Proxy {
    /// The listener that stands for the broker.
    pub(crate) broker: SocketAddr,
    child: Child,
    _dir: TempDir,
}

/// CPU time in ms, context switches the threads asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    cpu_ms: u64,
    switches: u64,
}

impl Proxy {
    /// Returns once it is ready.
    pub(crate) fn start(upstream: SocketAddr, flush: &str) -> Self {
        let base = std::env::var_os("BENCH_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
        let dir = tempfile::tempdir_in(base).unwrap();
        let own = env!("CARGO_BIN_EXE_rocketmq-timer-proxy");
        let binary = std::env::var_os("LOAD_PROXY").unwrap_or(own.into());
        let mut child = Process::new(binary)
            .args(["serve", "--namesrv", &upstream.to_string(), "--listen", "127.0.0.1:0"])
            .args(["--broker-ports", "0", "--admin", "127.0.0.1:0", "--flush", flush])
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let namesrv = ready.strip_prefix("ready namesrv=").expect("the ready line");
        let namesrv = namesrv.split(' ').next().unwrap().parse().unwrap();
        Self { broker: route(namesrv), child, _dir: dir }
    }

    pub(crate) fn usage(&self) -> Usage {
        let pid = self.child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // After the name in parentheses; fields 14 and 15 of proc(5), in ticks of 10 ms.
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let ticks: u64 = fields.skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let switches = threads.map(|thread| switches(&thread.unwrap().path())).sum();
        Usage { cpu_ms: ticks * 10, switches }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).unwrap();
    }
}

impl Usage {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let cpu_ms = self.cpu_ms - before.cpu_ms;
        Self { cpu_ms, switches: self.switches.saturating_sub(before.switches) }
    }

    pub(crate) fn report(&self, messages: usize) {
        let per = |n: u64| n as f64 / messages.max(1) as f64;
        println!(
            "proxy: {:.1} us of CPU and {:.2} sleeps per message ({:.4} CPU s per 1,000)",
            per(self.cpu_ms) * 1e3,
            per(self.switches),
            per(self.cpu_ms)
        );
    }
}

fn switches(thread: &Path) -> u64 {
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// Asks as a client would where the broker is.
pub(crate) fn route(namesrv: SocketAddr) -> SocketAddr {
    let mut socket = TcpStream::connect(namesrv).unwrap();
    let ask = Command::request(105, &[("topic", "TBW102")], Bytes::new());
    socket.write_all(&ask.encode()).unwrap();
    let (mut buffer, mut read) = (BytesMut::new(), [0; 4096]);
    loop {
        let n = socket.read(&mut read).unwrap();
        assert_ne!(n, 0, "the proxy closed the connection");
        buffer.extend_from_slice(&read[..n]);
        if let Some(frame) = Frame::take(&mut buffer).unwrap() {
            let body = String::from_utf8(frame.body().to_vec()).unwrap();
            let address = body.split_once("0:\"").unwrap_or_else(|| panic!("route {body:?}")).1;
            return address.split('"').next().unwrap().parse().unwrap();
        }
    }
}
