//! Command-line flags to [`crate::config::Config`]; the only reader of arguments and environment.
//!
//! Called by `main` alone. Whatever is wrong with what the user typed comes back as a
//! [`clap::Error`], so that all refusals look alike and end with the same exit code.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::broker_map::BrokerMap;
use crate::config::units::{Bytes, Millis, parse_duration, parse_size};
use crate::config::{self, BadDelay, BrokerPorts, Config, Flush, Invalid, Policy};

/// Exit code of a command line that cannot be used (EX_USAGE).
pub const EXIT_USAGE: u8 = 64;

/// Environment variables are this and the flag in capitals.
pub const ENV_PREFIX: &str = "ROCKETMQ_TIMER_PROXY_";

/// Shortest and longest `--max-delay`.
const MAX_DELAY_RANGE: (&str, &str) = ("1s", "3660d");

/// Reads the command line and the environment. `Err` is also what `--help` and `--version` print;
/// see [`exit_code`].
pub fn parse<I>(args: I) -> Result<Config, clap::Error>
where
    I: IntoIterator<Item = OsString>,
{
    let cli = Cli::try_parse_from(join_negative(args))?;
    let Command::Serve(serve) = cli.command;
    serve.into_config().map_err(serve_error)
}

/// Joins a flag and a value such as `-1s`, which clap would take for flags of one letter and refuse
/// without saying whose value it is. No flag is a digit, so this misreads nothing.
fn join_negative(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for arg in args {
        let negative = matches!(arg.as_encoded_bytes(), [b'-', b'0'..=b'9', ..]);
        match joined.last_mut() {
            Some(flag) if negative && is_bare_flag(flag) => {
                flag.push("=");
                flag.push(arg);
            }
            _ => joined.push(arg),
        }
    }
    joined
}

/// `--flag` without a value of its own.
fn is_bare_flag(arg: &OsStr) -> bool {
    let bytes = arg.as_encoded_bytes();
    bytes.len() > 2 && bytes.starts_with(b"--") && !bytes.contains(&b'=')
}

/// A refusal that ends with the usage of `serve`, as clap's own do.
fn serve_error(invalid: Invalid) -> clap::Error {
    let mut command = Cli::command();
    // Without it the usage of a subcommand lacks the name of the binary.
    command.build();
    match command.find_subcommand_mut("serve") {
        Some(serve) => serve.error(ErrorKind::ValueValidation, invalid),
        None => command.error(ErrorKind::ValueValidation, invalid),
    }
}

/// 0 for what was asked for (`--help`, `--version`), [`EXIT_USAGE`] for mistakes.
pub fn exit_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { EXIT_USAGE } else { 0 }
}

/// Environment variables that look like ours and set no flag: a misspelt one would silently do
/// nothing. What Kubernetes sets for a service of our name is left out, and what our scripts read.
pub fn stray_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let command = Cli::command();
    let known: Vec<_> = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter_map(|arg| arg.get_env()?.to_str())
        .collect();
    names
        .filter(|name| {
            name.strip_prefix(ENV_PREFIX).is_some_and(|rest| {
                let others = ["PORT", "CACHE"].contains(&rest)
                    || ["PORT_", "SERVICE_", "TEST_"].iter().any(|start| rest.starts_with(start));
                !others && !known.contains(&name.as_str())
            })
        })
        .collect()
}

/// Messages at any time on stock RocketMQ 4.x.
///
/// Clients use this proxy as their name server. It answers routes with its own addresses, so that
/// their traffic passes through it. Sends that ask for a delay are kept on disk and go to the broker
/// when they are due; everything else passes untouched.
#[derive(Debug, Parser)]
#[command(
    name = "rocketmq-timer-proxy",
    version,
    max_term_width = 100,
    after_help = "Example: rocketmq-timer-proxy serve --namesrv '10.0.0.1:9876;10.0.0.2:9876'\n\
                  Then set the name-server address of the clients to 127.0.0.1:9877.\n\
                  `rocketmq-timer-proxy serve --help` explains every flag."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Serve),
}

/// Run the proxy.
///
/// The first line on stdout, once messages are accepted, is `ready namesrv=IP:PORT admin=IP:PORT`;
/// logs go to stderr (RUST_LOG sets the level, default info). SIGTERM or SIGINT stops in order.
/// Exit codes: 0 stopped in order, 64 wrong usage, 1 failed.
///
/// Each flag can be set by the environment variable shown with it; the flag wins. Durations are numbers
/// with the units ms, s, m, h and d, such as 1h30m; sizes with B, KiB, MiB, GiB, TiB, KB, MB, GB and TB.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, for clients on the same machine:
  rocketmq-timer-proxy serve --namesrv '10.0.0.1:9876;10.0.0.2:9876' \\
      --data-dir /var/lib/rocketmq-timer-proxy
For clients on other machines:
  rocketmq-timer-proxy serve --namesrv '10.0.0.1:9876;10.0.0.2:9876' \\
      --data-dir /var/lib/rocketmq-timer-proxy --listen 0.0.0.0:9877 --advertise 10.0.0.7
Then set the name-server address of the clients to 127.0.0.1:9877 or 10.0.0.7:9877, and never list
a real name server beside it: a client that falls back to it sends its delayed messages at once.")]
struct Serve {
    /// Addresses of the real name servers, separated by semicolons (quote them for the shell).
    #[arg(
        long,
        value_name = "HOST:PORT[;HOST:PORT]",
        env = "ROCKETMQ_TIMER_PROXY_NAMESRV",
        hide_env_values = true,
        value_parser = |text: &str| config::parse_name_servers(text).map(NameServers)
    )]
    namesrv: NameServers,

    /// Address on which clients find their name server. Port 0 takes a free port.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "ROCKETMQ_TIMER_PROXY_LISTEN",
        hide_env_values = true,
        default_value = config::DEFAULT_LISTEN,
        value_parser = address
    )]
    listen: SocketAddr,

    /// Host that routes tell clients to connect to, without a port [default: the IP of --listen].
    /// Required when --listen is a wildcard such as 0.0.0.0.
    #[arg(
        long,
        value_name = "HOST",
        env = "ROCKETMQ_TIMER_PROXY_ADVERTISE",
        hide_env_values = true,
        value_parser = config::parse_advertise
    )]
    advertise: Option<String>,

    /// Local ports that stand for brokers; each broker takes two, P and P-2, and keeps them over
    /// restarts. 0 takes any free ports
    #[arg(
        long,
        value_name = "FIRST-LAST",
        env = "ROCKETMQ_TIMER_PROXY_BROKER_PORTS",
        hide_env_values = true,
        default_value = config::DEFAULT_BROKER_PORTS
    )]
    broker_ports: BrokerPorts,

    /// Ports of certain brokers, from 3 to 65535, in --broker-ports or not; ID 0 is the master. A broker
    /// takes PORT and PORT-2. For firewalls and port maps that are written down [default: none].
    #[arg(
        long,
        value_name = "NAME:ID=PORT[,NAME:ID=PORT]",
        env = "ROCKETMQ_TIMER_PROXY_BROKER_MAP",
        hide_env_values = true,
        hide_default_value = true,
        default_value = ""
    )]
    broker_map: BrokerMap,

    /// Directory of the held messages, created if missing. One process at a time may use it.
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCKETMQ_TIMER_PROXY_DATA_DIR",
        hide_env_values = true,
        default_value = config::DEFAULT_DATA_DIR
    )]
    data_dir: PathBuf,

    /// What the delay levels (property DELAY) mean, level 1 first, in the syntax of the broker's
    /// messageDelayLevel; must agree with the brokers'. "off" leaves levels to the broker.
    #[arg(
        long,
        value_name = "LIST",
        env = "ROCKETMQ_TIMER_PROXY_DELAY_LEVELS",
        hide_env_values = true,
        default_value = config::DEFAULT_DELAY_LEVELS,
        value_parser = |text: &str| config::parse_delay_levels(text).map(Levels)
    )]
    delay_levels: Levels,

    /// Longest delay accepted, 1s to 3660d; longer ones are refused with code 13. Levels are not cut
    /// by it.
    #[arg(
        long,
        value_name = "DURATION",
        env = "ROCKETMQ_TIMER_PROXY_MAX_DELAY",
        hide_env_values = true,
        default_value = config::DEFAULT_MAX_DELAY,
        value_parser = duration_within(MAX_DELAY_RANGE)
    )]
    max_delay: Duration,

    /// When a held message is acknowledged: "sync" after it is on disk, "async" after the write (up
    /// to 500ms of acknowledged messages are lost if the machine fails).
    #[arg(
        long,
        value_name = "MODE",
        env = "ROCKETMQ_TIMER_PROXY_FLUSH",
        hide_env_values = true,
        default_value = config::DEFAULT_FLUSH,
        value_parser = one_of([("sync", Flush::Sync), ("async", Flush::Async)])
    )]
    flush: Flush,

    /// What happens to a delay that cannot be read or is too long: "refuse" answers code 13, "relay"
    /// sends the message to the broker at once.
    #[arg(
        long,
        value_name = "MODE",
        env = "ROCKETMQ_TIMER_PROXY_BAD_DELAY",
        hide_env_values = true,
        default_value = config::DEFAULT_BAD_DELAY,
        value_parser = one_of([("refuse", BadDelay::Refuse), ("relay", BadDelay::Relay)])
    )]
    bad_delay: BadDelay,

    /// How long a due message that the broker refuses is tried again before it is parked, 1s to 30d.
    /// Parked messages are kept and counted, never dropped.
    #[arg(
        long,
        value_name = "DURATION",
        env = "ROCKETMQ_TIMER_PROXY_PARK_AFTER",
        hide_env_values = true,
        default_value = config::DEFAULT_PARK_AFTER,
        value_parser = duration_within(("1s", "30d"))
    )]
    park_after: Duration,

    /// On SIGTERM, how long the broker ports go on serving after the name-server port closed, up to
    /// 1h; clients move to another proxy in this time.
    #[arg(
        long,
        value_name = "DURATION",
        env = "ROCKETMQ_TIMER_PROXY_LAME_DUCK",
        hide_env_values = true,
        default_value = config::DEFAULT_LAME_DUCK,
        value_parser = duration_within(("0s", "1h"))
    )]
    lame_duck: Duration,

    /// After --lame-duck, how long accepted requests may take to be answered before connections are
    /// cut, up to 1h.
    #[arg(
        long,
        value_name = "DURATION",
        env = "ROCKETMQ_TIMER_PROXY_GRACE",
        hide_env_values = true,
        default_value = config::DEFAULT_GRACE,
        value_parser = duration_within(("0s", "1h"))
    )]
    grace: Duration,

    /// Memory for pending messages, 64KiB to 1TiB; each takes 32 bytes, its body stays on disk. Holds
    /// beyond it are refused with code 2.
    #[arg(
        long,
        value_name = "SIZE",
        env = "ROCKETMQ_TIMER_PROXY_NEAR_MEMORY",
        hide_env_values = true,
        default_value = config::DEFAULT_NEAR_MEMORY,
        value_parser = size_within(("64KiB", "1TiB"))
    )]
    near_memory: u64,

    /// Address of health, metrics and counts over HTTP. It has no access control: keep it private.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "ROCKETMQ_TIMER_PROXY_ADMIN",
        hide_env_values = true,
        default_value = config::DEFAULT_ADMIN,
        value_parser = address
    )]
    admin: SocketAddr,
}

/// Named types, since clap takes a `Vec` for a flag that may be given several times.
#[derive(Debug, Clone)]
struct NameServers(Vec<String>);

#[derive(Debug, Clone)]
struct Levels(Vec<i64>);

impl Serve {
    fn into_config(self) -> Result<Config, Invalid> {
        let advertise = match self.advertise {
            Some(host) => host,
            None if self.listen.ip().is_unspecified() => {
                return Err(Invalid(format!(
                    "--advertise is required, since --listen {} is a wildcard: give the address or \
                     name under which clients reach this machine",
                    self.listen
                )));
            }
            None => self.listen.ip().to_string(),
        };
        let config = Config {
            namesrv: self.namesrv.0,
            listen: self.listen,
            advertise,
            broker_ports: self.broker_ports,
            broker_map: self.broker_map,
            data_dir: self.data_dir,
            policy: Policy {
                delay_levels_ms: self.delay_levels.0,
                max_delay_ms: i64::try_from(self.max_delay.as_millis()).unwrap_or(i64::MAX),
                bad_delay: self.bad_delay,
            },
            flush: self.flush,
            park_after: self.park_after,
            lame_duck: self.lame_duck,
            grace: self.grace,
            near_memory: self.near_memory,
            admin: self.admin,
        };
        config.check()?;
        Ok(config)
    }
}

// === value parsers ===

fn address(text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        Invalid("an IP address and a port, such as 127.0.0.1:9877 or [::1]:9877".to_owned())
    })
}

/// A duration from `least` to `most`, both included.
fn duration_within(
    (least, most): (&'static str, &'static str),
) -> impl Fn(&str) -> Result<Duration, Invalid> + Clone {
    move |text| {
        let duration = value_of(text, parse_duration, (least, most))?;
        let allowed = parse_duration(least)?..=parse_duration(most)?;
        if allowed.contains(&duration) {
            return Ok(duration);
        }
        let read = Millis::from(duration);
        Err(Invalid(format!("{read} is not from {least} to {most}")))
    }
}

/// A size from `least` to `most`, both included.
fn size_within(
    (least, most): (&'static str, &'static str),
) -> impl Fn(&str) -> Result<u64, Invalid> + Clone {
    move |text| {
        let size = value_of(text, parse_size, (least, most))?;
        if (parse_size(least)?..=parse_size(most)?).contains(&size) {
            return Ok(size);
        }
        Err(Invalid(format!("{} is not from {least} to {most}", Bytes(size))))
    }
}

/// Reads a value of a flag with a range; what cannot be read is answered with the range, too.
fn value_of<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, Invalid>,
    (least, most): (&str, &str),
) -> Result<T, Invalid> {
    parse(text).map_err(|Invalid(said)| Invalid(format!("{said}; allowed is {least} to {most}")))
}

/// One of two words. Clap lists them in the help and suggests the nearer one.
fn one_of<T>(words: [(&'static str, T); 2]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let [(first, yes), (second, no)] = words;
    PossibleValuesParser::new([first, second]).map(move |word| if word == first { yes } else { no })
}

#[cfg(test)]
mod tests;
