//! What dispatch needs of a store, so that its tests can do without a disk.

use std::future::Future;
use std::sync::Arc;

use crate::store::{Due, Held, LaneId, LaneKey, ReadError, Store};

/// Where due messages are read and where their completion is recorded. Clones share it.
pub trait Source: Clone + Send + Sync + 'static {
    /// Reads records off the async workers; answers all of them in the order asked.
    fn read(
        &self,
        due: Vec<Due>,
    ) -> impl Future<Output = Vec<(Due, Result<Held, ReadError>)>> + Send;

    /// A broker has it. Once per message.
    fn complete(&self, due: Due);

    /// What a lane id of a pending message stands for.
    fn lane(&self, id: LaneId) -> Option<Arc<LaneKey>>;
}

impl Source for Store {
    async fn read(&self, due: Vec<Due>) -> Vec<(Due, Result<Held, ReadError>)> {
        Store::read(self, due).await
    }

    fn complete(&self, due: Due) {
        Store::complete(self, due);
    }

    fn lane(&self, id: LaneId) -> Option<Arc<LaneKey>> {
        Store::lane(self, id)
    }
}
