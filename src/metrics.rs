//! Every metric family of the process, in one place. Names: `rocketmq_timer_proxy_<layer>_<noun>_<unit>`.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// One label: why, which kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Why {
    /// The reason or kind, from a small fixed set.
    pub why: &'static str,
}

/// A family of counters by reason.
pub type ByWhy = Family<Why, Counter>;

/// Why sends with a delay are relayed or refused: labels of the metrics.
pub mod why {
    /// P2: the time had come on arrival.
    pub const PAST: &str = "past";
    /// P3: `DELAY` is no number, which the broker answers.
    pub const BAD_LEVEL: &str = "bad_level";
    /// P14: levels are the broker's.
    pub const LEVELS_OFF: &str = "levels_off";
    /// P11: topics of the brokers' own traffic.
    pub const SYSTEM_TOPIC: &str = "system_topic";
    /// P11: a request whose sender waits for the reply.
    pub const REQUEST: &str = "request";
    /// P18: the listener stands for a slave.
    pub const SLAVE: &str = "slave";
    /// P1, P3, P12 under `--bad-delay relay`.
    pub const BAD_DELAY: &str = "bad_delay";
    /// P3: one-way, so that nobody can be told.
    pub const ONEWAY_UNREADABLE: &str = "oneway_unreadable";
    /// P1.
    pub const OVER_MAX_DELAY: &str = "over_max_delay";
    /// P3.
    pub const UNREADABLE: &str = "unreadable";
    /// P12.
    pub const SECONDS: &str = "seconds";
    /// A batch with a delay in it, which cannot be held yet.
    pub const BATCH: &str = "batch";
    /// A half message with a delay, which cannot be held yet.
    pub const HALF: &str = "half";

    /// Properties by which sends are held.
    pub const HELD: [&str; 5] =
        ["DELAY", "__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];
    /// All reasons to refuse, and to drop what is one-way.
    pub const REFUSED: [&str; 5] = [OVER_MAX_DELAY, UNREADABLE, SECONDS, BATCH, HALF];
    /// All reasons to relay.
    pub const RELAYED: [&str; 8] =
        [PAST, BAD_LEVEL, LEVELS_OFF, SYSTEM_TOPIC, REQUEST, SLAVE, BAD_DELAY, ONEWAY_UNREADABLE];
}

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
    /// Route queries answered with what was last known, since no name server answered.
    pub namesrv_last_known: Counter,
    registry: Arc<Registry>,
}

impl Metrics {
    /// All families, registered once.
    pub fn new() -> Self {
        let mut families = Families(Registry::with_prefix("rocketmq_timer_proxy"));
        let f = &mut families;
        Self {
            session_opened: f.add("session_opened", "Client connections accepted"),
            session_open: f.add("session_open", "Client connections open"),
            session_rejected: f.add("session_rejected", "Connections closed for what they sent"),
            intercept_held: f.with("intercept_held", "Sends held", from_zero(&why::HELD)),
            intercept_refused: f.with(
                "intercept_refused",
                "Sends refused",
                from_zero(&why::REFUSED),
            ),
            intercept_relayed: f.with(
                "intercept_relayed",
                "Sends relayed in spite of a delay property",
                from_zero(&why::RELAYED),
            ),
            intercept_dropped: f.with(
                "intercept_dropped",
                "One-way sends that could not be held",
                from_zero(&why::REFUSED),
            ),
            store_accepted: f.add("store_accepted", "Holds acknowledged"),
            store_pending: f.add("store_pending", "Messages pending"),
            store_commit_records: f.with("store_commit_records", "Records per commit", records()),
            store_sync_seconds: f.with("store_sync_seconds", "Seconds per sync", seconds()),
            store_poisoned: f.add("store_poisoned", "1 once a sync failed"),
            store_damaged: f.add("store_damaged", "Damaged records found"),
            store_segments: f.add("store_segments", "Live segments"),
            dispatch_delivered: f.add("dispatch_delivered", "Messages delivered"),
            dispatch_stored_less: f
                .add("dispatch_stored_less", "Delivered with codes 10, 11 or 12"),
            dispatch_retries: f.add("dispatch_retries", "Tries that failed"),
            dispatch_overdue: f.add("dispatch_overdue", "Messages due, unconfirmed"),
            dispatch_in_flight: f.add("dispatch_in_flight", "Sends under way"),
            dispatch_parked: f.add("dispatch_parked", "Messages parked"),
            dispatch_lateness_seconds: f.with(
                "dispatch_lateness_seconds",
                "Seconds from due to sent",
                seconds(),
            ),
            upstream_late_answers: f.add("upstream_late_answers", "Answers nobody waits for"),
            upstream_failovers: f.add("upstream_failovers", "Moves to another name server"),
            namesrv_last_known: f.add("namesrv_last_known", "Routes served as last known"),
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

/// A family that shows each of these reasons from the start: a counter that appears with its first
/// count is one whose first count no rate sees.
fn from_zero(reasons: &[&'static str]) -> ByWhy {
    let family = ByWhy::default();
    for why in reasons {
        drop(family.get_or_create(&Why { why }));
    }
    family
}

fn seconds() -> Histogram {
    Histogram::new([
        0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
        60.0, 600.0,
    ])
}

fn records() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0])
}

struct Families(Registry);

impl Families {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.with(name, help, M::default())
    }

    fn with<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

/// Reads a counter family's value in tests and statistics.
pub fn count(family: &ByWhy, why: &'static str) -> u64 {
    family.get_or_create(&Why { why }).get()
}
