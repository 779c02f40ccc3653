//! What happened to each message, by its number; times are wall-clock nanoseconds, 0 for not yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Written by the generator, the readers of answers and the stub, each its own column.
#[derive(Debug)]
pub(crate) struct Ledger {
    rows: Vec<Row>,
    arrived: AtomicUsize,
    duplicates: AtomicUsize,
    refused: AtomicUsize,
}

#[derive(Debug, Default)]
struct Row {
    due_ms: AtomicI64,
    sent: AtomicI64,
    answered: AtomicI64,
    arrived: AtomicI64,
}

impl Ledger {
    pub(crate) fn new(messages: usize) -> Arc<Self> {
        Arc::new(Self {
            rows: (0..messages).map(|_| Row::default()).collect(),
            arrived: AtomicUsize::new(0),
            duplicates: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        })
    }

    pub(crate) fn sent(&self, id: usize, due_ms: i64, now: i64) {
        self.rows[id].due_ms.store(due_ms, Ordering::Relaxed);
        self.rows[id].sent.store(now, Ordering::Release);
    }

    pub(crate) fn answered(&self, id: usize, code: i32, now: i64) {
        self.rows[id].answered.store(now, Ordering::Relaxed);
        if code != 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn arrived(&self, id: usize, now: i64) {
        if self.rows[id].arrived.swap(now, Ordering::Relaxed) == 0 {
            self.arrived.fetch_add(1, Ordering::Release);
        } else {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn wait_for_arrivals(&self, count: usize, patience: Duration) {
        let start = Instant::now();
        while self.arrived.load(Ordering::Acquire) < count && start.elapsed() < patience {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Early, missing and late, at the stub.
    pub(crate) fn report_lateness(&self) {
        let mut late: Vec<i64> = Vec::with_capacity(self.rows.len());
        let mut missing = 0;
        for row in self.rows.iter().filter(|row| row.sent.load(Ordering::Acquire) != 0) {
            match row.arrived.load(Ordering::Acquire) {
                0 => missing += 1,
                at => late.push(at - row.due_ms.load(Ordering::Relaxed) * 1_000_000),
            }
        }
        let early = late.iter().filter(|late| **late < 0).count();
        let duplicates = self.duplicates.load(Ordering::Relaxed);
        println!("never early: {early} early; {missing} missing, {duplicates} twice");
        print_quantiles("lateness at the stub", &mut late);
    }

    /// From the write of a send until its answer, ns.
    fn answer_times(&self) -> Vec<i64> {
        let mut took = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let answered = row.answered.load(Ordering::Acquire);
            if answered != 0 {
                took.push(answered - row.sent.load(Ordering::Acquire));
            }
        }
        took
    }

    /// Where every send was answered with 0.
    pub(crate) fn median_answer_us(&self) -> f64 {
        assert_eq!(self.refused.load(Ordering::Relaxed), 0, "the broker refused sends");
        let mut took = self.answer_times();
        let middle = took.len() / 2;
        *took.select_nth_unstable(middle).1 as f64 / 1e3
    }

    pub(crate) fn report_holds(&self) {
        let mut took = self.answer_times();
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            println!("REFUSED: {refused}");
        }
        print_quantiles("hold, send to answer", &mut took);
    }

    pub(crate) fn report_drain(&self, first_due_ms: i64) {
        let arrivals = self.rows.iter().map(|row| row.arrived.load(Ordering::Acquire));
        let mut arrivals: Vec<i64> = arrivals.filter(|at| *at != 0).collect();
        arrivals.sort_unstable();
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
            return println!("nothing arrived");
        };
        let rate = arrivals.len() as f64 * 1e9 / (last - first).max(1) as f64;
        let end = (last - first_due_ms * 1_000_000) as f64 / 1e9;
        println!("drained at {rate:.0} msg/s, the last {end:.2} s after the first was due");
    }
}

/// One line of the table, from nanoseconds.
pub(crate) fn print_quantiles(what: &str, values: &mut [i64]) {
    values.sort_unstable();
    let Some(last) = values.len().checked_sub(1) else {
        return println!("{what:22} | none");
    };
    let at = |q: f64| values[(last as f64 * q).round() as usize] as f64 / 1e6;
    println!(
        "{what:22} | ms: p50 {:7.3}  p90 {:7.3}  p99 {:7.3}  p99.9 {:7.3}  max {:7.3}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Wall time, ns.
pub(crate) fn wall_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}
