use super::*;

const NOW: EpochMs = 1_800_000_000_000;

fn ask(properties: &[u8]) -> Ask<'_> {
    Ask::of(Properties::new(properties), NOW, &Policy::default())
}

/// What one property of this kind asks for: its due time, or its fault, or neither.
fn due(kind: Kind, value: &str) -> Result<Option<EpochMs>, Fault> {
    let text = format!("A\x01b\x02{}\x01{value}\x02", kind.property());
    match Ask::of(Properties::new(text.as_bytes()), NOW, &Policy::default()) {
        Ask::Later { kind: read, due_ms, .. } => {
            assert_eq!(read, kind);
            Ok(Some(due_ms))
        }
        Ask::Bad { fault, .. } => Err(fault),
        Ask::Past(_) | Ask::Nothing => Ok(None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_in_its_unit() {
    assert_eq!(due(Kind::Level, "3"), Ok(Some(NOW + 10_000)));
    assert_eq!(due(Kind::DelaySec, "5"), Ok(Some(NOW + 5_000)));
    assert_eq!(due(Kind::DelayMs, "5"), Ok(Some(NOW + 5)));
    for kind in [Kind::StartDeliverTime, Kind::DeliverMs] {
        assert_eq!(due(kind, "1800000000001"), Ok(Some(NOW + 1)));
    }
}

#[test]
fn past_zero_and_negative() {
    for kind in [Kind::StartDeliverTime, Kind::DeliverMs] {
        for value in ["1800000000000", "1799999999999", "0", "-1", "-9223372036854775808"] {
            assert_eq!(due(kind, value), Ok(None), "{value}");
        }
        assert_eq!(due(kind, "1800000000003"), Ok(Some(NOW + 3)));
    }
    for kind in [Kind::DelaySec, Kind::DelayMs] {
        assert_eq!(due(kind, "0"), Ok(None));
        assert_eq!(due(kind, "-1"), Err(Fault::Negative));
        assert_eq!(due(kind, "-9223372036854775808"), Err(Fault::Negative));
        assert_eq!(due(kind, "-9223372036854775809"), Err(Fault::TooSmall));
    }
    for value in ["0", "-1", "-2147483648"] {
        assert_eq!(due(Kind::Level, value), Ok(None));
    }
}

#[test]
fn levels_above_the_table_take_its_last() {
    let policy = Policy { delay_levels_ms: vec![1_000, 0, 7_000], ..Policy::default() };
    let at = |value: &'static str| {
        let text = format!("DELAY\x01{value}");
        match Ask::of(Properties::new(text.as_bytes()), NOW, &policy) {
            Ask::Later { due_ms, .. } => Some(due_ms - NOW),
            Ask::Past(Kind::Level) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(at("1"), Some(1_000));
    assert_eq!(at("2"), None, "a level of 0s");
    for above in ["3", "4", "18", "19", "20", "2147483647"] {
        assert_eq!(at(above), Some(7_000), "{above}");
    }
    assert_eq!(due(Kind::Level, "18"), Ok(Some(NOW + 7_200_000)));
    assert_eq!(due(Kind::Level, "19"), Ok(Some(NOW + 7_200_000)));
}

#[test]
fn without_a_table_levels_are_the_brokers() {
    let policy = Policy { delay_levels_ms: Vec::new(), ..Policy::default() };
    let ask = |text: &'static str| Ask::of(Properties::new(text.as_bytes()), NOW, &policy);
    assert_eq!(ask("DELAY\x013\x02TIMER_DELAY_MS\x0150"), Ask::BrokerLevel);
    assert_eq!(ask("DELAY\x010"), Ask::Nothing);
    assert_eq!(
        ask("DELAY\x010\x02TIMER_DELAY_MS\x0150"),
        Ask::Later { kind: Kind::DelayMs, value: b"50", due_ms: NOW + 50 }
    );
}

#[test]
fn a_level_that_is_no_int_is_the_brokers_to_refuse() {
    for value in ["x", "2147483648", "-2147483649", "1.0", " 1", "99999999999999999999"] {
        let text = format!("DELAY\x01{value}\x02__STARTDELIVERTIME\x011800000000001");
        let ask = Ask::of(Properties::new(text.as_bytes()), NOW, &Policy::default());
        assert_eq!(ask, Ask::BadLevel(value.as_bytes()));
    }
}

#[test]
fn the_limit_is_kept_to_the_millisecond_across_32_bits() {
    for max in [
        1_000,
        i64::from(i32::MAX) - 1_000,
        i64::from(i32::MAX) + 1_000,
        i64::from(u32::MAX) + 1_000,
        31_622_400_000,
        316_224_000_000,
    ] {
        let policy = Policy { max_delay_ms: max, ..Policy::default() };
        for delay in [max - 1, max, max + 1] {
            for (kind, value) in [
                (Kind::DelayMs, delay),
                (Kind::DeliverMs, NOW + delay),
                (Kind::StartDeliverTime, NOW + delay),
            ] {
                let text = format!("{}\x01{value}", kind.property());
                let ask = Ask::of(Properties::new(text.as_bytes()), NOW, &policy);
                let (value, due_ms) = (value.to_string(), NOW + delay);
                let value = value.as_bytes();
                let expected = if delay <= max {
                    Ask::Later { kind, value, due_ms }
                } else {
                    Ask::Bad { kind, value, fault: Fault::TooLong(Some(i128::from(delay))) }
                };
                assert_eq!(ask, expected, "{max} {delay}");
            }
        }
    }
}

#[test]
fn huge_delays_do_not_wrap() {
    // Seconds whose product with 1000 wraps around 64 bits to 384 ms.
    let wraps = "18446744073709552";
    for (value, beyond) in [
        ("2147483648", false),
        ("4294967296", false),
        ("9007199254740992", false),
        (wraps, false),
        ("9223372036854775807", false),
        ("9223372036854775808", true),
        ("18446744073709551616", true),
        ("1000000000000000000000000000000", true),
    ] {
        let number: Option<i128> = (!beyond).then(|| value.parse().unwrap());
        let seconds = due(Kind::DelaySec, value);
        assert_eq!(seconds, Err(Fault::TooLong(number.map(|n| n * 1_000))));
        if number.is_none_or(|n| n > 31_622_400_000) {
            assert_eq!(due(Kind::DelayMs, value), Err(Fault::TooLong(number)));
            for kind in [Kind::DeliverMs, Kind::StartDeliverTime] {
                let delay = number.map(|n| n - i128::from(NOW));
                assert_eq!(due(kind, value), Err(Fault::TooLong(delay)), "{value}");
            }
        }
    }
    assert_eq!(due(Kind::DelayMs, "2147483648"), Ok(Some(NOW + (1 << 31))));
    assert_eq!(due(Kind::DelayMs, "4294967296"), Ok(Some(NOW + (1 << 32))));
}

#[test]
fn seconds_in_place_of_milliseconds_are_named() {
    for kind in [Kind::StartDeliverTime, Kind::DeliverMs] {
        assert_eq!(due(kind, "999999999"), Ok(None));
        assert_eq!(due(kind, "1000000000"), Err(Fault::Seconds));
        assert_eq!(due(kind, "10000000000"), Err(Fault::Seconds));
        assert_eq!(due(kind, "10000000001"), Ok(None));
    }
}

#[test]
fn every_value_that_java_would_not_read_is_a_fault() {
    let digits = "9".repeat(65_536);
    for value in [
        " ",
        "5e3",
        "5000L",
        "0x10",
        "1,000",
        "2026-01-01 00:00:00",
        "TIMER_DELAY_MS",
        "50\0",
        "\0",
    ] {
        for kind in Kind::ALL.into_iter().skip(1) {
            assert_eq!(due(kind, value), Err(Fault::NotANumber), "{value:?}");
        }
    }
    for kind in Kind::ALL.into_iter().skip(1) {
        assert_eq!(due(kind, &digits), Err(Fault::TooLong(None)));
        assert_eq!(due(kind, ""), Ok(None), "an empty value is no property");
        let text = [kind.property().as_bytes(), b"\x0150\xff"].concat();
        let fault = Fault::NotANumber;
        let expected = Ask::Bad { kind, value: b"50\xff", fault };
        assert_eq!(ask(&text), expected);
    }
    for value in ["+5000", "\u{ff15}\u{ff10}\u{ff10}\u{ff10}", "00005000"] {
        assert_eq!(due(Kind::DelayMs, value), Ok(Some(NOW + 5_000)), "{value}");
    }
}

#[test]
fn of_several_delays_the_first_kind_counts_in_any_order() {
    let values = ["2", "1800000020000", "30", "40000", "1800000050000"];
    let dues = [5_000, 20_000, 30_000, 40_000, 50_000];
    let all: Vec<_> = Kind::ALL.into_iter().zip(values).zip(dues).collect();
    let entry = |kind: Kind, value: &str| format!("{}\x01{value}\x02", kind.property());
    for (i, ((first, first_value), first_due)) in all.iter().enumerate() {
        for ((second, second_value), _) in &all[i + 1..] {
            let (a, b) = (entry(*first, first_value), entry(*second, second_value));
            for text in [format!("{a}{b}"), format!("{b}{a}")] {
                let Ask::Later { kind, due_ms, .. } = ask(text.as_bytes()) else {
                    panic!("{text:?}");
                };
                assert_eq!((kind, due_ms), (*first, NOW + first_due), "{text:?}");
            }
        }
    }
    let zero_level = ask(b"DELAY\x010\x02TIMER_DELIVER_MS\x011800000000009");
    assert!(matches!(zero_level, Ask::Later { kind: Kind::DeliverMs, .. }));
}

#[test]
fn of_a_name_that_stands_twice_the_last_counts() {
    let Ask::Later { due_ms, .. } = ask(b"TIMER_DELAY_MS\x017\x02A\x01b\x02TIMER_DELAY_MS\x019")
    else {
        panic!();
    };
    assert_eq!(due_ms, NOW + 9);
}

#[test]
fn names_are_whole_and_stand_in_front_of_the_separator() {
    for text in [
        &b""[..],
        b"A\x01DELAY",
        b"XDELAY\x013",
        b"DELAYX\x013",
        b"delay\x013",
        b"DELAY",
        b"DELAY\x01",
        b"\x02\x02A\x01TIMER_DELAY_MS\x015",
    ] {
        assert_eq!(ask(text), Ask::Nothing, "{text:?}");
    }
}

#[test]
fn excerpts_are_short_and_on_one_line() {
    let excerpt = |bytes: &[u8]| Excerpt(bytes).to_string();
    assert_eq!(excerpt(b"5e3"), r#""5e3""#);
    assert_eq!(excerpt(b""), r#""""#);
    assert_eq!(excerpt("a\n\"\0\u{4e2d}".as_bytes()), "\"a\\n\\\"\\0\u{4e2d}\"");
    assert_eq!(excerpt(b"5\xff\xfe!"), r#""5\xff\xfe!""#);
    let long = excerpt(&[b'7'; 65_536]);
    assert_eq!(long, format!("\"{}...\"", "7".repeat(61)));
    let escaped = excerpt(&[0xff; 1_000]);
    assert_eq!(escaped, format!("\"{}...\"", "\\xff".repeat(15)));
}
