//! Cheap looks at a raw header, so that plain traffic is relayed without being parsed.
//!
//! Each answers "certainly not" or "maybe"; a maybe is settled by a full parse. Escapes by which a
//! JSON encoder could hide a name (`\u0044ELAY`) count as maybe.

use super::frame::SerializeType;

/// Whether a header may ask for a delay: a delay property's name is in it.
pub fn may_ask_for_delay(serialize: SerializeType, header: &[u8]) -> bool {
    let _ = (serialize, header);
    todo!()
}

/// Whether a header may be a batch send (code 320, or `m`/`batch` true), whose delay properties
/// would stand in the body.
pub fn may_be_batch(serialize: SerializeType, header: &[u8]) -> bool {
    let _ = (serialize, header);
    todo!()
}

/// Whether a batch body holds the name of a delay property.
pub fn body_names_a_delay(body: &[u8]) -> bool {
    let _ = body;
    todo!()
}
