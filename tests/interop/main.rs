//! Stock clients against the proxy: a real name server, a real broker, real Java clients and the
//! proxy's own binary, each a process of its own. Knows nothing of the library; what is asserted is
//! what a user of a stock cluster would see.
//!
//! Run by `./tests/run.sh`, which brings the jars and the compiled driver. All tests share one
//! cluster and one Java process and so take turns; topics are their own. Clients of another version
//! or with other flags run in a Java process of the test that needs them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, wherever the line stands"
)]
#![allow(clippy::disallowed_methods, reason = "real processes run on the real clock")]

mod cases;
mod cluster;
mod driver;
mod lag;
mod leash;
#[path = "../support/process.rs"]
mod process;
mod proxy;
mod sockets;
mod stage;
mod tap;
