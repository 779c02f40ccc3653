//! What one message of the load looks like, made from the run's seed and its number alone: the
//! sender, the broker and the ledger need no copy of it.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rocketmq_timer_proxy::clock::EpochMs;
use rocketmq_timer_proxy::remoting::command::Command;

use crate::support::client::{send_v1, send_v2};

/// Longest delay, but for the level and the whole seconds.
const AHEAD_MAX_MS: i64 = 4_000;
const BODY_MAX: usize = 1_500;

/// How a message asks for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    StartDeliverTime,
    TimerDeliverMs,
    TimerDelayMs,
    TimerDelaySec,
    /// Level 1 of the stock table: 1 s.
    Level1,
}

/// One message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    seed: u64,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// Delay asked for.
    ahead_ms: i64,
    /// By our clock, before the send left.
    pub(crate) sent_ms: EpochMs,
}

impl Plan {
    /// Message `number` of a run, sent now.
    pub(crate) fn new(seed: u64, number: u64, now_ms: EpochMs) -> Self {
        let mut dice = dice(seed, number, 0);
        let kind = match dice.random_range(0..100) {
            0..15 => Kind::Plain,
            15..65 => Kind::StartDeliverTime,
            65..75 => Kind::TimerDeliverMs,
            75..90 => Kind::TimerDelayMs,
            90..95 => Kind::TimerDelaySec,
            _ => Kind::Level1,
        };
        let ahead_ms = match kind {
            Kind::Plain => 0,
            Kind::Level1 => 1_000,
            Kind::TimerDelaySec => 1_000 * dice.random_range(1..=3),
            // One in four within what a restart takes.
            _ if dice.random_ratio(1, 4) => dice.random_range(1..=200),
            _ => dice.random_range(1..=AHEAD_MAX_MS),
        };
        Self { seed, number, kind, ahead_ms, sent_ms: now_ms }
    }

    /// Message `number` of a run, sent now, for this very time.
    pub(crate) fn due_at(seed: u64, number: u64, now_ms: EpochMs, due_ms: EpochMs) -> Self {
        let (kind, ahead_ms) = (Kind::StartDeliverTime, due_ms - now_ms);
        Self { seed, number, kind, ahead_ms, sent_ms: now_ms }
    }

    /// The first millisecond at which a broker may see it. A relative delay counts from the arrival
    /// at the proxy, which is no earlier than the send.
    pub(crate) fn due_ms(&self) -> EpochMs {
        self.sent_ms + self.ahead_ms
    }

    pub(crate) fn key(&self) -> String {
        format!("{:016X}{:016X}", self.seed, self.number)
    }

    /// The number in a key of this run.
    pub(crate) fn number_in(seed: u64, key: &str) -> Option<u64> {
        let number = key.strip_prefix(&format!("{seed:016X}"))?;
        u64::from_str_radix(number, 16).ok().filter(|_| number.len() == 16)
    }

    /// The send as it leaves the client.
    pub(crate) fn sent(&self) -> Command {
        self.command(true)
    }

    /// The send as the broker must see it: what is relative to the arrival is gone, nothing else is.
    pub(crate) fn delivered(&self) -> Command {
        let stays =
            matches!(self.kind, Kind::Plain | Kind::StartDeliverTime | Kind::TimerDeliverMs);
        self.command(stays)
    }

    fn command(&self, with_delay: bool) -> Command {
        let mut dice = dice(self.seed, self.number, 1);
        let mut entries = vec![
            format!("UNIQ_KEY\u{1}{}", self.key()),
            "WAIT\u{1}true".to_owned(),
            format!("KEYS\u{1}order-{} é", self.number % 1_000),
            "TAGS\u{1}a||b".to_owned(),
        ];
        let place = dice.random_range(0..=entries.len());
        if let Some(delay) = self.delay().filter(|_| with_delay) {
            entries.insert(place, delay);
        }
        let mut properties = entries.join("\u{2}");
        if dice.random() {
            properties.push('\u{2}');
        }
        let mut body = vec![0; dice.random_range(0..=BODY_MAX)];
        dice.fill_bytes(&mut body);
        let (topic, queue) =
            (["Orders", "Carts"][dice.random_range(0..2)], dice.random_range(0..4));
        match dice.random() {
            true => send_v2(topic, queue, &properties, Bytes::from(body)),
            false => send_v1(topic, queue, &properties, Bytes::from(body)),
        }
    }

    fn delay(&self) -> Option<String> {
        let (name, value) = match self.kind {
            Kind::Plain => return None,
            Kind::StartDeliverTime => ("__STARTDELIVERTIME", self.due_ms()),
            Kind::TimerDeliverMs => ("TIMER_DELIVER_MS", self.due_ms()),
            Kind::TimerDelayMs => ("TIMER_DELAY_MS", self.ahead_ms),
            Kind::TimerDelaySec => ("TIMER_DELAY_SEC", self.ahead_ms / 1_000),
            Kind::Level1 => ("DELAY", 1),
        };
        Some(format!("{name}\u{1}{value}"))
    }
}

/// Random numbers that depend on nothing but these.
fn dice(seed: u64, number: u64, stream: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stream)
}
