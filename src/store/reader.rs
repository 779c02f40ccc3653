//! Reads held messages back, in file order, on threads of its own: with `pread`, so that a bad
//! sector is an error and not a signal.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;

use super::format::Format;
use super::open::spawn;
use super::record::Codec;
use super::segment::{Segment, SegmentSeq, log_path};
use super::timerlog::Segments;
use super::{Due, Held, ReadError};

/// Threads that read: one may wait for a cold disk while the other serves what is cached.
const THREADS: usize = 2;
/// Records at most this far apart are read with one call.
const GAP: u64 = 4 << 10;
/// Bytes read with one call, unless a single record is larger.
const RUN: u64 = 256 << 10;

/// Due entries with what was read, in the order asked.
pub(super) type Outcome = Vec<(Due, Result<Held, ReadError>)>;

struct Job {
    dues: Vec<Due>,
    reply: oneshot::Sender<Outcome>,
}

/// The askers' end. The threads end when it is dropped.
pub(super) struct Reader {
    jobs: Arc<Jobs>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.jobs.waiting.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.jobs.bell.notify_all();
    }
}

/// What waits to be read. A channel shared by several receivers would wake one thread for the job
/// and another for the channel; this wakes one.
#[derive(Default)]
struct Jobs {
    waiting: Mutex<Waiting>,
    bell: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    ended: bool,
}

impl Jobs {
    fn push(&self, job: Job) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.bell.notify_one();
    }

    /// The next job; `None` once nobody can ask any more.
    fn pop(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.ended {
                return None;
            }
            waiting = self.bell.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What every reading thread needs.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) log_dir: std::path::PathBuf,
    pub(super) format: Format,
    pub(super) segments: Arc<Segments>,
    /// Counts what is not as it was written.
    pub(super) damaged: Counter,
}

impl Reader {
    pub(super) fn start(source: &Source) -> io::Result<Self> {
        let jobs = Arc::new(Jobs::default());
        for _ in 0..THREADS {
            let (source, jobs) = (source.clone(), Arc::clone(&jobs));
            spawn("store-reader", move || source.run(&jobs))?;
        }
        Ok(Self { jobs })
    }

    /// Reads all of `dues`. `None` once the threads have ended.
    pub(super) async fn read(&self, dues: Vec<Due>) -> Option<Outcome> {
        let (reply, outcome) = oneshot::channel();
        self.jobs.push(Job { dues, reply });
        outcome.await.ok()
    }
}

impl Source {
    fn run(&self, jobs: &Jobs) {
        while let Some(job) = jobs.pop() {
            // The asker may have given up.
            drop(job.reply.send(self.read(job.dues)));
        }
    }

    fn read(&self, dues: Vec<Due>) -> Outcome {
        let mut order: Vec<usize> = (0..dues.len()).collect();
        order.sort_unstable_by_key(|i| dues[*i].lsn);
        let mut outcome: Vec<_> = dues.into_iter().map(|due| (due, None)).collect();
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let (run, left) = rest.split_at(self.run_len(rest, &outcome));
            rest = left;
            self.read_run(run, &mut outcome);
        }
        outcome
            .into_iter()
            .map(|(due, read)| (due, read.unwrap_or_else(|| Err(self.gone(due)))))
            .collect()
    }

    /// How many of the records at the front of `order` are read with one call.
    fn run_len(
        &self,
        order: &[usize],
        outcome: &[(Due, Option<Result<Held, ReadError>>)],
    ) -> usize {
        let first = outcome[order[0]].0;
        let seq = self.format.place(first.lsn).0;
        let mut end = first.lsn.0 + u64::from(first.len);
        let joined = order[1..].iter().take_while(|i| {
            let due = outcome[**i].0;
            let joins = self.format.place(due.lsn).0 == seq
                && due.lsn.0 <= end + GAP
                && due.lsn.0 + u64::from(due.len) - first.lsn.0 <= RUN;
            end = due.lsn.0 + u64::from(due.len);
            joins
        });
        1 + joined.count()
    }

    fn read_run(&self, run: &[usize], outcome: &mut [(Due, Option<Result<Held, ReadError>>)]) {
        let (first, last) = (outcome[run[0]].0, outcome[run[run.len() - 1]].0);
        let (seq, offset) = self.format.place(first.lsn);
        let Some(segment) = self.segments.get(seq) else {
            return;
        };
        let len = last.lsn.0 + u64::from(last.len) - first.lsn.0;
        let bytes = read_exact(&segment, offset, len);
        let codec = Codec::new(self.format.store_id);
        for &i in run {
            let due = outcome[i].0;
            let read = match &bytes {
                Ok(bytes) => self.held(&codec, bytes, first, due),
                // One bad sector must not cost its neighbours.
                Err(_) => {
                    match read_exact(&segment, offset + due.lsn.0 - first.lsn.0, due.len.into()) {
                        Ok(bytes) => self.held(&codec, &bytes, due, due),
                        Err(err) => Err(self.io(due, &err)),
                    }
                }
            };
            outcome[i].1 = Some(read);
        }
    }

    fn held(&self, codec: &Codec, bytes: &Bytes, first: Due, due: Due) -> Result<Held, ReadError> {
        let start = usize::try_from(due.lsn.0 - first.lsn.0).unwrap_or(usize::MAX);
        let record = bytes.get(start..).unwrap_or_default();
        codec
            .check(record, due.lsn)
            .and_then(|record| record.held(bytes))
            .map_err(|invalid| self.damaged(due, invalid.why()))
    }

    fn damaged(&self, due: Due, why: &'static str) -> ReadError {
        self.damaged.inc();
        let (seq, offset) = self.format.place(due.lsn);
        ReadError::Damaged { file: self.file(seq), offset, why }
    }

    fn io(&self, due: Due, err: &io::Error) -> ReadError {
        if err.kind() == io::ErrorKind::UnexpectedEof {
            return self.damaged(due, "the file ends before it");
        }
        let (seq, offset) = self.format.place(due.lsn);
        ReadError::Io { file: self.file(seq), offset, why: err.to_string() }
    }

    fn gone(&self, due: Due) -> ReadError {
        self.damaged(due, "its segment is gone")
    }

    fn file(&self, seq: SegmentSeq) -> std::path::PathBuf {
        log_path(&self.log_dir, seq)
    }
}

fn read_exact(segment: &Segment, offset: u64, len: u64) -> io::Result<Bytes> {
    let mut bytes = BytesMut::zeroed(usize::try_from(len).map_err(io::Error::other)?);
    segment.read_at(&mut bytes, offset)?;
    Ok(bytes.freeze())
}
