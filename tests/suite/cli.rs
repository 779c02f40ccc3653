//! The binary as a user meets it: exit codes, texts, streams.

use std::process::{Command, Output, Stdio};

const PREFIX: &str = "ROCKETMQ_TIMER_PROXY_";

/// The binary with nothing of this process's environment that it would read.
fn proxy(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocketmq-timer-proxy"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(PREFIX) {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env_remove("COLUMNS");
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    proxy(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs what must be refused as wrong usage; its stderr.
fn refusal(args: &[&str]) -> String {
    refused(proxy(args))
}

fn refused(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(output.stdout.is_empty(), "stdout is for the ready line");
    assert!(said.starts_with("error: "), "{said}");
    said
}

/// Starts `serve` where it cannot start, since the admin port is taken; its stderr.
fn failed_start(args: &[&str], variables: &[(&str, &str)]) -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let mut command = proxy(&["serve", "--listen", "127.0.0.1:0", "--broker-ports", "0"]);
    command.args(["--admin", &admin]).args(args);
    command.args(["--namesrv", "127.0.0.1:1", "--data-dir"]);
    command.arg(dir.path()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "never ready");
    said
}

#[test]
fn help_teaches() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    insta::assert_snapshot!("help", text(&help.stdout));
    let serve = run(&["serve", "--help"]);
    assert_eq!(serve.status.code(), Some(0));
    insta::assert_snapshot!("serve_help", text(&serve.stdout));
}

#[test]
fn version_is_that_of_the_package() {
    let version = run(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    let expected = concat!("rocketmq-timer-proxy ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(text(&version.stdout), expected);
}

#[test]
fn wrong_usage_is_named_and_exits_with_64() {
    const SERVE: [&str; 3] = ["serve", "--namesrv", "10.0.0.1:9876"];
    for (args, said) in [
        (&["serve"][..], "--namesrv"),
        (&["server"], "'serve'"),
        (&["serve", "--namesrv", "10.0.0.1"], "is not HOST:PORT"),
    ] {
        assert!(refusal(args).contains(said), "{args:?}: {}", refusal(args));
    }
    for (args, said) in [
        (&["--max-delai", "1d"][..], "--max-delay"),
        (&["--max-delay", "1d", "--max-delay", "2d"], "--max-delay <DURATION>"),
        (&["--max-delay", "forever"], "'forever' for '--max-delay <DURATION>'"),
        (&["--max-delay", "3661d"], "3661d is not from 1s to 3660d"),
        (&["--near-memory", "1KiB"], "1KiB is not from 64KiB to 1TiB"),
        (&["--near-memory", "128"], "a size is a number with a unit"),
        (&["--near-memory", "1"], "; allowed is 64KiB to 1TiB"),
        (&["--max-delay", "-1s"], "'-1s' for '--max-delay <DURATION>'"),
        (&["--listen", "localhost"], "'localhost' for '--listen <IP:PORT>'"),
        (&["--listen", "0.0.0.0:9877"], "--advertise is required"),
        (&["--broker-ports", "9800-9900"], "--listen 127.0.0.1:9877 lies in --broker-ports"),
        (
            &["--broker-map", "a:0=5,b:0=7"],
            "'a:0=5,b:0=7' for '--broker-map <NAME:ID=PORT[,NAME:ID=PORT]>': entry 2",
        ),
        (&["--broker-map", "a:0=2"], "a PORT from 3 to 65535"),
        (&["--broker-map", "a:0=9879"], "a:0=9879 takes the port of --listen 127.0.0.1:9877"),
        (&["--delay-levels", "1s 1x"], "level 2 is \"1x\""),
        (&["--delay-levels", ""], "--delay-levels <LIST>"),
        (&["--delay-levels", "1s 3h", "--max-delay", "2h"], "level 2 of --delay-levels is 3h"),
        (&["--flush", "never"], "[possible values: sync, async]"),
        (&["--bad-delay", "drop"], "[possible values: refuse, relay]"),
    ] {
        let args = [&SERVE, args].concat();
        assert!(refusal(&args).contains(said), "{args:?}: {}", refusal(&args));
    }
    let mut bad_log = proxy(&SERVE);
    bad_log.env("RUST_LOG", "no=such=level");
    assert!(refused(bad_log).contains("RUST_LOG"));
}

#[test]
fn a_start_that_fails_ends_with_one_clear_line() {
    let said = failed_start(&[], &[]);
    let errors: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(said.ends_with(&format!("{}\n", errors[0])), "{said}");
}

#[test]
fn variables_set_flags_and_flags_win() {
    let variables = [
        ("ROCKETMQ_TIMER_PROXY_MAX_DELAY", "3d"),
        ("ROCKETMQ_TIMER_PROXY_GRACE", "2s"),
        ("ROCKETMQ_TIMER_PROXY_MAXDELAY", "9d"),
    ];
    let said = failed_start(&["--grace", "5s"], &variables);
    let effective: Vec<_> =
        said.lines().filter(|line| line.contains("effective configuration")).collect();
    assert_eq!(effective.len(), 1, "printed once: {said}");
    for flag in ["--max-delay=\"3d\"", "--grace=\"5s\"", "--flush=\"sync\""] {
        assert!(effective[0].contains(flag), "{flag}: {said}");
    }
    let stray = "ROCKETMQ_TIMER_PROXY_MAXDELAY";
    assert!(said.lines().any(|line| line.contains("WARN") && line.contains(stray)), "{said}");

    let mut command = proxy(&["serve", "--namesrv", "10.0.0.1:9876"]);
    command.env("ROCKETMQ_TIMER_PROXY_BROKER_MAP", "a:0=1");
    assert!(refused(command).contains("'a:0=1' for '--broker-map <NAME"));

    let mut command = proxy(&["serve", "--namesrv", "10.0.0.1:9876"]);
    command.env("ROCKETMQ_TIMER_PROXY_FLUSH", "never");
    assert!(refused(command).contains("'never' for '--flush <MODE>'"));
}
