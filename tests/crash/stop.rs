//! SIGTERM under load: an orderly stop loses nothing, repeats nothing, leaves nobody without the
//! answer to what was taken, and comes to an end.

use std::time::Duration;

use rocketmq_timer_proxy::clock::Clock;

use crate::load::judged;
use crate::rig::{Rig, door_at, seed};
use crate::support::client::RawClient;

/// Stops in one run.
const STOPS: usize = 5;
/// The usual `--grace`.
const GRACE: Duration = Duration::from_secs(10);
/// Messages that fall due in the same millisecond.
const STORM: usize = 1_500;
/// How far ahead: sending them takes less.
const STORM_AHEAD_MS: i64 = 4_000;

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_loses_nothing_and_repeats_nothing() {
    let mut rig = Rig::start(seed(), &[]).await;
    let load = rig.load();
    for _ in 0..STOPS {
        rig.random_pause(50..1_000).await;
        rig.stop(GRACE);
        rig.revive().await;
    }
    load.stop().await;
    rig.settle().await;
    // No kill is in the ledger, so that it allows nothing to come twice.
    let verdict = rig.ledger.verdict();
    println!("{STOPS} stops: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.refused, 0, "{verdict}");
    assert_eq!(verdict.unanswered_came, 0, "delivered, and the client does not know: {verdict}");
    assert!(verdict.held > 500, "{verdict}");
    rig.assert_no_errors_logged();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_of_a_storm_loses_nothing_and_repeats_nothing() {
    let mut rig = Rig::start(seed(), &[]).await;
    let mut client = RawClient::connect(door_at(&rig.proxy.namesrv).await).await;
    let due_ms = rig.ledger.clock.wall_ms() + STORM_AHEAD_MS;
    for _ in 0..STORM {
        let plan = rig.ledger.next_due_at(1, due_ms);
        client.send(plan.sent(), plan.number as i32).await;
    }
    for number in 0..STORM {
        let answer = client.answer(number as i32).await;
        rig.ledger.answered(number as u64, judged(&answer));
    }
    let begun = |code: i32| matches!(code, 10 | 310);
    rig.broker.until("the storm", |log| log.requests.iter().any(|seen| begun(seen.code()))).await;
    rig.stop(GRACE);
    let before = rig.ledger.verdict();
    assert!(before.arrivals > 0 && before.lost.len() > STORM / 4, "in its middle: {before}");

    rig.revive().await;
    rig.settle().await;
    let verdict = rig.ledger.verdict();
    println!("stopped after {} arrivals: {verdict}", before.arrivals);
    verdict.assert_clean();
    assert_eq!((verdict.held, verdict.arrivals), (STORM, STORM), "{verdict}");
    rig.assert_no_errors_logged();
}
