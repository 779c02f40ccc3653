use super::*;

/// The outcome of `serve` with these arguments, `--namesrv` given.
fn serve(args: &[&str]) -> Result<Config, clap::Error> {
    let all = ["rocketmq-timer-proxy", "serve", "--namesrv", "10.0.0.1:9876"];
    parse(all.iter().chain(args).map(OsString::from))
}

fn refusal(args: &[&str]) -> String {
    let error = serve(args).unwrap_err();
    assert_eq!(exit_code(&error), EXIT_USAGE, "{args:?}");
    error.to_string()
}

#[test]
fn clap_finds_no_fault_with_the_definition() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_those_of_the_types() {
    let config = serve(&[]).unwrap();
    assert_eq!(config.policy, Policy::default());
    assert_eq!(config.advertise, "127.0.0.1");
    assert_eq!(config.broker_ports, BrokerPorts::Range(20_000, 20_999));
    assert_eq!(config.near_memory, 128 << 20);
    assert_eq!(config.flush, Flush::Sync);
}

#[test]
fn every_flag_has_its_variable_and_its_effective_value() {
    let command = Cli::command();
    let serve_command = command.find_subcommand("serve").unwrap();
    let shown: Vec<_> = serve(&[]).unwrap().flags().into_iter().map(|(flag, _)| flag).collect();
    let mut flags = Vec::new();
    for arg in serve_command.get_arguments() {
        let Some(flag) = arg.get_long() else { continue };
        let variable = flag.to_uppercase().replace('-', "_");
        let env = arg.get_env().and_then(|env| env.to_str());
        assert_eq!(env, Some(format!("{ENV_PREFIX}{variable}").as_str()), "--{flag}");
        flags.push(flag);
    }
    assert_eq!(shown, flags);
}

#[test]
fn every_flag_changes_the_configuration() {
    let default = serve(&[]).unwrap().flags();
    for (flag, value) in [
        ("listen", "127.0.0.1:0"),
        ("advertise", "proxy.example"),
        ("broker-ports", "0"),
        ("broker-map", "a:0=20011,b:1=30001"),
        ("data-dir", "/elsewhere"),
        ("delay-levels", "off"),
        ("max-delay", "2h"),
        ("flush", "async"),
        ("bad-delay", "relay"),
        ("park-after", "1m"),
        ("lame-duck", "5s"),
        ("grace", "1s"),
        ("near-memory", "64KiB"),
        ("admin", "127.0.0.1:0"),
    ] {
        let long = format!("--{flag}");
        let joined = format!("{long}={value}");
        let changed = serve(&[&long, value]).unwrap();
        assert_eq!(changed, serve(&[&joined]).unwrap(), "blank or equals sign");
        let changed = changed.flags();
        assert!(changed.contains(&(flag, value.to_owned())), "{changed:?}");
        let others: Vec<_> = changed.iter().filter(|now| !default.contains(now)).collect();
        let expected = if flag == "listen" { 1 } else { others.len().min(1) };
        assert_eq!(others.len(), expected, "--{flag} changed {others:?}");
    }
}

#[test]
fn maximum_delays_across_the_32_bit_borders() {
    for (text, ms) in [
        ("1s", 1_000),
        ("3d", 259_200_000),
        ("24d20h31m22s", 2_147_482_000),
        ("24d20h31m23s", 2_147_483_000),
        ("24d20h31m24s", 2_147_484_000),
        ("30d", 2_592_000_000),
        ("49d17h2m46s", 4_294_966_000),
        ("49d17h2m48s", 4_294_968_000),
        ("40d", 3_456_000_000),
        ("366d", 31_622_400_000),
        ("3660d", 316_224_000_000),
    ] {
        let config = serve(&["--max-delay", text]).unwrap();
        assert_eq!(config.policy.max_delay_ms, ms, "{text}");
    }
    for text in ["0", "0s", "999ms", "-1", "-1s", "36500d", "3660d1ms", "later", "5", ""] {
        let said = refusal(&[&format!("--max-delay={text}")]);
        let named = format!("invalid value '{text}' for '--max-delay <DURATION>'");
        let named = if text.is_empty() { "'--max-delay <DURATION>'".to_owned() } else { named };
        assert!(said.contains(&named), "{said}");
    }
}

#[test]
fn what_a_flag_with_a_range_cannot_read_is_answered_with_the_range() {
    let ranges = [
        ("--max-delay <DURATION>", "1s to 3660d"),
        ("--park-after <DURATION>", "1s to 30d"),
        ("--lame-duck <DURATION>", "0s to 1h"),
        ("--grace <DURATION>", "0s to 1h"),
        ("--near-memory <SIZE>", "64KiB to 1TiB"),
    ];
    for (shown, range) in ranges {
        let (flag, _) = shown.split_once(' ').unwrap();
        for value in ["-1s", "-1", "-1MiB", "1", "99999999999999999999d"] {
            let said = refusal(&[flag, value]);
            assert!(said.contains(&format!("invalid value '{value}' for '{shown}': ")), "{said}");
            assert!(said.contains(&format!("; allowed is {range}\n")), "{said}");
        }
        for forgotten in [&[flag, "--flush", "sync"][..], &[flag]] {
            let said = refusal(forgotten);
            assert!(said.contains(&format!("'{shown}' but none was supplied")), "{said}");
        }
    }
}

#[test]
fn what_flags_contradict_ends_with_the_usage_of_serve() {
    for args in
        [&["--listen", "0.0.0.0:9877"][..], &["--listen", "127.0.0.1:1", "--admin", "127.0.0.1:1"]]
    {
        let said = refusal(args);
        assert!(said.contains("\nUsage: rocketmq-timer-proxy serve [OPTIONS] --namesrv"), "{said}");
    }
}

#[test]
fn a_flag_with_one_letter_changed_is_answered_with_the_right_one() {
    for (flag, _) in serve(&[]).unwrap().flags() {
        let mut typo = format!("--{flag}");
        typo.insert(4, 'x');
        let said = refusal(&[&typo, "1"]);
        assert!(said.contains(&format!("--{flag}")), "{said}");
    }
    assert!(refusal(&["--flush", "sink"]).contains("[possible values: sync, async]"));
}

#[test]
fn a_flag_given_twice_is_refused() {
    let said = refusal(&["--max-delay", "1d", "--max-delay", "2d"]);
    assert!(said.contains("'--max-delay <DURATION>' cannot be used multiple times"), "{said}");
}

#[test]
fn a_wildcard_needs_an_address_to_advertise() {
    for wildcard in ["0.0.0.0:9877", "[::]:9877"] {
        let said = refusal(&["--listen", wildcard]);
        assert!(said.contains("--advertise is required"), "{said}");
    }
    let config = serve(&["--listen", "0.0.0.0:9877", "--advertise", "10.0.0.7"]).unwrap();
    assert_eq!(config.advertise, "10.0.0.7");
    assert!(refusal(&["--advertise", "0.0.0.0"]).contains("wildcard"));
}

#[test]
fn asking_for_help_is_no_mistake() {
    for args in [&["x", "--help"][..], &["x", "--version"], &["x", "serve", "--help"]] {
        let error = parse(args.iter().map(OsString::from)).unwrap_err();
        assert_eq!(exit_code(&error), 0, "{args:?}");
    }
    for args in [&["x"][..], &["x", "server"], &["x", "serve"], &["x", "serve", "extra"]] {
        let error = parse(args.iter().map(OsString::from)).unwrap_err();
        assert_eq!(exit_code(&error), EXIT_USAGE, "{args:?}");
    }
}

#[test]
fn variables_that_set_nothing_are_found() {
    let names = [
        "PATH",
        "ROCKETMQ_TIMER_PROXY_MAX_DELAY",
        "ROCKETMQ_TIMER_PROXY_MAXDELAY",
        "ROCKETMQ_TIMER_PROXY_SERVICE_HOST",
        "ROCKETMQ_TIMER_PROXY_PORT_9877_TCP_ADDR",
        "ROCKETMQ_TIMER_PROXY_PORT",
        "ROCKETMQ_TIMER_PROXY_CACHE",
        "ROCKETMQ_TIMER_PROXY_TEST_JARS_4_9_7",
    ];
    assert_eq!(
        stray_variables(names.into_iter().map(str::to_owned)),
        ["ROCKETMQ_TIMER_PROXY_MAXDELAY"]
    );
}
