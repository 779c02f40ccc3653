//! Every metric family of the process, in one place. Names: `rocketmq_timer_proxy_<layer>_<noun>_<unit>`.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// One label: why, which kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Why {
    /// The reason or kind, from a small fixed set.
    pub why: &'static str,
}

/// A family of counters by reason.
pub type ByWhy = Family<Why, Counter>;

/// Handles to all families; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Client connections accepted on broker listeners.
    pub session_opened: Counter,
    /// Client connections open now.
    pub session_open: Gauge,
    /// Connections closed for what they sent, by guess.
    pub session_rejected: ByWhy,
    /// Sends held, by the property that asked.
    pub intercept_held: ByWhy,
    /// Sends refused, by policy.
    pub intercept_refused: ByWhy,
    /// Sends with a delay property that were relayed all the same, by policy.
    pub intercept_relayed: ByWhy,
    /// One-way sends dropped because they could not be held.
    pub intercept_dropped: ByWhy,
    /// Holds acknowledged.
    pub store_accepted: Counter,
    /// Messages pending: accepted and not yet confirmed by a broker.
    pub store_pending: Gauge,
    /// Records per commit.
    pub store_commit_records: Histogram,
    /// Seconds per sync.
    pub store_sync_seconds: Histogram,
    /// 1 once a write or sync failed.
    pub store_poisoned: Gauge,
    /// Damaged records found.
    pub store_damaged: Counter,
    /// Live segments.
    pub store_segments: Gauge,
    /// Messages a broker has confirmed.
    pub dispatch_delivered: Counter,
    /// Of these, confirmed with a lesser guarantee (codes 10, 11, 12), by code.
    pub dispatch_stored_less: ByWhy,
    /// Tries that failed and are repeated, by reason.
    pub dispatch_retries: ByWhy,
    /// Messages due and not yet confirmed.
    pub dispatch_overdue: Gauge,
    /// Sends without an answer yet.
    pub dispatch_in_flight: Gauge,
    /// Messages parked after refusals.
    pub dispatch_parked: Gauge,
    /// Seconds from the due time to the confirmed send being written.
    pub dispatch_lateness_seconds: Histogram,
    /// Answers that came after their request was given up, or that nobody asked for.
    pub upstream_late_answers: Counter,
    /// Name-server requests that moved on to another name server.
    pub upstream_failovers: Counter,
    registry: Arc<Registry>,
}

impl Metrics {
    /// All families, registered once.
    pub fn new() -> Self {
        let mut families = Families(Registry::with_prefix("rocketmq_timer_proxy"));
        let seconds = || {
            Histogram::new([
                0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
                5.0, 10.0, 60.0, 600.0,
            ])
        };
        let f = &mut families;
        Self {
            session_opened: f.add(
                "session_opened",
                "Client connections accepted",
                Counter::default(),
            ),
            session_open: f.add("session_open", "Client connections open", Gauge::default()),
            session_rejected: f.add(
                "session_rejected",
                "Connections closed for what they sent",
                ByWhy::default(),
            ),
            intercept_held: f.add("intercept_held", "Sends held", ByWhy::default()),
            intercept_refused: f.add("intercept_refused", "Sends refused", ByWhy::default()),
            intercept_relayed: f.add(
                "intercept_relayed",
                "Sends relayed in spite of a delay property",
                ByWhy::default(),
            ),
            intercept_dropped: f.add(
                "intercept_dropped",
                "One-way sends that could not be held",
                ByWhy::default(),
            ),
            store_accepted: f.add("store_accepted", "Holds acknowledged", Counter::default()),
            store_pending: f.add("store_pending", "Messages pending", Gauge::default()),
            store_commit_records: f.add(
                "store_commit_records",
                "Records per commit",
                Histogram::new([
                    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0,
                ]),
            ),
            store_sync_seconds: f.add("store_sync_seconds", "Seconds per sync", seconds()),
            store_poisoned: f.add("store_poisoned", "1 once a sync failed", Gauge::default()),
            store_damaged: f.add("store_damaged", "Damaged records found", Counter::default()),
            store_segments: f.add("store_segments", "Live segments", Gauge::default()),
            dispatch_delivered: f.add(
                "dispatch_delivered",
                "Messages delivered",
                Counter::default(),
            ),
            dispatch_stored_less: f.add(
                "dispatch_stored_less",
                "Delivered with codes 10, 11 or 12",
                ByWhy::default(),
            ),
            dispatch_retries: f.add("dispatch_retries", "Tries that failed", ByWhy::default()),
            dispatch_overdue: f.add(
                "dispatch_overdue",
                "Messages due, unconfirmed",
                Gauge::default(),
            ),
            dispatch_in_flight: f.add("dispatch_in_flight", "Sends under way", Gauge::default()),
            dispatch_parked: f.add("dispatch_parked", "Messages parked", Gauge::default()),
            dispatch_lateness_seconds: f.add(
                "dispatch_lateness_seconds",
                "Seconds from due to sent",
                seconds(),
            ),
            upstream_late_answers: f.add(
                "upstream_late_answers",
                "Answers nobody waits for",
                Counter::default(),
            ),
            upstream_failovers: f.add(
                "upstream_failovers",
                "Moves to another name server",
                Counter::default(),
            ),
            registry: Arc::new(families.0),
        }
    }

    /// The registry, for the metrics page.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

struct Families(Registry);

impl Families {
    fn add<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: prometheus_client::registry::Metric + Clone,
    {
        self.0.register(name, help, metric.clone());
        metric
    }
}

/// Reads a counter family's value in tests and statistics.
pub fn count(family: &ByWhy, why: &'static str) -> u64 {
    family.get_or_create(&Why { why }).get()
}
