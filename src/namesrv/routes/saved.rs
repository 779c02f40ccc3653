//! The routes on disk: JSON, written as a whole. Bodies stand in it as strings, since those of a name
//! server are not JSON (ids without quotes).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::table::{BYTES, Table};
use crate::remoting::route::broker_addresses;

/// Format of the file.
const FORMAT: u32 = 1;
/// Longest file: every byte of the table escaped, and the rest.
const LONGEST: u64 = 8 * BYTES as u64;

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    format: u32,
    quotes: Option<bool>,
    routes: Vec<SavedRoute>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedRoute {
    topic: String,
    body: String,
}

/// A body that is no text is left out: nobody could read it.
pub(super) fn to_text(routes: &[(String, Bytes)], quotes: Option<bool>) -> Vec<u8> {
    let routes = routes.iter().filter_map(|(topic, body)| {
        let body = String::from_utf8(body.to_vec()).ok()?;
        Some(SavedRoute { topic: topic.clone(), body })
    });
    let saved = Saved { format: FORMAT, quotes, routes: routes.collect() };
    // Strings and numbers alone: writing them as JSON cannot fail.
    serde_json::to_vec_pretty(&saved).unwrap_or_default()
}

/// An empty table where there is none that can be read; the log says why.
pub(super) fn read(file: &Path) -> Table {
    let named = file.display();
    let text = match read_bounded(file) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Table::default(),
        Err(err) => {
            tracing::error!(file = %named, %err, "cannot read the kept routes");
            return Table::default();
        }
    };
    match serde_json::from_slice::<Saved>(&text) {
        Ok(saved) if saved.format == FORMAT => of(saved, file),
        Ok(saved) => {
            let format = saved.format;
            tracing::error!(file = %named, format, "unknown format of the kept routes");
            Table::default()
        }
        Err(err) => {
            tracing::error!(file = %named, %err, "the kept routes are damaged");
            Table::default()
        }
    }
}

fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(file)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

fn of(saved: Saved, file: &Path) -> Table {
    let mut table = Table::default();
    table.quotes = saved.quotes;
    for SavedRoute { topic, body } in saved.routes {
        match broker_addresses(body.as_bytes()) {
            Ok(_) => {
                table.put(&topic, body.into());
            }
            Err(err) => {
                tracing::error!(file = %file.display(), topic, %err, "a kept route is damaged");
            }
        }
    }
    table
}
