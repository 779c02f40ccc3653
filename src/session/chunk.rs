//! Read buffers that sessions borrow for the time between a read and the writes it leads to.
//!
//! An idle session owns none, so ten thousand of them cost no buffer at all; a busy worker uses the
//! same warm one again and again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 64 * 1024;
/// Chunks a thread keeps when nobody uses them.
const KEPT: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// [`CHUNK`] bytes, given back to the thread when dropped. Contents are whatever was there before.
#[derive(Debug)]
pub(super) struct Chunk(Box<[u8]>);

impl Chunk {
    pub(super) fn take() -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        Self(spare.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice()))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        let kept = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.push(bytes);
            }
        });
        // A thread that is going away has no place for spares any more.
        kept.unwrap_or_default();
    }
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Reads once into `into` without waiting; `None` when nothing is there after all.
///
/// Preferred to `try_read` since a read that fills `into` only in part is known to have emptied the
/// socket: the next wait then needs no further read to find that out.
pub(super) async fn read_now<R: AsyncRead + Unpin>(
    from: &mut R,
    into: &mut [u8],
) -> Option<io::Result<usize>> {
    let mut buf = ReadBuf::new(into);
    poll_fn(|cx| match Pin::new(&mut *from).poll_read(cx, &mut buf) {
        Poll::Ready(read) => Poll::Ready(Some(read.map(|()| buf.filled().len()))),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
