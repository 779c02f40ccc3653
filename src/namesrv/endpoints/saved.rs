//! The table of ports on disk: JSON, written as a whole.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::remoting::route::BrokerId;

/// Format of the file.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    format: u32,
    endpoints: Vec<SavedEndpoint>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedEndpoint {
    cluster: String,
    name: String,
    id: i64,
    port: u16,
}

pub(super) fn to_text(ports: &BTreeMap<BrokerId, u16>) -> Vec<u8> {
    let endpoints = ports.iter().map(|(broker, &port)| SavedEndpoint {
        cluster: broker.cluster.clone(),
        name: broker.name.clone(),
        id: broker.id,
        port,
    });
    let saved = Saved { format: FORMAT, endpoints: endpoints.collect() };
    // Strings and numbers alone: writing them as JSON cannot fail.
    serde_json::to_vec_pretty(&saved).unwrap_or_default()
}

/// An empty table where there is none that can be read; the log says why. Ports are then chosen by
/// the same hash again, so that little changes.
pub(super) fn read(file: &Path) -> BTreeMap<BrokerId, u16> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return BTreeMap::new(),
        Err(err) => {
            tracing::error!(file = %file.display(), %err, "cannot read the broker ports");
            return BTreeMap::new();
        }
    };
    match serde_json::from_slice::<Saved>(&text) {
        Ok(saved) if saved.format == FORMAT => of(saved),
        Ok(saved) => {
            let format = saved.format;
            tracing::error!(file = %file.display(), format, "unknown format of the broker ports");
            BTreeMap::new()
        }
        Err(err) => {
            tracing::error!(file = %file.display(), %err, "the broker ports are damaged");
            BTreeMap::new()
        }
    }
}

fn of(saved: Saved) -> BTreeMap<BrokerId, u16> {
    let endpoints = saved.endpoints.into_iter().map(|endpoint| {
        let (cluster, name, id) = (endpoint.cluster, endpoint.name, endpoint.id);
        (BrokerId { cluster, name, id }, endpoint.port)
    });
    endpoints.collect()
}
