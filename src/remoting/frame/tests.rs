use super::*;

/// A frame of the given parts.
fn frame(serialize: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(4 + header.len() as u32 + body.len() as u32).to_be_bytes());
    bytes.push(serialize);
    bytes.extend_from_slice(&(header.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn a_frame_is_taken_apart() {
    let bytes = frame(0, b"{}", b"abc");
    assert_eq!(bytes[..10], *b"\0\0\0\x09\0\0\0\x02{}");
    let mut buffer = BytesMut::from(&bytes[..]);
    buffer.extend_from_slice(b"next");
    let taken = Frame::take(&mut buffer).unwrap().unwrap();
    assert_eq!(taken.serialize(), SerializeType::Json);
    assert_eq!(taken.header(), b"{}");
    assert_eq!(taken.shared_header(), &b"{}"[..]);
    assert_eq!(taken.body(), &b"abc"[..]);
    assert_eq!(taken.bytes(), &bytes[..]);
    assert_eq!(&buffer[..], b"next");
}

#[test]
fn header_and_body_may_be_empty() {
    let mut buffer = BytesMut::from(&frame(1, b"", b"")[..]);
    let taken = Frame::take(&mut buffer).unwrap().unwrap();
    assert_eq!(taken.serialize(), SerializeType::RocketMq);
    assert_eq!((taken.header(), taken.body().len()), (&b""[..], 0));
    assert!(buffer.is_empty());
}

#[test]
fn an_incomplete_frame_leaves_the_buffer_untouched() {
    let bytes = frame(0, b"{\"code\":1}", b"body");
    for end in 0..bytes.len() {
        let mut buffer = BytesMut::from(&bytes[..end]);
        assert_eq!(Frame::take(&mut buffer), Ok(None), "{end} bytes");
        assert_eq!(buffer, bytes[..end]);
    }
}

#[test]
fn only_exactly_one_frame_is_whole() {
    let bytes = frame(0, b"{}", b"abc");
    let whole = Frame::whole(Bytes::from(bytes.clone())).unwrap().unwrap();
    assert_eq!(whole.body(), &b"abc"[..]);
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(Frame::whole(Bytes::from(longer)), Ok(None));
    assert_eq!(Frame::whole(Bytes::copy_from_slice(&bytes[..bytes.len() - 1])), Ok(None));
}

#[test]
fn lengths_out_of_bounds_are_refused_from_four_bytes() {
    for length in [16_777_213, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let refused = Prefix::parse(&length.to_be_bytes());
        assert_eq!(refused, Err(FrameError::TooLong(length)));
    }
    for length in 0..4u32 {
        let refused = Prefix::parse(&length.to_be_bytes());
        assert_eq!(refused, Err(FrameError::TooShort(length)));
    }
}

#[test]
fn the_largest_legal_frame_is_netty_s_16_mib() {
    let prefix = Prefix::parse(b"\x00\xff\xff\xfc\x00\x00\x00\x02").unwrap().unwrap();
    assert_eq!(prefix.frame_len(), 16 * 1024 * 1024);
    assert_eq!(prefix.to_bytes(), Some(*b"\x00\xff\xff\xfc\x00\x00\x00\x02"));
    let larger = Prefix { body_len: prefix.body_len + 1, ..prefix };
    assert_eq!(larger.to_bytes(), None);
    let header_over_24_bits =
        Prefix { serialize: SerializeType::Json, header_len: MAX_HEADER_LEN + 1, body_len: 0 };
    assert_eq!(header_over_24_bits.to_bytes(), None);
}

#[test]
fn headers_longer_than_their_frame_and_unknown_types_are_refused() {
    assert_eq!(
        Prefix::parse(b"\0\0\0\x06\0\0\0\x03"),
        Err(FrameError::HeaderTooLong { header: 3, room: 2 })
    );
    assert_eq!(Prefix::parse(b"\0\0\0\x06\x02\0\0\x02"), Err(FrameError::SerializeType(2)));
}

#[test]
fn foreign_protocols_are_named_by_their_first_bytes() {
    let guesses: [(&[u8], &str); 9] = [
        (b"GET / HTTP/1.1\r\n", "an HTTP/1 request"),
        (b"POST", "an HTTP/1 request"),
        (b"OPTIONS * HTTP/1.1", "an HTTP/1 request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP/2 preface (a gRPC client?)"),
        (b"PRI ", "an HTTP/2 preface (a gRPC client?)"),
        (b"\x16\x03\x01\x02", "a TLS handshake"),
        (b"\x16", "a TLS handshake"),
        (b"PROXY TCP4 10.0.0.1", "a PROXY protocol header"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11", "a PROXY protocol header"),
    ];
    for (first, what) in guesses {
        assert_eq!(foreign_protocol(first), Some(what), "{first:?}");
        if first.len() >= 4 {
            assert!(matches!(Prefix::parse(first), Err(FrameError::TooLong(_))));
        }
    }
    for ours in [&b""[..], b"\0\0\0\x06\0\0\0\x02{}", b"GE", b"PRIVATE", b"\r\n\r\r"] {
        assert_eq!(foreign_protocol(ours), None, "{ours:?}");
    }
}
