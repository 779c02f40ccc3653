//! A store without a disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rocketmq_timer_proxy::clock::EpochMs;
use rocketmq_timer_proxy::dispatch::source::Source;
use rocketmq_timer_proxy::intercept::hold;
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::store::{Due, Held, LaneId, LaneKey, Lsn, ReadError, TimerId};
use tokio::sync::watch;

use crate::support::soon;

#[derive(Clone, Default)]
pub(super) struct Shelf(Arc<ShelfState>);

#[derive(Default)]
struct ShelfState {
    held: Mutex<BTreeMap<u64, Result<Held, ReadError>>>,
    lanes: Mutex<Vec<Arc<LaneKey>>>,
    completed: watch::Sender<Vec<Due>>,
    on_read: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl Shelf {
    pub(super) fn hold(&self, send: &Command, broker: &str, due_ms: EpochMs) -> Due {
        let hold = hold::record(send, broker, due_ms, due_ms - 1_000, "1.2.3.4:5".to_owned());
        let mut lanes = self.0.lanes.lock().unwrap();
        let lane = lanes.iter().position(|key| **key == hold.lane);
        let lane = lane.unwrap_or_else(|| {
            lanes.push(Arc::new(hold.lane.clone()));
            lanes.len() - 1
        });
        let mut held = self.0.held.lock().unwrap();
        let lsn = u64::try_from(held.len()).unwrap();
        let len = u32::try_from(hold.body.len() + hold.header.len()).unwrap();
        let id = TimerId(lsn);
        held.insert(lsn, Ok(Held { id, hold }));
        Due { due_ms, lsn: Lsn(lsn), len, lane: LaneId(u32::try_from(lane).unwrap()) }
    }

    pub(super) fn spoil(&self, due: Due, err: ReadError) {
        self.0.held.lock().unwrap().insert(due.lsn.0, Err(err));
    }

    pub(super) fn on_read(&self, hook: impl FnMut() + Send + 'static) {
        *self.0.on_read.lock().unwrap() = Some(Box::new(hook));
    }

    pub(super) fn completed(&self) -> Vec<Due> {
        self.0.completed.borrow().clone()
    }

    pub(super) async fn until_completed(&self, count: usize) {
        let mut completed = self.0.completed.subscribe();
        let done = completed.wait_for(|completed| completed.len() >= count);
        drop(soon(&format!("{count} completions"), done).await.unwrap());
    }
}

impl Source for Shelf {
    async fn read(&self, due: Vec<Due>) -> Vec<(Due, Result<Held, ReadError>)> {
        if let Some(hook) = self.0.on_read.lock().unwrap().as_mut() {
            hook();
        }
        let held = self.0.held.lock().unwrap();
        let read = |due: Due| (due, held[&due.lsn.0].clone());
        due.into_iter().map(read).collect()
    }

    fn complete(&self, due: Due) {
        self.0.completed.send_modify(|completed| {
            assert!(!completed.contains(&due), "completed twice: {due:?}");
            completed.push(due);
        });
    }

    fn lane(&self, id: LaneId) -> Option<Arc<LaneKey>> {
        self.0.lanes.lock().unwrap().get(id.0 as usize).cloned()
    }
}
