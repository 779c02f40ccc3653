//! kill -9 at random moments under load.

use rand::Rng;

use crate::rig::{Rig, kills, seed};

/// Kills of an ordinary run.
const KILLS: usize = 20;

/// Kills and restarts at random moments, also while it starts.
async fn storm(rig: &mut Rig, kills: usize) {
    let load = rig.load();
    let mut left = kills;
    while left > 0 {
        // Most after a while of work, some in the first moments.
        let pause = if rig.dice.random_ratio(1, 5) { 0..50 } else { 100..1_200 };
        rig.random_pause(pause).await;
        rig.kill();
        left -= 1;
        if left > 0 && rig.dice.random_ratio(1, 5) {
            rig.revive_in_vain().await;
            left -= 1;
        }
        rig.revive().await;
    }
    rig.random_pause(100..500).await;
    load.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_accepted_is_lost_or_early_over_random_kills() {
    let kills = kills(KILLS);
    let mut rig = Rig::start(seed(), &[]).await;
    storm(&mut rig, kills).await;
    rig.settle().await;
    let verdict = rig.ledger.verdict();
    println!("{kills} kills: {verdict}");
    verdict.assert_clean();
    // The load was one. A disk that stands still for 2 s may have had a few sends refused.
    assert!(verdict.held > 50 * kills && verdict.relayed > 10 * kills, "{verdict}");

    // What was delivered stays delivered, and its segments go though nothing is sent any more.
    rig.kill();
    rig.revive().await;
    rig.settle().await;
    assert_eq!(rig.stats().await["pending"], 0);
    rig.freed().await;
    rig.ledger.verdict().assert_clean();
    rig.assert_no_errors_logged();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_for_the_next_sync_survive_a_kill() {
    let mut rig = Rig::start(seed(), &["--flush", "async"]).await;
    storm(&mut rig, 4).await;
    rig.settle().await;
    let verdict = rig.ledger.verdict();
    println!("--flush async: {verdict}");
    verdict.assert_clean();
    rig.assert_no_errors_logged();
}
