//! Reads the five delay properties: which one counts, and what time it asks for.
//!
//! The one place that knows them all. Pure: the arrival time is an argument. Numbers are read as Java
//! reads them (see `number`), and no value can make the arithmetic overflow. Called by
//! [`super::decide`].

use std::fmt;
use std::ops::RangeInclusive;

use super::number::{self, Number};
use crate::clock::EpochMs;
use crate::config::Policy;
use crate::remoting::properties::{Properties, name};

/// Values of an absolute property that are seconds since 1970 by mistake (P12): as seconds 2001 to
/// 2286, as milliseconds January to April 1970.
const EPOCH_SECONDS: RangeInclusive<i64> = 1_000_000_000..=10_000_000_000;

/// Characters of a value that a remark or a log shows.
const EXCERPT: usize = 64;

/// A way to ask for a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `DELAY`: a level of the table.
    Level,
    /// `__STARTDELIVERTIME`: absolute, ms.
    StartDeliverTime,
    /// `TIMER_DELAY_SEC`: relative, s.
    DelaySec,
    /// `TIMER_DELAY_MS`: relative, ms.
    DelayMs,
    /// `TIMER_DELIVER_MS`: absolute, ms.
    DeliverMs,
}

impl Kind {
    /// All of them; of several on one message, the first counts (P4).
    pub const ALL: [Self; 5] =
        [Self::Level, Self::StartDeliverTime, Self::DelaySec, Self::DelayMs, Self::DeliverMs];

    /// The property's name; also the label of the metrics.
    pub const fn property(self) -> &'static str {
        match self {
            Self::Level => name::DELAY,
            Self::StartDeliverTime => name::START_DELIVER_TIME,
            Self::DelaySec => name::TIMER_DELAY_SEC,
            Self::DelayMs => name::TIMER_DELAY_MS,
            Self::DeliverMs => name::TIMER_DELIVER_MS,
        }
    }

    /// What the property counts.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Level => "delay levels",
            Self::StartDeliverTime | Self::DeliverMs => "milliseconds since 1970",
            Self::DelaySec => "seconds",
            Self::DelayMs => "milliseconds",
        }
    }
}

/// What a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask<'a> {
    /// No delay: no such property, or only `DELAY` at or below 0 (P6).
    Nothing,
    /// A time that had come when the message arrived (P2).
    Past(Kind),
    /// A level, and levels are the broker's (P14).
    BrokerLevel,
    /// A `DELAY` that is no `int`: the broker refuses it itself (P3).
    BadLevel(&'a [u8]),
    /// A time ahead.
    Later {
        /// The property that counts.
        kind: Kind,
        /// Its value.
        value: &'a [u8],
        /// When the message may leave.
        due_ms: EpochMs,
    },
    /// A time that cannot be kept.
    Bad {
        /// The property that counts.
        kind: Kind,
        /// Its value.
        value: &'a [u8],
        /// What is wrong with it.
        fault: Fault,
    },
}

/// What is wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No number (P3).
    NotANumber,
    /// A number below all of 64 bits, which nobody can have meant (P3).
    TooSmall,
    /// A negative relative delay (P3).
    Negative,
    /// Seconds where milliseconds belong (P12).
    Seconds,
    /// Beyond `--max-delay` (P1): the delay in ms, `None` if it is beyond 64 bits.
    TooLong(Option<i128>),
}

impl<'a> Ask<'a> {
    /// Reads the properties of a message whose frame was complete at `arrival_ms` (P9).
    pub fn of(properties: Properties<'a>, arrival_ms: EpochMs, policy: &Policy) -> Self {
        let mut found = [None; Kind::ALL.len()];
        for (name, value) in properties.iter() {
            let slot = Kind::ALL.iter().zip(&mut found);
            if let Some((_, slot)) =
                slot.into_iter().find(|(kind, _)| kind.property().as_bytes() == name)
            {
                // Of a name that stands twice the last counts, as at the broker.
                *slot = Some(value);
            }
        }
        let mut asks = Kind::ALL.into_iter().zip(found).filter_map(|(kind, value)| {
            let ask = read(kind, value?, arrival_ms, policy);
            (ask != Self::Nothing).then_some((kind, ask))
        });
        let Some((winner, ask)) = asks.next() else {
            return Self::Nothing;
        };
        for (loser, _) in asks {
            let (winner, loser) = (winner.property(), loser.property());
            tracing::debug!(winner, loser, "a message with two delays");
        }
        ask
    }
}

fn read<'a>(kind: Kind, value: &'a [u8], arrival_ms: EpochMs, policy: &Policy) -> Ask<'a> {
    let bad = |fault| Ask::Bad { kind, value, fault };
    if kind == Kind::Level {
        return level(value, arrival_ms, policy);
    }
    let number = match number::long(value) {
        Number::Is(number) => number,
        Number::TooLarge => return bad(Fault::TooLong(None)),
        Number::TooSmall => return bad(Fault::TooSmall),
        Number::Not => return bad(Fault::NotANumber),
    };
    let delay_ms = match kind {
        Kind::StartDeliverTime | Kind::DeliverMs if EPOCH_SECONDS.contains(&number) => {
            return bad(Fault::Seconds);
        }
        Kind::StartDeliverTime | Kind::DeliverMs => i128::from(number) - i128::from(arrival_ms),
        _ if number < 0 => return bad(Fault::Negative),
        Kind::DelaySec => i128::from(number) * 1_000,
        Kind::Level | Kind::DelayMs => i128::from(number),
    };
    if delay_ms <= 0 {
        return Ask::Past(kind);
    }
    if delay_ms > i128::from(policy.max_delay_ms) {
        return bad(Fault::TooLong(Some(delay_ms)));
    }
    match i64::try_from(i128::from(arrival_ms) + delay_ms) {
        Ok(due_ms) => Ask::Later { kind, value, due_ms },
        Err(_) => bad(Fault::TooLong(Some(delay_ms))),
    }
}

fn level<'a>(value: &'a [u8], arrival_ms: EpochMs, policy: &Policy) -> Ask<'a> {
    let Some(level) = number::int(value) else {
        return Ask::BadLevel(value);
    };
    if level <= 0 {
        return Ask::Nothing;
    }
    let table = &policy.delay_levels_ms;
    let place = usize::try_from(level).unwrap_or(usize::MAX) - 1;
    match table.get(place).or(table.last()) {
        None => Ask::BrokerLevel,
        Some(0) => Ask::Past(Kind::Level),
        Some(ms) => Ask::Later { kind: Kind::Level, value, due_ms: arrival_ms.saturating_add(*ms) },
    }
}

/// A value as remarks and logs show it: in quotes, on one line, cut to 64 characters, whatever bytes
/// it holds.
#[derive(Debug, Clone, Copy)]
pub struct Excerpt<'a>(pub &'a [u8]);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        // Each piece is one character or byte of the value; an escape is never cut in half.
        let mut room = EXCERPT - "...".len();
        for chunk in self.0.utf8_chunks() {
            let good = chunk.valid().chars().map(|c| c.escape_debug().to_string());
            let broken = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
            for piece in good.chain(broken) {
                let len = piece.chars().count();
                if len > room {
                    return f.write_str("...\"");
                }
                room -= len;
                f.write_str(&piece)?;
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests;
