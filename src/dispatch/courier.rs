//! One task per broker: connects, reads bodies, looks at the clock once more, sends, and reports.
//!
//! Everything that takes time for one broker happens here, so that it delays no other. Jobs leave
//! in the order they came: one batch is read at a time, and its requests are written in order.
//! Suspects go beside them, each alone. Never decides what happens after a try; that is
//! [`super::dispatcher`]'s.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::alone::Alone;
use super::attempt::{Fate, Job, deliver, request};
use super::bodies::Share;
use super::dispatcher::{DispatchError, Event};
use super::source::Source;
use crate::clock::Clock;
use crate::remoting::command::Command;
use crate::shutdown::{Stage, Stopping};
use crate::store::{Due, Held, ReadError};
use crate::upstream::client::Client;
use crate::upstream::cluster::Cluster;
use crate::upstream::pool::Pool;

/// Messages read at once: few enough that the first does not wait for the last.
const BATCH: usize = 64;

/// See the module.
pub(super) struct Courier<S> {
    pub(super) broker: String,
    pub(super) index: usize,
    pub(super) source: S,
    pub(super) cluster: Cluster,
    pub(super) pool: Pool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) share: Share,
    pub(super) stopping: Stopping,
    pub(super) events: UnboundedSender<Event>,
}

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Load = Task<Result<Loaded, Fate>>;
type Tried = Task<Result<(Job, Fate), DispatchError>>;

/// Jobs whose turn has not come.
#[derive(Default)]
struct Waiting {
    pipelined: VecDeque<Job>,
    /// Each goes over a connection of its own, one at a time, and holds nobody up.
    suspects: VecDeque<Job>,
}

impl Waiting {
    fn push(&mut self, job: Job) {
        let queue = if job.alone { &mut self.suspects } else { &mut self.pipelined };
        queue.push_back(job);
    }
}

struct Loaded {
    client: Client,
    held: Vec<(Due, Result<Held, ReadError>)>,
}

impl<S: Source> Courier<S> {
    /// Serves until the dispatcher drops its end of `jobs`.
    pub(super) async fn run(
        mut self,
        mut jobs: UnboundedReceiver<Job>,
    ) -> Result<(), DispatchError> {
        let mut stopping = self.stopping.clone();
        let mut waiting = Waiting::default();
        let mut loading = Vec::new();
        let mut load: Option<Load> = None;
        let mut alone: Option<Tried> = None;
        let mut under_way = FuturesUnordered::new();
        loop {
            if load.is_none() {
                loading = self.next_batch(&mut waiting.pipelined);
                load = (!loading.is_empty()).then(|| self.load(&loading));
            }
            if alone.is_none() {
                alone = self.next_alone(&mut waiting.suspects);
            }
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => waiting.push(job),
                    None => return Ok(()),
                },
                loaded = ready(&mut load), if load.is_some() => {
                    load = None;
                    if let Err(fate) = &loaded {
                        // What came later does not overtake: it waits for the next connection too.
                        self.tell_all(&mut waiting.pipelined, fate);
                    }
                    let requests = self.requests(std::mem::take(&mut loading), loaded)?;
                    under_way.extend(requests.into_iter().map(|(client, job, request)| {
                        let clock = Arc::clone(&self.clock);
                        async move {
                            let fate = deliver(&client, &job, request, &*clock).await;
                            (job, fate)
                        }
                    }));
                }
                Some((job, fate)) = under_way.next() => self.report(job, fate),
                tried = ready(&mut alone), if alone.is_some() => {
                    alone = None;
                    let (job, fate) = tried?;
                    if let Fate::Unreachable { .. } = &fate {
                        self.tell_all(&mut waiting.suspects, &fate);
                    }
                    self.report(job, fate);
                }
                () = stopping.reached(Stage::Draining), if load.is_some() => {
                    load = None;
                    for job in std::mem::take(&mut loading) {
                        self.report(job, Fate::NotStarted);
                    }
                }
            }
            while let Ok(job) = jobs.try_recv() {
                waiting.push(job);
            }
        }
    }

    /// The jobs to read next: as many as the budget has room for.
    fn next_batch(&mut self, queued: &mut VecDeque<Job>) -> Vec<Job> {
        if self.stopping.stage() >= Stage::Draining {
            self.tell_all(queued, &Fate::NotStarted);
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(job) = self.next_within_budget(queued)
        {
            batch.push(job);
        }
        batch
    }

    /// The next suspect, on its way.
    fn next_alone(&mut self, suspects: &mut VecDeque<Job>) -> Option<Tried> {
        if self.stopping.stage() >= Stage::Draining {
            self.tell_all(suspects, &Fate::NotStarted);
        }
        let job = self.next_within_budget(suspects)?;
        let alone = Alone {
            source: self.source.clone(),
            pool: self.pool.clone(),
            address: self.address(),
            clock: Arc::clone(&self.clock),
            stopping: self.stopping.clone(),
        };
        Some(Box::pin(alone.run(job)))
    }

    /// The first of `queued`, if the budget has room for it.
    fn next_within_budget(&mut self, queued: &mut VecDeque<Job>) -> Option<Job> {
        let bytes = queued.front()?.bytes();
        if self.share.take(bytes) { queued.pop_front() } else { None }
    }

    /// Where the broker is now, or what becomes of its messages while it is nowhere.
    fn address(&self) -> Result<String, Fate> {
        self.cluster.master(&self.broker).ok_or_else(|| Fate::Unreachable {
            why: "no_master",
            words: format!("no master of broker {}", self.broker),
        })
    }

    /// A connection to the broker as it is now, and only then the bodies.
    fn load(&self, jobs: &[Job]) -> Load {
        let dues = jobs.iter().map(|job| job.tried.due).collect();
        let (source, pool) = (self.source.clone(), self.pool.clone());
        let address = self.address();
        Box::pin(async move {
            let client = pool.client(&address?).await.map_err(|err| {
                let words = err.to_string();
                let why = "connect";
                Fate::Unreachable { why, words }
            })?;
            let held = source.read(dues).await;
            Ok(Loaded { client, held })
        })
    }

    /// Turns what was read into requests; what cannot be sent is reported at once.
    fn requests(
        &mut self,
        jobs: Vec<Job>,
        loaded: Result<Loaded, Fate>,
    ) -> Result<Vec<(Client, Job, Command)>, DispatchError> {
        let Loaded { client, held } = match loaded {
            Ok(loaded) => loaded,
            Err(fate) => {
                for job in jobs {
                    self.report(job, fate.clone());
                }
                return Ok(Vec::new());
            }
        };
        if held.len() != jobs.len() {
            return Err(DispatchError::StoreGone);
        }
        let mut requests = Vec::with_capacity(jobs.len());
        for (job, (due, held)) in jobs.into_iter().zip(held) {
            debug_assert_eq!(job.tried.due, due, "answers come in the order asked");
            match request(&held, &job) {
                Ok(request) => requests.push((client.clone(), job, request)),
                Err(fate) => self.report(job, fate),
            }
        }
        Ok(requests)
    }

    /// The end of a job whose bytes were counted.
    fn report(&mut self, job: Job, fate: Fate) {
        self.share.give_back(job.bytes());
        self.tell(job, fate);
    }

    fn tell_all(&self, jobs: &mut VecDeque<Job>, fate: &Fate) {
        for job in jobs.drain(..) {
            self.tell(job, fate.clone());
        }
    }

    fn tell(&self, job: Job, fate: Fate) {
        let broker = self.index;
        // The dispatcher is gone only when the process ends.
        drop(self.events.send(Event::Tried { broker, job, fate }));
    }
}

async fn ready<T>(task: &mut Option<Task<T>>) -> T {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
