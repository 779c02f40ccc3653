//! What it costs to hold a send, without the disk: header decoded, decided, made a record, answered.
//!
//! `cargo bench --bench intercept`. The bar: under 5 us for all of it.

#![expect(missing_docs, reason = "criterion's macros write public functions")]
#![expect(clippy::expect_used, reason = "what is decoded here was encoded here")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, criterion_group, criterion_main};

use rocketmq_timer_proxy::config::Policy;
use rocketmq_timer_proxy::dispatch::forward;
use rocketmq_timer_proxy::intercept::decide::{Decision, decide};
use rocketmq_timer_proxy::intercept::hold::{self, Pending};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, SerializeType};
use rocketmq_timer_proxy::store::{Held, TimerId};

const NOW: i64 = 1_800_000_000_000;
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[path = "sample/mod.rs"]
mod sample;

/// The sample with this delay.
fn send(delay: &str) -> Frame {
    let properties = format!("{}\u{2}{delay}", sample::PROPERTIES);
    let bytes = sample::send(SerializeType::Json, &properties);
    Frame::whole(bytes).expect("a frame of ours").expect("a whole one")
}

fn holds(c: &mut Criterion) {
    let policy = Policy::default();
    let delays = [
        ("level", "DELAY\u{1}3"),
        ("absolute", "__STARTDELIVERTIME\u{1}1800000060000"),
        ("relative", "TIMER_DELAY_MS\u{1}60000"),
    ];
    for (kind, delay) in delays {
        let frame = send(delay);
        c.bench_function(&format!("hold/{kind}_1k"), |b| {
            b.iter(|| {
                let command = Command::decode(black_box(&frame)).expect("a header of ours");
                let Decision::Hold { due_ms, .. } = decide(&command, NOW, true, &policy) else {
                    panic!("not held");
                };
                let pending = Pending::of(&command, HOST, 20_000);
                let client = "10.0.0.9:40123".to_owned();
                let record = hold::record(&command, "broker-a", due_ms, NOW, client);
                let answer = pending.answer(Ok(TimerId(4_711))).map(|answer| answer.encode());
                (record, answer)
            });
        });
    }
    let command = Command::decode(&send(delays[0].1)).expect("a header of ours");
    c.bench_function("hold/decide", |b| {
        b.iter(|| decide(black_box(&command), NOW, true, &policy));
    });
    c.bench_function("hold/record", |b| {
        b.iter(|| {
            hold::record(black_box(&command), "broker-a", NOW, NOW, "10.0.0.9:40123".to_owned())
        });
    });
    let pending = Pending::of(&command, HOST, 20_000);
    c.bench_function("hold/answer", |b| {
        b.iter(|| black_box(&pending).answer(Ok(TimerId(4_711))).map(|answer| answer.encode()));
    });
}

/// The way out: a record becomes a request again.
fn forwards(c: &mut Criterion) {
    let command = Command::decode(&send("DELAY\u{1}3")).expect("a header of ours");
    let hold = hold::record(&command, "broker-a", NOW, NOW, "10.0.0.9:40123".to_owned());
    let held = Held { id: TimerId(1), hold };
    c.bench_function("forward/level_1k", |b| {
        b.iter(|| forward::command(black_box(&held), None).map(|command| command.encode()));
    });
}

criterion_group!(intercept, holds, forwards);
criterion_main!(intercept);
