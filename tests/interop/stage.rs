//! What all tests share: one cluster and one Java process, one test at a time, and the checks that
//! most of them make.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::cluster::{BROKER_NAME, Cluster};
use crate::driver::{Client, Consumer, Driver, Message, Producer, Sent};
use crate::leash::now_ms;
use crate::proxy::ProxyProcess;

/// Correct, not fast: how much later than due a message may be stored before a test fails.
pub(crate) const LATE_MAX_MS: i64 = 1000;

/// How long a test waits for messages beyond their time before it gives up.
pub(crate) const GRACE: Duration = Duration::from_secs(20);

/// The cluster and the clients. Kept for the whole run.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) driver: Driver,
}

/// The stage, for one test at a time.
pub(crate) struct Turn {
    stage: &'static Stage,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// Waits until no other test has it.
pub(crate) fn take() -> Turn {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed leaves nothing behind that the next one would meet: topics are new each time.
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Turn { stage: STAGE.get_or_init(Stage::set), _one_at_a_time: turn }
}

impl Turn {
    /// For a test that leaves the stage to others while it waits.
    pub(crate) fn shared(&self) -> &'static Stage {
        self.stage
    }
}

impl Deref for Turn {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        self.stage
    }
}

impl Stage {
    fn set() -> Stage {
        let cluster = Cluster::start();
        let driver = Driver::start(&cluster.scratch(), Client::JAVA_4_9_7);
        Stage { cluster, driver }
    }

    /// A Java process of its own, for another version or another way to start it.
    pub(crate) fn driver(&self, client: Client) -> Driver {
        Driver::start(&self.cluster.scratch(), client)
    }

    /// A proxy in front of the cluster.
    pub(crate) fn proxy(&self) -> ProxyProcess {
        ProxyProcess::start(&self.cluster.namesrv)
    }

    /// A new topic with that many queues, routed by the name server.
    pub(crate) fn topic(&self, name: &str, queues: u32) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let topic = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.driver.must(&json!({
            "cmd": "topic.create", "namesrv": self.cluster.namesrv, "topic": topic, "queues": queues,
        }));
        topic
    }

    /// A producer that uses that name server.
    pub(crate) fn producer(&self, namesrv: &str) -> Producer<'_> {
        Producer::start(&self.driver, namesrv)
    }

    /// A consumer that the proxy has no part in.
    pub(crate) fn witness(&self, topic: &str) -> Consumer<'_> {
        Consumer::start(&self.driver, &self.cluster.namesrv, topic)
    }

    /// The end of a queue, asked of the broker itself.
    pub(crate) fn max_offset(&self, topic: &str, queue: u32) -> i64 {
        let reply = self.driver.must(&json!({
            "cmd": "offset.max", "namesrv": self.cluster.namesrv, "broker": BROKER_NAME,
            "topic": topic, "queue": queue,
        }));
        reply["offset"].as_i64().expect("an offset")
    }

    /// How many messages the broker ever stored in a topic: whatever came twice counts twice.
    pub(crate) fn stored(&self, topic: &str, queues: u32) -> i64 {
        (0..queues).map(|queue| self.max_offset(topic, queue)).sum()
    }

    /// All that the broker's index finds under a unique key.
    pub(crate) fn query_unique(&self, topic: &str, key: &str) -> Vec<Message> {
        let reply = self.driver.must(&json!({
            "cmd": "query.unique", "namesrv": self.cluster.namesrv, "topic": topic, "key": key,
        }));
        serde_json::from_value(reply["messages"].clone()).expect("messages")
    }
}

/// The one message of that text.
pub(crate) fn find<'a>(messages: &'a [Message], body: &str) -> &'a Message {
    let mut with_body = messages.iter().filter(|message| message.body.as_deref() == Some(body));
    let found = with_body.next().unwrap_or_else(|| panic!("no message {body:?}"));
    assert_eq!(with_body.count(), 0, "{body:?} came more than once");
    found
}

/// The window in which a message falls due: from the first moment that the proxy may have counted
/// from to the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) earliest_ms: i64,
    pub(crate) latest_ms: i64,
}

impl Due {
    /// An absolute time.
    pub(crate) fn at(ms: i64) -> Due {
        Due { earliest_ms: ms, latest_ms: ms }
    }

    /// So long after the proxy got the send, which was between its start and its outcome.
    pub(crate) fn after(sent: &Sent, delay_ms: i64) -> Due {
        Due { earliest_ms: sent.sent_ms + delay_ms, latest_ms: sent.answered_ms + delay_ms }
    }

    /// Fails where the broker stored the message before its time, or long after.
    pub(crate) fn check(self, message: &Message) {
        let early = self.earliest_ms - message.store_timestamp;
        assert!(early <= 0, "{:?} was stored {early} ms early: {message:?}", message.body);
        let late = message.store_timestamp - self.latest_ms;
        assert!(late <= LATE_MAX_MS, "{:?} was stored {late} ms late: {message:?}", message.body);
    }

    /// From now to its time and the grace beyond.
    pub(crate) fn patience(self) -> Duration {
        let ahead = u64::try_from(self.latest_ms - now_ms()).unwrap_or(0);
        Duration::from_millis(ahead) + GRACE
    }
}

/// A held send's id: one of our listeners, and bit 62 of the offset set, which no commitlog reaches.
pub(crate) fn assert_held(sent: &Sent, proxy: &ProxyProcess) {
    let result = sent.result();
    let port = result.offset_id.address.rsplit(':').next().and_then(|port| port.parse().ok());
    assert!(port.is_some_and(|port| proxy.owns_port(port)), "not one of our listeners: {sent:?}");
    assert_ne!(result.offset_id.offset & (1 << 62), 0, "bit 62 is not set: {sent:?}");
    assert_eq!(result.offset_msg_id.len(), 32, "{sent:?}");
    assert_eq!(result.queue_offset, 0, "{sent:?}");
}

/// A relayed send's id: the broker's own address and a place in its commitlog.
pub(crate) fn assert_relayed(sent: &Sent, cluster: &Cluster) {
    let result = sent.result();
    assert_eq!(result.offset_id.address, cluster.broker, "{sent:?}");
    assert_eq!(result.offset_id.offset & (1 << 62), 0, "{sent:?}");
}
