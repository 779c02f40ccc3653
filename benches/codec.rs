//! What it costs to look at traffic: the scan of a plain send, a parse, a property, a route.
//!
//! `cargo bench --bench codec`. The bar: taking a plain 1 KiB send off a buffer and scanning it
//! stays under 1 us.

#![expect(missing_docs, reason = "criterion's macros write public functions")]
#![expect(clippy::expect_used, reason = "what is decoded here was encoded here")]

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::{Frame, SerializeType};
use rocketmq_timer_proxy::remoting::properties::{Properties, name};
use rocketmq_timer_proxy::remoting::route;
use rocketmq_timer_proxy::remoting::scan;

#[path = "sample/mod.rs"]
mod sample;
use sample::{PROPERTIES, send};

fn frame(bytes: &Bytes) -> Frame {
    let frame = Frame::whole(bytes.clone());
    frame.expect("a frame of ours").expect("a whole one")
}

fn plain_sends(c: &mut Criterion) {
    for (form, serialize) in [("json", SerializeType::Json), ("binary", SerializeType::RocketMq)] {
        let bytes = send(serialize, PROPERTIES);
        let frame = frame(&bytes);
        assert!(!scan::may_ask_for_delay(serialize, frame.header()));
        assert!(!scan::may_be_batch(serialize, frame.header()));
        c.bench_function(&format!("scan/plain_1k_{form}"), |b| {
            b.iter(|| {
                let header = black_box(&frame).header();
                scan::may_ask_for_delay(serialize, header) || scan::may_be_batch(serialize, header)
            });
        });
        c.bench_function(&format!("take_and_scan/plain_1k_{form}"), |b| {
            b.iter_batched_ref(
                || BytesMut::from(&bytes[..]),
                |buffer| {
                    let frame = Frame::take(buffer).ok().flatten()?;
                    let header = frame.header();
                    let delay = scan::may_ask_for_delay(serialize, header);
                    let batch = scan::may_be_batch(serialize, header);
                    Some((frame, delay, batch))
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn delayed_sends(c: &mut Criterion) {
    let properties = format!("{PROPERTIES}\u{2}__STARTDELIVERTIME\u{1}1800000000000");
    for (form, serialize) in [("json", SerializeType::Json), ("binary", SerializeType::RocketMq)] {
        let frame = frame(&send(serialize, &properties));
        c.bench_function(&format!("decode/delayed_1k_{form}"), |b| {
            b.iter(|| Command::decode(black_box(&frame)));
        });
        let command = Command::decode(&frame).expect("a header of ours");
        c.bench_function(&format!("encode/delayed_1k_{form}"), |b| {
            b.iter(|| black_box(&command).encode());
        });
    }
    let view = Properties::new(properties.as_bytes());
    c.bench_function("properties/five_names", |b| {
        b.iter(|| {
            [
                name::DELAY,
                name::START_DELIVER_TIME,
                name::TIMER_DELAY_SEC,
                name::TIMER_DELAY_MS,
                name::TIMER_DELIVER_MS,
            ]
            .map(|name| black_box(&view).get(name))
        });
    });
    c.bench_function("properties/without", |b| {
        let names = [name::DELAY, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS];
        b.iter(|| black_box(&view).without(&names));
    });
}

/// Every broker is ours.
struct Everyone;

impl route::Ours for Everyone {
    fn by_id(&self, _: &route::BrokerId) -> Option<String> {
        Some("127.0.0.1:20003".to_owned())
    }

    fn by_address(&self, _: &str) -> Option<String> {
        Some("127.0.0.1:20003".to_owned())
    }
}

fn routes(c: &mut Criterion) {
    let mut brokers = Vec::new();
    let mut queues = Vec::new();
    for n in 0..16 {
        brokers.push(format!(
            r#"{{"brokerAddrs":{{0:"10.0.0.{n}:10911",1:"10.0.1.{n}:10911"}},"brokerName":"broker-{n}","cluster":"C"}}"#
        ));
        queues.push(format!(
            r#"{{"brokerName":"broker-{n}","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}"#
        ));
    }
    let body = format!(
        r#"{{"brokerDatas":[{}],"filterServerTable":{{}},"queueDatas":[{}]}}"#,
        brokers.join(","),
        queues.join(",")
    );
    c.bench_function("route/rewrite_16_brokers", |b| {
        b.iter(|| route::rewrite(black_box(body.as_bytes()), &Everyone));
    });
}

criterion_group!(codec, plain_sends, delayed_sends, routes);
criterion_main!(codec);
