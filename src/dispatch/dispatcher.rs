//! The owner of all lanes: gives due messages to couriers as their lanes allow, takes back what was
//! not stored, and tells the store what was.
//!
//! One task; it never waits for a disk, a connection or an answer, so that no lane waits for
//! another. Started by [`crate::app`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::answer::Judgement;
use super::bodies::Bodies;
use super::broker::Broker;
use super::courier::{Courier, Fate, Job};
use super::lane::{Lane, Pace, Parked, Try};
use super::source::Source;
use crate::clock::Clock;
use crate::metrics::{Metrics, Why};
use crate::remoting::code::{request, response};
use crate::remoting::command::Command;
use crate::remoting::route;
use crate::shutdown::{Stage, Stopping};
use crate::store::{Due, LaneId, LaneKey};
use crate::upstream::cluster::Cluster;
use crate::upstream::nameservers::NameServers;
use crate::upstream::pool::Pool;

/// Bytes of messages in memory that no broker has confirmed.
const BODIES: usize = 64 << 20;
/// Messages one courier has at most.
const BROKER_WINDOW: usize = 1_024;
/// Messages one lane starts before the next lane of its broker has its turn.
const TURN: usize = 16;
/// How long answers are waited for when the process stops.
const DRAIN: Duration = Duration::from_secs(3);
/// Reports handled before the lanes they concern are looked at.
const REPORTS: usize = 256;

/// Why dispatch ended before it was told to. The process must not live on: nothing is delivered.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// A task panicked.
    #[error("dispatch panicked: {0}")]
    Panicked(String),
    /// The store's wheel or its reader threads have ended.
    #[error("the store has ended")]
    StoreGone,
}

/// What dispatch works with.
pub struct Parts<S> {
    /// Where messages are read and completed.
    pub source: S,
    /// What falls due.
    pub due: UnboundedReceiver<Vec<Due>>,
    /// Where the brokers are.
    pub cluster: Cluster,
    /// Connections to them.
    pub pool: Pool,
    /// Whom to ask how many queues a topic has.
    pub nameservers: NameServers,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// The `dispatch` families.
    pub metrics: Metrics,
    /// When to stop.
    pub stopping: Stopping,
    /// How lanes go.
    pub pace: Pace,
}

/// A message that is tried no more.
#[derive(Debug, Clone)]
pub struct ParkedMessage {
    /// The message.
    pub due: Due,
    /// Where it should go.
    pub lane: Arc<LaneKey>,
    /// Why it does not.
    pub why: Parked,
}

/// Operators' hand on a running [`Dispatcher`].
#[derive(Debug, Clone)]
pub struct Controls(mpsc::Sender<Ask>);

impl Controls {
    /// What is parked; empty once dispatch has ended.
    pub async fn parked(&self) -> Vec<ParkedMessage> {
        self.ask(Ask::Parked).await.unwrap_or_default()
    }

    /// Tries everything parked again, and answers how many that are.
    pub async fn redrive(&self) -> usize {
        self.ask(Ask::Redrive).await.unwrap_or_default()
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.0.send(ask(reply)).await.ok()?;
        answer.await.ok()
    }
}

#[derive(Debug)]
enum Ask {
    Parked(oneshot::Sender<Vec<ParkedMessage>>),
    Redrive(oneshot::Sender<usize>),
}

/// What reaches the dispatcher from the tasks it started.
#[derive(Debug)]
pub(super) enum Event {
    /// A job came back.
    Tried {
        broker: usize,
        job: Job,
        fate: Fate,
    },
    /// How many queues for writing the topic of a lane has on its broker.
    Queues {
        lane: LaneId,
        queues: Result<i32, String>,
    },
}

/// See the module.
pub struct Dispatcher<S> {
    parts: Parts<S>,
    asks: mpsc::Receiver<Ask>,
    lanes: HashMap<LaneId, Slot>,
    brokers: Vec<Broker>,
    by_name: HashMap<String, usize>,
    /// When to look at which lane again, by the monotonic clock.
    wakes: BTreeSet<(Duration, LaneId)>,
    events: UnboundedReceiver<Event>,
    events_in: UnboundedSender<Event>,
    tasks: JoinSet<Result<(), DispatchError>>,
    bodies: Bodies,
    jitter: StdRng,
    draining: bool,
}

/// A lane and what the dispatcher remembers of it.
struct Slot {
    key: Arc<LaneKey>,
    broker: usize,
    lane: Lane,
    /// Whether it stands among its broker's ready lanes.
    listed: bool,
    wake: Option<Duration>,
    queue: Queue,
    refusing: Option<Refusing>,
}

/// Which queue a lane sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// The one each message asks for.
    AsAsked,
    /// The broker says that there is none of that number; nothing starts until we know better.
    Asking,
    /// The number asked for modulo the number there are now.
    Other(i32),
}

/// Since when a broker has been refusing messages of a lane.
struct Refusing {
    since: Duration,
    refusals: u64,
    parked: bool,
}

impl<S: Source> Dispatcher<S> {
    /// Nothing moves before [`Dispatcher::run`].
    pub fn new(parts: Parts<S>) -> (Self, Controls) {
        let (events_in, events) = mpsc::unbounded_channel();
        let (controls, asks) = mpsc::channel(8);
        let dispatcher = Self {
            parts,
            asks,
            lanes: HashMap::new(),
            brokers: Vec::new(),
            by_name: HashMap::new(),
            wakes: BTreeSet::new(),
            events,
            events_in,
            tasks: JoinSet::new(),
            bodies: Bodies::new(BODIES),
            jitter: StdRng::from_os_rng(),
            draining: false,
        };
        (dispatcher, Controls(controls))
    }

    /// Delivers until [`Stage::Draining`], then waits a moment for answers. A panic anywhere in
    /// dispatch is an error here.
    pub async fn run(self) -> Result<(), DispatchError> {
        match AbortOnDropHandle::new(tokio::spawn(self.work())).await {
            Ok(outcome) => outcome,
            Err(err) => Err(panicked(err)),
        }
    }

    async fn work(mut self) -> Result<(), DispatchError> {
        let mut stopping = self.parts.stopping.clone();
        let mut cluster = self.parts.cluster.watch();
        let mut cluster_lives = true;
        loop {
            let next = self.wakes.first().map(|(at, _)| *at);
            let left = next.map(|at| at.saturating_sub(self.parts.clock.monotonic()));
            tokio::select! {
                batch = self.parts.due.recv() => match batch {
                    Some(batch) => self.fell_due(batch),
                    None if stopping.stage() >= Stage::Draining => break,
                    None => return Err(DispatchError::StoreGone),
                },
                Some(event) = self.events.recv() => self.reported(event),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => self.woken(),
                Some(ended) = self.tasks.join_next() => ended.map_err(panicked)??,
                Some(ask) = self.asks.recv() => self.asked(ask),
                changed = cluster.changed(), if cluster_lives => {
                    cluster_lives = changed.is_ok();
                    self.hurry(None);
                }
                () = stopping.reached(Stage::Draining) => break,
            }
        }
        self.drain().await
    }

    /// Starts nothing new; what brokers still answer is completed.
    async fn drain(mut self) -> Result<(), DispatchError> {
        self.draining = true;
        let under_way = |brokers: &[Broker]| brokers.iter().map(|b| b.under_way).sum::<usize>();
        let end = self.parts.clock.monotonic() + DRAIN;
        while under_way(&self.brokers) > 0 {
            let left = end.saturating_sub(self.parts.clock.monotonic());
            let Ok(event) = tokio::time::timeout(left, self.events.recv()).await else {
                let unanswered = under_way(&self.brokers);
                tracing::warn!(unanswered, "stopped with sends that no broker has answered");
                break;
            };
            if let Some(event) = event {
                self.reported(event);
            }
        }
        Ok(())
    }

    // === In ===

    fn fell_due(&mut self, batch: Vec<Due>) {
        for due in batch {
            self.parts.metrics.dispatch_overdue.inc();
            if self.lanes.contains_key(&due.lane) || self.open(due.lane) {
                if let Some(slot) = self.lanes.get_mut(&due.lane) {
                    slot.lane.push(due);
                }
                self.list(due.lane);
            }
        }
        self.pump_all();
    }

    /// A slot for a lane that had none.
    fn open(&mut self, id: LaneId) -> bool {
        let Some(key) = self.parts.source.lane(id) else {
            tracing::error!(lane = id.0, "the store does not know the lane of a due message");
            return false;
        };
        let broker = match self.by_name.get(&key.broker) {
            Some(broker) => *broker,
            None => self.meet(&key.broker),
        };
        let slot = Slot {
            key,
            broker,
            lane: Lane::new(&self.parts.pace),
            listed: false,
            wake: None,
            queue: Queue::AsAsked,
            refusing: None,
        };
        self.lanes.insert(id, slot);
        true
    }

    /// A courier for a broker that had none. They stay: there are as many as masters in the cluster.
    fn meet(&mut self, name: &str) -> usize {
        let index = self.brokers.len();
        let (jobs, incoming) = mpsc::unbounded_channel();
        let courier = Courier {
            broker: name.to_owned(),
            index,
            source: self.parts.source.clone(),
            cluster: self.parts.cluster.clone(),
            pool: self.parts.pool.clone(),
            clock: Arc::clone(&self.parts.clock),
            share: self.bodies.share(),
            stopping: self.parts.stopping.clone(),
            events: self.events_in.clone(),
        };
        self.tasks.spawn(courier.run(incoming));
        self.brokers.push(Broker::new(name.to_owned(), jobs));
        self.by_name.insert(name.to_owned(), index);
        index
    }

    // === Out ===

    /// Puts a lane among those that may have something to start.
    fn list(&mut self, id: LaneId) {
        if let Some(slot) = self.lanes.get_mut(&id)
            && !slot.listed
            && let Some(broker) = self.brokers.get_mut(slot.broker)
        {
            slot.listed = true;
            broker.ready.push_back(id);
        }
    }

    fn pump_all(&mut self) {
        for broker in 0..self.brokers.len() {
            self.pump(broker);
        }
    }

    /// Starts what a broker's lanes and window allow.
    fn pump(&mut self, broker: usize) {
        if self.draining {
            return;
        }
        let Some(broker) = self.brokers.get_mut(broker) else {
            return;
        };
        let clock = &self.parts.clock;
        let (now, wall) = (clock.monotonic(), clock.wall_ms());
        let before = broker.under_way;
        while broker.under_way < BROKER_WINDOW
            && let Some(id) = broker.ready.pop_front()
        {
            let Some(slot) = self.lanes.get_mut(&id) else {
                continue;
            };
            slot.listed = false;
            let queue = match slot.queue {
                Queue::AsAsked => None,
                Queue::Other(queue) => Some(queue),
                Queue::Asking => continue,
            };
            let room = TURN.min(BROKER_WINDOW - broker.under_way);
            let tries = std::iter::from_fn(|| slot.lane.start(now, wall)).take(room);
            let mut started = 0;
            for tried in tries {
                // A courier that is gone has ended with an error, which ends dispatch.
                drop(broker.jobs.send(Job { tried, queue }));
                started += 1;
            }
            broker.under_way += started;
            if started == room {
                slot.listed = true;
                broker.ready.push_back(id);
                continue;
            }
            let wake = slot.lane.wake(now, wall);
            set_wake(&mut self.wakes, id, &mut slot.wake, wake);
        }
        let started = i64::try_from(broker.under_way - before).unwrap_or(0);
        self.parts.metrics.dispatch_in_flight.inc_by(started);
    }

    fn woken(&mut self) {
        let now = self.parts.clock.monotonic();
        while let Some((at, id)) = self.wakes.first().copied()
            && at <= now
        {
            self.wakes.pop_first();
            if let Some(slot) = self.lanes.get_mut(&id) {
                slot.wake = None;
            }
            self.list(id);
        }
        self.pump_all();
    }

    /// Lanes that pause, of one broker or of all, try again at once.
    fn hurry(&mut self, broker: Option<usize>) {
        let now = self.parts.clock.monotonic();
        let mut paused = Vec::new();
        for (id, slot) in &mut self.lanes {
            if slot.lane.is_paused() && broker.is_none_or(|broker| slot.broker == broker) {
                slot.lane.hurry(now);
                paused.push(*id);
            }
        }
        for id in paused {
            self.list(id);
        }
        self.pump_all();
    }

    // === Back ===

    fn reported(&mut self, event: Event) {
        let mut touched = BTreeSet::new();
        let mut next = Some(event);
        let mut handled = 0;
        while let Some(event) = next {
            match event {
                Event::Tried { broker, job, fate } => {
                    touched.insert(broker);
                    self.tried(broker, job, fate);
                }
                Event::Queues { lane, queues } => touched.extend(self.answered(lane, queues)),
            }
            handled += 1;
            next = (handled < REPORTS)
                .then(|| self.events.try_recv().ok())
                .flatten();
        }
        for broker in touched {
            self.pump(broker);
        }
    }

    fn tried(&mut self, broker: usize, job: Job, fate: Fate) {
        let id = job.tried.due.lane;
        let now = self.parts.clock.monotonic();
        self.parts.metrics.dispatch_in_flight.dec();
        if let Some(broker) = self.brokers.get_mut(broker) {
            broker.under_way = broker.under_way.saturating_sub(1);
        }
        match fate {
            Fate::Judged {
                judgement,
                handed_ms,
            } => {
                let late_ms = handed_ms.saturating_sub(job.tried.due.due_ms);
                self.judged(broker, job, judgement, late_ms, now);
            }
            Fate::Unreachable { why, words } => {
                self.failed(broker, job.tried, (why, false), &words, now);
            }
            Fate::Early => {
                self.retry_counted("clock");
                self.with(id, |slot| slot.lane.untried(job.tried, now));
            }
            Fate::Unreadable { words } => {
                tracing::error!(
                    lsn = job.tried.due.lsn.0,
                    why = words,
                    "a held message cannot be read; it is kept and not delivered"
                );
                self.parts.metrics.dispatch_parked.inc();
                self.with(id, |slot| slot.lane.unreadable(job.tried));
            }
            Fate::NotStarted => self.with(id, |slot| slot.lane.untried(job.tried, now)),
        }
        self.list(id);
        if self.lanes.get(&id).is_some_and(|slot| slot.lane.is_empty()) {
            self.close(id);
        }
    }

    fn judged(
        &mut self,
        broker: usize,
        job: Job,
        judgement: Judgement,
        late_ms: i64,
        now: Duration,
    ) {
        match judgement {
            Judgement::Stored { lesser } => {
                self.stored(job.tried, lesser, late_ms, now);
                self.broker_answered(broker, now);
            }
            Judgement::RetryLane { why, busy, words } => {
                self.failed(broker, job.tried, (why, busy), &words, now);
            }
            Judgement::OtherQueue => {
                self.wrong_queue(job, now);
                self.broker_answered(broker, now);
            }
            Judgement::RetrySlowly { code, words } => {
                self.refused(job.tried, code, &words, now);
                self.broker_answered(broker, now);
            }
        }
    }

    fn stored(&mut self, done: Try, lesser: Option<&'static str>, late_ms: i64, now: Duration) {
        let due = done.due;
        let metrics = &self.parts.metrics;
        metrics.dispatch_delivered.inc();
        metrics.dispatch_overdue.dec();
        metrics
            .dispatch_lateness_seconds
            .observe(late_ms as f64 / 1_000.0);
        if let Some(code) = lesser {
            let why = Why { why: code };
            metrics.dispatch_stored_less.get_or_create(&why).inc();
        }
        self.parts.source.complete(due);
        let Some(slot) = self.lanes.get_mut(&due.lane) else {
            return;
        };
        slot.lane.stored(done, &self.parts.pace);
        if slot.lane.refused_now() == 0
            && let Some(refusing) = slot.refusing.take_if(|refusing| !refusing.parked)
        {
            tracing::info!(
                broker = slot.key.broker,
                topic = %slot.key.topic.escape_ascii(),
                queue = slot.key.queue,
                after = ?now.saturating_sub(refusing.since),
                refusals = refusing.refusals,
                "a broker has taken the messages that it refused"
            );
        }
    }

    fn failed(
        &mut self,
        broker: usize,
        back: Try,
        (why, busy): (&'static str, bool),
        words: &str,
        now: Duration,
    ) {
        self.retry_counted(why);
        if let Some(broker) = self.brokers.get_mut(broker) {
            broker.failed(!busy, words, now);
        }
        let jitter = self.jitter.random();
        if let Some(slot) = self.lanes.get_mut(&back.due.lane) {
            slot.lane.failed(back, busy, now, &self.parts.pace, jitter);
        }
    }

    fn refused(&mut self, back: Try, code: i32, words: &str, now: Duration) {
        let Some(slot) = self.lanes.get_mut(&back.due.lane) else {
            return;
        };
        let refusing = slot.refusing.get_or_insert(Refusing {
            since: now,
            refusals: 0,
            parked: false,
        });
        refusing.refusals += 1;
        let parked = slot.lane.refused(back, code, now, &self.parts.pace);
        if refusing.refusals == 1 || (parked && !refusing.parked) {
            tracing::warn!(
                broker = slot.key.broker,
                topic = %slot.key.topic.escape_ascii(),
                queue = slot.key.queue,
                code,
                remark = words,
                park_after = ?self.parts.pace.park_after,
                "a broker refuses messages; {}",
                if parked { "they are parked" } else { "they are tried slowly" }
            );
        }
        if parked {
            refusing.parked = true;
            self.parts.metrics.dispatch_parked.inc();
        } else {
            self.retry_counted("refused");
        }
    }

    /// The lane's queue is not there any more. Its first message to hear that asks how many there
    /// are; where the queue we were told of is wrong too, the message waits like any refused one.
    fn wrong_queue(&mut self, job: Job, now: Duration) {
        let id = job.tried.due.lane;
        let Some(slot) = self.lanes.get_mut(&id) else {
            return;
        };
        if job.queue.is_some() && slot.queue == job.queue.map_or(Queue::AsAsked, Queue::Other) {
            slot.queue = Queue::AsAsked;
            let words = "no such queue, after a fresh route too";
            return self.refused(job.tried, response::SYSTEM_ERROR, words, now);
        }
        slot.lane.untried(job.tried, now);
        if slot.queue == Queue::AsAsked {
            slot.queue = Queue::Asking;
            let key = Arc::clone(&slot.key);
            let (nameservers, events) = (self.parts.nameservers.clone(), self.events_in.clone());
            self.tasks.spawn(async move {
                let queues = write_queues(&nameservers, &key).await;
                // The dispatcher is gone only when the process ends.
                drop(events.send(Event::Queues { lane: id, queues }));
                Ok(())
            });
        }
        self.retry_counted("queue");
    }

    /// The answer to the question of [`Dispatcher::wrong_queue`]. Answers the broker concerned.
    fn answered(&mut self, id: LaneId, queues: Result<i32, String>) -> Option<usize> {
        let now = self.parts.clock.monotonic();
        let jitter = self.jitter.random();
        let slot = self.lanes.get_mut(&id)?;
        let key = &slot.key;
        let topic = key.topic.escape_ascii();
        match queues {
            Ok(count) if count > 0 => {
                let queue = key.queue.rem_euclid(count);
                tracing::info!(
                    broker = key.broker, %topic, from = key.queue, to = queue, count,
                    "a topic has fewer queues than before; its messages go to another"
                );
                slot.queue = Queue::Other(queue);
            }
            other => {
                let why = other.err().unwrap_or_else(|| "none to write to".to_owned());
                tracing::debug!(broker = key.broker, %topic, why, "the topic's queues are unknown");
                slot.queue = Queue::AsAsked;
                slot.lane.stall(now, &self.parts.pace, jitter);
            }
        }
        let broker = slot.broker;
        self.list(id);
        Some(broker)
    }

    // === What others see ===

    fn broker_answered(&mut self, index: usize, now: Duration) {
        let was_gone = self
            .brokers
            .get_mut(index)
            .is_some_and(|broker| broker.answered(now));
        if was_gone {
            self.hurry(Some(index));
        }
    }

    fn retry_counted(&self, why: &'static str) {
        let why = Why { why };
        self.parts.metrics.dispatch_retries.get_or_create(&why).inc();
    }

    fn with(&mut self, id: LaneId, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.lanes.get_mut(&id) {
            change(slot);
        }
    }

    fn close(&mut self, id: LaneId) {
        if let Some(mut slot) = self.lanes.remove(&id) {
            set_wake(&mut self.wakes, id, &mut slot.wake, None);
        }
    }

    fn asked(&mut self, ask: Ask) {
        // Whoever asked may have given up.
        match ask {
            Ask::Parked(reply) => {
                let parked = self.lanes.values().flat_map(|slot| {
                    slot.lane.parked().iter().map(|(due, why)| ParkedMessage {
                        due: *due,
                        lane: Arc::clone(&slot.key),
                        why: *why,
                    })
                });
                drop(reply.send(parked.collect()));
            }
            Ask::Redrive(reply) => drop(reply.send(self.redrive())),
        }
    }

    fn redrive(&mut self) -> usize {
        let mut lanes = Vec::new();
        let mut count = 0;
        for (id, slot) in &mut self.lanes {
            let redriven = slot.lane.redrive();
            if redriven > 0 {
                slot.refusing = None;
                lanes.push(*id);
                count += redriven;
            }
        }
        let parked = i64::try_from(count).unwrap_or(i64::MAX);
        self.parts.metrics.dispatch_parked.dec_by(parked);
        for id in lanes {
            self.list(id);
        }
        self.pump_all();
        count
    }
}

fn set_wake(
    wakes: &mut BTreeSet<(Duration, LaneId)>,
    id: LaneId,
    place: &mut Option<Duration>,
    wake: Option<Duration>,
) {
    if *place != wake {
        if let Some(old) = place.take() {
            wakes.remove(&(old, id));
        }
        if let Some(at) = wake {
            wakes.insert((at, id));
        }
        *place = wake;
    }
}

/// Queues for writing that the lane's topic has on its broker now.
async fn write_queues(nameservers: &NameServers, key: &LaneKey) -> Result<i32, String> {
    let topic = String::from_utf8_lossy(&key.topic);
    let code = request::GET_ROUTEINFO_BY_TOPIC;
    let ask = Command::request(code, &[("topic", &topic)], bytes::Bytes::new());
    let answer = nameservers.request(ask).await;
    let answer = answer.map_err(|err| err.to_string())?;
    if answer.header.code != response::SUCCESS {
        return Err(format!("the name server answers code {}", answer.header.code));
    }
    let queues = route::queues(&answer.body).map_err(|err| err.to_string())?;
    let here = queues.iter().find(|queues| queues.broker == key.broker);
    here.map(|queues| queues.write_queues)
        .ok_or_else(|| "the topic is not on this broker".to_owned())
}

fn panicked(err: JoinError) -> DispatchError {
    DispatchError::Panicked(match err.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without words".to_owned()),
        Err(err) => err.to_string(),
    })
}
