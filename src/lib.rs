//! Messages at any time on stock RocketMQ 4.x brokers.
//!
//! Clients use the proxy as their name server. Route answers carry the proxy's own addresses, so
//! that all their traffic passes through it. Everything is relayed untouched, except sends that ask
//! for a delay: these are held on disk, acknowledged, and sent to the broker when they fall due.
//!
//! ```text
//! client ──► namesrv::facade ──► real name server        routes come back with our addresses
//! client ──► session::listener ──► session ──► intercept ─┬─ relay ──────────────► real broker
//!                                                         └─ hold ─► store ─► dispatch ─► broker
//! ```
//!
//! # Layout, along the way of the data
//!
//! - [`remoting`]: bytes to frames, headers, send requests, properties, routes, and back; no I/O.
//! - [`session`]: one accepted broker connection and its twin to the real broker.
//! - [`intercept`]: the pure decision relay, hold or refuse; a send becomes a held record.
//! - [`store`]: the timerlog and the wheel; bytes, due times and ids, nothing of the protocol.
//! - [`dispatch`]: due records go out, lane by lane, until a broker has stored them.
//! - [`upstream`]: connections to real brokers and name servers.
//! - [`namesrv`]: route answers with our addresses in place of the brokers'.
//! - [`admin`]: health, metrics and counts over HTTP.
//! - [`app`]: puts the parts together; [`cli`] and [`config`]: what the user asked for.
//! - [`clock`], [`budget`], [`disk`], [`metrics`], [`quiet`], [`shutdown`]: what all of them share.

pub mod admin;
pub mod app;
pub mod budget;
pub mod cli;
pub mod clock;
pub mod config;
pub mod disk;
pub mod dispatch;
pub mod intercept;
pub mod metrics;
pub mod namesrv;
pub mod quiet;
pub mod remoting;
pub mod session;
pub mod shutdown;
pub mod store;
pub mod upstream;
