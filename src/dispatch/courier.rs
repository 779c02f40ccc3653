//! One task per broker: connects, reads bodies, looks at the clock once more, sends, and reports.
//!
//! Everything that takes time for one broker happens here, so that it delays no other. Jobs leave
//! in the order they came: one batch is read at a time, and its requests are written in order. Never
//! decides what happens after a try; that is [`super::dispatcher`]'s.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::answer::{Judgement, judge};
use super::bodies::Share;
use super::dispatcher::{DispatchError, Event};
use super::forward;
use super::lane::Try;
use super::source::Source;
use crate::clock::Clock;
use crate::remoting::command::Command;
use crate::shutdown::{Stage, Stopping};
use crate::store::{Due, Held, ReadError};
use crate::upstream::UpstreamError;
use crate::upstream::client::{Answer, Client, Request, Silence};
use crate::upstream::cluster::Cluster;
use crate::upstream::pool::Pool;

/// How long a broker has for its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Messages read at once: few enough that the first does not wait for the last.
const BATCH: usize = 64;

/// One message to try.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) tried: Try,
    /// The queue to use in place of the one asked for.
    pub(super) queue: Option<i32>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.tried.due.len as usize
    }
}

/// What came of a job.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// It was sent, and this is what the outcome means.
    Judged {
        judgement: Judgement,
        /// From the due time until it was handed to the socket.
        late: Duration,
    },
    /// The broker could not be reached; nothing was sent.
    Unreachable { why: &'static str, words: String },
    /// By the wall clock it is not due any more; nothing was sent.
    Early,
    /// What the store has of it is not a message; nothing was sent.
    Unreadable { words: String },
    /// The process is stopping; nothing was sent.
    NotStarted,
}

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

type Load = Pin<Box<dyn Future<Output = Result<Loaded, Fate>> + Send>>;

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
        let mut queued = VecDeque::new();
        let mut loading = Vec::new();
        let mut load: Option<Load> = None;
        let mut under_way = FuturesUnordered::new();
        loop {
            if load.is_none() {
                loading = self.next_batch(&mut queued);
                load = (!loading.is_empty()).then(|| self.load(&loading));
            }
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => queued.push_back(job),
                    None => return Ok(()),
                },
                loaded = ready(&mut load), if load.is_some() => {
                    load = None;
                    if let Err(fate) = &loaded {
                        // What came later does not overtake: it waits for the next connection too.
                        for job in queued.drain(..) {
                            self.tell(job, fate.clone());
                        }
                    }
                    let requests = self.requests(std::mem::take(&mut loading), loaded)?;
                    under_way.extend(requests.into_iter().map(|(client, job, request)| {
                        deliver(client, job, request, Arc::clone(&self.clock))
                    }));
                }
                Some((job, fate)) = under_way.next() => self.report(job, fate),
                () = stopping.reached(Stage::Draining), if load.is_some() => {
                    load = None;
                    for job in std::mem::take(&mut loading) {
                        self.report(job, Fate::NotStarted);
                    }
                }
            }
            while let Ok(job) = jobs.try_recv() {
                queued.push_back(job);
            }
        }
    }

    /// The jobs to read next: as many as the budget has room for.
    fn next_batch(&mut self, queued: &mut VecDeque<Job>) -> Vec<Job> {
        let draining = self.stopping.stage() >= Stage::Draining;
        let mut batch = Vec::new();
        while let Some(job) = queued.front() {
            if !draining && (batch.len() == BATCH || !self.share.take(job.bytes())) {
                break;
            }
            let Some(job) = queued.pop_front() else { break };
            if draining {
                self.tell(job, Fate::NotStarted);
            } else {
                batch.push(job);
            }
        }
        batch
    }

    /// A connection to the broker as it is now, and only then the bodies.
    fn load(&self, jobs: &[Job]) -> Load {
        let dues = jobs.iter().map(|job| job.tried.due).collect();
        let (source, pool) = (self.source.clone(), self.pool.clone());
        let Some(address) = self.cluster.master(&self.broker) else {
            let words = format!("no master of broker {}", self.broker);
            let why = "no_master";
            return Box::pin(std::future::ready(Err(Fate::Unreachable { why, words })));
        };
        Box::pin(async move {
            let client = pool.client(&address).await.map_err(|err| {
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
            let request = match &held {
                Ok(held) => forward::command(held, job.queue).map_err(|err| err.to_string()),
                Err(err) => Err(err.to_string()),
            };
            match request {
                Ok(request) => requests.push((client.clone(), job, request)),
                Err(words) => self.report(job, Fate::Unreadable { words }),
            }
        }
        Ok(requests)
    }

    /// The end of a job whose bytes were counted.
    fn report(&mut self, job: Job, fate: Fate) {
        self.share.give_back(job.bytes());
        self.tell(job, fate);
    }

    fn tell(&self, job: Job, fate: Fate) {
        let broker = self.index;
        // The dispatcher is gone only when the process ends.
        drop(self.events.send(Event::Tried { broker, job, fate }));
    }
}

async fn ready(load: &mut Option<Load>) -> Result<Loaded, Fate> {
    match load {
        Some(load) => load.await,
        None => std::future::pending().await,
    }
}

/// One try. The first poll hands the request over, so tries are written in the order they are polled.
async fn deliver(client: Client, job: Job, request: Command, clock: Arc<dyn Clock>) -> (Job, Fate) {
    let late_ms = clock.wall_ms().saturating_sub(job.tried.due.due_ms);
    let Ok(late_ms) = u64::try_from(late_ms) else {
        return (job, Fate::Early);
    };
    let handed = Instant::now();
    let outcome = answered(&client, request).await;
    let written = outcome.as_ref().map_or(handed, |answer| answer.written);
    let fate = Fate::Judged {
        judgement: judge(&outcome.map(Answer::into_command)),
        late: Duration::from_millis(late_ms) + written.saturating_duration_since(handed),
    };
    (job, fate)
}

async fn answered(client: &Client, request: Command) -> Result<Answer, UpstreamError> {
    let request = Request::Command(request);
    let in_flight = client.start(request, ANSWER_WITHIN, Silence::Ends).await?;
    in_flight.answer().await
}
