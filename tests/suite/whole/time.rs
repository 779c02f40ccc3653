//! When messages leave: never a millisecond early, none behind a later one, whatever the clock does.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rocketmq_timer_proxy::clock::{Clock, EpochMs, SystemClock};
use rocketmq_timer_proxy::metrics::count;
use rocketmq_timer_proxy::remoting::command::Command;

use super::rig::{Proxy, START, TestClock, Witness, body_of, due_of, hold_all, is_ours};
use crate::support::client::{send_v1, send_v2};
use crate::support::peer::ScriptedPeer;

const ABSOLUTE: [&str; 2] = ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"];

fn delayed(kind: &str, value: EpochMs, due: EpochMs) -> Command {
    send_v2("Orders", 0, &format!("{kind}\u{1}{value}"), format!("{due}:{kind}={value}"))
}

fn at(due: EpochMs) -> Command {
    delayed(ABSOLUTE[usize::from(due % 2 == 0)], due, due)
}

/// Moves the clock from one due time to the next. At each, just what is due leaves.
struct Walk<'a> {
    clock: &'a TestClock,
    proxy: &'a Proxy,
    witness: &'a Witness,
    pending: BTreeMap<EpochMs, usize>,
    left: usize,
}

impl<'a> Walk<'a> {
    fn new(clock: &'a TestClock, proxy: &'a Proxy, witness: &'a Witness) -> Self {
        Self { clock, proxy, witness, pending: BTreeMap::new(), left: witness.count() }
    }

    fn expect(&mut self, sends: &[Command]) {
        for send in sends {
            let body = std::str::from_utf8(&send.body).unwrap();
            *self.pending.entry(due_of(body)).or_default() += 1;
        }
    }

    async fn to(&mut self, now: EpochMs) {
        self.clock.set(now);
        let later = self.pending.split_off(&(now + 1));
        self.left += std::mem::replace(&mut self.pending, later).values().sum::<usize>();
        self.proxy.delivered(self.left).await;
        assert_eq!(self.witness.count(), self.left, "at {now}");
    }

    async fn through(mut self) {
        while let Some(next) = self.pending.keys().next().copied() {
            self.to(next).await;
        }
        self.witness.bodies();
        self.proxy.pending(0).await;
    }
}

// === To the millisecond ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaves_early_around_the_borders_of_slots() {
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    // Arrivals just before, on and just after a border.
    for (round, offset) in (0..).zip([-1, 0, 1]) {
        clock.set(START + round * 100_000 + offset);
        let now = clock.now();
        let mut sends = Vec::new();
        for second in [1, 2, 3, 10, 60] {
            let border = START + round * 100_000 + second * 1_000;
            // Also where slots are made ready, some time before they open.
            let about = (-3..=3).chain(-202..=-198);
            sends.extend(about.map(|ms| at(border + ms)));
        }
        let ms = [1, 2, 3, 999, 1_000, 1_001, 1_998, 1_999, 2_000, 2_001];
        sends.extend(ms.map(|ms| delayed("TIMER_DELAY_MS", ms, now + ms)));
        sends.extend([1, 2, 10].map(|s| delayed("TIMER_DELAY_SEC", s, now + s * 1_000)));
        let levels = [(1, 1_000), (2, 5_000), (3, 10_000)];
        sends.extend(levels.map(|(level, ms)| delayed("DELAY", level, now + ms)));
        // Each has a companion a millisecond before it, so that its own millisecond begins with
        // proof that the clock was looked at just before.
        let due = |send: &Command| due_of(std::str::from_utf8(&send.body).unwrap());
        let dues: Vec<_> = sends.iter().map(due).collect();
        sends.extend(dues.into_iter().filter(|due| due - 1 > now).map(|due| at(due - 1)));
        sends.shuffle(&mut StdRng::seed_from_u64(7));
        let mut walk = Walk::new(&clock, &proxy, &witness);
        walk.expect(&sends);
        hold_all(&mut client, sends).await;
        walk.to(now).await;
        walk.through().await;
    }
    drop(client);
    proxy.stop().await;
}

/// Be it held or relayed: it needs no further tick of the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_as_it_arrives_leaves_at_once() {
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let mut ours = 0;
    for n in 0..200 {
        // Every other time the clock moves on while the send is under way.
        let due = clock.now() + n % 2;
        client.send(at(due), 0).await;
        if n % 4 == 3 {
            tokio::task::yield_now().await;
        }
        clock.set(due);
        let answer = client.answer(0).await;
        assert_eq!(answer.header.code, 0);
        ours += usize::from(is_ours(&answer));
        witness.peer.until_requests(310, usize::try_from(n + 1).unwrap()).await;
    }
    witness.bodies();
    assert!(ours <= 100, "{ours} held");
    assert_eq!(count(&proxy.metrics.intercept_relayed, "past"), 200 - ours as u64);
    proxy.delivered(ours).await;
    proxy.pending(0).await;
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_machines_clock_too_nothing_is_early() {
    let clock = SystemClock::new();
    let broker = ScriptedPeer::broker().await;
    let proxy = Proxy::before(&broker.address(), SystemClock::new()).await;
    let mut client = proxy.client().await;
    let now = clock.wall_ms();
    let second = (now / 1_000 + 2) * 1_000;
    let borders = (-3..=3).map(|ms| at(second + ms));
    let spread = (0..100).map(|n| at(second - 500 + n * 10));
    let sends: Vec<_> = borders.chain(spread).collect();
    let total = sends.len();
    hold_all(&mut client, sends).await;
    for seen in broker.until_requests(310, total).await {
        let due = due_of(&body_of(&seen));
        assert!(due <= seen.at_ms, "due {due}, came {}", seen.at_ms);
    }
    // As short as it gets; the commit may take longer than the delay.
    for n in 0..100 {
        let before = clock.wall_ms();
        client.call(send_v2("Orders", 0, "TIMER_DELAY_MS\u{1}1", "x"), 0).await;
        let seen = broker.until_requests(310, total + n + 1).await.pop().unwrap();
        assert!(before < seen.at_ms, "sent {before}, came {}", seen.at_ms);
    }
    proxy.delivered(total + 100).await;
    drop(client);
    proxy.stop().await;
}

// === From when a delay counts ===

/// The sender's clock is 7 s behind; only the proxy's counts, from the last byte of the frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relative_delays_count_from_arrival_by_the_proxys_clock() {
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let born = (START - 7_000).to_string();
    let arrival = START + 400;
    let mut sends = vec![at(arrival + 9_999)];
    for (kind, value) in [("DELAY", 3), ("TIMER_DELAY_SEC", 10), ("TIMER_DELAY_MS", 10_000)] {
        let body = format!("{}:{kind}", arrival + 10_000);
        let properties = format!("{kind}\u{1}{value}");
        sends.push(send_v1("Orders", 0, &properties, body.clone()));
        sends.push(send_v2("Orders", 0, &properties, body));
    }
    for (opaque, send) in (0..).zip(&sends) {
        let mut send = send.clone();
        send.header.opaque = opaque;
        let key = if send.header.code == 10 { "bornTimestamp" } else { "g" };
        send.header.ext.set(key.into(), born.clone().into());
        let wire = send.encode();
        let (first, rest) = wire.split_at(wire.len() - 1);
        clock.set(START);
        client.send_bytes(first).await;
        clock.set(arrival);
        client.send_bytes(rest).await;
        let answer = client.answer(opaque).await;
        assert!(answer.header.code == 0 && is_ours(&answer));
    }
    let mut walk = Walk::new(&clock, &proxy, &witness);
    walk.expect(&sends);
    walk.to(arrival + 9_998).await;
    walk.to(arrival + 9_999).await;
    walk.through().await;
    for seen in witness.peer.requests() {
        let key = if seen.code() == 10 { "bornTimestamp" } else { "g" };
        assert_eq!(seen.ext(key), born);
    }
    drop(client);
    proxy.stop().await;
}

// === Who waits for whom ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_came_in_descending_order_leave_in_ascending_order() {
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let sends: Vec<_> = (0..1_000).rev().map(|n| at(START + 1_000 + n * 3)).collect();
    let mut walk = Walk::new(&clock, &proxy, &witness);
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    walk.through().await;
    assert!(witness.bodies().is_sorted());
    drop(client);
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_waits_for_one_that_is_due_later() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let mut walk = Walk::new(&clock, &proxy, &witness);
    // Some are held while others fall due.
    for round in 0..5 {
        let now = clock.now();
        let sends: Vec<_> = (0..200).map(|_| at(now + random.random_range(1..60_000))).collect();
        walk.expect(&sends);
        hold_all(&mut client, sends).await;
        for _ in 0..40 {
            walk.to(clock.now() + random.random_range(0..300)).await;
        }
        assert!(walk.left < (round + 1) * 200, "the rounds do not overlap");
    }
    walk.through().await;
    let in_order = witness.bodies();
    assert!(in_order.is_sorted_by_key(|body| due_of(body)), "out of order");
    // An hour ahead of all the others in its queue.
    let now = clock.now();
    let mut sends = vec![at(now + 3_600_000)];
    sends.extend((0..10).map(|_| delayed("TIMER_DELAY_SEC", 1, now + 1_000)));
    let mut walk = Walk::new(&clock, &proxy, &witness);
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    walk.to(now + 999).await;
    walk.to(now + 1_000).await;
    assert_eq!(walk.left, 1_010);
    walk.through().await;
    drop(client);
    proxy.stop().await;
}

// === A clock that is set ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_an_hour_back_and_five_years_forward() {
    const HOUR: EpochMs = 3_600_000;
    const DAY: EpochMs = 24 * HOUR;
    let clock = TestClock::new();
    let witness = Witness::start(&clock).await;
    let proxy = Proxy::before(&witness.peer.address(), clock.clone()).await;
    let mut client = proxy.client().await;
    let mut walk = Walk::new(&clock, &proxy, &witness);
    let sends: Vec<_> = [10, 10_000, 2 * HOUR, 10 * DAY, 365 * DAY].map(|ms| at(START + ms)).into();
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    walk.to(START + 10).await;
    // An hour back: what was held waits for its own time, and delays count from now.
    let now = START + 10 - HOUR;
    walk.to(now).await;
    let sends =
        vec![delayed("TIMER_DELAY_MS", 5, now + 5), delayed("DELAY", 1, now + 1_000), at(now + 4)];
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    for due in [now + 3, now + 4, now + 5, now + 999, now + 1_000] {
        walk.to(due).await;
    }
    walk.to(START + 9_999).await;
    assert_eq!(walk.left, 4);
    walk.to(START + 10_000).await;
    assert_eq!(walk.left, 5);
    // Five years on, all is due at once.
    let now = START + 5 * 365 * DAY;
    walk.to(now).await;
    assert_eq!(walk.left, 8);
    let sends = vec![delayed("TIMER_DELAY_SEC", 1, now + 1_000), at(now + 999)];
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    walk.to(now + 998).await;
    walk.to(now + 999).await;
    walk.to(now + 1_000).await;
    // Back in the present the machine works as ever.
    let sends = vec![delayed("TIMER_DELAY_SEC", 1, START + 1_000), at(START + 999)];
    walk.to(START).await;
    walk.expect(&sends);
    hold_all(&mut client, sends).await;
    walk.to(START + 998).await;
    walk.through().await;
    assert_eq!(witness.bodies().len(), 12);
    drop(client);
    proxy.stop().await;
}
