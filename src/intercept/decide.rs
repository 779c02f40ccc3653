//! The decision, in one pure, table-tested place. Rule names P1 to P19 are those of
//! `docs/DESIGN.md`.
//!
//! Called by the session for every send that may ask for a delay. Never answers, counts or stores
//! anything itself, and never lets a message pass that would come before its time, except where a
//! rule says so.

use super::delay::{Ask, Excerpt, Fault, Kind};
use crate::clock::EpochMs;
use crate::config::units::Millis;
use crate::config::{BadDelay, Policy};
use crate::metrics::why;
use crate::remoting::batch::Entries;
use crate::remoting::code::response::MESSAGE_ILLEGAL;
use crate::remoting::command::Command;
use crate::remoting::properties::{Properties, name};
use crate::remoting::scan::body_names_a_delay;
use crate::remoting::send::Send;

/// What happens to a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It leaves untouched; `why` is a metric label, `None` for sends that ask for no delay.
    Relay {
        /// Why a send that names a delay is relayed all the same.
        why: Option<&'static str>,
    },
    /// It is held until `due_ms`.
    Hold {
        /// When it may leave.
        due_ms: EpochMs,
        /// The property that asked: a metric label.
        kind: &'static str,
    },
    /// It is answered with an error; a one-way send is dropped.
    Refuse {
        /// Response code.
        code: i32,
        /// Remark: names the kind, the value, the limit and the remedy.
        remark: String,
        /// Metric label.
        why: &'static str,
    },
}

const UNTOUCHED: Decision = Decision::Relay { why: None };

/// Judges one request. `arrival_ms` is when its frame was completely read; `master` is whether its
/// listener stands for a master. Whatever is no send is relayed.
pub fn decide(command: &Command, arrival_ms: EpochMs, master: bool, policy: &Policy) -> Decision {
    let Some(send) = Send::of(&command.header) else {
        return UNTOUCHED;
    };
    let judge = Judge { oneway: command.is_oneway(), policy };
    if send.is_batch() {
        return judge.batch(&send, &command.body, arrival_ms, master);
    }
    let ask = Ask::of(send.properties(), arrival_ms, policy);
    if ask == Ask::Nothing {
        return UNTOUCHED;
    }
    if let Some(why) = never_held(&send, master) {
        return Decision::Relay { why: Some(why) };
    }
    match ask {
        Ask::Later { kind, value, .. } if is_half(send.properties()) => refuse_half(kind, value),
        _ => judge.one(ask),
    }
}

/// P11 and P18: sends that are relayed whatever they ask for.
fn never_held(send: &Send<'_>, master: bool) -> Option<&'static str> {
    const SYSTEM: [&[u8]; 3] = [b"%RETRY%", b"%DLQ%", b"RMQ_SYS_"];
    let topic = send.topic();
    let properties = send.properties();
    let has = |name| properties.get(name).is_some();
    if !master {
        Some(why::SLAVE)
    } else if SYSTEM.iter().any(|prefix| topic.starts_with(prefix)) {
        Some(why::SYSTEM_TOPIC)
    } else if has(name::REPLY_TO_CLIENT) || (has(name::CORRELATION_ID) && has(name::TTL)) {
        Some(why::REQUEST)
    } else {
        None
    }
}

/// As the broker judges: by the property, read like Java's `Boolean.parseBoolean`.
fn is_half(properties: Properties<'_>) -> bool {
    let mark = properties.get(name::TRAN_MSG);
    mark.is_some_and(|mark| mark.eq_ignore_ascii_case(b"true"))
}

struct Judge<'a> {
    oneway: bool,
    policy: &'a Policy,
}

impl Judge<'_> {
    fn one(&self, ask: Ask<'_>) -> Decision {
        let relay = |why| Decision::Relay { why: Some(why) };
        match ask {
            Ask::Nothing => UNTOUCHED,
            Ask::Past(_) => relay(why::PAST),
            Ask::BrokerLevel => relay(why::LEVELS_OFF),
            Ask::BadLevel(value) => {
                tracing::debug!(value = %Excerpt(value), "a DELAY that is no number is relayed");
                relay(why::BAD_LEVEL)
            }
            Ask::Later { kind, due_ms, .. } => Decision::Hold { due_ms, kind: kind.property() },
            Ask::Bad { kind, value, fault } => self.bad(kind, value, fault),
        }
    }

    fn bad(&self, kind: Kind, value: &[u8], fault: Fault) -> Decision {
        // Whoever sends one-way cannot be told. What is readable and ahead would come early, what
        // is not has no time that it could come before.
        let relayed = match (self.policy.bad_delay, fault) {
            (BadDelay::Relay, _) => Some(why::BAD_DELAY),
            (BadDelay::Refuse, Fault::TooLong(_)) => None,
            (BadDelay::Refuse, _) => self.oneway.then_some(why::ONEWAY_UNREADABLE),
        };
        let property = kind.property();
        if let Some(why) = relayed {
            tracing::debug!(property, value = %Excerpt(value), why, "a bad delay is relayed");
            return Decision::Relay { why: Some(why) };
        }
        let limit = Millis(i128::from(self.policy.max_delay_ms));
        let limit = format!("the longest delay is {limit} (--max-delay)");
        let unit = kind.unit();
        let said = format!("{property}={}", Excerpt(value));
        let (why, remark) = match fault {
            Fault::NotANumber => {
                (why::UNREADABLE, format!("{said} is not a whole number of {unit}; {limit}"))
            }
            Fault::TooSmall => {
                (why::UNREADABLE, format!("{said} is below the smallest 64-bit number; {limit}"))
            }
            Fault::Negative => {
                (why::UNREADABLE, format!("{said} is negative; it takes {unit} from now; {limit}"))
            }
            Fault::Seconds => (
                why::SECONDS,
                format!(
                    "{said} is a time in seconds; {property} takes {unit}, 1000 times as much; \
                     {limit}"
                ),
            ),
            Fault::TooLong(Some(delay)) => {
                let delay = Millis(delay);
                (why::OVER_MAX_DELAY, format!("{said} asks for a delay of {delay}; {limit}"))
            }
            Fault::TooLong(None) => {
                (why::OVER_MAX_DELAY, format!("{said} asks for a delay beyond 64 bits; {limit}"))
            }
        };
        refuse(why, remark)
    }

    /// Batches are not held yet: one with a time ahead in it is refused whole, since a stock broker
    /// would ignore the delay and deliver at once.
    fn batch(&self, send: &Send<'_>, body: &[u8], arrival_ms: EpochMs, master: bool) -> Decision {
        let mut malformed = false;
        let mut worst = Ask::of(send.properties(), arrival_ms, self.policy);
        for entry in Entries::new(body) {
            match entry {
                Ok(entry) => {
                    let ask = Ask::of(entry.properties, arrival_ms, self.policy);
                    if gravity(&ask) > gravity(&worst) {
                        worst = ask;
                    }
                }
                Err(_) => malformed = true,
            }
        }
        let hidden = malformed && body_names_a_delay(body);
        if worst == Ask::Nothing && !hidden {
            return UNTOUCHED;
        }
        if let Some(why) = never_held(send, master) {
            return Decision::Relay { why: Some(why) };
        }
        if malformed {
            let remark = "a malformed batch with a delay property in it; nothing of it was stored";
            return refuse(why::BATCH, remark.to_owned());
        }
        let (property, value) = match worst {
            Ask::Later { kind, value, .. } => (kind.property(), value),
            Ask::Bad { kind, value, fault } => match self.bad(kind, value, fault) {
                Decision::Refuse { .. } => (kind.property(), value),
                relayed => return relayed,
            },
            // The broker answers it only where it stands in the header.
            Ask::BadLevel(value) if !self.oneway => (name::DELAY, value),
            other => return self.one(other),
        };
        refuse(
            why::BATCH,
            format!(
                "a batch with a delay in it ({property}={}) cannot be held by this version: send \
                 its messages one by one; nothing of it was stored",
                Excerpt(value)
            ),
        )
    }
}

/// Of several entries of a batch, the one that decides.
fn gravity(ask: &Ask<'_>) -> u8 {
    match ask {
        Ask::Nothing => 0,
        Ask::Past(_) => 1,
        Ask::BrokerLevel => 2,
        Ask::BadLevel(_) => 3,
        Ask::Bad { fault: Fault::TooLong(_), .. } => 5,
        Ask::Bad { .. } => 4,
        Ask::Later { .. } => 6,
    }
}

fn refuse_half(kind: Kind, value: &[u8]) -> Decision {
    refuse(
        why::HALF,
        format!(
            "a transactional message with a delay ({}={}) cannot be held by this version: send it \
             without a delay, or without a transaction",
            kind.property(),
            Excerpt(value)
        ),
    )
}

/// P17: the sender's fault, which no client retries.
fn refuse(why: &'static str, remark: String) -> Decision {
    Decision::Refuse { code: MESSAGE_ILLEGAL, remark, why }
}
