use super::*;

fn members(text: &str) -> Result<Vec<(String, Option<String>)>, JsonError> {
    let own = |text: Text| Ok(String::from_utf8(text.bytes()?.into_owned()).unwrap());
    let mut found = Vec::new();
    let mut reader = Reader::new(text.as_bytes());
    reader.object(|reader, key| {
        found.push((own(key)?, reader.text()?.map(own).transpose()?));
        Ok::<(), JsonError>(())
    })?;
    reader.end()?;
    Ok(found)
}

fn written(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    write_string(bytes, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn what_fastjson_accepts_is_read() {
    let text =
        r#" {'a' : "1", b:2,"c":true,,d:null, 0:'x"y', "e":-1.5e+3,"f":{"g":[1,{}]},$_h:007,} "#;
    let expected = [
        ("a", Some("1")),
        ("b", Some("2")),
        ("c", Some("true")),
        ("d", None),
        ("0", Some("x\"y")),
        ("e", Some("-1.5e+3")),
        ("f", Some(r#"{"g":[1,{}]}"#)),
        ("$_h", Some("007")),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.map(str::to_owned)));
    assert_eq!(members(text).unwrap(), expected);
}

#[test]
fn what_fastjson_refuses_is_an_error_with_its_place() {
    for (text, at, expected) in [
        ("", 0, "an object"),
        ("[]", 0, "an object"),
        ("{", 1, "a key"),
        (r#"{"a""#, 4, "a colon"),
        (r#"{"a":"#, 5, "a value"),
        (r#"{"a":1"#, 6, "a comma or the closing bracket"),
        (r#"{"a":1 "b":2}"#, 7, "a comma or the closing bracket"),
        (r#"{"a":nul}"#, 5, "a value"),
        (r#"{"a":1.}"#, 5, "a value"),
        (r#"{"a":"b}"#, 5, "a string that ends"),
        (r#"{"a":"b\"#, 5, "a string that ends"),
        (r#"{"a":1}x"#, 7, "the end"),
        (r#"{"a":"\q"}"#, 6, "a known escape"),
        (r#"{"a":"b\u00g1"}"#, 7, "a known escape"),
        (r#"{\u0061:1}"#, 1, "a key"),
    ] {
        assert_eq!(members(text), Err(JsonError { at, expected }), "{text}");
    }
}

#[test]
fn escapes_are_resolved() {
    let text = r#"{"a":"\u0001\2\x41\u4e2d\ud83d\ude00\ud800\"\'\/\\\b\t\n\v\f\r"}"#;
    let value = members(text).unwrap().remove(0).1.unwrap();
    assert_eq!(value, "\u{1}\u{2}A中😀?\"'/\\\u{8}\t\n\u{b}\u{c}\r");
}

#[test]
fn nesting_is_limited_without_recursion() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(Reader::new(nested(MAX_DEPTH).as_bytes()).skip(), Ok(()));
    let too_deep = Reader::new(nested(1_000_000).as_bytes()).skip();
    let expected = "less nesting";
    assert_eq!(too_deep, Err(JsonError { at: MAX_DEPTH, expected }));
}

#[test]
fn spans_say_where_a_value_stood() {
    let text = br#"{"a":'b',0:1}"#;
    let mut spans = Vec::new();
    let mut reader = Reader::new(text);
    reader
        .object(|reader, key| {
            let value = reader.text()?.unwrap();
            spans.push((key.span(), value.span(), value.inner(), value.quote()));
            Ok::<(), JsonError>(())
        })
        .unwrap();
    assert_eq!(spans, [(1..4, 5..8, 6..7, Some(b'\'')), (9..10, 11..12, 11..12, None)]);
}

#[test]
fn strings_are_written_as_fastjson_does() {
    assert_eq!(
        written("A\u{1}b\u{2}\u{1f}\u{7f}\u{80}\u{9f}\u{a0}".as_bytes()),
        "\"A\\u0001b\\u0002\\u001F\\u007F\\u0080\\u009F\u{a0}\""
    );
    assert_eq!(written("\"\\/'\u{8}\t\n\u{b}\u{c}\r".as_bytes()), r#""\"\\/'\b\t\n\u000B\f\r""#);
    assert_eq!(
        written("中😀â\u{2028}\u{2029}\u{202a}".as_bytes()),
        "\"中😀â\\u2028\\u2029\u{202a}\""
    );
    assert_eq!(written(b"a\xffb\xe4\xb8"), "\"a\u{fffd}b\u{fffd}\"");
}
