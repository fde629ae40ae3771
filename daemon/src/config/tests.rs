use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = include_str!("../../../systemd/ccsd.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text.as_bytes(), Path::new("c.toml"))
}

/// Uncomments every key of the example: a key follows `#` at once, words follow `# `.
fn whole_example() -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => key.to_owned(),
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

fn keys(table: &toml::Table, prefix: &str, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let path = format!("{prefix}{key}");
        match value {
            toml::Value::Table(inner) => keys(inner, &format!("{path}."), found),
            toml::Value::Array(items) => {
                items
                    .iter()
                    .filter_map(toml::Value::as_table)
                    .for_each(|inner| keys(inner, &format!("{path}."), found));
            }
            _ => drop(found.insert(path)),
        }
    }
}

fn all_keys() -> BTreeSet<String> {
    let Config { socket: _, state_dir: _, metrics_file: _, retention, budget, sessions, watches: _, warnings: _ } =
        Config::default();
    let Retention { age: _, bytes: _ } = retention;
    let ServiceBudget { cpu_percent: _, memory: _, window: _ } = budget;
    let ClientSessions { memory_of_user: _, arguments: _, paranoid_users: _ } = sessions;
    let whole = parse("[[watch]]\nname = \"a\"\ncomm = \"b\"").unwrap();
    let WatchConfig {
        name: _,
        unit: _,
        cgroup: _,
        exe: _,
        comm: _,
        user: _,
        event: _,
        rate_hz: _,
        overhead: _,
        interval: _,
        memory: _,
        matches: _,
        layout: _,
    } = &whole.watches[0];
    let keys = [
        "socket",
        "state_dir",
        "metrics_file",
        "retention.age",
        "retention.bytes",
        "budget.cpu_percent",
        "budget.memory",
        "budget.window",
        "sessions.memory_of_user",
        "sessions.paranoid_users",
        "sessions.arguments",
        "watch.name",
        "watch.unit",
        "watch.cgroup",
        "watch.exe",
        "watch.comm",
        "watch.user",
        "watch.event",
        "watch.rate_hz",
        "watch.overhead",
        "watch.interval",
        "watch.memory",
        "watch.match",
        "watch.layout",
    ];
    keys.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_example_is_the_default() {
    let socket = Some(AbsolutePath(crate::service::socket::SYSTEM_SOCKET.into()));
    assert_eq!(parse(EXAMPLE).unwrap(), Config { socket, ..Config::default() });
}

#[test]
fn the_example_documents_every_key() {
    let whole = whole_example();
    let config = parse(&whole).unwrap();
    let mut found = BTreeSet::new();
    keys(&toml::from_str(&whole).unwrap(), "", &mut found);
    assert_eq!(found, all_keys());
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        if line.trim_start_matches('#').starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ") {
            let above = lines[..i].iter().rev().take_while(|line| !line.is_empty());
            assert!(above.clone().any(|line| line.starts_with("# ")), "{line} is not explained");
        }
    }
    let watch = &config.watches[0];
    assert_eq!((watch.rate_hz, watch.interval), (default_rate(), default_interval()));
    assert_eq!(watch.memory, default_memory());
}

#[test]
fn every_mistake_is_named_with_its_place() {
    let watch = "[[watch]]\nname = \"a\"\ncomm = \"b\"\n";
    for (text, place, parts) in [
        ("sokcet = \"/x\"", "c.toml:1:1", vec!["sokcet", "socket", "state_dir"]),
        ("\n[retention]\nage = \"7 weeks\"", "c.toml:3:7", vec!["7 weeks", "\"7d\""]),
        ("[retention]\n  age = \"1h\"", "c.toml:2:9", vec!["\"1h\"", "\"2h\"", "\"3650d\""]),
        ("[retention]\nbytes = 5", "c.toml:2:9", vec!["512MiB"]),
        ("[retention]\nmax = 5", "c.toml:2:1", vec!["max", "age", "bytes"]),
        ("[budget]\ncpu_percent = \"5\"", "c.toml:2:15", vec!["string", "a number from 0.1 to 100000"]),
        ("[budget]\ncpu_percent = 0.0", "c.toml:2:15", vec!["0.1 to 100000"]),
        ("[budget]\ncpu_percent = nan", "c.toml:2:15", vec!["0.1 to 100000"]),
        ("[budget]\nmemory = \"1MiB\"", "c.toml:2:10", vec!["64MiB"]),
        ("socket = \"ccsd.sock\"", "c.toml:1:10", vec!["ccsd.sock", "absolute"]),
        ("[[watch]]\nname = \"a/b\"\ncomm = \"x\"", "c.toml:2:8", vec!["a/b", "letters"]),
        ("[[watch]]\nname = \"17\"\ncomm = \"x\"", "c.toml:2:8", vec!["\"17\"", "session or a process"]),
        ("[[watch]]\nname = \"a\"", "c.toml:1:1", vec!["unit, cgroup, exe, comm, user, or match"]),
        (&format!("{watch}match = \"everything\""), "c.toml:1:1", vec!["none of unit, cgroup, exe, comm, user"]),
        (&format!("{watch}match = \"all\""), "c.toml:4:9", vec!["everything"]),
        (&format!("{watch}layout = \"cpu\""), "c.toml:4:10", vec!["auto", "threads", "cpus"]),
        (&format!("{watch}layout = \"cpus\"\nevent = \"tick\""), "c.toml:1:1", vec!["tick", "clock"]),
        (
            "[[watch]]\nname = \"a\"\nmatch = \"everything\"\nlayout = \"threads\"",
            "c.toml:1:1",
            vec!["everything", "samples CPUs"],
        ),
        ("[[watch]]\ncomm = \"a\"", "c.toml:1:1", vec!["missing field `name`"]),
        (&format!("{watch}rate_hz = 0"), "c.toml:4:11", vec!["whole number from 1 to 9999"]),
        (&format!("{watch}rate_hz = 49.5"), "c.toml:4:11", vec!["49.5", "whole number from 1 to 9999"]),
        (&format!("{watch}overhead = 0"), "c.toml:4:12", vec!["0.01% to 25%"]),
        (&format!("{watch}overhead = \"1\""), "c.toml:4:12", vec!["a number of percent from 0.01 to 25"]),
        (&format!("{watch}interval = \"1ms\""), "c.toml:4:12", vec!["\"1s\"", "\"10m\""]),
        (&format!("{watch}user = \"www-*\""), "c.toml:4:8", vec!["www-*", "\"*\" for any"]),
        (&format!("{watch}user = []"), "c.toml:4:8", vec!["1 to 100"]),
        (&format!("{watch}event = \"cpu\""), "c.toml:4:9", vec!["cpu", "clock"]),
        (&format!("{watch}commm = \"c\""), "c.toml:4:1", vec!["commm", "comm"]),
        (&format!("{watch}exe = \"\""), "c.toml:4:7", vec!["1 to 4096"]),
        (&format!("{watch}{watch}"), "c.toml:4:1", vec!["there is a watch \"a\""]),
        ("socket = ", "c.toml:1:10", vec![]),
        ("é = \"\n", "c.toml:1:1", vec![]),
        ("x = \"é\" y", "c.toml:1:9", vec![]),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{place}: ")), "{text:?} should be wrong at {place}: {message}");
        assert!(!message.contains('\n'), "{message:?}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
    let error = Config::parse(b"a = 1\nb = \xff", Path::new("c.toml")).unwrap_err();
    assert_eq!(error.to_string(), "c.toml:2:5: this is not UTF-8");
}

#[test]
fn files_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ccsd.toml");
    let error = || Config::load(&path).unwrap_err().to_string();
    assert!(error().contains("cannot read"), "{}", error());
    std::fs::create_dir(&path).unwrap();
    assert!(error().ends_with("is not a regular file"), "{}", error());
    std::fs::remove_dir(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(error().ends_with("is not a regular file"), "{}", error());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, vec![b'#'; (MAX_BYTES + 1) as usize]).unwrap();
    assert!(error().contains("more than 1048576 bytes"), "{}", error());
    std::fs::write(&path, vec![b'#'; MAX_BYTES as usize]).unwrap();
    assert_eq!(Config::load(&path).unwrap(), Config::default());
    // Any user could change what the service watches.
    let mode = |mode| std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    for writable in [0o666, 0o602, 0o646] {
        mode(writable);
        assert!(error().contains("is writable for everybody"), "{}", error());
    }
    mode(0o664);
    assert!(Config::load(&path).is_ok());
}

proptest! {
    #[test]
    fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Config::parse(&bytes, Path::new("c.toml"));
    }

    #[test]
    fn nothing_near_the_example_panics(
        at in 0..1usize << 16,
        len in 0..20usize,
        new in prop_oneof![Just(String::new()), "[\\PC\n\"'\\[\\]=#.]{0,8}"],
    ) {
        let whole = whole_example();
        let at = at % whole.len();
        let mut bytes = whole.into_bytes();
        let end = (at + len).min(bytes.len());
        bytes.splice(at..end, new.bytes());
        if let Err(ConfigError::Wrong { line, column, .. }) = Config::parse(&bytes, Path::new("c.toml")) {
            let lines = bytes.split(|&byte| byte == b'\n').count();
            prop_assert!((1..=lines).contains(&line) && column >= 1);
        }
    }
}

#[test]
fn rules_that_nothing_fits_are_pointed_out() {
    let text = "[[watch]]\nname = \"a\"\nexe = \"nginx\"\nunit = \"nginx\"\n\n[[watch]]\nname = \"b\"\ncgroup = \"system.slice/*\"\n  \
                comm = \"a-very-long-name-*\"\n";
    let config = Config::parse(text.as_bytes(), Path::new("x.toml")).unwrap();
    let places: Vec<&str> = config.warnings.iter().map(|warning| warning.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["x.toml:4:8", "x.toml:3:7", "x.toml:8:10", "x.toml:9:10"], "{:#?}", config.warnings);
    assert!(config.warnings[0].contains("\"nginx.service\"") && config.warnings[1].contains("\"*/nginx\""));
    let good = "[[watch]]\nname = \"a\"\nexe = \"*/nginx\"\nunit = \"nginx*\"\ncgroup = \"/system.slice/*\"\n\
                comm = \"a-very-long-name-without-stars\"\n[[watch]]\nname = \"b\"\ncomm = \"ngin?\"\nunit = \"x.service\"\n";
    let config = Config::parse(good.as_bytes(), Path::new("x.toml")).unwrap();
    assert_eq!(config.warnings, [] as [String; 0]);
}
