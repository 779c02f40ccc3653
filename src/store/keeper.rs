//! The log's chores, on a thread of their own, so that the writer never waits for them: the next
//! segment is made ahead, full ones get their index, finished ones go.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::format::Format;
use super::index::Contents;
use super::open::spawn;
use super::segment::{Segment, SegmentSeq, index_path, log_path};
use crate::clock::Clock;
use crate::disk::Disk;

/// What the keeper is asked to do, in order.
enum Chore {
    Prepare(SegmentSeq),
    Seal(SegmentSeq, Box<Contents>),
    Remove(SegmentSeq),
}

/// The writer's end. Dropping it waits until all chores are done, so that nothing touches the
/// directory once the store has ended.
pub(super) struct Keeper {
    chores: Option<Sender<Chore>>,
    spares: Receiver<io::Result<Segment>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.chores = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has ended the process.
            drop(thread.join());
        }
    }
}

struct Chores {
    log_dir: PathBuf,
    format: Format,
    disk: Disk,
    clock: Arc<dyn Clock>,
    spares: Sender<io::Result<Segment>>,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(
        log_dir: PathBuf,
        format: Format,
        disk: Disk,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let (chores, incoming) = channel();
        let (outgoing, spares) = channel();
        let worker = Chores { log_dir, format, disk, clock, spares: outgoing };
        let thread = spawn("store-keeper", move || worker.run(&incoming))?;
        Ok(Self { chores: Some(chores), spares, thread: Some(thread) })
    }

    /// Asks for segment `seq` ahead of its need; [`Keeper::spare`] hands it over.
    pub(super) fn prepare(&self, seq: SegmentSeq) {
        self.send(Chore::Prepare(seq));
    }

    /// The segment last prepared; waits for it where the log grew faster than the disk allots.
    pub(super) fn spare(&self) -> io::Result<Segment> {
        self.spares.recv().unwrap_or_else(|_| Err(io::Error::other("the store's keeper has ended")))
    }

    /// Writes the index of a full segment.
    pub(super) fn seal(&self, seq: SegmentSeq, contents: Contents) {
        self.send(Chore::Seal(seq, Box::new(contents)));
    }

    /// Removes a finished segment and its index.
    pub(super) fn remove(&self, seq: SegmentSeq) {
        self.send(Chore::Remove(seq));
    }

    fn send(&self, chore: Chore) {
        if let Some(chores) = &self.chores {
            // A keeper that ended early shows at the next spare.
            drop(chores.send(chore));
        }
    }
}

impl Chores {
    fn run(&self, incoming: &Receiver<Chore>) {
        for chore in incoming {
            match chore {
                Chore::Prepare(seq) => {
                    let now_ms = self.clock.wall_ms();
                    let made =
                        Segment::create(&self.log_dir, seq, &self.format, now_ms, &self.disk);
                    drop(self.spares.send(made));
                }
                Chore::Seal(seq, contents) => self.seal(seq, &contents),
                Chore::Remove(seq) => self.remove(seq),
            }
        }
    }

    /// A failure costs only a scan at the next start.
    fn seal(&self, seq: SegmentSeq, contents: &Contents) {
        let path = index_path(&self.log_dir, seq);
        if let Err(err) = self.disk.replace(&path, &contents.encode(seq, &self.format)) {
            tracing::warn!(file = %path.display(), %err, "cannot write a segment's index");
        }
    }

    /// The index goes before its segment: a segment without an index is only slower to read, while
    /// an index without a segment tells a start that a file was lost.
    fn remove(&self, seq: SegmentSeq) {
        for path in [index_path(&self.log_dir, seq), log_path(&self.log_dir, seq)] {
            if let Err(err) = self.disk.unlink(&path) {
                tracing::warn!(file = %path.display(), %err, "cannot remove a finished file");
            }
        }
        if let Err(err) = self.disk.sync_dir(&self.log_dir) {
            tracing::warn!(dir = %self.log_dir.display(), %err, "cannot sync the directory");
        }
    }
}
