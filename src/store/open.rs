//! Puts the store's parts together: guard rails first, then recovery and the threads behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::commit::CommitQueue;
use super::error::OpenError;
use super::format::{self, Format, Lock};
use super::keeper::Keeper;
use super::lanes::Lanes;
use super::reader::{Reader, Source};
use super::recovery::{Found, Recoverer, Recovery};
use super::segment;
use super::timer::Timer;
use super::timerlog::{Segments, Timerlog};
use super::writer::Writer;
use super::{Counts, Due, NEAR_BYTES, Opening, Options, Shared, Store};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::metrics::Metrics;

/// What the background thread needs to read the log and then to run it.
struct Engine {
    options: Options,
    format: Format,
    disk: Disk,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    queue: Arc<CommitQueue>,
    timer: Arc<Timer>,
    lanes: Arc<Lanes>,
    counts: Arc<Counts>,
    segments: Arc<Segments>,
    due: UnboundedSender<Vec<Due>>,
    /// Held until the last write is done.
    _lock: Lock,
}

pub(super) fn open(
    options: Options,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Opening, OpenError> {
    let dir = options.dir.clone();
    format::refuse_unusable(&dir)?;
    let lock = format::lock(&dir)?;
    let disk = Disk::new(Arc::clone(&options.fault));
    let format = format::read_or_create(&dir, options.segment_bytes, &disk)?;
    let log_dir = segment::dir_of(&dir);
    std::fs::create_dir_all(&log_dir)
        .and_then(|()| disk.sync_dir(&dir))
        .map_err(OpenError::io("cannot create", &log_dir))?;
    let counts = Arc::new(Counts {
        pending: AtomicU64::new(0),
        limit: options.near_memory / NEAR_BYTES,
        gauge: metrics.store_pending.clone(),
    });
    let cannot_start =
        |source| OpenError::Io { what: "cannot start the threads of", path: dir, source };
    let start = || {
        let queue = CommitQueue::new(Arc::clone(&clock), options.stall, Arc::clone(&counts));
        let (due, due_receiver) = unbounded_channel();
        let (recovered, recovered_receiver) = oneshot::channel();
        let (ended, ended_receiver) = watch::channel(false);
        let segments = Arc::new(Segments::default());
        let source = Source {
            log_dir,
            format,
            segments: Arc::clone(&segments),
            damaged: metrics.store_damaged.clone(),
        };
        let shared = Shared {
            queue: Arc::new(queue),
            timer: Arc::new(Timer::new(clock.alarm()?)),
            lanes: Arc::new(Lanes::default()),
            counts: Arc::clone(&counts),
            reader: Reader::start(&source)?,
            largest_record: format.largest_record(),
            ended: ended_receiver,
        };
        let engine = Engine {
            options,
            format,
            disk,
            clock,
            metrics: metrics.clone(),
            queue: Arc::clone(&shared.queue),
            timer: Arc::clone(&shared.timer),
            lanes: Arc::clone(&shared.lanes),
            counts,
            segments,
            due,
            _lock: lock,
        };
        spawn("store-writer", move || {
            engine.run(recovered);
            ended.send_replace(true);
        })?;
        let store = Store { shared: Arc::new(shared) };
        Ok(Opening { store, due: due_receiver, recovered: recovered_receiver })
    };
    start().map_err(cannot_start)
}

impl Engine {
    fn run(self, recovered: oneshot::Sender<Result<Recovery, OpenError>>) {
        let outcome = self.recover().and_then(|found| {
            let path = &self.options.dir;
            let report = found.report.clone();
            let start = self.start(found);
            Ok((start.map_err(OpenError::io("cannot start the threads of", path))?, report))
        });
        match outcome {
            Ok((writer, report)) => {
                self.queue.open();
                drop(recovered.send(Ok(report)));
                writer.run();
            }
            Err(err) => drop(recovered.send(Err(err))),
        }
    }

    fn recover(&self) -> Result<Found, OpenError> {
        Recoverer {
            log_dir: &segment::dir_of(&self.options.dir),
            format: self.format,
            disk: &self.disk,
            clock: &*self.clock,
            lanes: &self.lanes,
        }
        .recover()
    }

    /// Starts the threads around the writer, and gives the wheel what recovery found.
    fn start(&self, found: Found) -> std::io::Result<Writer> {
        found.segments.move_into(&self.segments);
        self.counts.found(found.report.pending);
        self.metrics.store_damaged.inc_by(found.report.damaged);
        let (timer, clock, due) =
            (Arc::clone(&self.timer), Arc::clone(&self.clock), self.due.clone());
        timer.insert(found.dues);
        spawn("store-wheel", move || timer.run(&*clock, &due))?;
        let queue = Arc::clone(&self.queue);
        spawn("store-watch", move || queue.watch())?;
        let keeper = Keeper::start(
            segment::dir_of(&self.options.dir),
            self.format,
            self.disk.clone(),
            Arc::clone(&self.clock),
        )?;
        let log = Timerlog::new(
            self.format,
            self.disk.clone(),
            keeper,
            Arc::clone(&self.segments),
            found.recovered,
        );
        Ok(Writer {
            queue: Arc::clone(&self.queue),
            log,
            timer: Arc::clone(&self.timer),
            lanes: Arc::clone(&self.lanes),
            counts: Arc::clone(&self.counts),
            metrics: self.metrics.clone(),
            clock: Arc::clone(&self.clock),
            flush: self.options.flush,
            dirty_since: None,
            backlog: Vec::new(),
            last_batch: 0,
            last_sync: Duration::ZERO,
            refused_full: 0,
        })
    }
}

/// Starts one of the store's threads. A panic in it ends the process: a proxy that is alive but
/// accepts or delivers nothing is worse than one that a supervisor starts again.
pub(super) fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            tracing::error!(thread = name, "a thread of the store panicked: the process ends");
            std::process::abort();
        }
    })
}
