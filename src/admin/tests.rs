use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::readiness::Latch;
use super::*;
use crate::metrics::Why;
use crate::shutdown::{Stop, stop};

struct Admin {
    address: std::net::SocketAddr,
    state: State,
    stuck_s: Arc<AtomicU64>,
    stop: Stop,
    served: tokio::task::JoinHandle<()>,
}

async fn admin() -> Admin {
    let args = ["x", "serve", "--namesrv", "10.0.0.1:9876", "--max-delay", "2h"];
    let config = crate::cli::parse(args.map(Into::into)).unwrap();
    let (stop, stopping) = stop();
    let stuck_s = Arc::new(AtomicU64::new(0));
    let heartbeat = Arc::clone(&stuck_s);
    let state = State {
        metrics: Metrics::new(),
        readiness: Readiness::new(),
        config: Arc::new(config),
        wheel_stuck_for: Arc::new(move || Duration::from_secs(heartbeat.load(Ordering::Relaxed))),
        stopping: stopping.clone(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Admin {
        address: listener.local_addr().unwrap(),
        served: tokio::spawn(serve(listener, state.clone(), stopping)),
        state,
        stuck_s,
        stop,
    }
}

impl Admin {
    /// Status and body.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    async fn json(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get(path).await;
        (status, serde_json::from_str(&body).unwrap())
    }
}

#[tokio::test]
async fn ready_names_what_is_missing() {
    let admin = admin().await;
    let readiness = &admin.state.readiness;
    readiness.set(Latch::Ports);
    readiness.set(Latch::StoreHealthy);
    let (status, body) = admin.json("/ready").await;
    assert_eq!(status, 503);
    assert_eq!(body, json!({"ready": false, "missing": ["recovered", "nameServer"]}));
    readiness.set(Latch::Recovered);
    readiness.set(Latch::NameServer);
    let (status, body) = admin.json("/ready").await;
    assert_eq!((status, body), (200, json!({"ready": true, "missing": []})));
    admin.stop.enter(Stage::LameDuck);
    let (status, body) = admin.json("/ready").await;
    assert_eq!((status, body), (503, json!({"ready": false, "missing": ["running"]})));
}

#[tokio::test]
async fn live_fails_when_the_wheel_is_stuck() {
    let admin = admin().await;
    for (stuck_s, status) in [(0, 200), (9, 200), (10, 503)] {
        admin.stuck_s.store(stuck_s, Ordering::Relaxed);
        let expected = json!({"live": status == 200, "wheelStuckMs": stuck_s * 1_000});
        assert_eq!(admin.json("/live").await, (status, expected));
    }
}

#[tokio::test]
async fn stats_show_what_was_counted() {
    let admin = admin().await;
    let metrics = &admin.state.metrics;
    metrics.store_pending.set(7);
    metrics.dispatch_overdue.set(3);
    metrics.dispatch_in_flight.set(2);
    metrics.dispatch_parked.set(-1);
    metrics.store_accepted.inc_by(9);
    metrics.dispatch_delivered.inc_by(2);
    for (family, why) in [
        (&metrics.intercept_refused, "seconds"),
        (&metrics.intercept_relayed, "past"),
        (&metrics.intercept_dropped, "batch"),
        (&metrics.intercept_held, "__STARTDELIVERTIME"),
    ] {
        family.get_or_create(&Why { why }).inc();
    }
    metrics.dispatch_lateness_seconds.observe(0.0015);
    metrics.dispatch_lateness_seconds.observe(1e9);

    let (status, stats) = admin.json("/api/v1/stats").await;
    assert_eq!(status, 200);
    for (field, value) in [
        ("pending", json!(7)),
        ("overdue", json!(3)),
        ("inFlight", json!(2)),
        ("parked", json!(0)),
        ("accepted", json!(9)),
        ("delivered", json!(2)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(stats[field], value, "{field}");
    }
    for (family, counted, all) in [
        ("refused", "seconds", 5),
        ("relayed", "past", 8),
        ("dropped", "batch", 5),
        ("held", "__STARTDELIVERTIME", 5),
    ] {
        let family = stats[family].as_object().unwrap();
        assert_eq!(family.len(), all, "{family:?}");
        for (why, count) in family {
            assert_eq!(*count, json!(u8::from(why == counted)), "{why}");
        }
    }
    let lateness = &stats["lateness"];
    assert_eq!(lateness["count"], 2);
    assert_eq!(lateness["p50Ms"], 2.0);
    assert_eq!(lateness["p99Ms"], 600_000.0);
    let buckets = lateness["buckets"].as_array().unwrap();
    assert_eq!(buckets[2], json!({"leMs": 1.0, "count": 0}));
    assert_eq!(buckets[3], json!({"leMs": 2.0, "count": 1}));
    assert_eq!(buckets.last(), Some(&json!({"leMs": null, "count": 2})));
    assert_eq!(stats["config"]["max-delay"], "2h");
    assert_eq!(stats["config"]["namesrv"], "10.0.0.1:9876");
}

#[tokio::test]
async fn the_metrics_page_has_every_family() {
    let admin = admin().await;
    let (status, page) = admin.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(page.contains("\nrocketmq_timer_proxy_store_accepted_total 0\n"), "{page}");
    assert!(page.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_first_page_lists_the_others() {
    let admin = admin().await;
    let (status, page) = admin.get("/").await;
    assert_eq!(status, 200);
    let listed = page.lines().filter(|line| line.starts_with('/'));
    let listed: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, ["/live", "/ready", "/metrics", "/api/v1/stats"]);
    for path in listed {
        assert_ne!(admin.get(path).await.0, 404, "{path}");
    }
    assert_eq!(admin.get("/health").await.0, 404);
}

#[tokio::test]
async fn serving_ends_with_the_last_stage() {
    let admin = admin().await;
    admin.stop.enter(Stage::Draining);
    assert_eq!(admin.get("/metrics").await.0, 200, "a drain can be watched");
    let idle = TcpStream::connect(admin.address).await.unwrap();
    admin.stop.enter(Stage::Cut);
    admin.served.await.unwrap();
    drop(idle);
}
