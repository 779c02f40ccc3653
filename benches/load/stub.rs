//! A name server and a broker in one: knows one route, stores nothing, and notes when each message
//! came. Blocking threads, so that a frame is stamped as soon as the kernel has it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use bytes::{Bytes, BytesMut};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::frame::Frame;

use crate::ledger::{Ledger, wall_ns};

/// Serves until the process ends.
pub(crate) fn start(ledger: Arc<Ledger>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, ledger) = (socket.unwrap(), Arc::clone(&ledger));
            thread::spawn(move || serve(socket, address, &ledger));
        }
    });
    address
}

fn serve(mut socket: TcpStream, own: SocketAddr, ledger: &Ledger) {
    socket.set_nodelay(true).unwrap();
    let (mut buffer, mut read) = (BytesMut::new(), vec![0; 256 * 1024]);
    let mut answers = Vec::new();
    while let Ok(n @ 1..) = socket.read(&mut read) {
        let now = wall_ns();
        buffer.extend_from_slice(&read[..n]);
        answers.clear();
        while let Some(frame) = Frame::take(&mut buffer).unwrap() {
            match integer(frame.header(), b"\"code\":") {
                310 => {
                    let id = frame.body().first_chunk().map(|id| u64::from_be_bytes(*id));
                    ledger.arrived(id.unwrap() as usize, now);
                    stored(integer(frame.header(), b"\"opaque\":"), &mut answers);
                }
                _ => answers.extend_from_slice(&answer(&frame, own)),
            }
        }
        if socket.write_all(&answers).is_err() {
            return;
        }
    }
}

/// The number behind `key` in a JSON header.
pub(crate) fn integer(header: &[u8], key: &[u8]) -> i64 {
    let at = memchr::memmem::find(header, key).unwrap() + key.len();
    let digits = header[at..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// What a broker answers to a send.
fn stored(opaque: i64, out: &mut Vec<u8>) {
    let header = format!(
        "{{\"code\":0,\"extFields\":{{\"queueId\":\"0\",\"TRACE_ON\":\"true\",\
         \"MSG_REGION\":\"DefaultRegion\",\"msgId\":\"7F000001000078BF000000000000ABCD\",\
         \"queueOffset\":\"12345\"}},\"flag\":1,\"language\":\"JAVA\",\"opaque\":{opaque},\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}}"
    );
    out.extend_from_slice(&(header.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
}

/// Whatever else is asked.
fn answer(frame: &Frame, own: SocketAddr) -> Bytes {
    let request = Command::decode(frame).unwrap();
    let mut answer = request.reply(0, None);
    let data = format!(r#"{{"brokerAddrs":{{0:"{own}"}},"brokerName":"load","cluster":"load"}}"#);
    let body = match request.header.code {
        105 => format!(
            r#"{{"brokerDatas":[{data}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"load","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}}]}}"#
        ),
        106 => format!(
            r#"{{"brokerAddrTable":{{"load":{data}}},"clusterAddrTable":{{"load":["load"]}}}}"#
        ),
        _ => String::new(),
    };
    answer.body = Bytes::from(body);
    answer.encode()
}
