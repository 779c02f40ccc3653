//! The binary: reads the command line, starts logging and the runtime, runs [`app::run`], and turns
//! the outcome into an exit code. Everything that can be tested is in the library.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use anyhow::Context;
use rocketmq_timer_proxy::config::Config;
use rocketmq_timer_proxy::{app, cli};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let config = match cli::parse(std::env::args_os()) {
        Ok(config) => config,
        Err(error) => {
            // Nothing is left to tell the user if his terminal is gone.
            drop(error.print());
            return ExitCode::from(cli::exit_code(&error));
        }
    };
    if let Err(error) = start_log() {
        eprintln!("error: {error:#}");
        return ExitCode::from(cli::EXIT_USAGE);
    }
    log_effective(&config);
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> anyhow::Result<()> {
    // Two at least: one slow task must not stop the relays.
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("relay")
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(app::run(config))
}

fn start_log() -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .from_env()
        .context("the environment variable RUST_LOG")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .init();
    Ok(())
}

fn log_effective(config: &Config) {
    let flags: Vec<_> =
        config.flags().into_iter().map(|(flag, value)| format!("--{flag}={value:?}")).collect();
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, flags = %flags.join(" "), "effective configuration");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in cli::stray_variables(names) {
        tracing::warn!(name, "this environment variable sets no flag");
    }
}
