//! A frame under another opaque (and, for rewritten answers, with another body), every other byte
//! kept.
//!
//! Called for what the name-server facade relays; never on broker traffic, whose opaques stay.

use std::ops::Range;

use bytes::Bytes;

use crate::remoting::frame::{Frame, PREFIX_LEN, Prefix, SerializeType};
use crate::remoting::json::{JsonError, Reader};

/// Where the opaque stands in a binary header: after code, language and version.
const BINARY_OPAQUE: Range<usize> = 5..9;

/// The bytes of `frame` with this opaque and, if given, this body. `None` when the header has no
/// opaque to replace, or when the result does not fit into a frame.
pub fn readdressed(frame: &Frame, opaque: i32, body: Option<&[u8]>) -> Option<Bytes> {
    let header = frame.header();
    let (place, digits);
    let written: &[u8] = match frame.serialize() {
        SerializeType::RocketMq => {
            place = BINARY_OPAQUE;
            &opaque.to_be_bytes()
        }
        SerializeType::Json => {
            place = json_opaque(header)?;
            digits = opaque.to_string();
            digits.as_bytes()
        }
    };
    let (before, after) = (header.get(..place.start)?, header.get(place.end..)?);
    let old_body = frame.body();
    let body = body.unwrap_or(&old_body);
    let prefix = Prefix {
        serialize: frame.serialize(),
        header_len: before.len() + written.len() + after.len(),
        body_len: body.len(),
    };
    let mut out = Vec::with_capacity(PREFIX_LEN + prefix.header_len + body.len());
    out.extend_from_slice(&prefix.to_bytes()?);
    for part in [before, written, after, body] {
        out.extend_from_slice(part);
    }
    Some(Bytes::from(out))
}

/// Where the digits of the opaque stand; of a member that stands twice the last, as it is read.
fn json_opaque(header: &[u8]) -> Option<Range<usize>> {
    let mut place = None;
    let read = Reader::new(header).object(|reader, key| -> Result<(), JsonError> {
        if key.bytes()?.as_ref() == b"opaque" {
            place = reader.text()?.map(|text| text.inner());
            return Ok(());
        }
        reader.skip()
    });
    read.ok().and(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::command::Command;

    fn frame(serialize: SerializeType, header: &[u8], body: &[u8]) -> Frame {
        let prefix = Prefix { serialize, header_len: header.len(), body_len: body.len() };
        let mut bytes = prefix.to_bytes().unwrap().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(body);
        Frame::whole(Bytes::from(bytes)).unwrap().unwrap()
    }

    fn header_after(header: &str, opaque: i32) -> Option<String> {
        let bytes =
            readdressed(&frame(SerializeType::Json, header.as_bytes(), b"body"), opaque, None)?;
        let frame = Frame::whole(bytes).unwrap().unwrap();
        assert_eq!(frame.body(), "body");
        Some(String::from_utf8(frame.header().to_vec()).unwrap())
    }

    #[test]
    fn only_the_opaque_changes_in_json() {
        let cases = [
            (
                r#"{"code":105, "odd":[1,{"opaque":5}],"extFields":{"opaque":"9"},"opaque":7 ,"x":"é"}"#,
                r#"{"code":105, "odd":[1,{"opaque":5}],"extFields":{"opaque":"9"},"opaque":-12 ,"x":"é"}"#,
            ),
            ("{'opaque':'7',code:105}", "{'opaque':'-12',code:105}"),
            (r#"{"opaque":1,"opaque":2147483647}"#, r#"{"opaque":1,"opaque":-12}"#),
        ];
        for (before, after) in cases {
            assert_eq!(header_after(before, -12).as_deref(), Some(after));
        }
        assert_eq!(header_after(r#"{"code":105}"#, 1), None);
        assert_eq!(header_after(r#"{"opaque":null}"#, 1), None);
    }

    #[test]
    fn only_the_opaque_changes_in_binary() {
        let mut command = Command::request(105, &[("topic", "T")], Bytes::from_static(b"b"));
        command.serialize = SerializeType::RocketMq;
        command.header.opaque = 77;
        let frame = Frame::whole(command.encode()).unwrap().unwrap();
        command.header.opaque = -2;
        assert_eq!(readdressed(&frame, -2, None), Some(command.encode()));
        command.body = Bytes::from_static(b"longer");
        let other = readdressed(&frame, -2, Some(b"longer"));
        assert_eq!(other, Some(command.encode()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let small = frame(SerializeType::Json, br#"{"opaque":7}"#, b"");
        let body = vec![0; 16 * 1024 * 1024];
        assert_eq!(readdressed(&small, 1, Some(&body)), None);
    }
}
