//! A TCP relay that breaks what passes through it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::peer::listen;

/// How connections break. A new fault also strikes the connections that are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing is broken.
    #[default]
    Pass,
    /// The port is closed: connecting fails at once, open connections are reset.
    Refuse,
    /// A RST once this many bytes came from the client; 0 at once.
    ResetAfterRequest(usize),
    /// This many bytes of answers pass, then a FIN to the client.
    CutAfter(usize),
    /// This many bytes of answers pass, then a RST to the client.
    ResetAfter(usize),
    /// Nothing passes in either direction, and nobody learns of it; bytes wait.
    Stall,
    /// As `Stall`, but what is sent is lost, as behind a firewall that forgot the flow.
    BlackHole,
}

/// The relay. Dropping it closes everything.
pub struct FaultRelay {
    address: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    task: JoinHandle<()>,
}

impl FaultRelay {
    /// A relay on a free port to `target`.
    pub async fn start(target: impl Into<String>) -> Self {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = listener.local_addr().unwrap();
        let fault = Arc::new(watch::Sender::new(Fault::Pass));
        let task = tokio::spawn(run(Some(listener), address, target.into(), fault.subscribe()));
        Self { address, fault, task }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks, or mends with [`Fault::Pass`]. After `Refuse` the port is closed when this returns.
    pub async fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
        if fault == Fault::Refuse {
            super::soon("the relay's port to close", async {
                while TcpStream::connect(self.address).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }
}

impl Drop for FaultRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address on which connecting neither succeeds nor fails, as behind a firewall that drops
/// packets, for as long as the value lives.
pub struct BlackHole {
    address: SocketAddr,
    _listener: std::net::TcpListener,
    _fill: Vec<std::net::TcpStream>,
}

impl BlackHole {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        // The kernel drops a SYN while the queue of connections nobody accepts is full.
        let listener = socket.listen(0).unwrap().into_std().unwrap();
        let address = listener.local_addr().unwrap();
        let fill = vec![std::net::TcpStream::connect(address).unwrap()];
        Self { address, _listener: listener, _fill: fill }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

async fn run(
    mut listener: Option<TcpListener>,
    address: SocketAddr,
    target: String,
    mut fault: watch::Receiver<Fault>,
) {
    let mut connections = JoinSet::new();
    loop {
        let now = *fault.borrow_and_update();
        if now == Fault::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(address));
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await.unwrap().0,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            client = accepted => {
                connections.spawn(relay(client, target.clone(), fault.clone()));
            }
            changed = fault.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(mut client: TcpStream, target: String, mut fault: watch::Receiver<Fault>) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        drop(client.set_zero_linger());
        return;
    };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    // Counted from the moment a fault is set.
    let (mut sent, mut answered) = (0, 0);
    let mut now = *fault.borrow_and_update();
    loop {
        let reset = matches!(now, Fault::Refuse)
            || matches!(now, Fault::ResetAfterRequest(n) if sent >= n)
            || matches!(now, Fault::ResetAfter(n) if answered >= n);
        if reset {
            drop(client.set_zero_linger());
            return;
        }
        if matches!(now, Fault::CutAfter(n) if answered >= n) {
            return;
        }
        let stalled = now == Fault::Stall;
        tokio::select! {
            changed = fault.changed() => {
                if changed.is_err() {
                    return;
                }
                now = *fault.borrow_and_update();
                (sent, answered) = (0, 0);
            }
            read = client.read(&mut up), if !stalled => {
                let Ok(n @ 1..) = read else { return };
                sent += n;
                if now != Fault::BlackHole && server.write_all(&up[..n]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down), if !stalled => {
                let Ok(n @ 1..) = read else { return };
                let passed = match now {
                    Fault::CutAfter(limit) | Fault::ResetAfter(limit) => n.min(limit - answered),
                    Fault::BlackHole => 0,
                    _ => n,
                };
                answered += n;
                if client.write_all(&down[..passed]).await.is_err() {
                    return;
                }
            }
        }
    }
}
