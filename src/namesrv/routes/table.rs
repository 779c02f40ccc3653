//! Routes by topic, bounded in number and in bytes: what was not used for longest goes first.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;

/// Topics at most.
pub(super) const TOPICS: usize = 10_000;
/// Bytes of topics and bodies at most.
pub(super) const BYTES: usize = 16 << 20;
/// A name server that was just restarted knows no topic until the brokers have registered again,
/// which they do every 30 s.
const UNKNOWN_FOR: Duration = Duration::from_secs(40);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Whether the name servers quote ids for clients that ask for it, as far as they have shown it.
    pub(super) quotes: Option<bool>,
    topics: HashMap<String, Known>,
    /// Topics by their latest use, the oldest first.
    by_use: BTreeMap<u64, String>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Known {
    body: Bytes,
    used: u64,
    /// Since when the name servers have said that there is no such topic (monotonic clock).
    denied: Option<Duration>,
}

impl Table {
    /// Whether this changes the table.
    pub(super) fn put(&mut self, topic: &str, body: Bytes) -> bool {
        if let Some(known) = self.topics.get_mut(topic)
            && known.body == body
        {
            known.denied = None;
            self.touch(topic);
            return false;
        }
        let was_known = self.remove(topic);
        let size = topic.len() + body.len();
        if size > BYTES {
            return was_known;
        }
        while self.topics.len() >= TOPICS || self.bytes + size > BYTES {
            match self.by_use.first_key_value().map(|(_, oldest)| oldest.clone()) {
                Some(oldest) => self.remove(&oldest),
                None => break,
            };
        }
        self.uses += 1;
        self.by_use.insert(self.uses, topic.to_owned());
        let known = Known { body, used: self.uses, denied: None };
        self.topics.insert(topic.to_owned(), known);
        self.bytes += size;
        true
    }

    pub(super) fn get(&mut self, topic: &str) -> Option<Bytes> {
        let body = self.topics.get(topic)?.body.clone();
        self.touch(topic);
        Some(body)
    }

    /// The name servers say that there is no such topic; whether it is out of the table now.
    pub(super) fn deny(&mut self, topic: &str, now: Duration) -> bool {
        let Some(known) = self.topics.get_mut(topic) else { return false };
        let since = *known.denied.get_or_insert(now);
        now.saturating_sub(since) >= UNKNOWN_FOR && self.remove(topic)
    }

    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    /// All routes, those used last at the end.
    pub(super) fn all(&self) -> Vec<(String, Bytes)> {
        let known = self.by_use.values().filter_map(|topic| {
            let body = self.topics.get(topic)?.body.clone();
            Some((topic.clone(), body))
        });
        known.collect()
    }

    fn touch(&mut self, topic: &str) {
        if let Some(known) = self.topics.get_mut(topic)
            && let Some(name) = self.by_use.remove(&known.used)
        {
            self.uses += 1;
            known.used = self.uses;
            self.by_use.insert(self.uses, name);
        }
    }

    fn remove(&mut self, topic: &str) -> bool {
        let Some(known) = self.topics.remove(topic) else { return false };
        self.by_use.remove(&known.used);
        self.bytes -= topic.len() + known.body.len();
        true
    }
}
