//! What comes back from couriers: each message goes where its fate says, and the logs and metrics
//! learn of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;

use super::{Dispatcher, Event, Queue, Refusing, Slot};
use crate::dispatch::answer::Judgement;
use crate::dispatch::attempt::{Fate, Job};
use crate::dispatch::lane::{Parked, Try};
use crate::dispatch::source::Source;
use crate::metrics::Why;
use crate::remoting::code::{request, response};
use crate::remoting::command::Command;
use crate::remoting::route;
use crate::store::{LaneId, LaneKey};
use crate::upstream::nameservers::NameServers;

impl<S: Source> Dispatcher<S> {
    pub(super) fn tried(&mut self, broker: usize, job: Job, fate: Fate) {
        let id = job.tried.due.lane;
        let now = self.parts.clock.monotonic();
        self.parts.metrics.dispatch_in_flight.dec();
        if let Some(broker) = self.brokers.get_mut(broker) {
            broker.under_way = broker.under_way.saturating_sub(1);
        }
        match fate {
            Fate::Judged { judgement, late } => self.judged(broker, job, judgement, late, now),
            Fate::HungUp { words } => {
                self.refused(job.tried, Parked::HungUp, &words, now);
                self.broker_answered(broker, now);
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
        late: Duration,
        now: Duration,
    ) {
        match judgement {
            Judgement::Stored { lesser } => {
                self.stored(job.tried, lesser, late, now);
                self.broker_answered(broker, now);
            }
            Judgement::RetryLane { why, busy, words } => {
                if why == "closed" {
                    self.suspects.ended(job.tried.due.lsn);
                }
                self.failed(broker, job.tried, (why, busy), &words, now);
            }
            Judgement::OtherQueue => {
                self.wrong_queue(job, now);
                self.broker_answered(broker, now);
            }
            Judgement::RetrySlowly { code, words } => {
                self.refused(job.tried, Parked::Refused(code), &words, now);
                self.broker_answered(broker, now);
            }
        }
    }

    fn stored(&mut self, done: Try, lesser: Option<&'static str>, late: Duration, now: Duration) {
        let due = done.due;
        self.suspects.acquit(due.lsn);
        let metrics = &self.parts.metrics;
        metrics.dispatch_delivered.inc();
        metrics.dispatch_overdue.dec();
        metrics.dispatch_lateness_seconds.observe(late.as_secs_f64());
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

    fn refused(&mut self, back: Try, cause: Parked, words: &str, now: Duration) {
        let lsn = back.due.lsn;
        if cause != Parked::HungUp {
            self.suspects.acquit(lsn);
        }
        let Some(slot) = self.lanes.get_mut(&back.due.lane) else {
            return;
        };
        let refusing =
            slot.refusing.get_or_insert(Refusing { since: now, refusals: 0, parked: false });
        refusing.refusals += 1;
        let parked = slot.lane.refused(back, cause, now, &self.parts.pace);
        if refusing.refusals == 1 || (parked && !refusing.parked) {
            tracing::warn!(
                broker = slot.key.broker,
                topic = %slot.key.topic.escape_ascii(),
                queue = slot.key.queue,
                lsn = lsn.0,
                ?cause,
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
            self.retry_counted(if cause == Parked::HungUp { "hung_up" } else { "refused" });
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
            let cause = Parked::Refused(response::SYSTEM_ERROR);
            return self.refused(job.tried, cause, words, now);
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
    pub(super) fn answered(&mut self, id: LaneId, queues: Result<i32, String>) -> Option<usize> {
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

    fn broker_answered(&mut self, index: usize, now: Duration) {
        let was_gone = self.brokers.get_mut(index).is_some_and(|broker| broker.answered(now));
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
}

/// Queues for writing that the lane's topic has on its broker now.
async fn write_queues(nameservers: &NameServers, key: &LaneKey) -> Result<i32, String> {
    let topic = String::from_utf8_lossy(&key.topic);
    let code = request::GET_ROUTEINFO_BY_TOPIC;
    let ask = Command::request(code, &[("topic", &topic)], Bytes::new());
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
