//! How sessions end: together, at once, and orderly when the process stops.

use std::io::ErrorKind;

use tokio::time::Instant;

use super::*;
use crate::namesrv::endpoints::{EndpointListener, NewEndpoint};
use crate::shutdown::Stage;

#[tokio::test]
async fn an_orderly_close_is_passed_on_both_ways() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&plain(1, b"last words")).await.unwrap();
    drop(client);
    expect(&mut broker, &plain(1, b"last words")).await;
    assert_eq!(broker.read(&mut [0]).await.unwrap(), 0);
    let (mut client, mut broker) = rig.pair().await;
    broker.write_all(&plain(2, b"last words")).await.unwrap();
    drop(broker);
    expect(&mut client, &plain(2, b"last words")).await;
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_reset_is_passed_on_both_ways() {
    let rig = Rig::new().await;
    let (client, mut broker) = running(&rig).await;
    client.set_zero_linger().unwrap();
    drop(client);
    let err = broker.read(&mut [0]).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::ConnectionReset);
    let (mut client, broker) = running(&rig).await;
    broker.set_zero_linger().unwrap();
    drop(broker);
    let err = client.read(&mut [0]).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::ConnectionReset);
}

/// A pair whose session has begun to relay.
async fn running(rig: &Rig) -> (TcpStream, TcpStream) {
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
    (client, broker)
}

#[tokio::test]
async fn a_broker_that_is_down_looks_down() {
    let rig = Rig::new().await;
    let Rig { broker, address, .. } = rig;
    drop(broker);
    let mut client = TcpStream::connect(address).await.unwrap();
    // Even a delayed send, which would not need the broker now.
    drop(client.write_all(&delayed(1, b"x")).await);
    expect_closed(&mut client).await;
}

#[tokio::test]
async fn a_broker_without_an_address_looks_down() {
    let rig = Rig::new().await;
    rig.target.send_replace(None);
    let mut client = TcpStream::connect(rig.address).await.unwrap();
    expect_closed(&mut client).await;
}

#[tokio::test]
async fn a_broker_that_moves_cuts_its_twins() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    // The same address again is no move.
    let same = rig.broker.local_addr().unwrap().to_string();
    rig.target.send_replace(Some(same));
    client.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut broker, &plain(1, b"x")).await;
    let elsewhere = loopback().await;
    let address = elsewhere.local_addr().unwrap().to_string();
    rig.target.send_replace(Some(address));
    expect_closed(&mut client).await;
    expect_closed(&mut broker).await;
    let _client = TcpStream::connect(rig.address).await.unwrap();
    elsewhere.accept().await.unwrap();
}

#[tokio::test]
async fn both_ports_of_an_endpoint_lead_to_the_broker_and_vip_to_its_vip_port_first() {
    let (vip, main) = loop {
        let vip = loopback().await;
        let port = vip.local_addr().unwrap().port();
        let main = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 2)).await;
        if let Ok(main) = main {
            break (vip, main);
        }
    };
    let rig = Rig::new().await;
    let fronts = [loopback().await, loopback().await];
    let [front, vip_front] = [0, 1].map(|n: usize| fronts[n].local_addr().unwrap());
    let [front_listener, vip_listener] = fronts;
    let (_target, seen) = watch::channel(Some(main.local_addr().unwrap().to_string()));
    let endpoint = NewEndpoint {
        broker: rig.door.broker.clone(),
        port: front.port(),
        listeners: [
            EndpointListener { listener: front_listener, port: front.port(), vip: false },
            EndpointListener { listener: vip_listener, port: vip_front.port(), vip: true },
        ],
        lease: Lease::default(),
        target: seen,
    };
    listener::open(endpoint, None, &rig.shared);
    let _plain = TcpStream::connect(front).await.unwrap();
    soon("a plain twin", main.accept()).await.unwrap();
    let _first = TcpStream::connect(vip_front).await.unwrap();
    soon("a VIP twin", vip.accept()).await.unwrap();
    drop(vip);
    let _second = TcpStream::connect(vip_front).await.unwrap();
    soon("a twin on the other port", main.accept()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_silent_sides_are_cut_and_one_that_speaks_is_not() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    let begun = Instant::now();
    tokio::time::advance(Duration::from_secs(149)).await;
    broker.write_all(&plain(1, b"x")).await.unwrap();
    expect(&mut client, &plain(1, b"x")).await;
    expect_closed(&mut client).await;
    expect_closed(&mut broker).await;
    let silent = begun.elapsed();
    assert!(silent >= Duration::from_secs(299), "{silent:?}");
    assert!(silent < Duration::from_secs(302), "{silent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_keeps_the_budget_and_stops_is_cut() {
    let rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    let begun = Instant::now();
    let frame = delayed(1, &[0; 100_000]);
    client.write_all(&frame[..90_000]).await.unwrap();
    expect_closed(&mut broker).await;
    expect_closed(&mut client).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(rig.budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_keeps_the_budget_and_comes_by_drops_is_cut_as_soon() {
    let rig = Rig::new().await;
    // The second has a header that is itself beyond a chunk.
    for frame in [delayed(1, &[0; 100_000]).to_vec(), raw(0, &[b' '; 200_000], b"")] {
        let (mut client, mut broker) = rig.pair().await;
        let begun = Instant::now();
        client.write_all(&frame[..90_000]).await.unwrap();
        let mut every_7_s = tokio::time::interval(Duration::from_secs(7));
        let mut byte = [0];
        loop {
            tokio::select! {
                read = broker.read(&mut byte) => {
                    assert_eq!(read.unwrap(), 0);
                    break;
                }
                _ = every_7_s.tick() => client.write_all(b" ").await.unwrap(),
            }
        }
        expect_closed(&mut client).await;
        assert_eq!(begun.elapsed().as_secs(), 30, "{}", frame.len());
        assert_eq!(rig.budget.used(), 0);
    }
}

#[tokio::test]
async fn a_drain_ends_at_a_frame_and_with_every_answer() {
    let mut rig = Rig::new().await;
    let (client, mut broker) = rig.pair().await;
    let mut client = Commands::of(client);
    client.stream.write_all(&delayed(1, b"x")).await.unwrap();
    let (_, receipt) = rig.hold().await;
    let frame = plain(2, &[0; 100]);
    let (begun, rest) = frame.split_at(50);
    client.stream.write_all(begun).await.unwrap();
    client.stream.flush().await.unwrap();
    // The frame has begun when a second session, read later, has passed something on.
    let (mut other, mut others_broker) = rig.pair().await;
    other.write_all(&plain(3, b"y")).await.unwrap();
    expect(&mut others_broker, &plain(3, b"y")).await;
    rig.stop.enter(Stage::Draining);
    let mut more = rest.to_vec();
    more.extend(plain(4, b"never read"));
    client.stream.write_all(&more).await.unwrap();
    expect(&mut broker, &frame).await;
    receipt(Ok(TimerId(1)));
    assert_eq!(client.next().await.header.opaque, 1);
    // Late answers of the broker still pass.
    broker.write_all(&plain(2, b"")).await.unwrap();
    assert_eq!(client.next().await.header.opaque, 2);
    expect_closed(&mut client.stream).await;
    expect_closed(&mut broker).await;
    expect_closed(&mut other).await;
    rig.shared.ended().await;
    let refused = TcpStream::connect(rig.address).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(rig.metrics.session_open.get(), 0);
}

#[tokio::test]
async fn a_drain_waits_for_receipts_until_the_cut() {
    let mut rig = Rig::new().await;
    let (mut client, mut broker) = rig.pair().await;
    client.write_all(&delayed(1, b"x")).await.unwrap();
    let (_, receipt) = rig.hold().await;
    rig.stop.enter(Stage::Draining);
    broker.write_all(&plain(2, b"")).await.unwrap();
    expect(&mut client, &plain(2, b"")).await;
    rig.stop.enter(Stage::Cut);
    expect_closed(&mut client).await;
    expect_closed(&mut broker).await;
    receipt(Ok(TimerId(1)));
    rig.shared.ended().await;
}

#[tokio::test]
async fn connections_are_counted_and_a_freed_port_is_closed() {
    let rig = Rig::new().await;
    let (client, broker) = rig.pair().await;
    let lease = &rig.door.lease;
    assert!(lease.was_used() && lease.was_used(), "as long as it is open");
    drop(client);
    drop(broker);
    soon("the end of the session", async {
        while rig.metrics.session_open.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(lease.was_used(), "until a moment ago");
    soon("nobody", async {
        while lease.was_used() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    lease.free();
    soon("the port to close", async {
        while TcpStream::connect(rig.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
