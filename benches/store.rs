//! Group commit of the store against a bare write + fdatasync loop of the same bytes: both in this
//! run, alternating, so that the ratio means something on any machine.
//!
//! `cargo bench --bench store [-- ROUNDS]`; the directory is `$BENCH_DIR` or the current one, since
//! a memory file system would measure nothing.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a measuring program")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use bytes::Bytes;
use rocketmq_timer_proxy::clock::{Clock, SystemClock};
use rocketmq_timer_proxy::config::Flush;
use rocketmq_timer_proxy::metrics::Metrics;
use rocketmq_timer_proxy::store::{Hold, LaneKey, Options, Store};

const BODY: usize = 1024;
const DAY_MS: i64 = 86_400_000;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let base = std::env::var_os("BENCH_DIR").unwrap_or_else(|| ".".into());
    println!("in flight | bare msg/s (spread) | store msg/s (spread) | store / bare");
    for window in [1, 16, 64, 256, 1024] {
        let count = (window * 60).clamp(600, 60_000);
        let (mut bare, mut store) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let dir = tempfile::tempdir_in(&base).unwrap();
            bare.push(bare_loop(dir.path(), window, count));
            store.push(group_commit(dir.path(), window, count));
        }
        let (bare, store) = (median(&mut bare), median(&mut store));
        println!(
            "{window:9} | {:8.0} ({:.0}-{:.0}) | {:8.0} ({:.0}-{:.0}) | {:.2}",
            bare.1,
            bare.0,
            bare.2,
            store.1,
            store.0,
            store.2,
            store.1 / bare.1
        );
    }
}

/// Lowest, median, highest.
fn median(rates: &mut [f64]) -> (f64, f64, f64) {
    rates.sort_by(f64::total_cmp);
    (rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
}

/// Appends batches of `window` records into a preallocated file, one sync each.
fn bare_loop(dir: &Path, window: usize, count: usize) -> f64 {
    let file = File::create_new(dir.join("bare")).unwrap();
    let len = record_len();
    let total = (len * count) as u64;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, total).unwrap();
    file.sync_all().unwrap();
    let batch = vec![7; len * window];
    let start = Instant::now();
    for i in 0..count / window {
        file.write_all_at(&batch, (i * batch.len()) as u64).unwrap();
        file.sync_data().unwrap();
    }
    (count / window * window) as f64 / start.elapsed().as_secs_f64()
}

/// Keeps `window` holds waiting for their answers.
fn group_commit(dir: &Path, window: usize, count: usize) -> f64 {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let due_ms = clock.wall_ms() + DAY_MS;
    let options = Options::new(dir.join("data"), Flush::Sync, 1 << 30);
    let opening = Store::open(options, clock, &Metrics::new()).unwrap();
    opening.recovered.blocking_recv().unwrap().unwrap();
    let (told, outcome): (Sender<()>, Receiver<()>) = channel();
    let message = hold(due_ms);
    let start = Instant::now();
    let send = || {
        let told = told.clone();
        let receipt = move |outcome: Result<_, _>| {
            outcome.unwrap();
            told.send(()).unwrap();
        };
        opening.store.hold(message.clone(), Box::new(receipt));
    };
    (0..window).for_each(|_| send());
    for done in 0..count {
        outcome.recv().unwrap();
        if done + window < count {
            send();
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(opening.store.close());
    rate
}

fn hold(due_ms: i64) -> Hold {
    Hold {
        due_ms,
        accepted_ms: due_ms - DAY_MS,
        lane: LaneKey {
            broker: "broker-a".into(),
            topic: Bytes::from_static(b"bench-topic"),
            queue: 1,
        },
        unique_key: Bytes::from_static(b"7F0000010001000000000000ABCD0001"),
        keys: Bytes::from_static(b"order-1"),
        client: "127.0.0.1:40000".into(),
        header: Bytes::from(vec![b'h'; 280]),
        body: Bytes::from(vec![b'b'; BODY]),
    }
}

/// Bytes of one record, header and all, as the store writes it.
fn record_len() -> usize {
    (72 + 8 + 11 + 32 + 7 + 15 + 280 + BODY).next_multiple_of(8)
}
