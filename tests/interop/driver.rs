//! The Java process with the stock clients in it (deploy/java/src/driver/Driver.java tells the
//! protocol): requests and their replies, and the messages that its consumers got.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cluster::{JVM_FLAGS, from_env, log_config, test_folder};
use crate::leash::append_to;

const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// A version of the stock Java client, and flags for its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) version: &'static str,
    pub(crate) flags: &'static [&'static str],
}

impl Client {
    pub(crate) const JAVA_4_3_0: Client = Client { version: "4.3.0", flags: &[] };
    pub(crate) const JAVA_4_9_7: Client = Client { version: "4.9.7", flags: &[] };
    /// Writes its headers in the binary form.
    pub(crate) const JAVA_4_9_7_BINARY: Client =
        Client { version: "4.9.7", flags: &["-Drocketmq.serialize.type=ROCKETMQ"] };
    pub(crate) const JAVA_5_3_3: Client = Client { version: "5.3.3", flags: &[] };
}

/// One Java process. It ends with its input, so with this guard or with this process.
pub(crate) struct Driver {
    stdin: Mutex<ChildStdin>,
    heard: Arc<Heard>,
    next_id: AtomicU64,
    process: Child,
}

/// What the process said so far.
#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    replies: HashMap<u64, Value>,
    messages: HashMap<String, Vec<Message>>,
    ended: bool,
}

/// A message as a consumer got it. Times are wall clock milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) msg_id: String,
    pub(crate) uniq_key: String,
    pub(crate) offset_msg_id: String,
    pub(crate) born_timestamp: i64,
    pub(crate) store_timestamp: i64,
    pub(crate) reconsume_times: i32,
    pub(crate) flag: i32,
    pub(crate) sys_flag: i32,
    pub(crate) body_length: usize,
    pub(crate) body_sha256: String,
    /// The text, where it is short and UTF-8.
    pub(crate) body: Option<String>,
    pub(crate) properties: BTreeMap<String, String>,
}

/// What a send came to. The fields of a result are there where `ok` is, but for one-way sends.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent {
    pub(crate) ok: bool,
    pub(crate) exception: Option<String>,
    pub(crate) code: Option<i32>,
    pub(crate) text: Option<String>,
    /// Just before the send and just after its outcome, wall clock milliseconds.
    pub(crate) sent_ms: i64,
    pub(crate) answered_ms: i64,
    /// The id that the client library gave the message, whatever came of it.
    pub(crate) uniq_key: Option<String>,
    #[serde(flatten)]
    pub(crate) result: Option<SendResult>,
}

/// The client library's `SendResult`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SendResult {
    pub(crate) send_status: String,
    pub(crate) msg_id: String,
    pub(crate) offset_msg_id: String,
    pub(crate) offset_id: OffsetId,
    pub(crate) broker_name: String,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) region_id: Option<String>,
    pub(crate) trace_on: bool,
}

/// An offsetMsgId as the client library's own decoder reads it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct OffsetId {
    pub(crate) address: String,
    pub(crate) offset: i64,
}

impl Sent {
    /// The result of a send that succeeded and has one.
    pub(crate) fn result(&self) -> &SendResult {
        self.result.as_ref().unwrap_or_else(|| panic!("a send without result: {self:?}"))
    }
}

impl Driver {
    /// Starts it with `home` for logs and state of the clients.
    pub(crate) fn start(home: &Path, client: Client) -> Driver {
        // The console tools insist on it.
        fs::create_dir_all(home.join("conf")).expect("the conf folder is made");
        fs::write(home.join("conf/logback_tools.xml"), log_config(&home.join("tools.log")))
            .expect("logback file is written");
        let jars = from_env(&test_folder("JARS", client.version));
        let classes = from_env(&test_folder("CLASSES", client.version));
        let mut process = Command::new("java")
            .args(JVM_FLAGS)
            .args(client.flags)
            .env("ROCKETMQ_HOME", home)
            .arg(format!("-Duser.home={}", home.display()))
            .arg("-cp")
            .arg(format!("{}:{}/*", classes.display(), jars.display()))
            .arg("driver.Driver")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(append_to(&home.join("stderr.log")))
            .spawn()
            .expect("java starts");
        let stdin = process.stdin.take().expect("stdin is piped");
        let stdout = process.stdout.take().expect("stdout is piped");
        let heard = Arc::new(Heard::default());
        std::thread::spawn({
            let heard = Arc::clone(&heard);
            move || heard.listen(stdout)
        });
        Driver { stdin: Mutex::new(stdin), heard, next_id: AtomicU64::new(1), process }
    }

    /// Sends a command that has to succeed.
    pub(crate) fn must(&self, command: &Value) -> Value {
        let reply = self.finish(self.begin(command));
        assert_eq!(reply["ok"], json!(true), "{command} failed: {reply}");
        reply
    }

    /// Sends a command; its reply is for [`Driver::finish`].
    pub(crate) fn begin(&self, command: &Value) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut line = command.clone();
        line["id"] = json!(id);
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(stdin, "{line}").expect("the driver reads");
        id
    }

    /// The reply to the command of that id.
    pub(crate) fn finish(&self, id: u64) -> Value {
        let what = || format!("no reply to command {id}");
        self.heard.wait(REPLY_WITHIN, what, |state| state.replies.remove(&id))
    }

    /// All messages that the consumer of that name has got, once there are at least `count`.
    pub(crate) fn messages(&self, consumer: &str, count: usize, within: Duration) -> Vec<Message> {
        let what = || {
            let so_far = self.seen(consumer);
            let bodies: Vec<_> =
                so_far.iter().filter_map(|message| message.body.as_deref()).collect();
            format!("{} of {count} messages at {consumer}: {bodies:?}", so_far.len())
        };
        self.heard.wait(within, what, |state| {
            state.messages.get(consumer).filter(|messages| messages.len() >= count).cloned()
        })
    }

    /// What the consumer has got so far.
    fn seen(&self, consumer: &str) -> Vec<Message> {
        self.heard.state().messages.get(consumer).cloned().unwrap_or_default()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Err(e) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("cannot end the driver: {e}");
        }
    }
}

impl Heard {
    fn listen(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            let value: Value = serde_json::from_str(&line)
                .unwrap_or_else(|e| panic!("the driver printed no JSON ({e}): {line}"));
            self.take(value);
            self.more.notify_all();
        }
        self.state().ended = true;
        self.more.notify_all();
    }

    fn take(&self, value: Value) {
        if let Some(id) = value["id"].as_u64() {
            self.state().replies.insert(id, value);
            return;
        }
        let consumer = value["consumer"].as_str().expect("an event names its consumer").to_owned();
        let message = serde_json::from_value(value.clone())
            .unwrap_or_else(|e| panic!("not a message ({e}): {value}"));
        self.state().messages.entry(consumer).or_default().push(message);
    }

    fn wait<T>(
        &self,
        within: Duration,
        what: impl Fn() -> String,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + within;
        let mut state = self.state();
        loop {
            if let Some(value) = ready(&mut state) {
                return value;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                let ended = state.ended;
                drop(state);
                panic!("{} (driver ended: {ended}, waited up to {within:?})", what());
            }
            state = self.more.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === Clients ===

/// A producer in the driver, stopped on drop.
pub(crate) struct Producer<'a> {
    driver: &'a Driver,
    name: String,
}

impl<'a> Producer<'a> {
    /// A producer without retries, so that each send is one frame.
    pub(crate) fn start(driver: &'a Driver, namesrv: &str) -> Producer<'a> {
        Producer::with(driver, namesrv, &json!({}))
    }

    /// The same with more fields of the driver's `producer.start`: createTopicKey, vip and others.
    pub(crate) fn with(driver: &'a Driver, namesrv: &str, more: &Value) -> Producer<'a> {
        let name = unique("producer");
        let mut command = more.clone();
        command["cmd"] = json!("producer.start");
        command["name"] = json!(name);
        command["namesrv"] = json!(namesrv);
        driver.must(&command);
        Producer { driver, name }
    }

    /// Its producer group.
    pub(crate) fn group(&self) -> String {
        format!("producers-{}", self.name)
    }

    /// Sends and waits for the outcome, good or bad.
    pub(crate) fn send(&self, send: &Send) -> Sent {
        self.finish(self.begin(send))
    }

    /// Sends and insists on success.
    pub(crate) fn must_send(&self, send: &Send) -> Sent {
        let sent = self.send(send);
        assert!(sent.ok, "{:?} failed: {sent:?}", send.0);
        sent
    }

    /// Hands the send to the driver; [`Producer::finish`] has its outcome.
    pub(crate) fn begin(&self, send: &Send) -> u64 {
        let mut command = send.0.clone();
        command.insert("cmd".into(), json!("send"));
        command.insert("producer".into(), json!(self.name));
        self.driver.begin(&Value::Object(command))
    }

    /// The outcome of the send of that id.
    pub(crate) fn finish(&self, id: u64) -> Sent {
        let reply = self.driver.finish(id);
        serde_json::from_value(reply.clone()).unwrap_or_else(|e| panic!("{e}: {reply}"))
    }
}

impl Drop for Producer<'_> {
    fn drop(&mut self) {
        self.driver.begin(&json!({"cmd": "producer.stop", "name": self.name}));
    }
}

/// A push consumer in the driver, stopped on drop.
pub(crate) struct Consumer<'a> {
    driver: &'a Driver,
    name: String,
}

impl<'a> Consumer<'a> {
    /// Returns once queues are assigned to it. Reads each topic from its beginning.
    pub(crate) fn start(driver: &'a Driver, namesrv: &str, topic: &str) -> Consumer<'a> {
        Consumer::filtered(driver, namesrv, topic, &json!({}))
    }

    /// The same with a filter: `{"expression": "A || B"}` or `{"sql": "k = 'v'"}`.
    pub(crate) fn filtered(
        driver: &'a Driver,
        namesrv: &str,
        topic: &str,
        filter: &Value,
    ) -> Consumer<'a> {
        let name = unique("consumer");
        let mut command = filter.clone();
        command["cmd"] = json!("consumer.start");
        command["name"] = json!(name);
        command["namesrv"] = json!(namesrv);
        command["topic"] = json!(topic);
        driver.must(&command);
        Consumer { driver, name }
    }

    /// Its consumer group.
    pub(crate) fn group(&self) -> String {
        format!("consumers-{}", self.name)
    }

    /// Everything it got, once that is at least `count` messages.
    pub(crate) fn messages(&self, count: usize, within: Duration) -> Vec<Message> {
        self.driver.messages(&self.name, count, within)
    }
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        self.driver.begin(&json!({"cmd": "consumer.stop", "name": self.name}));
    }
}

fn unique(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One send, as told to the driver.
#[derive(Clone, Debug)]
pub(crate) struct Send(Map<String, Value>);

impl Send {
    /// A synchronous send of that text.
    pub(crate) fn new(topic: &str, body: &str) -> Send {
        Send(Map::new()).with("topic", topic).with("body", body)
    }

    /// Any field of the driver's `send` command: mode, key, tags, keys, bodySize, flag, wait,
    /// delayLevel.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Send {
        self.0.insert(field.into(), value.into());
        self
    }

    /// By the setter of `Message` of that name, or by the raw property.
    pub(crate) fn asking(self, kind: &str, value: &str) -> Send {
        if !kind.starts_with("set") {
            return self.property(kind, value);
        }
        let value: i64 = value.parse().expect("setters take numbers");
        if kind == "setDelayTimeLevel" {
            return self.with("delayLevel", value);
        }
        // The driver finds these by name: not every version has them.
        self.with("setters", json!({ kind: value }))
    }

    /// One raw message property.
    pub(crate) fn property(mut self, name: &str, value: impl ToString) -> Send {
        let properties = self.0.entry("properties").or_insert_with(|| json!({}));
        properties[name] = json!(value.to_string());
        self
    }
}
