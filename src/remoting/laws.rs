//! Laws that hold for all input, tried on random input.
//!
//! Only tests. A failing case is printed with what shrinks it, and kept in `proptest-regressions/`.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio_util::codec::Decoder;

use super::command::Command;
use super::frame::{Frame, FrameCodec, SerializeType, foreign_protocol};
use super::header::{ExtFields, Header};
use super::json::{Reader, write_string};
use super::properties::{Properties, name};
use super::send::{Send, SendField};
use super::{route, scan};

const DELAYS: [&str; 5] = [
    name::START_DELIVER_TIME,
    name::DELAY,
    name::TIMER_DELIVER_MS,
    name::TIMER_DELAY_SEC,
    name::TIMER_DELAY_MS,
];

fn form() -> impl Strategy<Value = SerializeType> {
    prop_oneof![Just(SerializeType::Json), Just(SerializeType::RocketMq)]
}

/// Text with plenty of what must be escaped.
fn text() -> impl Strategy<Value = Bytes> {
    let character = prop_oneof![
        4 => any::<char>(),
        2 => prop::char::range('\0', '\u{a0}'),
        1 => prop::sample::select(vec!['"', '\'', '\\', '/', ':', '\u{2028}', '\u{ffff}', '😀']),
    ];
    vec(character, 0..12).prop_map(|text| Bytes::from(String::from_iter(text)))
}

fn header() -> impl Strategy<Value = Header> {
    let language = prop::sample::select(vec!["JAVA", "GO", "RUST", "NODE_JS", "CPP"]);
    let remark = prop::option::of(text().prop_filter("empty is none in binary", |t| !t.is_empty()));
    let ext = prop_oneof![9 => vec((text(), text()), 0..20), 1 => vec((text(), text()), 0..120)];
    (any::<i16>(), language, any::<i16>(), any::<i32>(), any::<i32>(), remark, ext).prop_map(
        |(code, language, version, opaque, flag, remark, pairs)| {
            let mut ext = ExtFields::default();
            let special = |key: &Bytes| matches!(key[..], [] | [b'@' | b'$', ..]);
            for (key, value) in pairs.into_iter().filter(|(key, _)| !special(key)) {
                ext.set(key, value);
            }
            Header {
                code: i32::from(code),
                language: Bytes::from_static(language.as_bytes()),
                version: i32::from(version),
                opaque,
                flag,
                remark,
                ext,
            }
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    (form(), header(), vec(any::<u8>(), 0..200)).prop_map(|(serialize, header, body)| Command {
        serialize,
        header,
        body: Bytes::from(body),
    })
}

/// Property strings of ordinary and odd parts.
fn properties() -> impl Strategy<Value = Vec<u8>> {
    let names = DELAYS.iter().chain(&["WAIT", "KEYS", "DELAYED", "a", ""]).copied();
    let part = prop_oneof![
        6 => (prop::sample::select(Vec::from_iter(names)), "[a-z0-9\u{1}中]{0,4}")
            .prop_map(|(name, value)| format!("{name}\u{1}{value}")),
        1 => "[a-zD\u{1}]{0,4}",
        2 => Just(String::new()),
    ];
    (vec(part, 0..8), any::<bool>()).prop_map(|(parts, trailing)| {
        let mut text = parts.join("\u{2}");
        text.extend(trailing.then_some('\u{2}'));
        text.into_bytes()
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(command in command()) {
        let frame = Frame::whole(command.encode()).unwrap().unwrap();
        prop_assert_eq!(Command::decode(&frame).unwrap(), command);
    }

    #[test]
    fn json_keeps_wide_numbers_and_an_empty_remark(
        (code, version, mut header) in (any::<i32>(), any::<i32>(), header())
    ) {
        (header.code, header.version, header.remark) = (code, version, Some(Bytes::new()));
        let mut out = Vec::new();
        header.encode(SerializeType::Json, &mut out);
        prop_assert_eq!(Header::decode(SerializeType::Json, &out).unwrap(), header);
    }

    #[test]
    fn our_json_is_json(header in header()) {
        let mut out = Vec::new();
        header.encode(SerializeType::Json, &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        for (key, expected) in header.ext.iter() {
            let key = std::str::from_utf8(key).unwrap();
            prop_assert_eq!(value["extFields"][key].as_str().unwrap().as_bytes(), expected);
        }
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_frames(
        commands in vec(command(), 1..6),
        cuts in vec(1usize..200, 1..40),
    ) {
        let frames: Vec<Bytes> = commands.iter().map(Command::encode).collect();
        let stream = frames.concat();
        let (mut codec, mut buffer, mut taken) = (FrameCodec, BytesMut::new(), Vec::new());
        let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            buffer.extend_from_slice(chunk);
            rest = tail;
            loop {
                let before = buffer.clone();
                let Some(frame) = codec.decode(&mut buffer).unwrap() else {
                    prop_assert_eq!(&buffer, &before);
                    break;
                };
                prop_assert_eq!(frame.bytes().len() + buffer.len(), before.len());
                taken.push(frame.bytes().clone());
            }
        }
        prop_assert_eq!(taken, frames);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn properties_without_names_are_the_others_in_order(
        text in properties(),
        names in prop::sample::subsequence(DELAYS.to_vec(), 0..=5),
    ) {
        let all = Properties::new(&text);
        let kept = all.without(&names);
        let expected = all.iter().filter(|(n, _)| !names.iter().any(|name| name.as_bytes() == *n));
        prop_assert!(Properties::new(&kept).iter().eq(expected));
        prop_assert_eq!(kept.ends_with(&[2]), text.ends_with(&[2]) && !kept.is_empty());
        if names.iter().all(|name| all.get(name).is_none()) {
            prop_assert_eq!(kept, text);
        }
    }

    #[test]
    fn the_last_entry_of_a_name_is_got(text in properties()) {
        let properties = Properties::new(&text);
        for name in DELAYS {
            let last = properties.iter().filter(|(n, _)| *n == name.as_bytes()).last();
            prop_assert_eq!(properties.get(name), last.map(|(_, value)| value));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn broken_headers_never_panic(
        command in command(),
        breaks in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = command.encode().to_vec();
        for (at, byte) in breaks {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        read_as_everything(&bytes);
        read_as_everything(bytes.get(8..).unwrap_or_default());
    }

    #[test]
    fn json_like_text_never_panics(text in "[\\[\\]{}\"':,\\\\ua0-9tfnrule \u{1}é-]{0,80}") {
        read_as_everything(text.as_bytes());
    }
}

/// Hands `bytes` to every decoder; what comes out does not matter here.
fn read_as_everything(bytes: &[u8]) {
    if let Ok(Some(frame)) = Frame::take(&mut BytesMut::from(bytes)) {
        drop(Command::decode(&frame));
    }
    for form in [SerializeType::Json, SerializeType::RocketMq] {
        scan::may_ask_for_delay(form, bytes);
        scan::may_be_batch(form, bytes);
        if let Ok(header) = Header::decode(form, bytes) {
            header.encode(form, &mut Vec::new());
            if let Some(send) = Send::of(&header) {
                send.queue_id();
                send.is_batch();
            }
        }
    }
    drop((
        Reader::new(bytes).skip(),
        Reader::new(bytes).text(),
        route::broker_addresses(bytes),
        route::queues(bytes),
        foreign_protocol(bytes),
    ));
    write_string(bytes, &mut Vec::new());
    assert!(Properties::new(bytes).without(&DELAYS).len() <= bytes.len());
}

// === nothing hides from the scan ===

/// How one character is written inside a JSON string.
#[derive(Debug, Clone, Copy)]
enum Escape {
    Plain,
    Lower,
    Upper,
    TwoDigits,
}

fn escape() -> impl Strategy<Value = Escape> {
    prop_oneof![
        20 => Just(Escape::Plain),
        1 => Just(Escape::Lower),
        1 => Just(Escape::Upper),
        1 => Just(Escape::TwoDigits),
    ]
}

/// A writer of JSON with habits of its own, which repeat.
struct Encoder<'a> {
    escapes: std::iter::Cycle<std::slice::Iter<'a, Escape>>,
    blanks: std::iter::Cycle<std::slice::Iter<'a, &'static str>>,
    quote: char,
}

impl Encoder<'_> {
    fn string(&mut self, text: &str) -> String {
        let mut out = self.quote.to_string();
        for unit in text.encode_utf16() {
            match (self.escapes.next().unwrap(), unit) {
                (Escape::Plain, 0x20..=0x7e) if !matches!(unit, 0x22 | 0x27 | 0x5c) => {
                    out.push(char::from(unit as u8));
                }
                (Escape::TwoDigits, ..=0xff) => out += &format!("\\x{unit:02x}"),
                (Escape::Upper, _) => out += &format!("\\u{unit:04X}"),
                _ => out += &format!("\\u{unit:04x}"),
            }
        }
        out.push(self.quote);
        out
    }

    fn blank(&mut self) -> &'static str {
        self.blanks.next().unwrap()
    }

    fn send(&mut self, code: i32, fields: &[(&str, String)]) -> String {
        let mut members = Vec::new();
        for (key, value) in fields {
            let (key, value) = (self.string(key), self.string(value));
            members.push(format!("{key}{}:{}{value}", self.blank(), self.blank()));
        }
        let (code_key, ext_key) = (self.string("code"), self.string("extFields"));
        let blank = self.blank();
        format!("{{{code_key}:{blank}{code},{blank}{ext_key}:{{{}}}}}", members.join(","))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_delay_and_no_batch_hides_from_the_scan(
        code in prop::sample::select(vec![10, 310, 320]),
        properties in properties(),
        batch in prop::sample::select(vec!["true", "false", "TRUE", "True", "x"]),
        escapes in prop_oneof![Just(vec![Escape::Plain]), vec(escape(), 1..60)],
        blanks in vec(prop::sample::select(vec!["", "", " ", "\t\n"]), 1..5),
        quote in prop::sample::select(vec!['"', '\'']),
    ) {
        let properties = String::from_utf8(properties).unwrap();
        let fields = [
            (SendField::Topic.key(code), "T".to_owned()),
            (SendField::Properties.key(code), properties.clone()),
            (SendField::Batch.key(code), batch.to_owned()),
        ];
        let (escapes, blanks) = (escapes.iter().cycle(), blanks.iter().cycle());
        let json = Encoder { escapes, blanks, quote }.send(code, &fields);
        let header = Header::decode(SerializeType::Json, json.as_bytes()).unwrap();
        let mut binary = Vec::new();
        header.encode(SerializeType::RocketMq, &mut binary);

        let send = Send::of(&header).unwrap();
        prop_assert_eq!(send.properties(), Properties::new(properties.as_bytes()));
        let delayed = DELAYS.iter().any(|name| send.properties().get(name).is_some());
        let is_batch = code == 320 || send.is_batch();
        for (form, bytes) in [
            (SerializeType::Json, json.as_bytes()),
            (SerializeType::RocketMq, &binary[..]),
        ] {
            prop_assert!(scan::may_ask_for_delay(form, bytes) || !delayed, "{json}");
            prop_assert!(scan::may_be_batch(form, bytes) || !is_batch, "{json}");
        }
        prop_assert!(scan::body_names_a_delay(properties.as_bytes()) || !delayed);
    }
}
