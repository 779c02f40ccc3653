//! A stock name server and a stock broker of RocketMQ 4.9.7, from the jars that tests/run.sh brings.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::leash::{Leash, await_start, free_ports};

/// Of name server and broker.
const VERSION: &str = "4.9.7";

/// The name that the broker goes by in routes.
pub(crate) const BROKER_NAME: &str = "stock-broker";

/// Small, quick to start, and with the packages opened that the 4.x broker needs on a modern JDK.
pub(crate) const JVM_FLAGS: &[&str] = &[
    "-Xms256m",
    "-Xmx768m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
];

const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// One name server, one master. Ends with the guard or with this process.
pub(crate) struct Cluster {
    /// `127.0.0.1:port` of the name server.
    pub(crate) namesrv: String,
    /// `127.0.0.1:port` of the broker.
    pub(crate) broker: String,
    _broker: Leash,
    namesrv_process: Leash,
}

impl Cluster {
    /// Returns once the broker is registered.
    pub(crate) fn start() -> Cluster {
        let jars = from_env(&test_folder("JARS", VERSION));
        let (namesrv, namesrv_process) = start_namesrv(&jars);
        let (broker, broker_process) = start_broker(&jars, &namesrv);
        Cluster { namesrv, broker, _broker: broker_process, namesrv_process }
    }

    /// The port of [`Cluster::broker`].
    pub(crate) fn broker_port(&self) -> u16 {
        self.broker.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    /// A new folder for others, removed with the cluster.
    pub(crate) fn scratch(&self) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("client-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = self.namesrv_process.dir().join(name);
        fs::create_dir_all(&dir).expect("a folder is made");
        dir
    }
}

/// The variable in which tests/run.sh names a folder of that version: `JARS` or `CLASSES`.
pub(crate) fn test_folder(what: &str, version: &str) -> String {
    format!("ROCKETMQ_TIMER_PROXY_TEST_{what}_{}", version.replace('.', "_"))
}

/// A folder that tests/run.sh names. Missing is a mistake of the caller, never a reason to skip.
pub(crate) fn from_env(name: &str) -> PathBuf {
    let value = std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} is not set: run ./tests/run.sh, which sets it"));
    PathBuf::from(value)
}

/// A scratch folder that its owner removes.
pub(crate) fn scratch_dir(what: &str) -> PathBuf {
    tempfile::Builder::new().prefix(what).tempdir().expect("a scratch folder").keep()
}

fn start_namesrv(jars: &Path) -> (String, Leash) {
    let dir = scratch_dir("interop-namesrv");
    let port = free_ports(1);
    let conf = dir.join("ns.conf");
    fs::write(&conf, format!("listenPort={port}\n")).expect("ns.conf is written");
    let process = start_stock(jars, "org.apache.rocketmq.namesrv.NamesrvStartup", &conf, dir);
    let address = format!("127.0.0.1:{port}");
    await_start(
        STARTS_WITHIN,
        || format!("the name server answers: {}", process.last_words()),
        || TcpStream::connect(&address).ok(),
    );
    (address, process)
}

fn start_broker(jars: &Path, namesrv: &str) -> (String, Leash) {
    let dir = scratch_dir("interop-broker");
    // The broker listens on its port, on the port two below (VIP) and on the next one (replication).
    let port = free_ports(4) + 2;
    let conf = dir.join("broker.conf");
    let store = dir.join("store");
    let text = format!(
        "brokerClusterName=stock\nbrokerName={BROKER_NAME}\nbrokerId=0\nbrokerIP1=127.0.0.1\n\
         listenPort={port}\nnamesrvAddr={namesrv}\nstorePathRootDir={store}\n\
         storePathCommitLog={store}/commitlog\nmapedFileSizeCommitLog=67108864\n\
         autoCreateTopicEnable=true\nenablePropertyFilter=true\ndiskMaxUsedSpaceRatio=95\n\
         waitTimeMillsInSendQueue=3000\n",
        store = store.display(),
    );
    fs::write(&conf, text).expect("broker.conf is written");
    let process = start_stock(jars, "org.apache.rocketmq.broker.BrokerStartup", &conf, dir);
    await_start(
        STARTS_WITHIN,
        || format!("the broker is registered: {}", process.last_words()),
        || cluster_info(namesrv).filter(|body| body.contains(BROKER_NAME)),
    );
    (format!("127.0.0.1:{port}"), process)
}

fn start_stock(jars: &Path, class: &str, conf: &Path, dir: PathBuf) -> Leash {
    fs::create_dir(dir.join("conf")).expect("the conf folder is made");
    for role in ["namesrv", "broker"] {
        let text = log_config(&dir.join(format!("{role}.log")));
        fs::write(dir.join(format!("conf/logback_{role}.xml")), text)
            .expect("logback file is written");
    }
    let mut command = vec!["java".to_owned()];
    command.extend(JVM_FLAGS.iter().map(|&flag| flag.to_owned()));
    command.extend([
        format!("-Duser.home={}", dir.display()),
        // A disk that is fuller than the broker likes is no reason for a test to fail.
        "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98".to_owned(),
        "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97".to_owned(),
        "-cp".to_owned(),
        format!("{}/*", jars.display()),
        class.to_owned(),
        "-c".to_owned(),
        conf.display().to_string(),
    ]);
    let home = dir.display().to_string();
    Leash::spawn(&command, &[("ROCKETMQ_HOME", &home)], dir)
}

pub(crate) fn log_config(log: &Path) -> String {
    format!(
        "<configuration><appender name=\"file\" class=\"ch.qos.logback.core.FileAppender\">\
         <file>{}</file><encoder><pattern>%d %p %t %m%n</pattern></encoder></appender>\
         <root level=\"WARN\"><appender-ref ref=\"file\"/></root></configuration>",
        log.display()
    )
}

/// The body of the answer to GET_BROKER_CLUSTER_INFO.
fn cluster_info(namesrv: &str) -> Option<String> {
    ask(namesrv, 106, "{}")
}

/// The body of the answer to GET_ROUTEINFO_BY_TOPIC.
pub(crate) fn route(namesrv: &str, topic: &str) -> Option<String> {
    ask(namesrv, 105, &format!(r#"{{"topic":"{topic}"}}"#))
}

/// One request to a name server, over a connection of its own; its body as text where it is there.
fn ask(namesrv: &str, code: u16, fields: &str) -> Option<String> {
    let header = format!(
        r#"{{"code":{code},"extFields":{fields},"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":401}}"#
    );
    let length = u32::try_from(header.len()).ok()?;
    let mut frame = Vec::with_capacity(header.len() + 8);
    frame.extend((length + 4).to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame.extend(header.as_bytes());
    let mut stream = TcpStream::connect(namesrv).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(&frame).ok()?;
    let mut word = [0; 4];
    stream.read_exact(&mut word).ok()?;
    let mut rest = vec![0; usize::try_from(u32::from_be_bytes(word)).ok()?];
    stream.read_exact(&mut rest).ok()?;
    let (header_length, rest) = rest.split_first_chunk::<4>()?;
    // The first byte of that word is the kind of serialization.
    let header_length = usize::try_from(u32::from_be_bytes(*header_length) & 0x00ff_ffff).ok()?;
    String::from_utf8(rest.get(header_length..)?.to_vec()).ok()
}
