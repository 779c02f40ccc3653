use super::*;

/// `=` and `;` stand for the separators.
fn raw(text: &str) -> Vec<u8> {
    text.replace('=', "\u{1}").replace(';', "\u{2}").into_bytes()
}

fn entries(text: &str) -> Vec<(String, String)> {
    let raw = raw(text);
    let own = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Properties::new(&raw).iter().map(|(name, value)| (own(name), own(value))).collect()
}

fn without(text: &str, names: &[&str]) -> String {
    let kept = Properties::new(&raw(text)).without(names);
    String::from_utf8(kept).unwrap().replace('\u{1}', "=").replace('\u{2}', ";")
}

#[test]
fn entries_are_what_a_broker_sees() {
    let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    };
    for (text, expected) in [
        ("", &[][..]),
        ("a=1;b=2", &[("a", "1"), ("b", "2")]),
        ("a=1;b=2;", &[("a", "1"), ("b", "2")]),
        (";;a=1;;b=2;;", &[("a", "1"), ("b", "2")]),
        ("a;=1;b=;=;==;c=3", &[("c", "3")]),
        ("a=\u{1}2", &[("a", "\u{1}2")]),
        ("a=1;a=2", &[("a", "1"), ("a", "2")]),
        (" a = 1 ", &[(" a ", " 1 ")]),
    ] {
        assert_eq!(entries(text), own(expected), "{text}");
    }
}

#[test]
fn the_last_of_two_names_counts() {
    let text = raw("DELAY=1;TIMER_DELAY_SEC=9;DELAY=2;DELAY=;delay=4");
    let properties = Properties::new(&text);
    assert_eq!(properties.get("DELAY"), Some(&b"2"[..]));
    assert_eq!(properties.get("TIMER_DELAY_SEC"), Some(&b"9"[..]));
    assert_eq!(properties.get("TIMER_DELAY"), None);
    assert_eq!(Properties::new(b"").get(""), None);
}

#[test]
fn what_goes_takes_one_separator_with_it() {
    let delay = ["DELAY", "TIMER_DELAY_SEC"];
    for (text, kept) in [
        ("a=1;b=2;", "a=1;b=2;"),
        ("DELAY=1;b=2;", "b=2;"),
        ("a=1;DELAY=1;b=2", "a=1;b=2"),
        ("a=1;DELAY=1", "a=1"),
        ("a=1;DELAY=1;", "a=1;"),
        ("DELAY=1;a=1;TIMER_DELAY_SEC=2;b=2;DELAY=3", "a=1;b=2"),
        ("DELAY=1", ""),
        ("DELAY=1;", ""),
        ("a=1;;DELAY=1", "a=1"),
        ("a=1;;DELAY=1;", "a=1;;"),
        ("a=1;DELAY=1;;b=2", "a=1;;b=2"),
        ("MYDELAY=1;DELAYED=2;a=DELAY", "MYDELAY=1;DELAYED=2;a=DELAY"),
        ("DELAY=;DELAY;a=1", "DELAY=;DELAY;a=1"),
        ("DELAY==;a=1", "a=1"),
    ] {
        assert_eq!(without(text, &delay), kept, "{text}");
    }
}
