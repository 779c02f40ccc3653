//! What is relayed leaves as it came.

use super::*;

/// Frames of all sorts that ask for no delay.
fn some_frames(dice: &mut Dice, count: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    for opaque in 0..count {
        let len = match dice.below(20) {
            0 => dice.below(300_000),
            1..4 => dice.below(70_000),
            _ => dice.below(600),
        };
        let body = vec![dice.below(256) as u8; len];
        let frame = match dice.below(6) {
            0 => {
                let mut unknown = Command::request(99_999, &[("k", "v")], Bytes::from(body));
                unknown.header.opaque = i32::MIN + opaque as i32;
                unknown.encode().to_vec()
            }
            1 => {
                let mut binary = send(opaque as i32, "KEYS\u{1}k\u{2}", &body);
                binary.serialize = crate::remoting::frame::SerializeType::RocketMq;
                binary.encode().to_vec()
            }
            2 => raw(0, b"{}", &body),
            3 => raw(1, &[0xfe; 40], &body),
            4 => raw(0, &vec![b' '; dice.below(200_000)], &body),
            _ => plain(opaque as i32, &body).to_vec(),
        };
        stream.extend(frame);
    }
    stream
}

/// Writes in pieces of random sizes, down to a byte.
async fn dribble(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8], mut dice: Dice) {
    let mut left = bytes;
    while !left.is_empty() {
        let most = [1, 9, 500, 65_536, 300_000][dice.below(5)];
        let (now, later) = left.split_at((1 + dice.below(most)).min(left.len()));
        stream.write_all(now).await.unwrap();
        left = later;
        if dice.below(3) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_the_same_on_both_sides() {
    let rig = Rig::new().await;
    for _ in 0..4 {
        let mut dice = Dice::new();
        let (client, broker) = rig.pair().await;
        let up = some_frames(&mut dice, 300);
        let down = some_frames(&mut dice, 300);
        let (mut client_read, mut client_write) = client.into_split();
        let (mut broker_read, mut broker_write) = broker.into_split();
        let (mut got_up, mut got_down) = (vec![0; up.len()], vec![0; down.len()]);
        let (up_dice, down_dice) = (Dice(dice.0), Dice(!dice.0));
        tokio::join!(
            dribble(&mut client_write, &up, up_dice),
            dribble(&mut broker_write, &down, down_dice),
            async { broker_read.read_exact(&mut got_up).await.unwrap() },
            async { client_read.read_exact(&mut got_down).await.unwrap() },
        );
        assert!(up == got_up, "client to broker");
        assert!(down == got_down, "broker to client");
    }
}

#[tokio::test]
async fn single_bytes_pass() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    client.set_nodelay(true).unwrap();
    for byte in plain(1, b"abc").iter() {
        client.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    expect(&mut broker, &plain(1, b"abc")).await;
    for byte in plain(2, b"abc").iter() {
        broker.write_all(&[*byte]).await.unwrap();
        expect(&mut client, &[*byte]).await;
    }
}

#[tokio::test]
async fn a_plain_body_is_passed_on_before_it_is_complete() {
    let small = Setup { budget: 1024, ..Setup::default() };
    let rig = Rig::with(small).await;
    let (mut client, mut broker) = rig.pair().await;
    let frame = plain(1, &vec![7; 4 * 1024 * 1024]);
    let (most, rest) = frame.split_at(frame.len() - 1);
    tokio::join!(async { client.write_all(most).await.unwrap() }, expect(&mut broker, most));
    assert_eq!(rig.budget.used(), 0);
    client.write_all(rest).await.unwrap();
    expect(&mut broker, rest).await;
}

#[tokio::test]
async fn a_large_plain_header_is_paid_for_and_passed_on() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    let frame = raw(0, &vec![b' '; 3_000_000], &vec![1; 3_000_000]);
    let (begun, rest) = frame.split_at(100_000);
    client.write_all(begun).await.unwrap();
    let (mut first, mut second) = rig.pair().await;
    first.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut second, &plain(1, b"x")).await;
    tokio::join!(async { client.write_all(rest).await.unwrap() }, expect(&mut broker, &frame));
    client.write_all(&plain(2, b"y")).await.unwrap();
    expect(&mut broker, &plain(2, b"y")).await;
    assert_eq!(rig.budget.used(), 0);
}

#[tokio::test]
async fn requests_of_the_broker_may_have_the_opaques_of_the_clients() {
    let rig = Rig::new().await;
    let (client, broker) = rig.pair().await;
    let (mut client, mut broker) = (Commands::of(client), Commands::of(broker));
    client.stream.write_all(&plain(7, b"x")).await.unwrap();
    let request = broker.next().await;
    let mut notify = Command::request(40, &[("consumerGroup", "g")], Bytes::new());
    notify.header.opaque = 7;
    broker.stream.write_all(&notify.encode()).await.unwrap();
    broker.stream.write_all(&request.reply(0, None).encode()).await.unwrap();
    assert_eq!(client.next().await, notify);
    let answer = client.next().await;
    assert_eq!((answer.header.opaque, answer.is_response()), (7, true));
    let reply = notify.reply(0, None).encode();
    client.stream.write_all(&reply).await.unwrap();
    expect(&mut broker.stream, &reply).await;
}

#[tokio::test]
async fn a_slave_relays_delayed_sends() {
    let slave = Setup { broker_id: 1, ..Setup::default() };
    let mut rig = Rig::with(slave).await;
    let (mut client, mut broker) = rig.pair().await;
    let large = delayed(2, &vec![9; 200_000]);
    client.write_all(&delayed(1, b"x")).await.unwrap();
    client.write_all(&large).await.unwrap();
    expect(&mut broker, &delayed(1, b"x")).await;
    expect(&mut broker, &large).await;
    assert!(rig.holds.try_recv().is_err());
    assert_eq!(rig.budget.used(), 0);
}
