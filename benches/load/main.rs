//! What the whole proxy does under load: its real binary as a child process, a counting stub broker
//! behind it and a generator in front, all on loopback and all on the same cores.
//!
//! `cargo bench --bench load -- [steady|holds|storm|plain ...] [--rate 1000] [--seconds 20]
//! [--delay 100..2000] [--connections 4] [--window 64,512] [--messages 100000] [--body 1024]
//! [--seed 1] [--runs 1] [--flush sync] [--namesrv IP:PORT]`. Without a mode: the first three,
//! against a stub. `BENCH_DIR` is where the
//! proxy keeps its data; a memory file system would measure no disk. `LOAD_PROXY` names another
//! binary of the proxy, to compare two.
//!
//! - steady: delayed sends at an even rate. Lateness is from the due time until the stub has read
//!   the frame, by one wall clock; a hold's latency from its write until its answer is read.
//! - holds: as many as fit, a window in flight on each connection, due in a day.
//! - storm: messages that all fall due within one second.
//! - plain: sends without a delay to the real broker that `--namesrv` knows, straight and through
//!   the proxy in turn.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "measures by the machine's own clocks")]

mod client;
mod ledger;
mod plain;
mod proxy;
mod stub;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use client::{Connection, Sends};
use ledger::{Ledger, print_quantiles, wall_ns};
use proxy::Proxy;

const DAY_MS: i64 = 86_400_000;

#[derive(Debug, Clone)]
struct Options {
    modes: Vec<String>,
    rate: usize,
    seconds: usize,
    /// Shortest and longest delay, ms.
    delay: (i64, i64),
    connections: usize,
    windows: Vec<usize>,
    messages: usize,
    body: usize,
    seed: u64,
    runs: usize,
    flush: String,
    namesrv: Option<SocketAddr>,
}

fn main() {
    let options = options();
    println!("{options:?}");
    for _ in 0..options.runs {
        for mode in &options.modes {
            match mode.as_str() {
                "steady" => steady(&options),
                "holds" => options.windows.iter().for_each(|window| holds(&options, *window)),
                "storm" => storm(&options),
                _ => plain::plain(&options),
            }
        }
    }
}

fn options() -> Options {
    let mut options = Options {
        modes: Vec::new(),
        rate: 1_000,
        seconds: 20,
        delay: (100, 2_000),
        connections: 4,
        windows: vec![64, 512],
        messages: 100_000,
        body: 1_024,
        seed: 1,
        runs: 1,
        flush: "sync".to_owned(),
        namesrv: None,
    };
    // Cargo adds `--bench` itself.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "steady" | "holds" | "storm" | "plain" => options.modes.push(arg),
            "--rate" => options.rate = value().parse().unwrap(),
            "--seconds" => options.seconds = value().parse().unwrap(),
            "--connections" => options.connections = value().parse().unwrap(),
            "--messages" => options.messages = value().parse().unwrap(),
            "--body" => options.body = value().parse().unwrap(),
            "--seed" => options.seed = value().parse().unwrap(),
            "--runs" => options.runs = value().parse().unwrap(),
            "--flush" => options.flush = value(),
            "--namesrv" => options.namesrv = Some(value().parse().unwrap()),
            "--window" => {
                options.windows = value().split(',').map(|w| w.parse().unwrap()).collect();
            }
            "--delay" => {
                let value = value();
                let (from, to) = value.trim_end_matches("ms").split_once("..").unwrap();
                options.delay = (from.parse().unwrap(), to.parse().unwrap());
            }
            other => panic!("unknown argument {other}"),
        }
    }
    if options.modes.is_empty() {
        options.modes = ["steady", "holds", "storm"].map(str::to_owned).to_vec();
    }
    options
}

// === steady ===

fn steady(options: &Options) {
    let total = options.rate * options.seconds;
    let ledger = Ledger::new(total);
    let (proxy, load) = begin(options, &ledger);
    let mut connections = connect(proxy.broker, options);
    let readers: Vec<_> = connections
        .iter()
        .map(|connection| {
            let (mut answers, ledger) = (connection.answers(), Arc::clone(&ledger));
            thread::spawn(move || answers.all(&ledger))
        })
        .collect();
    let mut rng = StdRng::seed_from_u64(options.seed);
    let mut sends = Sends::new(options.body);
    let before = proxy.usage();
    // What any thread of this machine pays for a wake-up while this runs.
    let mut woken_late = Vec::with_capacity(total);
    let start = Instant::now();
    for id in 0..total {
        let at = Duration::from_secs_f64(id as f64 / options.rate as f64);
        thread::sleep(at.saturating_sub(start.elapsed()));
        woken_late.push(start.elapsed().saturating_sub(at).as_nanos() as i64);
        let now = wall_ns();
        let due = now / 1_000_000 + rng.random_range(options.delay.0..=options.delay.1);
        ledger.sent(id, due, now);
        let connection = id % connections.len();
        connections[connection].write(sends.make(id, due));
    }
    let patience = Duration::from_millis(options.delay.1 as u64) + Duration::from_secs(30);
    ledger.wait_for_arrivals(total, patience);
    let used = proxy.usage().since(&before);
    connections.iter().for_each(Connection::shut);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    title("steady", &load);
    println!(
        "{} msg/s for {} s, delays {}..{} ms, {} connections",
        options.rate, options.seconds, options.delay.0, options.delay.1, options.connections
    );
    ledger.report_lateness();
    ledger.report_holds();
    print_quantiles("a bare sleep beside it", &mut woken_late);
    used.report(total);
}

// === holds ===

fn holds(options: &Options, window: usize) {
    // More than any disk takes; ids are not reused.
    let most = options.seconds * 400_000;
    let ledger = Ledger::new(most);
    let (proxy, load) = begin(options, &ledger);
    let until = Instant::now() + Duration::from_secs(options.seconds as u64);
    let before = proxy.usage();
    let start = Instant::now();
    let due = wall_ns() / 1_000_000 + DAY_MS;
    let done = closed_loop(proxy.broker, options, &ledger, window, Sends::new, |id| {
        (id < most && Instant::now() < until).then_some(due)
    });
    let elapsed = start.elapsed().as_secs_f64();
    let used = proxy.usage().since(&before);
    title("holds", &load);
    println!(
        "{} connections x {window} in flight, due in a day: {:.0} holds/s ({done} in {elapsed:.1} s)",
        options.connections,
        done as f64 / elapsed
    );
    ledger.report_holds();
    used.report(done);
}

/// Sends what `due` gives a time for, `window` at once on each connection, until it gives none;
/// answers how many were answered.
fn closed_loop(
    broker: SocketAddr,
    options: &Options,
    ledger: &Arc<Ledger>,
    window: usize,
    sends: fn(usize) -> Sends,
    due: impl Fn(usize) -> Option<i64> + Sync,
) -> usize {
    let connections = connect(broker, options);
    let every = connections.len();
    thread::scope(|scope| {
        let loops = connections.into_iter().enumerate().map(|(first, mut connection)| {
            let (ledger, due) = (Arc::clone(ledger), &due);
            let mut sends = sends(options.body);
            scope.spawn(move || {
                let mut answers = connection.answers();
                let (mut id, mut sent, mut done) = (first, 0, 0);
                let mut batch = Vec::new();
                loop {
                    batch.clear();
                    while sent - done < window
                        && let Some(due) = due(id)
                    {
                        ledger.sent(id, due, wall_ns());
                        batch.extend_from_slice(sends.make(id, due));
                        id += every;
                        sent += 1;
                    }
                    connection.write(&batch);
                    if sent == done {
                        return done;
                    }
                    done += answers.some(&ledger).expect("the connection was closed");
                }
            })
        });
        let loops: Vec<_> = loops.collect();
        loops.into_iter().map(|done| done.join().unwrap()).sum()
    })
}

// === storm ===

fn storm(options: &Options) {
    let total = options.messages;
    let ledger = Ledger::new(total);
    let (proxy, load) = begin(options, &ledger);
    // Time to have them all held.
    let ahead = 3_000 + total as i64 / 15;
    let first_due = wall_ns() / 1_000_000 + ahead;
    let mut rng = StdRng::seed_from_u64(options.seed);
    let dues: Vec<i64> = (0..total).map(|_| first_due + rng.random_range(0..1_000)).collect();
    let window = options.windows.iter().copied().max().unwrap_or(512);
    closed_loop(proxy.broker, options, &ledger, window, Sends::new, |id| dues.get(id).copied());
    let before = proxy.usage();
    title("storm", &load);
    let spare = first_due - wall_ns() / 1_000_000;
    println!("{total} messages due within one second, held {spare} ms before the first is due");
    ledger.wait_for_arrivals(total, Duration::from_secs(120));
    let used = proxy.usage().since(&before);
    ledger.report_drain(first_due);
    ledger.report_lateness();
    used.report(total);
}

// === all ===

fn begin(options: &Options, ledger: &Arc<Ledger>) -> (Proxy, String) {
    let load = load_average();
    let stub = stub::start(Arc::clone(ledger));
    (Proxy::start(stub, &options.flush), load)
}

fn connect(broker: SocketAddr, options: &Options) -> Vec<Connection> {
    (0..options.connections).map(|_| Connection::open(broker)).collect()
}

fn title(mode: &str, load: &str) {
    println!("\n=== {mode} === load average before {load}, after {}", load_average());
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
