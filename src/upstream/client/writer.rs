//! Owns the write half of a connection: what waits leaves in one write.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::link::Link;

/// Frames taken from the queue at once.
const BATCH: usize = 256;
/// Bytes gathered before a write.
const GATHER: usize = 256 * 1024;
/// Frames from this size on are written as they are, not copied.
const LARGE: usize = 64 * 1024;

/// A frame to write.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Bytes,
    /// Under which its requester waits; `None` where nobody does.
    pub(super) opaque: Option<i32>,
}

/// Writes until the connection ends or nobody holds it any more.
pub(super) async fn run(socket: OwnedWriteHalf, queue: mpsc::Receiver<Outgoing>, link: Arc<Link>) {
    let written = tokio::select! {
        biased;
        () = link.ended.cancelled() => return,
        written = write(socket, queue, &link) => written,
    };
    match written {
        Ok(()) => link.end("no longer used"),
        Err(err) => link.end(&format!("cannot write: {err}")),
    }
}

async fn write(
    mut socket: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Outgoing>,
    link: &Link,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut gathered = Vec::new();
    let mut opaques = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        // What was given up before it left is better not sent at all.
        link.retain_wanted(&mut batch, |outgoing| outgoing.opaque);
        for Outgoing { bytes, opaque } in batch.drain(..) {
            let large = bytes.len() >= LARGE;
            if large || gathered.len() + bytes.len() > GATHER {
                flush(&mut socket, &mut gathered, &mut opaques, link).await?;
            }
            if large {
                socket.write_all(&bytes).await?;
                link.written(opaque.into_iter());
            } else {
                gathered.extend_from_slice(&bytes);
                opaques.extend(opaque);
            }
        }
        flush(&mut socket, &mut gathered, &mut opaques, link).await?;
    }
    Ok(())
}

async fn flush(
    socket: &mut OwnedWriteHalf,
    gathered: &mut Vec<u8>,
    opaques: &mut Vec<i32>,
    link: &Link,
) -> io::Result<()> {
    if !gathered.is_empty() {
        socket.write_all(gathered).await?;
        gathered.clear();
        link.written(opaques.drain(..));
    }
    Ok(())
}
