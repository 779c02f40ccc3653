//! The decision, in one pure, table-tested place. Rule names P1 to P19 are those of
//! `docs/DESIGN.md`.

use crate::clock::EpochMs;
use crate::config::Policy;
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

/// Judges one send. `arrival_ms` is when its frame was completely read; `master` is whether its
/// listener stands for a master; `oneway` is bit 1 of the flag.
pub fn decide(
    send: &Send<'_>,
    body: &[u8],
    arrival_ms: EpochMs,
    master: bool,
    policy: &Policy,
) -> Decision {
    let _ = (send, body, arrival_ms, master, policy);
    todo!()
}
