//! The whole scene: a name server and a broker in this process, the proxy's binary between them and
//! the clients, and the ledger that the broker and the clients write.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::route::broker_addresses;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use crate::ledger::Ledger;
use crate::load::{Door, Load};
use crate::support::client::RawClient;
use crate::support::peer::{Act, Reply, ScriptedPeer, Seen};
use crate::support::process::{ProxyProcess, Settings};
use crate::support::{PATIENCE, soon};

/// Variables of a soak.
const KILLS: &str = "ROCKETMQ_TIMER_PROXY_TEST_KILLS";
const SEED: &str = "ROCKETMQ_TIMER_PROXY_TEST_SEED";
/// Segments so small that the load fills many of them: kills fall into every step of their life.
const SEGMENT_BYTES: u64 = 256 << 10;
/// One answer in this many comes later.
const LATE_ANSWERS: u32 = 5;
/// By how much, at most.
const LATE_ANSWER_MS: u64 = 20;
/// Between two looks at counts that give no other sign.
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Rig {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) proxy: ProxyProcess,
    pub(crate) broker: ScriptedPeer,
    pub(crate) names: ScriptedPeer,
    pub(crate) dice: StdRng,
    door: watch::Sender<Door>,
    dir: TempDir,
}

/// The seed of this run; new each time, unless the environment names one.
pub(crate) fn seed() -> u64 {
    let seed = variable(SEED).unwrap_or_else(rand::random);
    println!("{SEED}={seed}");
    seed
}

/// How often a storm kills.
pub(crate) fn kills(usually: usize) -> usize {
    variable(KILLS).and_then(|kills| usize::try_from(kills).ok()).unwrap_or(usually)
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|err| panic!("{name}={text}: {err}")))
}

/// A loopback address that nobody else listens on or connects from: a port on it that a killed
/// proxy had is still free when it comes back.
pub(crate) fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How a proxy is started: on an address of its own, with everything in `dir`.
pub(crate) fn settings(upstream: String, dir: &Path) -> Settings {
    let mut settings = Settings::new(upstream, dir);
    let ip = own_ip();
    settings.listen = format!("{ip}:0");
    settings.admin = format!("{ip}:0");
    settings
}

impl Rig {
    /// With segments that fill quickly.
    pub(crate) async fn start(seed: u64, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let format =
            format!(r#"{{"format":1,"store":"{seed:016x}","segment_bytes":{SEGMENT_BYTES}}}"#);
        std::fs::write(data.join("FORMAT"), format).unwrap();
        let ledger = Arc::new(Ledger::new(seed));
        let broker = ScriptedPeer::start(broker_script(&ledger)).await;
        let names = name_server(&broker.address()).await;
        let settings = settings(names.address(), dir.path()).flags(flags);
        let mut rig = Self {
            ledger,
            proxy: ProxyProcess::start(settings),
            broker,
            names,
            dice: StdRng::seed_from_u64(seed),
            door: watch::Sender::default(),
            dir,
        };
        rig.open_door().await;
        rig
    }

    pub(crate) fn load(&self) -> Load {
        Load::start(&self.ledger, &self.door.subscribe())
    }

    /// Lets time pass with everything running.
    pub(crate) async fn random_pause(&mut self, ms: std::ops::Range<u64>) {
        let pause = Duration::from_millis(self.dice.random_range(ms));
        tokio::time::sleep(pause).await;
    }

    // === The proxy's life ===

    pub(crate) fn kill(&mut self) {
        let door = *self.door.borrow();
        self.ledger.killed(door.address.map(|_| door.run));
        self.door.send_modify(|door| door.address = None);
        self.proxy.kill();
        // The ledger has its own account.
        self.broker.forget();
    }

    /// Starts the proxy again where it was; clients come back once it is ready.
    pub(crate) async fn revive(&mut self) {
        self.proxy.spawn();
        self.proxy.await_ready();
        self.open_door().await;
    }

    /// Starts it, and kills it again before or about when it is ready.
    pub(crate) async fn revive_in_vain(&mut self) {
        self.proxy.spawn();
        self.random_pause(0..150).await;
        self.kill();
    }

    /// Asks it to stop; it has to end in time and well. The clients' connections end with it.
    pub(crate) fn stop(&mut self, within: Duration) {
        self.door.send_modify(|door| door.address = None);
        self.proxy.terminate();
        let status = self.proxy.exit_within(within);
        assert_eq!(status.code(), Some(0), "{}", self.proxy.log());
        self.broker.forget();
    }

    async fn open_door(&mut self) {
        let address = door_at(&self.proxy.namesrv).await;
        self.door.send_modify(|door| *door = Door { run: door.run + 1, address: Some(address) });
    }

    // === What it leaves ===

    pub(crate) fn data_dir(&self) -> &Path {
        &self.proxy.settings.data_dir
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.data_dir().join("timerlog")
    }

    pub(crate) fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// The counts of `/api/v1/stats`.
    pub(crate) async fn stats(&self) -> serde_json::Value {
        let (status, body) = get(&self.proxy.admin, "/api/v1/stats").await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Waits until nothing is pending: all that the proxy has was confirmed by the broker.
    pub(crate) async fn settle(&self) {
        look("nothing to be pending", async || {
            let stats = self.stats().await;
            assert_eq!(stats["parked"], 0, "{stats}");
            stats["pending"] == 0
        })
        .await;
    }

    /// Waits until the log is the open segment and the spare one, and nothing else.
    pub(crate) async fn freed(&self) {
        let dir = self.log_dir();
        look("finished segments to go", async || {
            let names = names_in(&dir);
            names.len() == 2 && names.iter().all(|name| name.ends_with(".log"))
        })
        .await;
    }

    /// Fails on any line of the proxy's log that says so.
    pub(crate) fn assert_no_errors_logged(&self) {
        let log = self.proxy.log();
        let errors: Vec<_> = log
            .lines()
            .filter(|line| line.contains("ERROR") || line.contains("panicked"))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

/// Names of a folder's files, in order.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Looks again and again, for what gives no sign of its own.
pub(crate) async fn look(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let mut pace = interval(LOOK);
    let deadline = Instant::now() + PATIENCE;
    loop {
        pace.tick().await;
        if done().await {
            return;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
    }
}

/// Asks the proxy where clients find the broker.
pub(crate) async fn door_at(namesrv: &str) -> SocketAddr {
    let answer = ask_cluster(namesrv).await;
    assert_eq!(answer.header.code, 0, "{:?}", answer.header.remark);
    let brokers = broker_addresses(&answer.body).unwrap();
    brokers.values().next().expect("a broker").parse().unwrap()
}

pub(crate) async fn ask_cluster(namesrv: &str) -> Command {
    RawClient::connect(namesrv).await.call(Command::request(106, &[], Bytes::new()), 1).await
}

/// A GET: status and JSON.
pub(crate) async fn get(address: &str, path: &str) -> (u16, serde_json::Value) {
    let ask = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    soon("the admin's answer", async {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(ask.as_bytes()).await.unwrap();
        socket.read_to_string(&mut answer).await.unwrap();
    })
    .await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status").parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|err| panic!("{err}: {answer}")))
}

/// A name server that knows one broker.
pub(crate) async fn name_server(broker: &str) -> ScriptedPeer {
    let (route, cluster) = routes(broker);
    ScriptedPeer::name_server(&route, &cluster).await
}

/// Bodies of 105 and 106 with one broker.
pub(crate) fn routes(broker: &str) -> (String, String) {
    let addresses = format!(
        r#"{{"brokerAddrs":{{0:"{broker}"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}"#
    );
    let queues = r#"{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}"#;
    (
        format!(
            r#"{{"brokerDatas":[{addresses}],"filterServerTable":{{}},"queueDatas":[{queues}]}}"#
        ),
        format!(
            r#"{{"brokerAddrTable":{{"broker-a":{addresses}}},"clusterAddrTable":{{"DefaultCluster":["broker-a"]}}}}"#
        ),
    )
}

/// A broker that stores every send, tells the ledger, and is sometimes slow to answer.
pub(crate) fn broker_script(ledger: &Arc<Ledger>) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    let ledger = Arc::clone(ledger);
    let stored = AtomicI64::new(0);
    move |seen| {
        if !matches!(seen.code(), 10 | 310 | 320) {
            return Act::Reply(Reply::code(0));
        }
        let mut dice = rand::rng();
        let late = dice.random_ratio(1, LATE_ANSWERS);
        let late_ms = if late { dice.random_range(1..=LATE_ANSWER_MS) } else { 0 };
        ledger.arrived(seen, late_ms.cast_signed());
        let queue = ["e", "queueId"].map(|key| seen.ext(key));
        let queue = queue.iter().find_map(|queue| queue.parse().ok()).unwrap_or(0);
        let reply = Reply::stored(queue, stored.fetch_add(1, Ordering::Relaxed));
        match late_ms {
            0 => Act::Reply(reply),
            late => Act::Later(Duration::from_millis(late), reply),
        }
    }
}
