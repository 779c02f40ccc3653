//! What tests talk to and through: a scripted broker or name server, a relay that breaks
//! connections, and a bare client. Shared by the test binaries through `#[path]`; knows only the
//! wire, never the parts under test.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its own part of this, and a failure here fails the test"
)]

pub mod client;
pub mod fault;
pub mod peer;
pub mod process;

use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::frame::Frame;
use tokio::io::{AsyncRead, AsyncReadExt};

/// How long a test waits for what must happen before it fails. Never a measure of speed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for `what`, and fails the test with its name when it does not come.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain for {what}"),
    }
}

/// The next frame from `socket`; `None` at its end, be it a FIN or a reset.
pub async fn next_frame(
    socket: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Option<Frame> {
    loop {
        if let Some(frame) = Frame::take(buffer).expect("the peer sent no frame") {
            return Some(frame);
        }
        match socket.read_buf(buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Shorthand for literals in tests.
pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
