//! Owns the read half of a connection: frames become answers.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::mpsc;

use super::link::Link;
use super::writer::Outgoing;
use crate::remoting::code::response::REQUEST_CODE_NOT_SUPPORTED;
use crate::remoting::command::Command;
use crate::remoting::frame::{Frame, Prefix};
use crate::remoting::header::{FLAG_ONEWAY, FLAG_RESPONSE, Header};

/// Room for one read.
const READ: usize = 64 * 1024;

/// Reads until the connection ends, and says why it did.
pub(super) async fn run(
    socket: OwnedReadHalf,
    outgoing: mpsc::WeakSender<Outgoing>,
    link: Arc<Link>,
) {
    let why = tokio::select! {
        biased;
        () = link.ended.cancelled() => return,
        why = read(socket, &outgoing, &link) => why,
    };
    link.end(&why);
}

async fn read(
    mut socket: OwnedReadHalf,
    outgoing: &mpsc::WeakSender<Outgoing>,
    link: &Link,
) -> String {
    let mut buffer = BytesMut::new();
    let mut answers = Vec::new();
    loop {
        reserve(&mut buffer);
        match socket.read_buf(&mut buffer).await {
            Ok(0) if buffer.is_empty() => return "the peer closed it".to_owned(),
            Ok(0) => return "the peer closed it in the middle of a frame".to_owned(),
            Ok(_) => link.heard(),
            Err(err) => return described(&err),
        }
        let read = take_frames(&mut buffer, &mut answers, outgoing);
        link.deliver(&mut answers);
        if let Err(why) = read {
            return why;
        }
    }
}

/// Room for the rest of a frame that has begun, so that a large one is not moved again and again.
fn reserve(buffer: &mut BytesMut) {
    let begun = Prefix::parse(buffer).ok().flatten();
    let missing = begun.map_or(0, |prefix| prefix.frame_len().saturating_sub(buffer.len()));
    buffer.reserve(missing.max(READ));
}

fn take_frames(
    buffer: &mut BytesMut,
    answers: &mut Vec<(Frame, Header)>,
    outgoing: &mpsc::WeakSender<Outgoing>,
) -> Result<(), String> {
    while let Some(frame) = Frame::take(buffer).map_err(|err| err.to_string())? {
        let header = Header::decode_shared(frame.serialize(), &frame.shared_header())
            .map_err(|err| err.to_string())?;
        if header.flag & FLAG_RESPONSE != 0 {
            answers.push((frame, header));
        } else {
            refuse(&frame, header, outgoing);
        }
    }
    Ok(())
}

/// A broker asks its clients things; we have no group and thus nothing to say.
fn refuse(frame: &Frame, header: Header, outgoing: &mpsc::WeakSender<Outgoing>) {
    tracing::debug!(code = header.code, "a request on a connection of our own");
    let oneway = header.flag & FLAG_ONEWAY != 0;
    let Some(outgoing) = outgoing.upgrade().filter(|_| !oneway) else {
        return;
    };
    let request = Command { serialize: frame.serialize(), header, body: frame.body() };
    let remark = "not served on this connection";
    let bytes = request.reply(REQUEST_CODE_NOT_SUPPORTED, Some(remark)).encode();
    // Where the queue is full our own requests matter more.
    drop(outgoing.try_send(Outgoing { bytes, opaque: None }));
}

fn described(err: &io::Error) -> String {
    match err.kind() {
        io::ErrorKind::ConnectionReset => "the peer reset it".to_owned(),
        _ => err.to_string(),
    }
}
