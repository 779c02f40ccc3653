//! The composition root: binds, opens the store, starts the tasks, drains.

use crate::config::Config;

/// Serves until a signal stops it.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let _ = config;
    anyhow::bail!("not put together yet")
}
