use super::*;

use SerializeType::{Json, RocketMq};

/// A plain send as Java 4.9.x writes it.
const PLAIN: &str = r#"{"code":310,"extFields":{"a":"pg","b":"ORDER_DELAY","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000320","h":"0","i":"UNIQ_KEY\u00017F000001000078BF0000000000000000\u0002WAIT\u0001true\u0002KEYS\u0001\"DEL\" true \u4e2d","j":"0","k":"true","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":3200,"serializeTypeCurrentRPC":"JSON","version":409}"#;

fn plain_with(from: &str, to: &str) -> String {
    assert!(PLAIN.contains(from));
    PLAIN.replace(from, to)
}

#[test]
fn a_plain_java_send_is_neither() {
    assert!(!may_ask_for_delay(Json, PLAIN.as_bytes()));
    assert!(!may_be_batch(Json, PLAIN.as_bytes()));
}

#[test]
fn each_delay_property_is_seen_in_either_form() {
    use super::super::properties::name;
    for name in [
        name::START_DELIVER_TIME,
        name::DELAY,
        name::TIMER_DELIVER_MS,
        name::TIMER_DELAY_SEC,
        name::TIMER_DELAY_MS,
    ] {
        for end in ["\\u00015", "\u{1}5", "\\15", "\\x015"] {
            let header = plain_with("KEYS\\u0001", &format!("{name}{end}\\u0002KEYS\\u0001"));
            assert!(may_ask_for_delay(Json, header.as_bytes()), "{header}");
        }
        let binary = format!("\0\u{1}i\0\0\0\u{9}{name}\u{1}5");
        assert!(may_ask_for_delay(RocketMq, binary.as_bytes()), "{name}");
        assert!(body_names_a_delay(binary.as_bytes()), "{name}");
    }
    for other in ["DELAYS\u{1}5", "DELAY_\u{1}5", "DELIVER\u{1}5", "DELAY\u{2}", "DELAY\\u0001"] {
        assert!(!may_ask_for_delay(RocketMq, other.as_bytes()), "{other}");
        assert!(!body_names_a_delay(other.as_bytes()), "{other}");
    }
}

#[test]
fn names_hidden_by_escapes_are_a_maybe() {
    for hidden in [
        r"\u0044ELAY\u00015",
        r"D\u0045LAY\u00015",
        r"\x44ELAY\u00015",
        r"DEL\u+041Y\u00015",
        r"\\\u0044ELAY\u00015",
        r"TIMER\u005fDELAY_MS\u00015",
    ] {
        let header = plain_with("KEYS\\u0001", hidden);
        assert!(may_ask_for_delay(Json, header.as_bytes()), "{hidden}");
        assert!(may_be_batch(Json, header.as_bytes()), "{hidden}");
    }
}

#[test]
fn batches_are_seen_however_they_are_written() {
    for (from, to) in [
        ("\"code\":310", "\"code\":320"),
        ("\"code\":310", "'code' : '320'"),
        ("\"code\":310", "code:\t+0320"),
        ("\"code\":310", r#""code":"\u0033\u0032\u0030""#),
        ("\"m\":\"false\"", "\"m\":\"true\""),
        ("\"m\":\"false\"", "m : TRUE"),
        ("\"m\":\"false\"", "'m':'True'"),
        ("\"m\":\"false\"", "\"batch\":true"),
        ("\"m\":\"false\"", r#""m":"tr\u0075e""#),
        ("\"m\":\"false\"", "m:/**/true"),
        ("\"m\":\"false\"", "m /**/:true"),
    ] {
        let header = plain_with(from, to);
        assert!(may_be_batch(Json, header.as_bytes()), "{to}");
    }
    for header in [
        &b"\x01\x40\0"[..],
        b"\x01\x36\0\0\x01m\0\0\0\x04true",
        b"\x01\x36\0\0\x01m\0\0\0\x04TRUE",
        b"\0\x0a\0\0\x05batch\0\0\0\x04true",
    ] {
        assert!(may_be_batch(RocketMq, header), "{header:?}");
    }
    for header in
        [&b"\x01\x36\0\0\x01m\0\0\0\x05false"[..], b"\x01\x36\0\0\x01k\0\0\0\x04true", b""]
    {
        assert!(!may_be_batch(RocketMq, header), "{header:?}");
    }
}
