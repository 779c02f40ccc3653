//! Sends that ask for a delay: held, answered once, and never in the middle of something else.

use super::*;
use crate::metrics::count;
use crate::session::outbox::MAX_OWED;

async fn write(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

#[tokio::test]
async fn a_delayed_send_is_held_and_answered_after_its_receipt() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let peer = client.local_addr().unwrap().to_string();
    let mut client = Commands::of(client);
    write(&mut client.stream, &delayed(41, b"body")).await;
    let (hold, receipt) = rig.hold().await;
    assert_eq!(hold.body, Bytes::from_static(b"body"));
    assert_eq!((hold.accepted_ms, hold.due_ms), (NOW, NOW + 5_000));
    assert_eq!(hold.lane.broker, "broker-a");
    assert_eq!(hold.client, peer);
    // Nothing of it reached the broker: what comes next is the first thing there.
    write(&mut client.stream, &plain(42, b"x")).await;
    expect(&mut broker, &plain(42, b"x")).await;
    assert_ne!(rig.budget.used(), 0);
    receipt(Ok(TimerId(1)));
    let answer = client.next().await;
    assert_eq!((answer.header.opaque, answer.header.code), (41, 0));
    assert!(answer.is_response());
    assert_eq!(rig.budget.used(), 0);
    assert_eq!(count(&rig.metrics.intercept_held, "DELAY"), 1);
}

#[tokio::test]
async fn each_of_many_in_flight_gets_its_own_answer() {
    let mut rig = Rig::new().await;
    let mut dice = Dice::new();
    let (client, mut broker) = rig.pair().await;
    let (mut stream, mut relayed, mut held) = (vec![], vec![], vec![]);
    for opaque in 0..1_000 {
        let body = vec![b'b'; dice.below(2_000)];
        if dice.below(2) == 0 {
            stream.extend(plain(opaque, &body));
            relayed.extend(plain(opaque, &body));
        } else {
            stream.extend(delayed(opaque, &body));
            held.push((opaque, body));
        }
    }
    let (read, mut write) = client.into_split();
    let writer = tokio::spawn(async move {
        write.write_all(&stream).await.unwrap();
        write
    });
    expect(&mut broker, &relayed).await;
    let mut receipts = vec![];
    for (_, body) in &held {
        let (hold, receipt) = rig.hold().await;
        assert_eq!(hold.body, body);
        receipts.push(receipt);
    }
    while !receipts.is_empty() {
        let n = dice.below(receipts.len());
        let outcome = match dice.below(3) {
            0 => Err(HoldError::Recovering),
            _ => Ok(TimerId(n as u64)),
        };
        receipts.swap_remove(n)(outcome);
    }
    let mut client = Commands::of(read.reunite(writer.await.unwrap()).unwrap());
    let mut answered = vec![];
    for _ in &held {
        answered.push(client.next().await.header.opaque);
    }
    answered.sort_unstable();
    let expected: Vec<i32> = held.iter().map(|(opaque, _)| *opaque).collect();
    assert_eq!(answered, expected);
    assert_eq!(rig.budget.used(), 0);
}

#[tokio::test]
async fn the_arrival_is_the_time_the_frame_was_complete() {
    let mut rig = Rig::new().await;
    let (mut client, _broker) = rig.pair().await;
    for body in [b"x".to_vec(), vec![1; 300_000]] {
        let frame = delayed(1, &body);
        let (begun, rest) = frame.split_at(frame.len() - 1);
        write(&mut client, begun).await;
        let read_at = rig.clock.wall_ms() + 777;
        rig.clock.set_wall(read_at);
        write(&mut client, rest).await;
        assert_eq!(rig.hold().await.0.accepted_ms, read_at);
    }
}

#[tokio::test]
async fn an_answer_waits_for_the_end_of_the_brokers_frame() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let mut client = Commands::of(client);
    let frame = plain(5, &vec![3; 200_000]);
    for cut in [1, 3, 4, 9, 100, 70_000, frame.len() - 1] {
        let (begun, rest) = frame.split_at(cut);
        write(&mut broker, begun).await;
        write(&mut client.stream, &delayed(6, b"x")).await;
        let (_, receipt) = rig.hold().await;
        // The start of the frame has passed the session when it is here.
        let mut seen = vec![0; cut];
        client.stream.read_exact(&mut seen).await.unwrap();
        receipt(Ok(TimerId(1)));
        write(&mut broker, rest).await;
        write(&mut broker, &frame[..cut]).await;
        client.buffer.extend_from_slice(&seen);
        assert_eq!(client.next().await.header.opaque, 5, "cut at {cut}");
        assert_eq!(client.next().await.header.opaque, 6, "cut at {cut}");
        write(&mut broker, rest).await;
        assert_eq!(client.next().await.header.opaque, 5, "cut at {cut}");
    }
}

#[tokio::test]
async fn refusals_are_answered_and_one_way_ones_dropped() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let mut client = Commands::of(client);
    write(&mut client.stream, &refused(3).encode()).await;
    let answer = client.next().await;
    assert_eq!((answer.header.opaque, answer.header.code), (3, 13));
    write(&mut client.stream, &oneway(send(4, "DELAY\u{1}2\u{2}", b"1"))).await;
    let (_, receipt) = rig.hold().await;
    receipt(Err(HoldError::Recovering));
    write(&mut client.stream, &delayed(5, b"2")).await;
    rig.hold().await.1(Ok(TimerId(1)));
    assert_eq!(client.next().await.header.opaque, 5);
    assert_eq!(count(&rig.metrics.intercept_dropped, "not held"), 1);
    write(&mut client.stream, &plain(6, b"x")).await;
    expect(&mut broker, &plain(6, b"x")).await;
}

#[tokio::test]
async fn a_receipt_that_is_never_called_answers_all_the_same() {
    let mut rig = Rig::new().await;
    let (client, _broker) = rig.pair().await;
    let mut client = Commands::of(client);
    write(&mut client.stream, &delayed(3, b"x")).await;
    drop(rig.hold().await);
    let answer = client.next().await;
    assert_eq!((answer.header.opaque, answer.header.code), (3, 2));
}

#[tokio::test]
async fn a_large_delayed_send_fits_a_small_budget() {
    let small = Setup { budget: 64 * 1024, ..Setup::default() };
    let mut rig = Rig::with(small).await;
    let (client, mut broker) = rig.pair().await;
    let mut client = Commands::of(client);
    let body = vec![5; 4 * 1024 * 1024];
    write(&mut client.stream, &delayed(1, &body)).await;
    let (hold, receipt) = rig.hold().await;
    assert_eq!(hold.body.len(), body.len());
    assert_eq!(rig.budget.used(), 48 * 1024, "all that large frames may have");
    receipt(Ok(TimerId(1)));
    assert_eq!(client.next().await.header.opaque, 1);
    assert_eq!(rig.budget.used(), 0);
    write(&mut client.stream, &plain(2, b"x")).await;
    expect(&mut broker, &plain(2, b"x")).await;
}

#[tokio::test]
async fn a_spent_budget_stops_only_those_who_need_it() {
    let small = Setup { budget: 8 * 1024, ..Setup::default() };
    let mut rig = Rig::with(small).await;
    let (mut client, mut broker) = rig.pair().await;
    let (mut other, mut others_broker) = rig.pair().await;
    // One read of the session: what is relayed does not wait for the budget.
    let mut stream = vec![];
    for opaque in 0..3 {
        stream.extend(plain(opaque, b"x"));
        stream.extend(delayed(opaque, &[0; 3_000]));
    }
    write(&mut client, &stream).await;
    let mut relayed = vec![];
    for opaque in 0..3 {
        relayed.extend(plain(opaque, b"x"));
    }
    expect(&mut broker, &relayed).await;
    let (_, first) = rig.hold().await;
    let (_, second) = rig.hold().await;
    write(&mut other, &plain(9, b"y")).await;
    expect(&mut others_broker, &plain(9, b"y")).await;
    assert!(rig.holds.try_recv().is_err(), "beyond the budget");
    first(Ok(TimerId(1)));
    let (_, third) = rig.hold().await;
    second(Ok(TimerId(2)));
    third(Ok(TimerId(3)));
    let mut client = Commands::of(client);
    for opaque in 0..3 {
        assert_eq!(client.next().await.header.opaque, opaque);
    }
}

#[tokio::test]
async fn a_client_is_owed_a_bounded_number_of_answers() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let (read, mut write) = client.into_split();
    let total = MAX_OWED + 10;
    let writer = tokio::spawn(async move {
        for opaque in 0..total {
            write.write_all(&delayed(opaque as i32, b"x")).await.unwrap();
        }
        write.write_all(&plain(-1, b"last")).await.unwrap();
        write
    });
    let mut receipts = vec![];
    for _ in 0..MAX_OWED {
        receipts.push(rig.hold().await.1);
    }
    assert!(rig.holds.try_recv().is_err(), "more than it may be owed");
    let mut client = Commands::of(read.reunite(writer.await.unwrap()).unwrap());
    for receipt in receipts.drain(..10) {
        receipt(Ok(TimerId(1)));
    }
    for opaque in 0..10 {
        assert_eq!(client.next().await.header.opaque, opaque);
    }
    expect(&mut broker, &plain(-1, b"last")).await;
    for _ in 0..10 {
        receipts.push(rig.holds.try_recv().unwrap().1);
    }
    receipts.into_iter().for_each(|receipt| receipt(Ok(TimerId(1))));
    for opaque in 10..total {
        assert_eq!(client.next().await.header.opaque, opaque as i32);
    }
}

#[tokio::test]
async fn a_slow_reader_gets_frames_and_answers_whole() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let mut client = Commands::of(client);
    let large = plain(-7, &vec![3; 1_000_000]);
    let frames = 40;
    let feeder = tokio::spawn(async move {
        for _ in 0..frames {
            broker.write_all(&large).await.unwrap();
        }
        broker
    });
    for opaque in 0..500 {
        write(&mut client.stream, &delayed(opaque, b"x")).await;
        rig.hold().await.1(Ok(TimerId(1)));
    }
    let (mut large_ones, mut answers) = (0, vec![]);
    while large_ones < frames || answers.len() < 500 {
        match client.next().await.header.opaque {
            -7 => large_ones += 1,
            opaque => answers.push(opaque),
        }
    }
    assert_eq!(answers, (0..500).collect::<Vec<_>>());
    feeder.await.unwrap();
}

#[tokio::test]
async fn a_delayed_send_that_cannot_be_read_closes_the_connection() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    write(&mut client, &plain(1, b"x")).await;
    write(&mut client, &raw(0, b"{\"DELAY\x012", b"body")).await;
    expect(&mut broker, &plain(1, b"x")).await;
    expect_closed(&mut client).await;
    expect_closed(&mut broker).await;
    let rejected = &rig.metrics.session_rejected;
    assert_eq!(count(rejected, "unreadable delayed send"), 1);
}

#[tokio::test]
async fn what_a_stock_broker_reads_otherwise_is_neither_relayed_nor_held() {
    let ask = r#""i":"DELAY\u00012""#;
    for header in [
        format!(r#"{{"Code":310,"extFields":{{"b":"T",{ask}}}}}"#),
        format!(r#"{{"code":310,"ext_fields":{{"b":"T",{ask}}}}}"#),
        format!(r#"{{"code":3.1e2,"extFields":{{"b":"T",{ask}}}}}"#),
        format!(r#"{{"code":310,"extFields":{{"b":"T","@type":"x.Y",{ask}}}}}"#),
        format!(r#"{{"code":310,"extFields":{{"b":"T","$ref":"$",{ask}}}}}"#),
        format!(r#"{{"code":310,"extFields":{{"b":"T","":"",{ask}}}}}"#),
    ] {
        let rig = Rig::new().await;
        let (mut client, mut broker) = rig.pair().await;
        write(&mut client, &raw(0, header.as_bytes(), b"body")).await;
        expect_closed(&mut client).await;
        expect_closed(&mut broker).await;
        assert_eq!(count(&rig.metrics.session_rejected, "unreadable delayed send"), 1, "{header}");
    }
}
