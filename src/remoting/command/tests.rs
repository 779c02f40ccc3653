use super::*;

fn frame(bytes: Bytes) -> Frame {
    Frame::whole(bytes).unwrap().unwrap()
}

#[test]
fn a_request_of_ours_is_a_java_4_9_7_client_s() {
    let mut request = Command::request(105, &[("topic", "T")], Bytes::new());
    request.header.opaque = 7;
    let header = r#"{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":407}"#;
    let mut expected = vec![0, 0, 0, 127, 0, 0, 0, 123];
    expected.extend_from_slice(header.as_bytes());
    assert_eq!(request.encode(), expected);
    assert_eq!(Command::decode(&frame(request.encode())).unwrap(), request);
    assert!(!request.is_response() && !request.is_oneway());
}

#[test]
fn an_answer_takes_its_request_s_opaque_and_form() {
    let mut request = Command::request(310, &[], Bytes::from_static(b"body"));
    request.header.opaque = -5;
    request.header.flag = FLAG_ONEWAY;
    request.serialize = SerializeType::RocketMq;
    assert!(request.is_oneway());
    let reply = request.reply(13, Some("no"));
    assert!(reply.is_response() && !reply.is_oneway());
    let expected = b"\0\0\0\x1b\x01\0\0\x17\0\x0d\0\x01\x97\xff\xff\xff\xfb\0\0\0\x01\
        \0\0\0\x02no\0\0\0\0";
    assert_eq!(reply.encode(), &expected[..]);
}

#[test]
fn a_new_opaque_changes_nothing_else() {
    let mut command =
        Command::request(310, &[("b", "T"), ("i", "A\u{1}b\u{2}")], Bytes::from_static(b"\0body"));
    command.header.remark = Some(Bytes::from_static(b""));
    for serialize in [SerializeType::Json, SerializeType::RocketMq] {
        command.serialize = serialize;
        let mut received = Command::decode(&frame(command.encode())).unwrap();
        received.header.opaque = 99;
        let sent = Command::decode(&frame(received.encode())).unwrap();
        assert_eq!(sent.header.opaque, 99);
        assert_eq!(sent.header.ext, command.header.ext);
        assert_eq!(sent.body, command.body);
    }
}

#[test]
fn a_header_that_outgrows_json_is_written_in_the_binary_form() {
    let mut command = Command::request(10, &[], Bytes::new());
    let controls = Bytes::from(vec![1; 3 * 1024 * 1024]);
    command.header.ext.set(Bytes::from_static(b"properties"), controls.clone());
    let frame = frame(command.encode());
    assert_eq!(frame.serialize(), SerializeType::RocketMq);
    let again = Command::decode(&frame).unwrap();
    assert_eq!(again.header.ext.get("properties"), Some(&controls));
}
