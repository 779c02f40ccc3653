//! What the ledger must see: the same rig with a store that was broken on purpose, and accounts that
//! are wrong by one millisecond or one byte.

use std::path::Path;

use bytes::Bytes;
use rocketmq_timer_proxy::clock::Clock;
use rocketmq_timer_proxy::remoting::command::Command;

use crate::ledger::{Answer, Ledger, RECORDED_WITHIN_MS, SLACK_MS, USUAL_SLACK_MS, Verdict};
use crate::plan::{Kind, Plan};
use crate::rig::{Rig, names_in, seed};

/// Rules that the verdict says are broken.
fn broken(verdict: &Verdict) -> Vec<&'static str> {
    verdict.faults().into_keys().collect()
}

/// A rig that has accepted much of what is still to come, and was killed.
async fn killed_with_messages_pending(seed: u64) -> Rig {
    let mut rig = Rig::start(seed, &[]).await;
    let load = rig.load();
    rig.random_pause(1_000..1_500).await;
    load.stop().await;
    rig.kill();
    rig
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in names_in(from) {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

fn empty(dir: &Path) {
    for name in names_in(dir) {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_log_is_a_loss() {
    let mut rig = killed_with_messages_pending(seed()).await;
    empty(&rig.log_dir());
    rig.revive().await;
    rig.settle().await;
    let verdict = rig.ledger.verdict();
    assert_eq!(broken(&verdict), ["lost"], "{verdict}");
    assert!(verdict.lost.len() > 100, "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_put_back_is_seen_as_duplicates() {
    let mut rig = killed_with_messages_pending(seed()).await;
    let aside = rig.scratch().join("aside");
    copy_files(&rig.log_dir(), &aside);
    rig.revive().await;
    rig.settle().await;
    rig.ledger.verdict().assert_clean();

    rig.kill();
    empty(&rig.log_dir());
    copy_files(&aside, &rig.log_dir());
    rig.revive().await;
    rig.settle().await;
    let verdict = rig.ledger.verdict();
    assert_eq!(broken(&verdict), ["doubled"], "{verdict}");
    assert!(verdict.doubled.len() > 100, "{verdict}");
}

// === Accounts made by hand ===

/// A ledger with one message of this kind, held and acknowledged; the others were refused.
fn one(kind: Kind) -> (Ledger, Plan) {
    let ledger = Ledger::new(7);
    loop {
        let plan = ledger.next(1);
        if plan.kind == kind {
            ledger.answered(plan.number, Answer::Held);
            return (ledger, plan);
        }
        ledger.answered(plan.number, Answer::Refused(2));
    }
}

fn with_body(command: &Command, body: Vec<u8>) -> Command {
    Command { body: Bytes::from(body), ..command.clone() }
}

#[test]
fn a_message_that_came_in_time_and_whole_is_no_fault() {
    for kind in [Kind::StartDeliverTime, Kind::TimerDelayMs, Kind::Level1] {
        let (ledger, plan) = one(kind);
        assert_eq!(broken(&ledger.verdict()), ["lost"]);
        ledger.arrived_at(&plan.delivered(), plan.due_ms(), 0);
        ledger.verdict().assert_clean();
    }
}

#[test]
fn a_millisecond_too_early_is_seen() {
    for kind in [Kind::StartDeliverTime, Kind::TimerDelaySec, Kind::Level1] {
        let (ledger, plan) = one(kind);
        ledger.arrived_at(&plan.delivered(), plan.due_ms() - 1, 0);
        assert_eq!(broken(&ledger.verdict()), ["early"]);
    }
    // Also of a message that nobody promised to deliver.
    let ledger = Ledger::new(8);
    let plan = std::iter::repeat_with(|| ledger.next(1)).find(|plan| plan.kind != Kind::Plain);
    let plan = plan.unwrap();
    ledger.arrived_at(&plan.delivered(), plan.due_ms() - 1, 0);
    assert_eq!(broken(&ledger.verdict()), ["early"]);
}

#[test]
fn any_change_is_seen() {
    let (_, plan) = one(Kind::TimerDelayMs);
    let good = plan.delivered();
    let mut longer = good.body.to_vec();
    longer.push(0);
    let mut other = good.clone();
    let field = if good.header.code == 310 { "f" } else { "sysFlag" };
    other.header.ext.set(Bytes::from_static(field.as_bytes()), Bytes::from_static(b"1"));
    for altered in [with_body(&good, longer), other, plan.sent()] {
        let (ledger, plan) = one(Kind::TimerDelayMs);
        ledger.arrived_at(&altered, plan.due_ms(), 0);
        assert_eq!(broken(&ledger.verdict()), ["altered"]);
    }
}

#[test]
fn what_nobody_sent_is_seen() {
    let ledger = Ledger::new(7);
    let stranger = Plan::new(8, 0, ledger.clock.wall_ms());
    ledger.arrived_at(&stranger.delivered(), stranger.due_ms(), 0);
    assert_eq!(broken(&ledger.verdict()), ["strangers"]);
}

#[test]
fn twice_is_allowed_only_for_what_a_kill_found_unrecorded() {
    const ANSWERED_AFTER_MS: i64 = 10;
    let recorded_ms = ANSWERED_AFTER_MS + RECORDED_WITHIN_MS + SLACK_MS;
    for (kill_after_ms, expected) in [
        (None, &["doubled"][..]),
        (Some(-SLACK_MS - 1), &["doubled"]),
        (Some(0), &[]),
        (Some(recorded_ms), &[]),
        (Some(recorded_ms + 1), &["doubled"]),
        // After the second time.
        (Some(5_001), &["doubled"]),
    ] {
        let (ledger, plan) = one(Kind::StartDeliverTime);
        let due_ms = plan.due_ms();
        if let Some(after) = kill_after_ms {
            ledger.killed_at(due_ms + after, Some(1));
        }
        ledger.arrived_at(&plan.delivered(), due_ms, ANSWERED_AFTER_MS);
        ledger.arrived_at(&plan.delivered(), due_ms + 5_000, 0);
        assert_eq!(broken(&ledger.verdict()), expected, "{kill_after_ms:?}");
    }
}

#[test]
fn records_that_are_late_as_a_rule_are_found() {
    let usual_ms = RECORDED_WITHIN_MS + USUAL_SLACK_MS;
    for (messages, late, expected) in
        [(20, 10, &["doubled"][..]), (20, 9, &[]), (19, 19, &[]), (100, 60, &["doubled"])]
    {
        let ledger = Ledger::new(7);
        let due_ms = ledger.clock.wall_ms();
        for number in 0..messages {
            let plan = ledger.next_due_at(1, due_ms);
            ledger.answered(plan.number, Answer::Held);
            let age_ms = usual_ms + i64::from(number < late);
            ledger.arrived_at(&plan.delivered(), due_ms + 10_000 - age_ms, 0);
            ledger.arrived_at(&plan.delivered(), due_ms + 20_000, 0);
        }
        ledger.killed_at(due_ms + 10_000, Some(1));
        assert_eq!(broken(&ledger.verdict()), expected, "{late} of {messages}");
    }
}

#[test]
fn twice_is_allowed_of_what_a_log_that_stood_still_could_not_record() {
    // The kill came in a run that still owes an answer, in another one, and in one that was starting.
    for (run, expected) in [(Some(1), &[][..]), (Some(2), &["doubled"]), (None, &[])] {
        let (ledger, plan) = one(Kind::StartDeliverTime);
        let due_ms = plan.due_ms();
        ledger.next_due_at(1, due_ms);
        ledger.arrived_at(&plan.delivered(), due_ms, 0);
        ledger.killed_at(due_ms + 5_000, run);
        ledger.arrived_at(&plan.delivered(), due_ms + 6_000, 0);
        assert_eq!(broken(&ledger.verdict()), expected, "{run:?}");
    }
    // A hold acknowledged later took the record along.
    let (ledger, plan) = one(Kind::StartDeliverTime);
    let sent_ms = ledger.clock.wall_ms();
    ledger.arrived_at(&plan.delivered(), sent_ms - SLACK_MS - 2_000, 0);
    ledger.next_due_at(1, sent_ms);
    let later = ledger.next_due_at(1, sent_ms);
    ledger.answered(later.number, Answer::Held);
    ledger.killed_at(sent_ms + 5_000, Some(1));
    ledger.arrived_at(&plan.delivered(), sent_ms + 6_000, 0);
    assert!(broken(&ledger.verdict()).contains(&"doubled"));
}

#[test]
fn what_is_relayed_never_comes_twice() {
    let ledger = Ledger::new(7);
    let plan = std::iter::repeat_with(|| ledger.next(1)).find(|plan| plan.kind == Kind::Plain);
    let plan = plan.unwrap();
    ledger.killed_at(plan.due_ms(), Some(1));
    ledger.arrived_at(&plan.delivered(), plan.due_ms(), 0);
    ledger.verdict().assert_clean();
    ledger.arrived_at(&plan.delivered(), plan.due_ms() + 100, 0);
    assert_eq!(broken(&ledger.verdict()), ["doubled"]);
}
