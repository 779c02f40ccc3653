//! A held record becomes the send that delivers it: the counterpart of `intercept::hold`.
//!
//! Pure. What is removed is rule P10: the delay level and the relative delays, which a broker would
//! obey again. Absolute times stay. Nothing else changes. Called by the couriers of
//! [`super::dispatcher`].

use bytes::Bytes;

use crate::remoting::command::Command;
use crate::remoting::frame::SerializeType;
use crate::remoting::properties::{Properties, name};
use crate::remoting::send::SendField;
use crate::remoting::stored::{self, StoredError};
use crate::store::Held;

/// What a broker must not see again.
const REMOVED: [&str; 3] = [name::DELAY, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS];

/// The send that delivers `held`, to `queue` in place of the one asked for when that is given.
///
/// It always wants an answer, also where the producer did not, since a message is complete only
/// when a broker says so. The opaque is the connection's to set.
pub fn command(held: &Held, queue: Option<i32>) -> Result<Command, StoredError> {
    let mut header = stored::decode(&held.hold.header)?;
    let key = |field: SendField| field.key(header.code).as_bytes();
    let (properties_key, queue_key) = (key(SendField::Properties), key(SendField::QueueId));
    if let Some(properties) = header.ext.get(SendField::Properties.key(header.code)) {
        let without = Properties::new(properties).without(&REMOVED);
        if without.len() != properties.len() {
            header
                .ext
                .set(Bytes::from_static(properties_key), without.into());
        }
    }
    if let Some(queue) = queue {
        header
            .ext
            .set(Bytes::from_static(queue_key), queue.to_string().into());
    }
    Ok(Command {
        serialize: SerializeType::Json,
        header,
        body: held.hold.body.clone(),
    })
}
