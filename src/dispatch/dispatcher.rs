//! The owner of all lanes: gives due messages to couriers as their lanes allow, takes back what was
//! not stored, and tells the store what was.
//!
//! One task; it never waits for a disk, a connection or an answer, so that no lane waits for
//! another. Started by [`crate::app`].

mod back;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinError, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::attempt::{Fate, Job};
use super::bodies::Bodies;
use super::broker::Broker;
use super::controls::{Ask, controls};
pub use super::controls::{Controls, ParkedMessage};
use super::courier::Courier;
use super::lane::{Lane, Pace};
use super::source::Source;
use super::suspects::Suspects;
use crate::clock::Clock;
use crate::metrics::Metrics;
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

/// What reaches the dispatcher from the tasks it started.
#[derive(Debug)]
pub(super) enum Event {
    /// A job came back.
    Tried { broker: usize, job: Job, fate: Fate },
    /// How many queues for writing the topic of a lane has on its broker.
    Queues { lane: LaneId, queues: Result<i32, String> },
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
    suspects: Suspects,
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
        let (controls, asks) = controls();
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
            suspects: Suspects::default(),
            jitter: StdRng::from_os_rng(),
            draining: false,
        };
        (dispatcher, controls)
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
                let alone = self.suspects.include(tried.due.lsn);
                // A courier that is gone has ended with an error, which ends dispatch.
                drop(broker.jobs.send(Job { tried, queue, alone }));
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
            next = (handled < REPORTS).then(|| self.events.try_recv().ok()).flatten();
        }
        for broker in touched {
            self.pump(broker);
        }
    }

    fn close(&mut self, id: LaneId) {
        if let Some(mut slot) = self.lanes.remove(&id) {
            set_wake(&mut self.wakes, id, &mut slot.wake, None);
        }
    }

    // === Operators ===

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
