//! What every test of the whole has: a running proxy on a directory of its own, a clock that may
//! stand still, and a broker that notes when each message reached it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rocketmq_timer_proxy::app::App;
use rocketmq_timer_proxy::clock::{Alarm, Clock, EpochMs, ManualClock, SystemClock};
use rocketmq_timer_proxy::config::broker_map::BrokerMap;
use rocketmq_timer_proxy::config::{BrokerPorts, Config, Flush, Policy};
use rocketmq_timer_proxy::metrics::{Metrics, count};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::route::broker_addresses;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer, Seen};
use crate::support::{bytes, soon};

/// A round second, far from any time that a real clock shows.
pub(super) const START: EpochMs = 1_800_000_000_000;
/// Sends in one go: fewer answers than a session owes before it stops reading.
const AT_ONCE: usize = 1_000;

// === Time ===

/// Wall time stands still until it is set; waits between tries run on the machine's clock.
#[derive(Clone)]
pub(super) struct TestClock {
    wall: ManualClock,
    real: Arc<SystemClock>,
    gate: Arc<Gate>,
}

/// Keeps the store from reading its log while it is shut.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    bell: Condvar,
}

impl TestClock {
    pub(super) fn new() -> Self {
        let gate = Arc::default();
        Self { wall: ManualClock::new(START), real: Arc::new(SystemClock::new()), gate }
    }

    pub(super) fn set(&self, wall_ms: EpochMs) {
        self.wall.set_wall(wall_ms);
    }

    pub(super) fn advance(&self, ms: EpochMs) {
        self.set(self.now() + ms);
    }

    pub(super) fn now(&self) -> EpochMs {
        self.wall.wall_ms()
    }

    /// Reading the log takes until [`TestClock::let_recover`].
    pub(super) fn hold_up_recovery(&self) {
        *self.gate.shut.lock().unwrap() = true;
    }

    pub(super) fn let_recover(&self) {
        *self.gate.shut.lock().unwrap() = false;
        self.gate.bell.notify_all();
    }
}

impl Clock for TestClock {
    fn wall_ms(&self) -> EpochMs {
        self.now()
    }

    fn monotonic(&self) -> Duration {
        // The first thing that this thread does with a clock is to time the reading of the log.
        if std::thread::current().name() == Some("store-writer") {
            let shut = self.gate.shut.lock().unwrap();
            drop(self.gate.bell.wait_while(shut, |shut| *shut).unwrap());
        }
        self.real.monotonic()
    }

    fn alarm(&self) -> std::io::Result<Arc<dyn Alarm>> {
        self.wall.alarm()
    }
}

// === The proxy ===

pub(super) struct Proxy {
    pub(super) app: App,
    pub(super) metrics: Metrics,
    ports: BTreeMap<(String, i64), SocketAddr>,
    /// Answers 105 and 106 as long as the test lives.
    _names: Option<ScriptedPeer>,
    dir: Arc<TempDir>,
}

impl Proxy {
    /// In front of one broker, `broker-a`, and accepting holds.
    pub(super) async fn before(broker: &str, clock: impl Clock) -> Self {
        let cluster = cluster_body(&[("broker-a", 0, broker)], "");
        let names = ScriptedPeer::name_server("{}", &cluster).await;
        let mut proxy = Self::start(names.address(), clock).await;
        proxy._names = Some(names);
        proxy.ready().await;
        proxy
    }

    /// With this name server; the log is still being read.
    pub(super) async fn start(name_server: String, clock: impl Clock) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::start_in(dir, vec![name_server], clock).await
    }

    /// The same in a directory that may have been used, with several name servers.
    pub(super) async fn start_in(
        dir: Arc<TempDir>,
        name_servers: Vec<String>,
        clock: impl Clock,
    ) -> Self {
        let config = config(name_servers, dir.path().join("data"));
        let app = App::start(config, Arc::new(clock)).await.unwrap();
        let metrics = app.metrics.clone();
        Self { app, metrics, ports: BTreeMap::new(), _names: None, dir }
    }

    /// Its directory, which outlives it.
    pub(super) fn dir(&self) -> Arc<TempDir> {
        Arc::clone(&self.dir)
    }

    /// Waits until holds are accepted, and asks for the brokers' ports as a client would.
    pub(super) async fn ready(&mut self) {
        soon("recovery", self.app.ready()).await.unwrap();
        self.learn_ports().await;
    }

    pub(super) async fn learn_ports(&mut self) {
        let mut client = self.names_client().await;
        let answer = client.call(Command::request(106, &[], bytes("")), 1).await;
        assert_eq!(answer.header.code, 0, "{:?}", answer.header.remark);
        let addresses = broker_addresses(&answer.body).unwrap().into_iter();
        let port = |(broker, address): (_, String)| {
            let rocketmq_timer_proxy::remoting::route::BrokerId { name, id, .. } = broker;
            ((name, id), address.parse().unwrap())
        };
        self.ports = addresses.map(port).collect();
    }

    /// Our address for this broker.
    pub(super) fn port_of(&self, name: &str, id: i64) -> SocketAddr {
        self.ports[&(name.to_owned(), id)]
    }

    /// A client of `broker-a`.
    pub(super) async fn client(&self) -> RawClient {
        RawClient::connect(self.port_of("broker-a", 0)).await
    }

    pub(super) async fn names_client(&self) -> RawClient {
        RawClient::connect(self.app.namesrv).await
    }

    /// Status and body of a page.
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.app.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon(path, stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    pub(super) async fn json(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get(path).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Waits until nothing due is left, and expects that so many have been delivered by then: one
    /// more, or one that is handed over and held back, came before its time.
    pub(super) async fn delivered(&self, total: usize) {
        let total = u64::try_from(total).unwrap();
        let m = &self.metrics;
        let idle = || m.dispatch_overdue.get() == 0 && m.dispatch_in_flight.get() == 0;
        let what = format!("{total} messages delivered and none overdue");
        until(&what, || idle() && m.dispatch_delivered.get() >= total).await;
        assert_eq!(m.dispatch_delivered.get(), total);
    }

    /// Waits until this many are pending; a completion is counted with its commit.
    pub(super) async fn pending(&self, expected: i64) {
        let pending = &self.metrics.store_pending;
        until(&format!("{expected} pending"), || pending.get() == expected).await;
    }

    pub(super) fn retries(&self, why: &'static str) -> u64 {
        count(&self.metrics.dispatch_retries, why)
    }

    pub(super) fn held(&self) -> u64 {
        let kinds = &rocketmq_timer_proxy::metrics::why::HELD;
        kinds.iter().map(|kind| count(&self.metrics.intercept_held, kind)).sum()
    }

    /// An orderly stop leaves nothing behind.
    pub(super) async fn stop(self) {
        soon("the proxy to stop", self.app.stop()).await;
        assert_eq!(self.metrics.session_open.get(), 0);
        assert_eq!(self.metrics.dispatch_in_flight.get(), 0);
    }
}

fn config(namesrv: Vec<String>, data_dir: PathBuf) -> Config {
    Config {
        namesrv,
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: "127.0.0.1".to_owned(),
        broker_ports: BrokerPorts::Any,
        broker_map: BrokerMap::default(),
        data_dir,
        policy: Policy::default(),
        flush: Flush::Sync,
        park_after: Duration::from_secs(900),
        lame_duck: Duration::ZERO,
        grace: Duration::from_secs(10),
        near_memory: 128 << 20,
        admin: ([127, 0, 0, 1], 0).into(),
    }
}

/// What a name server answers to 106; `quote` stands around the ids.
pub(super) fn cluster_body(brokers: &[(&str, i64, &str)], quote: &str) -> String {
    let mut tables = Vec::new();
    let mut names: Vec<_> = brokers.iter().map(|(name, ..)| *name).collect();
    names.dedup();
    for name in &names {
        let own = brokers.iter().filter(|(of, ..)| of == name);
        let own = own.map(|(_, id, at)| format!("{quote}{id}{quote}:\"{at}\""));
        let own = own.collect::<Vec<_>>().join(",");
        tables.push(format!(
            r#""{name}":{{"brokerAddrs":{{{own}}},"brokerName":"{name}","cluster":"DefaultCluster"}}"#
        ));
    }
    let (tables, names) = (tables.join(","), names.join("\",\""));
    format!(
        r#"{{"brokerAddrTable":{{{tables}}},"clusterAddrTable":{{"DefaultCluster":["{names}"]}}}}"#
    )
}

/// Returns once `done`; metrics tell nobody that they change.
pub(super) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    soon(what, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

// === Messages ===

/// Sends all of these; each must be held.
pub(super) async fn hold_all(client: &mut RawClient, sends: Vec<Command>) {
    for part in sends.chunks(AT_ONCE) {
        let mut wire = Vec::new();
        for (opaque, send) in (0..).zip(part) {
            let mut send = send.clone();
            send.header.opaque = opaque;
            wire.extend_from_slice(&send.encode());
        }
        client.send_bytes(&wire).await;
        for (opaque, _) in (0..).zip(part) {
            let answer = client.answer(opaque).await;
            assert_eq!(answer.header.code, 0, "{:?}", answer.header.remark);
            assert!(is_ours(&answer), "relayed: {answer:?}");
        }
    }
}

/// Whether this answer to a send is the proxy's own: bit 62 of the id says so.
pub(super) fn is_ours(answer: &Command) -> bool {
    let id = answer.header.ext.get("msgId").map_or(&[][..], |id| id);
    let offset = id.get(16..).and_then(|text| std::str::from_utf8(text).ok());
    let offset = offset.and_then(|text| u64::from_str_radix(text, 16).ok());
    offset.is_some_and(|offset| offset >> 62 == 1)
}

/// A send that wants no answer.
pub(super) fn oneway(mut send: Command) -> Command {
    send.header.flag = 2;
    send
}

pub(super) fn body_of(seen: &Seen) -> String {
    String::from_utf8(seen.request.body.to_vec()).unwrap()
}

/// A broker that notes the wall time at which each send came, with its body. Bodies say until when
/// they should have stayed away: `due:anything`.
pub(super) struct Witness {
    pub(super) peer: ScriptedPeer,
    seen: Arc<Mutex<Vec<(String, EpochMs)>>>,
}

impl Witness {
    pub(super) async fn start(clock: &TestClock) -> Self {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let (clock, notes) = (clock.clone(), Arc::clone(&seen));
        let peer = ScriptedPeer::start(move |seen| {
            if !matches!(seen.code(), 10 | 310) {
                return Act::Reply(Reply::code(0));
            }
            notes.lock().unwrap().push((body_of(seen), clock.now()));
            Act::Reply(Reply::stored(0, 0))
        })
        .await;
        Self { peer, seen }
    }

    /// Bodies in the order of arrival, each checked not to be early.
    pub(super) fn bodies(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        for (body, at) in &*seen {
            assert!(due_of(body) <= *at, "{body} came at {at}");
        }
        seen.iter().map(|(body, _)| body.clone()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// The time that a body starts with.
pub(super) fn due_of(body: &str) -> EpochMs {
    body.split(':').next().unwrap().parse().unwrap()
}
