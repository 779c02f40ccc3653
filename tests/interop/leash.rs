//! Child processes and free ports: a child on a leash dies with this process, however that ends.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A shell that runs the command and waits for the end of its own input, which comes when this
/// process drops the leash or dies: then it kills the command and removes the folder. Statics of a
/// test binary are never dropped, so a guard alone would leave the cluster behind.
const LEASH: &str = r#"
trap '' INT HUP TERM
dir=$1; shift
"$@" </dev/null >"$dir/output.log" 2>&1 &
read -r _
kill -9 $!
wait
rm -rf "$dir"
"#;

/// A process and its scratch folder, both gone once this is dropped or this process ends.
pub(crate) struct Leash {
    shell: Child,
    hold: Option<ChildStdin>,
    dir: PathBuf,
}

impl Leash {
    /// Runs `command` with `dir` as its scratch folder, its output in `dir/output.log`.
    pub(crate) fn spawn(command: &[String], env: &[(&str, &str)], dir: PathBuf) -> Leash {
        let mut shell = Command::new("sh")
            .args(["-c", LEASH, "leash"])
            .arg(&dir)
            .args(command)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let hold = shell.stdin.take();
        Leash { shell, hold, dir }
    }

    /// Its scratch folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The end of what the process printed and logged, for the message of a failed start.
    pub(crate) fn last_words(&self) -> String {
        tail(&self.dir.join("output.log"), 2000)
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        drop(self.hold.take());
        if let Err(e) = self.shell.wait() {
            eprintln!("cannot wait for the shell on {}: {e}", self.dir.display());
        }
    }
}

/// The last `max` bytes of a file, or nothing.
pub(crate) fn tail(path: &Path, max: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let from = bytes.len().saturating_sub(max);
    String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
}

/// The first of `count` neighbouring ports free on loopback, outside the ephemeral range, so that
/// no outgoing connection takes one between now and its use.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let step = NEXT.fetch_add(u32::from(count), Ordering::Relaxed);
        let base =
            21_000 + u16::try_from((std::process::id() * 61 + step) % 10_000).expect("small");
        let taken: Vec<_> = (base..base + count)
            .map_while(|port| TcpListener::bind(("127.0.0.1", port)).ok())
            .collect();
        if taken.len() == usize::from(count) {
            return base;
        }
    }
    panic!("no {count} neighbouring free ports between 21000 and 31000");
}

/// Runs `ready` until it gives something; panics with `what` after `within`. For the start of
/// foreign processes, which give no other sign.
pub(crate) fn await_start<T>(
    within: Duration,
    what: impl Fn() -> String,
    mut ready: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {}", what());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Wall clock milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

/// A file to append to, created when missing.
pub(crate) fn append_to(path: &Path) -> File {
    File::options().create(true).append(true).open(path).expect("the log file opens")
}
