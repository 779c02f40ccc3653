//! Accepts the clients of one broker port.
//!
//! Started by the composition root for every pair of ports that the endpoint table opens. Never
//! reads a byte.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Door, Shared, twin};
use crate::namesrv::endpoints::{EndpointListener, NewEndpoint};
use crate::shutdown::{Stage, Stopping};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Serves both ports of an endpoint. `host` is the advertised IP, put into the ids of held messages;
/// `None`, where a host name is advertised, puts the address in that each client connected to.
pub fn open(endpoint: NewEndpoint, host: Option<IpAddr>, shared: &Arc<Shared>) {
    for EndpointListener { listener, vip, .. } in endpoint.listeners {
        let door = Door {
            broker: endpoint.broker.clone(),
            host,
            port: endpoint.port,
            vip,
            lease: endpoint.lease.clone(),
            target: endpoint.target.clone(),
        };
        spawn(listener, door, Arc::clone(shared));
    }
}

/// Accepts until stopping reaches [`Stage::Draining`] or the port is another's, then closes the port.
pub fn spawn(listener: TcpListener, door: Door, shared: Arc<Shared>) {
    let tasks = shared.tasks.clone();
    tasks.spawn(accept(listener, Arc::new(door), shared));
}

async fn accept(listener: TcpListener, door: Arc<Door>, shared: Arc<Shared>) {
    let mut stopping = shared.stopping.clone();
    let mut pause = FIRST_PAUSE;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.reached(Stage::Draining) => return,
            () = door.lease.freed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                pause = FIRST_PAUSE;
                admit(client, peer, &door, &shared);
            }
            Err(err) if is_the_clients(&err) => tracing::debug!(%err, "gone before accept"),
            Err(err) => {
                // Out of file descriptors or memory: only time helps, and a tight loop does not.
                if let Some(unlogged) = shared.log.may_log("accept", shared.clock.monotonic()) {
                    tracing::error!(port = door.port, %err, unlogged, "cannot accept connections");
                }
                rest(pause, &mut stopping).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn admit(client: TcpStream, peer: SocketAddr, door: &Arc<Door>, shared: &Arc<Shared>) {
    let Ok(place) = Arc::clone(&shared.connections).try_acquire_owned() else {
        if let Some(unlogged) = shared.log.may_log("full", shared.clock.monotonic()) {
            let broker = &door.broker.name;
            tracing::error!(%peer, %broker, unlogged, "refused: too many connections");
        }
        return;
    };
    shared.metrics.session_opened.inc();
    shared.metrics.session_open.inc();
    let in_use = door.lease.connected();
    let session = twin::serve(client, peer, Arc::clone(door), Arc::clone(shared));
    let open = shared.metrics.session_open.clone();
    shared.tasks.spawn(async move {
        session.await;
        open.dec();
        drop(in_use);
        drop(place);
    });
}

fn is_the_clients(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

async fn rest(pause: Duration, stopping: &mut Stopping) {
    // Running into the timeout is the ordinary case.
    drop(timeout(pause, stopping.reached(Stage::Draining)).await);
}
