//! What real Java classes wrote (`protocol-fixtures/`), read by our codec: every file, each against
//! what its manifest says of it.
//!
//! A manifest is written by the generator from what the release's own decoder read, so nothing here
//! repeats our own reading of the protocol.

mod messages;
mod routes;
mod sends;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, FrameCodec, SerializeType};
use rocketmq_timer_proxy::remoting::header::Header;
use rocketmq_timer_proxy::remoting::send::Send;
use serde_json::Value;
use tokio_util::codec::Decoder;

/// The folders there must be, one for each release.
const RELEASES: [&str; 4] = ["4.3.0", "4.9.7", "5.3.3", "ons-1.8.8.8.Final"];

/// What is looked at in a fixture of each kind, besides what is looked at in every frame.
const KINDS: [(&str, Check); 11] = [
    ("request", request),
    ("answer", answer),
    ("send", sends::send),
    ("odd_send", sends::empty_values),
    ("signed_send", sends::send),
    ("batch_send", sends::batch),
    ("answer_addresses", routes::addresses),
    ("answer_messages", messages::in_frame),
    ("check_back", messages::in_frame),
    ("stored", messages::alone),
    ("batch_body", sends::batch_body),
];

type Check = fn(&Fixture);

/// One file and its entry in the manifest.
struct Fixture {
    /// Folder and file.
    name: String,
    bytes: Bytes,
    entry: Value,
}

impl Fixture {
    fn kind(&self) -> &str {
        self.entry["kind"].as_str().unwrap()
    }

    fn is_frame(&self) -> bool {
        self.entry.get("frame").is_some()
    }

    fn frame(&self) -> Frame {
        Frame::whole(self.bytes.clone()).unwrap().unwrap()
    }

    fn command(&self) -> Command {
        Command::decode(&self.frame()).unwrap()
    }

    fn entries(&self, member: &str) -> &[Value] {
        self.entry[member].as_array().unwrap()
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures")
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn manifest(release: &str) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(folder().join(release).join("manifest.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn load(release: &str, file: &str) -> Fixture {
    let name = format!("{release}/{file}");
    let bytes = fs::read(folder().join(&name)).unwrap_or_else(|err| panic!("{name}: {err}")).into();
    Fixture { bytes, entry: manifest(release).remove(file).unwrap(), name }
}

/// All of them.
fn fixtures() -> Vec<Fixture> {
    let of = |release| {
        manifest(release).into_iter().map(move |(file, entry)| {
            let name = format!("{release}/{file}");
            let bytes = fs::read(folder().join(&name));
            let bytes = bytes.unwrap_or_else(|err| panic!("{name}: {err}")).into();
            Fixture { name, bytes, entry }
        })
    };
    RELEASES.into_iter().flat_map(of).collect()
}

/// Runs `check` on all that `wanted` picks, and says whose check failed. None picked is a failure.
fn each(wanted: impl Fn(&Fixture) -> bool, check: impl Fn(&Fixture)) {
    let wanted: Vec<_> = fixtures().into_iter().filter(wanted).collect();
    assert!(!wanted.is_empty(), "nothing to check");
    for fixture in &wanted {
        let check = std::panic::AssertUnwindSafe(|| check(fixture));
        assert!(std::panic::catch_unwind(check).is_ok(), "in {}", fixture.name);
    }
}

#[test]
fn every_file_is_named_and_every_name_has_its_file() {
    let beside = ["README.md", "generate.sh", "generator"].map(str::to_owned);
    let expected = RELEASES.map(str::to_owned).into_iter().chain(beside).collect();
    assert_eq!(names(&folder()), expected);
    for release in RELEASES {
        let named: BTreeSet<_> = manifest(release).into_keys().collect();
        let mut there = names(&folder().join(release));
        assert!(there.remove("manifest.json"));
        let odd: Vec<_> = there.symmetric_difference(&named).collect();
        assert!(odd.is_empty(), "{release}: only on disk, or only in its manifest: {odd:?}");
    }
}

#[test]
fn each_says_where_it_comes_from() {
    each(
        |_| true,
        |fixture| {
            assert!(fixture.entry["what"].as_str().unwrap().ends_with('.'));
            let makers = fixture.entries("made_by");
            let foreign = |maker: &Value| {
                let maker = maker.as_str().unwrap();
                maker.starts_with("org.apache.rocketmq.") || maker.starts_with("com.aliyun.")
            };
            assert!(!makers.is_empty() && makers.iter().all(foreign), "{makers:?}");
        },
    );
}

#[test]
fn no_address_is_of_the_machine_they_were_made_on() {
    each(
        |_| true,
        |fixture| {
            let text = String::from_utf8_lossy(&fixture.bytes).into_owned();
            let mut numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
            let foreign = numbers.find(|number| {
                let address = number.parse::<Ipv4Addr>();
                address.is_ok_and(|address| !address.is_loopback())
            });
            assert_eq!(foreign, None);
        },
    );
}

#[test]
fn every_kind_has_a_reader_and_holds() {
    let found: BTreeSet<_> = fixtures().iter().map(|fixture| fixture.kind().to_owned()).collect();
    let known = KINDS.map(|(kind, _)| kind.to_owned()).into_iter().collect();
    assert_eq!(found, known, "kinds in the manifests, and kinds with a reader");
    for (kind, check) in KINDS {
        each(|fixture| fixture.kind() == kind, check);
    }
}

fn request(fixture: &Fixture) {
    let command = fixture.command();
    assert!(!command.is_response() && Send::of(&command.header).is_none());
    let oneway = ["end-transaction-37", "consumers-changed-40"];
    assert_eq!(command.is_oneway(), oneway.iter().any(|name| fixture.name.contains(name)));
}

fn answer(fixture: &Fixture) {
    let command = fixture.command();
    assert!(command.is_response() && !command.is_oneway() && Send::of(&command.header).is_none());
}

#[test]
fn a_frame_is_the_same_wherever_it_is_cut() {
    each(Fixture::is_frame, |fixture| {
        let twice = [&fixture.bytes[..], &fixture.bytes].concat();
        let whole = Some(fixture.frame());
        for cut in 0..twice.len() {
            let mut buffer = BytesMut::from(&twice[..cut]);
            let before = FrameCodec.decode(&mut buffer).unwrap();
            assert_eq!(before.is_some(), cut >= fixture.bytes.len(), "cut at {cut}");
            buffer.extend_from_slice(&twice[cut..]);
            let first = before.or_else(|| FrameCodec.decode(&mut buffer).unwrap());
            assert_eq!(first, whole, "cut at {cut}");
            assert_eq!(FrameCodec.decode(&mut buffer).unwrap(), whole, "cut at {cut}");
            assert_eq!(FrameCodec.decode(&mut buffer).unwrap(), None);
        }
    });
}

#[test]
fn a_header_means_to_us_what_it_means_to_java() {
    each(Fixture::is_frame, |fixture| {
        let Command { serialize, header, body } = fixture.command();
        let meaning = &fixture.entry["frame"];
        let text = |member: &str| meaning[member].as_str().map(|text| Bytes::from(text.to_owned()));
        let number = |member: &str| i32::try_from(meaning[member].as_i64().unwrap()).unwrap();
        let form = if serialize == SerializeType::Json { "JSON" } else { "ROCKETMQ" };
        assert_eq!(meaning["serialize"], form);
        assert_eq!(header.code, number("code"));
        assert_eq!(Some(&header.language), text("language").as_ref());
        assert_eq!(header.version, number("version"));
        assert_eq!(header.opaque, number("opaque"));
        assert_eq!(header.flag, number("flag"));
        assert_eq!(header.remark, text("remark"));
        let java = meaning["ext"].as_object().unwrap();
        let ours: BTreeMap<_, _> = header.ext.iter().collect();
        assert_eq!(ours.len(), java.len(), "{ours:?}");
        for (key, value) in java {
            // In binary, where nothing tells them apart, Java reads an empty value as none since 4.9.4.
            let none = (serialize == SerializeType::RocketMq).then_some("");
            let value = value.as_str().or(none).unwrap();
            assert_eq!(header.ext.get(key).unwrap(), value.as_bytes(), "{key}");
        }
        assert_eq!(body.len() as u64, meaning["body_length"].as_u64().unwrap());
        assert_eq!(u64::from(crc32fast::hash(&body)), meaning["body_crc32"].as_u64().unwrap());
    });
}

/// Java writes each field of a signed binary send twice, and we once.
fn has_duplicates(fixture: &Fixture) -> bool {
    let hooked = fixture.name.starts_with("4.9.7/") || fixture.name.starts_with("5.3.3/");
    hooked && fixture.kind() == "signed_send" && fixture.name.ends_with("-binary.bin")
}

#[test]
fn what_we_write_of_what_we_read_is_the_same() {
    each(Fixture::is_frame, |fixture| {
        let read = fixture.command();
        let written = read.encode();
        if has_duplicates(fixture) {
            assert!(written.len() + 100 < fixture.bytes.len(), "{} bytes", written.len());
        } else {
            assert_eq!(written, fixture.bytes);
        }
        assert_eq!(Command::decode(&Frame::whole(written).unwrap().unwrap()).unwrap(), read);
        // In the other form nothing is lost but what 16 bits cannot hold, and an empty remark.
        let Command { serialize, mut header, .. } = read;
        let other = match serialize {
            SerializeType::Json => {
                header.code = i32::from(header.code as i16);
                header.version = i32::from(header.version as i16);
                header.remark = header.remark.filter(|remark| !remark.is_empty());
                SerializeType::RocketMq
            }
            SerializeType::RocketMq => SerializeType::Json,
        };
        let mut bytes = Vec::new();
        header.encode(other, &mut bytes);
        assert_eq!(Header::decode(other, &bytes), Ok(header));
    });
}

#[test]
fn our_own_frames_are_those_of_the_release_we_pass_for() {
    let made = |file: &str| load("4.9.7", file);
    for (file, code, ext) in
        [("route-105", 105, &[("topic", "Orders")][..]), ("cluster-106", 106, &[])]
    {
        for form in [SerializeType::Json, SerializeType::RocketMq] {
            let suffix = if form == SerializeType::Json { "json" } else { "binary" };
            let mut request = Command::request(code, ext, Bytes::new());
            request.header.opaque = 7;
            request.serialize = form;
            assert_eq!(request.encode(), made(&format!("{file}-{suffix}.bin")).bytes);
            let theirs = made(&format!("answer-route-quoted-{suffix}.bin"));
            let mut answer = request.reply(0, None);
            answer.body = theirs.frame().body();
            assert_eq!(answer.encode(), theirs.bytes);
            let theirs = made(&format!("answer-no-route-{suffix}.bin"));
            let remark = theirs.entry["frame"]["remark"].as_str().unwrap();
            assert_eq!(request.reply(17, Some(remark)).encode(), theirs.bytes);
        }
    }
}
