use super::table::{BYTES, TOPICS};
use super::*;
use crate::clock::ManualClock;

fn body(address: &str) -> String {
    format!(r#"{{"brokerDatas":[{{"brokerAddrs":{{0:"{address}"}},"brokerName":"a"}}]}}"#)
}

fn quoted(body: &str) -> String {
    body.replace("{0:", "{\"0\":")
}

struct Rig {
    settings: RouteSettings,
    clock: ManualClock,
    metrics: Metrics,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = RouteSettings::in_dir(dir.path());
        settings.write_after = Duration::from_millis(1);
        Self { settings, clock: ManualClock::new(0), metrics: Metrics::new(), _dir: dir }
    }

    fn start(&self) -> LastRoutes {
        let clock = Arc::new(self.clock.clone());
        LastRoutes::start(self.settings.clone(), clock, self.metrics.clone())
    }
}

fn last(routes: &LastRoutes, topic: &str, standard: bool) -> Option<String> {
    let body = routes.last(topic, standard)?;
    Some(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn each_client_gets_the_form_that_it_asks_for() {
    let routes = Rig::new().start();
    let plain = body("h:1");
    for learnt in [plain.clone(), quoted(&plain)] {
        routes.learn("T", &learnt.into(), true).unwrap();
        let quotes = routes.shared.state().table.quotes;
        let standard = if quotes == Some(true) { quoted(&plain) } else { plain.clone() };
        assert_eq!(last(&routes, "T", true), Some(standard), "{quotes:?}");
        assert_eq!(last(&routes, "T", false), Some(plain.clone()));
    }
    // A client that is content with less shows nothing about what others get.
    routes.learn("T", &plain.clone().into(), false).unwrap();
    assert_eq!(last(&routes, "T", true), Some(quoted(&plain)));
    assert_eq!(last(&routes, "U", true), None);
    assert!(routes.learn("U", &"[".into(), true).is_err());
    assert_eq!(last(&routes, "U", true), None);
}

#[tokio::test]
async fn what_was_learnt_is_in_the_file_soon_and_read_at_the_next_start() {
    let rig = Rig::new();
    let routes = rig.start();
    routes.learn("T \"\u{e9}", &quoted(&body("h:1")).into(), true).unwrap();
    routes.learn("U", &body("h:2").into(), false).unwrap();
    let written = async {
        while saved::read(&rig.settings.file).len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("the file");
    let again = rig.start();
    assert_eq!(last(&again, "T \"\u{e9}", true), Some(quoted(&body("h:1"))));
    assert_eq!(last(&again, "U", false), Some(body("h:2")));
    // Nothing new is nothing to write.
    std::fs::remove_file(&rig.settings.file).unwrap();
    again.learn("U", &body("h:2").into(), false).unwrap();
    again.flush().await;
    assert!(!rig.settings.file.exists());
    again.learn("U", &body("h:3").into(), false).unwrap();
    again.flush().await;
    assert_eq!(last(&rig.start(), "U", false), Some(body("h:3")));
}

#[tokio::test]
async fn damage_costs_what_is_damaged() {
    let rig = Rig::new();
    for damage in ["", "{", r#"{"format":2,"quotes":null,"routes":[]}"#] {
        std::fs::write(&rig.settings.file, damage).unwrap();
        assert_eq!(saved::read(&rig.settings.file).len(), 0, "{damage:?}");
    }
    let good = serde_json::to_string(&body("h:1")).unwrap();
    let text = format!(
        r#"{{"format":1,"quotes":null,"routes":[{{"topic":"T","body":"{{"}},{{"topic":"U","body":{good}}}]}}"#
    );
    std::fs::write(&rig.settings.file, text).unwrap();
    let routes = rig.start();
    assert_eq!((last(&routes, "T", false), last(&routes, "U", false)), (None, Some(body("h:1"))));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_written_later() {
    let rig = Rig::new();
    let routes = rig.start();
    let in_the_way = rig.settings.file.with_added_extension("new");
    std::fs::create_dir(&in_the_way).unwrap();
    routes.learn("T", &body("h:1").into(), false).unwrap();
    routes.flush().await;
    assert!(!rig.settings.file.exists());
    std::fs::remove_dir(&in_the_way).unwrap();
    routes.flush().await;
    assert_eq!(last(&rig.start(), "T", false), Some(body("h:1")));
}

#[tokio::test]
async fn a_topic_is_forgotten_when_it_has_been_unknown_for_a_while() {
    let rig = Rig::new();
    let routes = rig.start();
    routes.learn("T", &body("h:1").into(), false).unwrap();
    routes.unknown("T");
    rig.clock.advance(Duration::from_secs(39));
    routes.unknown("T");
    assert!(last(&routes, "T", false).is_some());
    // Known again in between: the count begins anew.
    routes.learn("T", &body("h:1").into(), false).unwrap();
    rig.clock.advance(Duration::from_secs(1));
    routes.unknown("T");
    assert!(last(&routes, "T", false).is_some());
    rig.clock.advance(Duration::from_secs(40));
    routes.unknown("T");
    assert_eq!(last(&routes, "T", false), None);
    routes.flush().await;
    assert_eq!(last(&rig.start(), "T", false), None);
}

#[test]
fn the_table_is_bounded_and_the_least_used_go_first() {
    let mut table = Table::default();
    for n in 0..TOPICS {
        assert!(table.put(&n.to_string(), "x".into()));
    }
    assert!(table.get("0").is_some());
    assert!(table.put("one more", "x".into()));
    assert_eq!((table.len(), table.get("1")), (TOPICS, None));
    assert!(table.get("0").is_some());

    let mut table = Table::default();
    let half = Bytes::from(vec![b'x'; BYTES / 2 - 1]);
    for topic in ["a", "b", "c"] {
        table.put(topic, half.clone());
    }
    assert_eq!((table.len(), table.get("a")), (2, None));
    // What would not fit alone takes the place of nobody.
    assert!(!table.put("d", vec![b'x'; BYTES].into()));
    assert_eq!((table.len(), table.all().len()), (2, 2));
    assert!(table.put("b", vec![b'x'; BYTES].into()), "the old body is wrong now");
    assert_eq!(table.len(), 1);
}
