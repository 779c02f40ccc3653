//! Short names for lanes, so that a pending message costs 32 bytes and not its strings.
//!
//! A name lives while messages of its lane are pending. The writer thread takes and gives back; the
//! dispatcher looks up.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::{LaneId, LaneKey};

/// The names in use.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    ids: HashMap<Arc<LaneKey>, LaneId>,
    lanes: Vec<Option<Lane>>,
    free: Vec<LaneId>,
}

#[derive(Debug)]
struct Lane {
    key: Arc<LaneKey>,
    pending: u64,
}

impl Lanes {
    /// The lane's name, for `count` more pending messages.
    pub(super) fn take(&self, key: &LaneKey, count: u64) -> LaneId {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let id = match table.ids.get(key) {
            Some(id) => *id,
            None => table.add(key),
        };
        if let Some(Some(lane)) = table.lanes.get_mut(id.0 as usize) {
            lane.pending += count;
        }
        id
    }

    /// One message of the lane is no longer pending.
    pub(super) fn give_back(&self, id: LaneId) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = table.lanes.get_mut(id.0 as usize) else {
            return;
        };
        let Some(lane) = slot.as_mut() else { return };
        lane.pending -= 1;
        if lane.pending == 0 {
            let gone = slot.take();
            if let Some(lane) = gone {
                table.ids.remove(&lane.key);
            }
            table.free.push(id);
        }
    }

    /// What `id` stands for.
    pub(super) fn get(&self, id: LaneId) -> Option<Arc<LaneKey>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let lane = table.lanes.get(id.0 as usize)?.as_ref()?;
        Some(Arc::clone(&lane.key))
    }

    /// Lanes with pending messages.
    pub(super) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).ids.len()
    }
}

impl Table {
    fn add(&mut self, key: &LaneKey) -> LaneId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            LaneId(u32::try_from(self.lanes.len() - 1).unwrap_or(u32::MAX))
        });
        let key = Arc::new(key.clone());
        self.ids.insert(Arc::clone(&key), id);
        if let Some(slot) = self.lanes.get_mut(id.0 as usize) {
            *slot = Some(Lane { key, pending: 0 });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn key(topic: &'static str) -> LaneKey {
        LaneKey { broker: "b".into(), topic: Bytes::from_static(topic.as_bytes()), queue: 1 }
    }

    #[test]
    fn names_live_while_messages_are_pending() {
        let lanes = Lanes::default();
        let a = lanes.take(&key("a"), 1);
        assert_eq!(lanes.take(&key("a"), 1), a);
        let b = lanes.take(&key("b"), 1);
        assert_ne!(a, b);
        lanes.give_back(a);
        assert_eq!(lanes.get(a).unwrap().topic, "a");
        lanes.give_back(a);
        assert_eq!(lanes.get(a), None);
        assert_eq!(lanes.take(&key("c"), 1), a);
        assert_eq!(lanes.get(b).unwrap().topic, "b");
        assert_eq!(lanes.len(), 2);
    }
}
