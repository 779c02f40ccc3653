//! A slow network: a listener that passes bytes both ways and lets those of clients wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Accepts at `from` for as long as this process lives; what clients write reaches `to` only `lag`
/// later, answers come back at once.
pub(crate) fn start(from: SocketAddr, to: SocketAddr, lag: Duration) {
    let listener = TcpListener::bind(from).expect("the slow listener binds");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) else {
                continue;
            };
            let (back_from, back_to) =
                (server.try_clone().expect("a clone"), client.try_clone().expect("a clone"));
            std::thread::spawn(move || copy(client, server, lag));
            std::thread::spawn(move || copy(back_from, back_to, Duration::ZERO));
        }
    });
}

/// Reads at once and writes `lag` later, so that the lag does not add up over many reads.
fn copy(mut from: TcpStream, mut to: TcpStream, lag: Duration) {
    let (later, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    let mut end = to.try_clone().expect("a clone");
    let writer = std::thread::spawn(move || {
        for (at, bytes) in due {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut buffer = [0; 65536];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let bytes = buffer.get(..n).unwrap_or_default().to_vec();
                if later.send((Instant::now() + lag, bytes)).is_err() {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    drop(later);
    writer.join().expect("the writer ends");
    // Whoever is gone already cannot be told.
    end.flush().and_then(|()| end.shutdown(Shutdown::Both)).unwrap_or_default();
}
