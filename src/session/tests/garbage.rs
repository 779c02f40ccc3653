//! What is no frame ends the connection at once, and nobody else's.

use super::*;
use crate::metrics::count;
use crate::session::twin;

#[tokio::test]
async fn foreign_bytes_end_their_connection_only() {
    let rig = Rig::new().await;
    let (mut good, mut goods_broker) = rig.pair().await;
    let proxy_v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\xc0\0\x27\x0f";
    let cases: [(&[u8], &str); 10] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP/1 request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP/2 preface (a gRPC client?)"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "a TLS handshake"),
        (b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n", "a PROXY protocol header"),
        (proxy_v2, "a PROXY protocol header"),
        (&[0; 4], "frame too short"),
        (&[0x7f, 0xff, 0xff, 0xff], "frame too long"),
        (&[0xff; 64], "frame too long"),
        (&[0, 0, 0, 20, 0, 0, 0, 17], "header longer than its frame"),
        (&[0, 0, 0, 20, 9, 0, 0, 16], "unknown serialize type"),
    ];
    for (bytes, guess) in cases {
        let before = count(&rig.metrics.session_rejected, guess);
        let (mut client, mut broker) = rig.pair().await;
        client.write_all(bytes).await.unwrap();
        expect_closed(&mut broker).await;
        expect_closed(&mut client).await;
        let after = count(&rig.metrics.session_rejected, guess);
        assert_eq!(after, before + 1, "{guess}");
    }
    good.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut goods_broker, &plain(1, b"x")).await;
    assert_eq!(rig.budget.used(), 0);
}

#[tokio::test]
async fn garbage_after_good_frames_lets_the_good_ones_through() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    let mut bytes = plain(1, b"x").to_vec();
    bytes.extend(b"GET / HTTP/1.1\r\n");
    client.write_all(&bytes).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
    expect_closed(&mut broker).await;
    expect_closed(&mut client).await;
    let rejected = &rig.metrics.session_rejected;
    assert_eq!(count(rejected, "frame too long"), 1);
}

#[tokio::test]
async fn random_bytes_never_stop_the_listener() {
    let rig = Rig::new().await;
    let mut dice = Dice::new();
    for _ in 0..200 {
        let (mut client, _broker) = rig.pair().await;
        let len = 1 + dice.below(5_000);
        let bytes = dice.bytes(len);
        // The session may have closed before all of it was written.
        drop(client.write_all(&bytes).await);
    }
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
}

#[tokio::test]
async fn announced_bytes_are_not_taken_before_they_come() {
    let rig = Rig::new().await;
    let mut open = vec![];
    for _ in 0..50 {
        let (mut client, broker) = rig.pair().await;
        // A header of 16 MiB, of which nothing follows yet: paid for, not allocated.
        client.write_all(&[0, 0xff, 0xff, 0xf0, 0, 0xff, 0xff, 0]).await.unwrap();
        open.push((client, broker));
    }
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
}

#[tokio::test]
async fn silent_connections_are_no_trouble() {
    let rig = Rig::new().await;
    let mut silent = vec![];
    for _ in 0..200 {
        silent.push(rig.pair().await);
    }
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
    assert_eq!(rig.metrics.session_open.get(), 201);
    drop(silent);
}

#[tokio::test]
async fn connections_beyond_the_cap_are_closed() {
    let one = Setup { connections: 1, ..Setup::default() };
    let rig = Rig::with(one).await;
    let (mut first, mut broker) = rig.pair().await;
    let mut second = TcpStream::connect(rig.address).await.unwrap();
    expect_closed(&mut second).await;
    first.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
}

#[tokio::test]
async fn an_idle_session_is_small() {
    let rig = Rig::new().await;
    let (client, _broker) = rig.pair().await;
    let peer = client.peer_addr().unwrap();
    let door = Arc::new(rig.door.clone());
    let session = twin::serve(client, peer, door, Arc::clone(&rig.shared));
    let size = size_of_val(&session);
    assert!(size <= 4096, "{size} bytes for each idle client");
}

/// Each would be relayed, and delivered at once, or held as something else than the broker reads.
#[tokio::test]
async fn a_header_that_names_a_delay_is_understood_exactly_or_ends_the_connection() {
    let ext = r#"{"a":"g","b":"T","e":"0","i":"DELAY\u00012\u0002"}"#;
    let mut rig = Rig::new().await;
    let mut headers: Vec<String> = ["Code", "CODE", "_code", "co-de"]
        .map(|code| format!(r#"{{"{code}":310,"extFields":{ext}}}"#))
        .into();
    headers.extend(
        ["ext_fields", "EXTFIELDS", "ext-fields", "extField\u{17f}"]
            .map(|fields| format!(r#"{{"code":310,"{fields}":{ext}}}"#)),
    );
    headers.extend(
        ["3.1e2", "310.0", "\"310.0\"", "\"3,10\"", "4294967606", "310L"]
            .map(|code| format!(r#"{{"code":{code},"extFields":{ext}}}"#)),
    );
    headers.extend(["@type", "@x", "$ref", "$x", ""].map(|key| {
        let ext = ext.replacen('{', &format!(r#"{{"{key}":"java.util.HashMap","#), 1);
        format!(r#"{{"code":310,"extFields":{ext}}}"#)
    }));
    headers.push(format!(r#"{{"@type":"x","code":310,"extFields":{ext}}}"#));
    headers.push(
        r#"{"remark":"DELAY\u00012\u0002","code":310,"extFields":{"i":{"$ref":"$.remark"}}}"#
            .into(),
    );
    for (n, header) in (1..).zip(&headers) {
        let (mut client, mut broker) = rig.pair().await;
        let mut bytes = plain(1, b"before").to_vec();
        bytes.extend(raw(0, header.as_bytes(), b"early"));
        client.write_all(&bytes).await.unwrap();
        expect(&mut broker, &plain(1, b"before")).await;
        soon(header, expect_closed(&mut broker)).await;
        soon(header, expect_closed(&mut client)).await;
        let rejected = &rig.metrics.session_rejected;
        assert_eq!(count(rejected, "unreadable delayed send"), n, "{header}");
    }
    assert!(rig.holds.try_recv().is_err());
    assert_eq!(rig.budget.used(), 0);
}

#[tokio::test]
async fn of_repeated_members_the_one_that_fastjson_takes_decides() {
    let ext = r#"{"a":"g","b":"T","e":"0","i":"DELAY\u00012\u0002"}"#;
    let mut rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    for members in [
        format!(r#""code":5,"extFields":{{}},"code":310,"extFields":{ext}"#),
        format!(r#""code":310,"extFields":{ext},"code":null"#),
        format!(r#""code":310,"extFields":{ext},"code":"""#),
    ] {
        client.write_all(&raw(0, format!("{{{members}}}").as_bytes(), b"x")).await.unwrap();
        let (_, receipt) = rig.hold().await;
        drop(receipt);
    }
    for members in [
        format!(r#""code":310,"extFields":{ext},"extFields":null"#),
        format!(r#""code":310,"extFields":{ext},"code":5"#),
    ] {
        let frame = raw(0, format!("{{{members}}}").as_bytes(), b"x");
        client.write_all(&frame).await.unwrap();
        expect(&mut broker, &frame).await;
    }
}
