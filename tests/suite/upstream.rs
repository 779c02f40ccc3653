//! Connections to brokers and name servers against peers that fail in every way a peer can.

mod client;
mod cluster;
mod nameservers;
mod pool;
