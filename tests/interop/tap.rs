//! A listener that passes frames both ways and tells them by how their headers are written.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Frames in one direction so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    json: Mutex<Vec<String>>,
    binary: AtomicU64,
}

/// What passed, by who wrote it.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    pub(crate) clients: Arc<Counts>,
    pub(crate) servers: Arc<Counts>,
}

impl Counts {
    /// All JSON headers.
    pub(crate) fn json(&self) -> Vec<String> {
        self.json.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many headers were binary.
    pub(crate) fn binary(&self) -> u64 {
        self.binary.load(Ordering::SeqCst)
    }

    /// The first byte of the header's length says how the header is written.
    fn count(&self, frame: &[u8]) {
        let Some(([_, _, _, _, kind, length @ ..], rest)) = frame.split_first_chunk::<8>() else {
            panic!("no header in {frame:?}");
        };
        if *kind == 1 {
            self.binary.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let header = String::from_utf8_lossy(rest.get(..length).unwrap_or(rest)).into_owned();
        self.json.lock().unwrap_or_else(PoisonError::into_inner).push(header);
    }
}

/// Accepts at `from` for as long as this process lives, for the server at `to`.
pub(crate) fn start(from: SocketAddr, to: SocketAddr) -> Tap {
    let tap = Tap::default();
    let (clients, servers) = (Arc::clone(&tap.clients), Arc::clone(&tap.servers));
    let listener = TcpListener::bind(from).expect("the tap binds");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) else {
                continue;
            };
            let (back_from, back_to) =
                (server.try_clone().expect("a clone"), client.try_clone().expect("a clone"));
            pass(client, server, Arc::clone(&clients));
            pass(back_from, back_to, Arc::clone(&servers));
        }
    });
    tap
}

fn pass(mut from: TcpStream, mut to: TcpStream, counts: Arc<Counts>) {
    std::thread::spawn(move || {
        // Ends with an error at the latest when one side closes: then the other is closed too.
        while frame(&mut from, &mut to, &counts).is_ok() {}
        to.shutdown(Shutdown::Both).unwrap_or_default();
    });
}

fn frame(from: &mut TcpStream, to: &mut TcpStream, counts: &Counts) -> io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let rest = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
    let mut frame = length.to_vec();
    frame.resize(4 + rest, 0);
    from.read_exact(frame.get_mut(4..).unwrap_or_default())?;
    counts.count(&frame);
    to.write_all(&frame)
}
