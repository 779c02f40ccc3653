use super::*;

use SerializeType::{Json, RocketMq};

/// As captured from a Java 4.9.8 encoder.
const JAVA_SEND: &str = r#"{"code":310,"extFields":{"a":"pg","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1","h":"0","i":"A\u0001b","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":0,"serializeTypeCurrentRPC":"JSON","version":409}"#;
/// As captured from a 4.9.8 broker.
const SEND_REPLY: &str = r#"{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F000001000078BF0000000000000000","queueOffset":"0"},"flag":1,"language":"JAVA","opaque":1001,"serializeTypeCurrentRPC":"JSON","version":409}"#;

fn encoded(header: &Header, serialize: SerializeType) -> Vec<u8> {
    let mut out = Vec::new();
    header.encode(serialize, &mut out);
    out
}

fn ext(pairs: &[(&'static str, &'static str)]) -> ExtFields {
    let mut ext = ExtFields::default();
    for (key, value) in pairs {
        ext.set(Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
    }
    ext
}

#[test]
fn java_s_json_headers_are_read_and_written_byte_for_byte() {
    for text in [JAVA_SEND, SEND_REPLY] {
        let header = Header::decode(Json, text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(encoded(&header, Json)).unwrap(), text);
    }
    let send = Header::decode(Json, JAVA_SEND.as_bytes()).unwrap();
    assert_eq!((send.code, send.version, send.opaque, send.flag), (310, 409, 0, 0));
    assert_eq!((&send.language[..], send.remark), (&b"JAVA"[..], None));
    assert_eq!(send.ext.get("i").unwrap(), &b"A\x01b"[..]);
    assert_eq!(send.ext.get("n").unwrap(), "broker-a");
    assert_eq!(send.ext.get("l"), None);
    assert_eq!(send.ext.len(), 13);
}

#[test]
fn the_binary_form_is_java_s() {
    let reply = Header {
        language: Bytes::from_static(b"JAVA"),
        version: 409,
        opaque: 1001,
        flag: FLAG_RESPONSE,
        ..Header::default()
    };
    let fixed = b"\0\0\0\x01\x99\0\0\x03\xe9\0\0\0\x01\0\0\0\0\0\0\0\0";
    assert_eq!(encoded(&reply, RocketMq), fixed);
    assert_eq!(Header::decode(RocketMq, fixed).unwrap(), reply);

    let request = Header {
        code: 310,
        language: Bytes::from_static(b"GO"),
        version: 317,
        opaque: -2,
        flag: FLAG_ONEWAY,
        remark: Some(Bytes::from_static(b"why")),
        ext: ext(&[("a", "pg"), ("i", "A\u{1}b")]),
    };
    let bytes = b"\x01\x36\x09\x01\x3d\xff\xff\xff\xfe\0\0\0\x02\0\0\0\x03why\0\0\0\x13\
        \0\x01a\0\0\0\x02pg\0\x01i\0\0\0\x03A\x01b";
    assert_eq!(encoded(&request, RocketMq), bytes);
    assert_eq!(Header::decode(RocketMq, bytes).unwrap(), request);
}

#[test]
fn absent_members_have_defaults_and_unknown_ones_are_skipped() {
    assert_eq!(Header::decode(Json, b"{}").unwrap(), Header::default());
    let text = br#"{"new":[{"x":1}],"remark":null,"extFields":null,"code":null,"zone":"z"}"#;
    assert_eq!(Header::decode(Json, text).unwrap(), Header::default());
}

#[test]
fn fastjson_s_habits_are_accepted() {
    let text = br#"{code:'10','language':"RUST\u002dX",version:2147483459,"opaque":-7,flag:0,
        extFields:{queueId:3,unitMode:false,batch:null,"topic":'T\x41',"o":{"p":1}},remark:""}"#;
    let header = Header::decode(Json, text).unwrap();
    assert_eq!((header.code, header.version, header.opaque), (10, 2147483459, -7));
    assert_eq!(header.language, "RUST-X");
    assert_eq!(header.remark.unwrap(), "");
    let expected = [("queueId", "3"), ("unitMode", "false"), ("topic", "TA"), ("o", r#"{"p":1}"#)];
    assert_eq!(header.ext, ext(&expected));
}

#[test]
fn integers_are_what_fastjson_makes_of_them() {
    for (text, code) in [
        ("0320", 320),
        ("+320", 320),
        ("'+320'", 320),
        ("''", 0),
        ("null", 0),
        ("-1", -1),
        // Checked with fastjson 1.2.29, 1.2.69 and 1.2.83: the last one counts, but none does not.
        ("310,code:5", 5),
        ("310,code:null", 310),
        ("310,code:''", 310),
    ] {
        let header = Header::decode(Json, format!("{{code:{text}}}").as_bytes());
        assert_eq!(header.unwrap().code, code, "{text}");
    }
    for text in ["3.0", "3.1e2", "31e1", "'3.0'", "true", "4294967606", "{}"] {
        let header = Header::decode(Json, format!("{{code:{text}}}").as_bytes());
        assert!(header.is_err(), "{text}: {header:?}");
    }
}

#[test]
fn names_that_fastjson_would_take_for_a_member_are_no_guesswork() {
    for name in ["Code", "CODE", "_code", "co-de", "ext_fields", "EXTFIELDS", "ext-Fields", "FLAG"]
    {
        let header = Header::decode(Json, format!("{{\"{name}\":310}}").as_bytes());
        assert!(header.is_err(), "{name}: {header:?}");
    }
    let header = Header::decode(Json, br#"{"codes":1,"c":2,"serializeTypeCurrentRPC":"JSON"}"#);
    assert_eq!(header.unwrap(), Header::default());
    let header = Header::decode(Json, br#"{"code":1,"code":310}"#);
    assert_eq!(header.unwrap().code, 310);
}

#[test]
fn the_last_of_repeated_members_counts() {
    let header =
        |text: &str| Header::decode(Json, format!("{{extFields:{{i:1}},{text}}}").as_bytes());
    assert_eq!(header("extFields:{b:2}").unwrap().ext, ext(&[("b", "2")]));
    assert_eq!(header("extFields:{}").unwrap().ext, ext(&[]));
    assert_eq!(header("extFields:null").unwrap().ext, ext(&[]));
    assert_eq!(header("remark:a,remark:b").unwrap_err().form, "JSON");
    assert_eq!(header("remark:'a',remark:'b'").unwrap().remark.unwrap(), "b");
}

#[test]
fn what_fastjson_may_take_for_a_member_is_unreadable() {
    for name in [
        "Code",
        "CODE",
        "_code",
        "co-de",
        "Opaque",
        "FLAG",
        "Version",
        "Language",
        "re_mark",
        "ext_fields",
        "EXTFIELDS",
        "ext-fields",
        "extfields",
        "extField\u{17f}",
        "\\u0043ode",
        "serialize_type_current_rpc",
        "@type",
        "$ref",
        "$x",
        "",
    ] {
        for text in [format!("{{\"{name}\":1}}"), format!("{{code:1,'{name}':{{\"i\":1}}}}")] {
            let at = if text.starts_with("{code") { 8 } else { 1 };
            let error = Header::decode(Json, text.as_bytes()).unwrap_err();
            assert_eq!(error.why, format!("expected a member's exact name at byte {at}"), "{text}");
        }
    }
    for name in ["codes", "cod", "is_code", "code ", "body", "ext fields"] {
        let text = format!("{{\"{name}\":310}}");
        assert_eq!(Header::decode(Json, text.as_bytes()).unwrap(), Header::default(), "{name}");
    }
}

#[test]
fn numbers_that_are_no_integers_are_unreadable() {
    for member in ["code", "version", "opaque", "flag"] {
        for value in [
            "3.1e2",
            "31e1",
            "3.0",
            "310.7",
            "'310.0'",
            "'3.1e2'",
            "'3,10'",
            "' 310'",
            "true",
            "{}",
            "[310]",
            "'null'",
            "4294967606",
            "310L",
        ] {
            let error = Header::decode(Json, format!("{{{member}:{value}}}").as_bytes());
            assert!(error.unwrap_err().why.starts_with("expected a "), "{member}:{value}");
        }
    }
}

#[test]
fn ext_fields_with_a_meaning_of_their_own_are_unreadable() {
    for field in ["'@type':'java.util.HashMap'", "'$ref':'$'", "$x:1", "'@x':null", "'':1"] {
        let text = format!("{{extFields:{{{field},i:1}}}}");
        let error = Header::decode(Json, text.as_bytes()).unwrap_err();
        assert_eq!(error.why, "expected the name of an ext field at byte 12", "{field}");
    }
    for value in
        [r#"{"$ref":"$.remark"}"#, r#"[{"a":{"\u0024ref":"$"}}]"#, r#"{"@type":"x"}"#, "{'\\q':1}"]
    {
        for text in [format!("{{extFields:{{i:{value}}}}}"), format!("{{other:{value}}}")] {
            let error = Header::decode(Json, text.as_bytes()).unwrap_err();
            assert!(error.why.starts_with("expected a value without references"), "{text}");
        }
    }
}

#[test]
fn a_repeated_key_replaces_in_its_old_place() {
    let header = Header::decode(Json, br#"{"extFields":{"a":"1","b":"2","a":"3"}}"#).unwrap();
    assert_eq!(header.ext, ext(&[("a", "3"), ("b", "2")]));

    let pairs: Vec<String> = (0..100).map(|n| format!("k{n}:{n}")).collect();
    let again: Vec<String> = (0..100).map(|n| format!("k{n}:{}", n * 2)).collect();
    let text = format!("{{extFields:{{{},{}}}}}", pairs.join(","), again.join(","));
    let header = Header::decode(Json, text.as_bytes()).unwrap();
    assert_eq!(header.ext.len(), 100);
    for (n, (key, value)) in header.ext.iter().enumerate() {
        assert_eq!(key, &format!("k{n}"));
        assert_eq!(value, &(n * 2).to_string());
    }
}

#[test]
fn values_that_are_no_utf_8_survive_binary_and_are_replaced_in_json() {
    let mut header = Header::default();
    header.ext.set(Bytes::from_static(b"i"), Bytes::from_static(b"a\xff"));
    let again = Header::decode(RocketMq, &encoded(&header, RocketMq)).unwrap();
    assert_eq!(again.ext, header.ext);
    let json = Header::decode(Json, &encoded(&header, Json)).unwrap();
    assert_eq!(json.ext.get("i").unwrap(), "a\u{fffd}");
    let raw = Header::decode(Json, b"{\"extFields\":{\"i\":\"a\xff\"}}").unwrap();
    assert_eq!(raw.ext.get("i").unwrap(), &b"a\xff"[..]);
}

#[test]
fn languages_keep_their_name_or_their_code() {
    for (name, code, back) in [
        ("JAVA", 0, "JAVA"),
        ("", 0, "JAVA"),
        ("RUST", 12, "RUST"),
        ("NODE_JS", 13, "NODE_JS"),
        ("200", 200, "200"),
        ("COBOL", 7, "OTHER"),
    ] {
        let language = Bytes::from_static(name.as_bytes());
        let bytes = encoded(&Header { language, ..Header::default() }, RocketMq);
        assert_eq!(bytes[2], code, "{name}");
        assert_eq!(Header::decode(RocketMq, &bytes).unwrap().language, back);
    }
}

#[test]
fn the_binary_form_cuts_what_java_cuts() {
    let header = Header { version: 2147483459, code: 200_050, ..Header::default() };
    let cut = Header::decode(RocketMq, &encoded(&header, RocketMq)).unwrap();
    assert_eq!((cut.version, cut.code), (-189, 3442));
}

#[test]
fn unreadable_headers_say_where() {
    let why = |serialize, bytes: &[u8]| Header::decode(serialize, bytes).unwrap_err().to_string();
    assert_eq!(
        why(Json, br#"{"code":4294967296}"#),
        "unreadable JSON header: expected a 32-bit integer at byte 8"
    );
    assert_eq!(why(Json, b""), "unreadable JSON header: expected an object at byte 0");
    assert_eq!(
        why(Json, br#"{"extFields":"x"}"#),
        "unreadable JSON header: expected an object at byte 13"
    );
    assert_eq!(why(RocketMq, b""), "unreadable binary header: code at byte 0 does not fit");
    let ext_at_17 = |tail: &[u8]| [&[0; 17], tail].concat();
    assert_eq!(
        why(RocketMq, &ext_at_17(b"\0\0\0\x05\0\x01a")),
        "unreadable binary header: ext at byte 21 does not fit"
    );
    assert_eq!(
        why(RocketMq, &ext_at_17(b"\0\0\0\x02\xff\xff")),
        "unreadable binary header: ext key at byte 0 does not fit"
    );
    let none = Header::decode(RocketMq, &ext_at_17(b"\xff\xff\xff\xfftail")).unwrap();
    assert!(none.ext.is_empty());
}
