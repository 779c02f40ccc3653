//! The counts behind `/api/v1/stats`, read off the metrics page, so that both always agree.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::text::encode;
use serde::Serialize;

use crate::config::Config;
use crate::metrics::Metrics;

/// What `/api/v1/stats` answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Release of the proxy.
    version: &'static str,
    /// Messages accepted and not yet confirmed by a broker.
    pending: u64,
    /// Of these, those whose time has come.
    overdue: u64,
    /// Of these, those sent and not yet answered.
    in_flight: u64,
    /// Holds acknowledged since the start.
    accepted: u64,
    /// Messages confirmed by brokers since the start.
    delivered: u64,
    /// Sends held since the start, by the property that asked.
    held: BTreeMap<String, u64>,
    /// Sends refused since the start, by reason.
    refused: BTreeMap<String, u64>,
    /// Sends relayed since the start in spite of a delay property, by reason.
    relayed: BTreeMap<String, u64>,
    /// One-way sends dropped since the start, by reason.
    dropped: BTreeMap<String, u64>,
    /// Messages set aside after refusals of their broker.
    parked: u64,
    /// How late messages were, since the start.
    lateness: Lateness,
    /// The effective configuration, by flag.
    config: BTreeMap<&'static str, String>,
}

/// A histogram of seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lateness {
    count: u64,
    /// Median in milliseconds, estimated from the buckets; none without messages.
    p50_ms: Option<f64>,
    /// The same for 99 of 100 messages.
    p99_ms: Option<f64>,
    /// Messages up to each limit, the ones below included.
    buckets: Vec<Bucket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Bucket {
    /// Upper limit in milliseconds; none for the last bucket, which has no limit.
    le_ms: Option<f64>,
    count: u64,
}

impl Stats {
    /// Reads all counts now.
    pub fn read(metrics: &Metrics, config: &Config) -> Result<Self, fmt::Error> {
        let mut page = String::new();
        encode(&mut page, metrics.registry())?;
        let page = Page(&page);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            pending: page.value("store_pending"),
            overdue: page.value("dispatch_overdue"),
            in_flight: page.value("dispatch_in_flight"),
            accepted: page.value("store_accepted_total"),
            delivered: page.value("dispatch_delivered_total"),
            held: page.by_why("intercept_held_total"),
            refused: page.by_why("intercept_refused_total"),
            relayed: page.by_why("intercept_relayed_total"),
            dropped: page.by_why("intercept_dropped_total"),
            parked: page.value("dispatch_parked"),
            lateness: Lateness::of(page.buckets("dispatch_lateness_seconds_bucket")),
            config: config.flags().into_iter().collect(),
        })
    }
}

impl Lateness {
    fn of(buckets: Vec<Bucket>) -> Self {
        Self {
            count: buckets.last().map_or(0, |last| last.count),
            p50_ms: quantile(&buckets, 0.5),
            p99_ms: quantile(&buckets, 0.99),
            buckets,
        }
    }
}

/// Where the share `q` of the messages is reached, by a straight line within its bucket. Beyond the
/// last limit nothing is known, so that limit is the answer.
fn quantile(buckets: &[Bucket], q: f64) -> Option<f64> {
    let total = buckets.last().filter(|last| last.count > 0)?.count;
    let rank = total as f64 * q;
    let (mut low, mut below) = (0.0, 0);
    for bucket in buckets {
        let Some(high) = bucket.le_ms else { break };
        if bucket.count as f64 >= rank {
            let within = (bucket.count - below).max(1) as f64;
            return Some(low + (high - low) * (rank - below as f64) / within);
        }
        (low, below) = (high, bucket.count);
    }
    Some(low)
}

/// A metrics page: lines of `name value` and `name{label="text"} value`.
struct Page<'a>(&'a str);

impl<'a> Page<'a> {
    /// Label text (empty without labels) and value of each line of a family.
    fn lines(&self, family: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.lines().filter_map(move |line| {
            let line = line.strip_prefix("rocketmq_timer_proxy_")?;
            let (name, value) = line.strip_prefix(family)?.rsplit_once(' ')?;
            match name {
                "" => Some(("", value)),
                labels => {
                    let labels = labels.strip_prefix('{')?.strip_suffix('}')?;
                    Some((labels.split('"').nth(1)?, value))
                }
            }
        })
    }

    /// A plain count. A gauge may dip below zero between two updates, which is nothing to show.
    fn value(&self, family: &'a str) -> u64 {
        self.lines(family)
            .find_map(|(_, value)| value.parse::<i64>().ok()?.try_into().ok())
            .unwrap_or(0)
    }

    fn by_why(&self, family: &'a str) -> BTreeMap<String, u64> {
        self.lines(family)
            .filter_map(|(why, value)| Some((why.to_owned(), value.parse().ok()?)))
            .collect()
    }

    fn buckets(&self, family: &'a str) -> Vec<Bucket> {
        self.lines(family)
            .filter_map(|(limit, value)| {
                let seconds = limit.parse::<f64>().ok().filter(|limit| limit.is_finite());
                Some(Bucket {
                    le_ms: seconds.map(|seconds| seconds * 1_000.0),
                    count: value.parse().ok()?,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(le_ms: f64, count: u64) -> Bucket {
        Bucket { le_ms: le_ms.is_finite().then_some(le_ms), count }
    }

    #[test]
    fn quantiles_lie_within_their_buckets() {
        let buckets =
            [bucket(1.0, 50), bucket(2.0, 90), bucket(10.0, 98), bucket(f64::INFINITY, 100)];
        assert_eq!(quantile(&buckets, 0.5), Some(1.0));
        assert_eq!(quantile(&buckets, 0.7), Some(1.5));
        assert_eq!(quantile(&buckets, 0.94), Some(6.0));
        assert_eq!(quantile(&buckets, 0.99), Some(10.0), "beyond the last limit");
        assert_eq!(quantile(&[bucket(1.0, 0), bucket(f64::INFINITY, 0)], 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
    }
}
