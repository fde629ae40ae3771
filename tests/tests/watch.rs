//! The daemon's watches: processes are profiled for as long as they run, and what ran when can be asked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::cgroup::CgroupTree;
use ccsd_tests::fixture::{Running, scratch};
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::watched::{PATIENCE, WatchedService, samples};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn main() -> ExitCode {
    Suite::new()
        .test("history_shows_each_run", &[CC], history_shows_each_run)
        .test("every_command_knows_a_watch", &[CC], every_command_knows_a_watch)
        .test("two_times_are_compared", &[CC], two_times_are_compared)
        .test("configuration_overrides_the_environment", &[], configured_socket)
        .test("where_there_is_no_daemon_that_is_said", &[], no_daemon)
        .test("a_file_named_like_a_watch_is_told_from_it", &[CC], a_file_like_a_watch)
        .test("an_outsider_is_told_nothing", &[CC, Need::Root], an_outsider_is_told_nothing)
        .test("as_systemd_runs_it", &[], as_systemd_runs_it)
        .test("cpu_use_of_all_watches", &[CC], all_watches)
        .test("short_processes_are_sampled_on_cpus", &[CC, Need::Root], short_processes)
        .test("a_watch_of_a_group_samples_it_alone", &[CC, Need::Root, Need::Cgroup2], a_group)
        .test("a_watch_of_everything", &[CC, Need::Root], everything)
        .test("a_service_that_hangs_is_not_at_work", &[CC], a_hung_service)
        .test("gaps_are_listed", &[CC], gaps_are_listed)
        .test("a_link_is_watched_by_its_name", &[CC], a_link_is_watched)
        .test("metrics_are_written_and_printed", &[CC], metrics)
        .test("beyond_the_budget_a_watch_gets_less", &[CC], beyond_the_budget)
        .run()
}

fn history_shows_each_run() {
    let mut service = WatchedService::start("rate_hz = 499");
    service.until_status("it waits", |status| status["profiling"] == false);
    let mut fixture = Running::start(&service.program, &[]);
    // Three seconds of it: then there are intervals on both sides of a whole second in the middle.
    service.until_status("it is found", |status| samples(status) >= 1_500);
    let table = service.stored(&["daemon", "watches"]).stdout;
    let row = table.lines().find(|line| line.starts_with("busy")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("profiling") && row.contains("499 Hz"), "{table}");
    // All of it, while it is being written.
    let all = service.report(&["--since", "-1h"]);
    assert!(all["accounting"]["received"].as_u64().unwrap() >= 200, "{all}");
    assert_eq!(all["file"]["stored"]["interrupted"], Value::Array(Vec::new()));
    assert_eq!(all["session"]["target"], "busy");
    let forever = all["flat"]["rows"].as_array().unwrap().iter().find(|row| row["name"] == "forever").unwrap().clone();
    assert!(forever["inherited_share"]["fraction"].as_f64().unwrap() > 0.9, "{forever}");
    // An interval belongs to every time that overlaps it: at most the one in the middle to both.
    service.stop();
    let text = |ns: &Value| format!("@{}", ns.as_u64().unwrap() / 1_000_000_000);
    let stored = service.report(&[])["file"]["stored"].clone();
    let middle = text(&Value::from(
        stored["from_unix_ns"].as_u64().unwrap().midpoint(stored["until_unix_ns"].as_u64().unwrap()),
    ));
    let received = |args: &[&str]| service.report(args)["accounting"]["received"].as_u64().unwrap();
    let (first, second) = (received(&["--until", &middle]), received(&["--since", &middle]));
    assert!(first > 0 && second > 0);
    assert!(first + second >= received(&[]) && first.max(second) < received(&[]));
    assert_eq!(received(&["--since", &format!("..{middle}")]), first);
    let segments = service.segments();
    assert_eq!(segments.len(), 1);
    assert_eq!(fs::metadata(&segments[0]).unwrap().permissions().mode() & 0o777, 0o640);
    let whole = EndedProgram::of(ccsd(["report"]).arg(&segments[0]));
    assert!(whole.status.success() && whole.stderr.is_empty(), "{whole:?}");
    // When it ran: each part of the time has what the report has of it, and together they are all of it.
    let flat = service.report(&[]);
    let timeline = service.report(&["--view", "timeline"]);
    let view = &timeline["timeline"];
    let list = |it: &Value| it.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect::<Vec<u64>>();
    assert_eq!(list(&view["weights"]).iter().sum::<u64>(), flat["flat"]["total"]["weight"].as_u64().unwrap());
    let columns = view["columns"].as_array().unwrap();
    assert!(columns.len() >= 2 && columns[0]["from_ns"] == 0, "{view}");
    let band = view["bands"].as_array().unwrap().iter().find(|it| it["name"] == "forever").unwrap();
    let own = flat["flat"]["rows"].as_array().unwrap().iter().find(|row| row["name"] == "forever").unwrap();
    assert_eq!(list(&band["weights"]).iter().sum::<u64>(), own["self_weight"].as_u64().unwrap());
    let text = service.stored(&["report", "--watch", "busy", "--view", "timeline"]).stdout;
    assert!(text.contains(" forever") && text.contains("of watch busy"), "{text}");
    let nothing = service.stored(&["report", "--watch", "busy", "--since", "2001-01-01", "--until", "2001-01-02"]);
    nothing.assert_refused(2, &["busy has nothing of that time", "begin at"]);
    service.stored(&["report", "--watch", "other"]).assert_refused(2, &["no watch \"other\"", "busy"]);
    service.stored(&["report", "--watch", "busy", "--since", "soon"]).assert_refused(2, &["soon", "03:10"]);
    EndedProgram::of(&mut ccsd(["report", "x.ccsd", "--state-dir", "/x"])).assert_refused(2, &["--watch"]);
    fixture.go();
    assert_eq!(fixture.end().1.code(), Some(5));
}

fn every_command_knows_a_watch() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 200);
    let run = |args: &[&str]| {
        let ended = EndedProgram::of(&mut service.ccsd(args));
        assert!(ended.status.success(), "{args:?}: {ended:?}");
        ended.stdout
    };
    let sessions = run(&["daemon", "status"]);
    let row =
        sessions.lines().find(|line| line.contains("watch busy: 1 process")).unwrap_or_else(|| panic!("{sessions}"));
    assert!(row.contains("ccsd top watch:busy"), "{row}");
    let json: Value = serde_json::from_str(&run(&["daemon", "status", "--json"])).unwrap();
    assert_eq!(json["watches"][0]["name"], "busy");
    assert!(run(&["report", "--watch", "busy"]).contains("forever"));
    assert!(run(&["daemon", "watches"]).contains("1 (1 open)"), "{}", run(&["daemon", "watches"]));
    let html = service.path("page.html");
    run(&["export", "html", "--watch", "busy", "-o", html.to_str().unwrap()]);
    assert!(fs::read_to_string(&html).unwrap().contains("forever"));
    // What is there and the next update, after which it has the time to come.
    let lines = run(&["top", "--json", "--duration", "2s", "watch:busy"]);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap_or_else(|| panic!("no line"))).unwrap();
    assert!(last["rows"].to_string().contains("forever") && last["received"].as_u64().unwrap() >= 100, "{last}");
    EndedProgram::of(&mut service.ccsd(&["top", "--plain", "bussy"])).assert_refused(2, &["bussy"]);
    if nix::unistd::geteuid().is_root() {
        let outsider = EndedProgram::of(as_user(&mut service.ccsd(&["daemon", "status"]), NOBODY));
        assert!(outsider.status.success() && !outsider.stdout.contains("busy"), "{outsider:?}");
    }
    let checked = EndedProgram::of(service.command().arg("--check-config"));
    assert!(checked.stdout.ends_with("ccsd.toml: good: 1 watch\n") && checked.stderr.is_empty(), "{checked:?}");
    service.configure("unit = \"nginx\"");
    let checked = EndedProgram::of(service.command().arg("--check-config"));
    assert!(checked.status.success() && checked.stdout.contains("usable, but 1 warning: 1 watch"), "{checked:?}");
    assert!(checked.stderr.contains("ccsd.toml:8:8: ") && checked.stderr.contains("nginx.service"), "{checked:?}");
    service.stop();
}

fn two_times_are_compared() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 300);
    service.stop();
    let stored = service.report(&[])["file"]["stored"].clone();
    let (from, until) = (stored["from_unix_ns"].as_u64().unwrap(), stored["until_unix_ns"].as_u64().unwrap());
    let middle = format!("@{}", from.midpoint(until) / 1_000_000_000);
    let against = format!("..{middle}");
    // What no sample saw, where another machine takes the CPU, is no change of the function.
    let args = ["diff", "--of-sampled", "--watch", "busy", "--since", &middle, "--against", &against];
    let text = service.stored(&args).stdout;
    let row = text.lines().find(|line| line.ends_with("  forever")).unwrap_or_else(|| panic!("{text}"));
    // It does the same all the time.
    assert!(row.contains(" ~ "), "{text}");
    for part in ["# before", "# after", "lost", "undelivered", "elided"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let json: Value = serde_json::from_str(&service.stored(&[&args[..], &["--json"]].concat()).stdout).unwrap();
    let sum = |side: &str| json[side]["accounting"]["received"].as_u64().unwrap();
    assert!(sum("before") + sum("after") >= service.report(&[])["accounting"]["received"].as_u64().unwrap());
    // Per second of wall time, although one time is half of the other.
    let rate = [
        "diff",
        "--rate",
        "--of-sampled",
        "--json",
        "--watch",
        "busy",
        "--since",
        &middle,
        "--against",
        &format!("..@{}", until / 1_000_000_000 + 1),
    ];
    let json: Value = serde_json::from_str(&service.stored(&rate).stdout).unwrap();
    let [before, after] = [0, 1].map(|side| json["per_wall_seconds"][side].as_f64().unwrap());
    assert!(before > after, "{json}");
    let row = json["rows"].as_array().unwrap().iter().find(|row| row["name"] == "forever").unwrap();
    let weight = |side: &str| row[side]["self_weight"].as_f64().unwrap();
    let whole = service.report(&[]);
    let whole = whole["flat"]["rows"].as_array().unwrap().iter().find(|row| row["name"] == "forever").unwrap();
    let per_second = whole["self_weight"].as_f64().unwrap() / before;
    assert!((weight("before") / per_second - 1.0).abs() < 0.001, "{per_second}: {row}");
    assert!(
        service.stored(&rate.map(|it| if it == "--json" { "--total" } else { it })).stdout.contains("total change")
    );
    let significant = service.stored(&[&args[..], &["--significant", "--function", "forever"]].concat()).stdout;
    assert!(significant.contains("no function to show"), "{significant}");
    let segment = service.segments().remove(0);
    let files = EndedProgram::of(ccsd(["diff", "--json"]).arg(&segment).arg(&segment));
    let json: Value = serde_json::from_str(&files.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["self_change"] == 0.0 && row["self_significant"] == false), "{json}");
    EndedProgram::of(ccsd(["diff"]).arg(&segment)).assert_refused(2, &["two profiles"]);
}

fn configured(dir: &Path, text: &str) -> Command {
    let config = dir.join("ccsd.toml");
    fs::write(&config, text).unwrap();
    let mut command = ccsd(["daemon", "--config"]);
    command.arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn listens_at(command: &mut Command) -> String {
    let mut daemon = command.spawn().unwrap();
    let mut messages = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let line = messages.find_map(|line| line.ok().filter(|line| line.contains("listens at")));
    daemon.kill().unwrap();
    let _ = daemon.wait();
    line.unwrap()
}

fn configured_socket() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let text = format!("socket = {:?}\n", path("configured"));
    let run = |text: &str| {
        let mut command = configured(dir.path(), text);
        command.env("CCSD_SOCKET", path("environment"));
        command
    };
    assert!(listens_at(&mut run(&text)).contains(&path("configured")));
    assert!(listens_at(run(&text).arg("--socket").arg(path("argument"))).contains(&path("argument")));
    assert!(listens_at(&mut run("")).contains(&path("environment")));
}

fn no_daemon() {
    let dir = scratch();
    let mut command = ccsd(["daemon", "watches", "--state-dir"]);
    command.arg(dir.path().join("none")).env("CCSD_SOCKET", dir.path().join("socket"));
    EndedProgram::of(&mut command).assert_refused(2, &["no daemon", "socket", "nothing is stored in"]);
}

fn a_file_like_a_watch() {
    let service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| status["bytes"].as_u64().unwrap() > 500);
    let dir = scratch();
    fs::write(dir.path().join("busy"), "no profile".repeat(100)).unwrap();
    let top = |folder: &Path, source: &str| {
        let mut command = service.ccsd(&["top", "--plain", "--duration", "10ms", source]);
        EndedProgram::of(command.current_dir(folder))
    };
    // A file that is no profile is not meant, unless it is named as one.
    for (folder, source) in [(dir.path(), "busy"), (dir.path(), "watch:busy"), (service.dir.path(), "busy")] {
        let ended = top(folder, source);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{source}: {ended:?}");
    }
    top(dir.path(), "./busy").assert_refused(2, &["not a ccsd profile"]);
    fs::copy(service.segments().remove(0), dir.path().join("busy")).unwrap();
    top(dir.path(), "busy").assert_refused(2, &["may mean several things", "./busy", "watch:busy"]);
    let socket = service.path("sock");
    let mut command = ccsd(["diff", "--watch", "busy", "--since", "-1s", "--against", "-1h..-30m", "--socket"]);
    EndedProgram::of(command.arg(&socket).env_remove("CCSD_SOCKET"))
        .assert_refused(2, &["watch busy has nothing of that time"]);
}

fn an_outsider_is_told_nothing() {
    let service = WatchedService::start("");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 10);
    let metrics = EndedProgram::of(as_user(&mut service.ccsd(&["daemon", "metrics"]), NOBODY));
    metrics.assert_refused(2, &["group ccsd"]);
    for args in [&["daemon", "watches"][..], &["report", "--watch", "busy"]] {
        let mut command = service.ccsd(args);
        let ended = EndedProgram::of(as_user(command.arg("--state-dir").arg(service.path("state")), NOBODY));
        ended.assert_refused(2, &["cannot read", "group ccsd"]);
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
}

/// With a socket that is passed, and another for its notifications.
fn as_systemd_runs_it() {
    let dir = scratch();
    let (socket, notify) = (dir.path().join("passed"), dir.path().join("notify"));
    let listener = UnixListener::bind(&socket).unwrap();
    let notified = UnixDatagram::bind(&notify).unwrap();
    notified.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = dir.path().join("ccsd.toml");
    fs::write(&config, format!("state_dir = {:?}\n", dir.path().join("state"))).unwrap();
    let mut command = ccsd(["daemon", "--config"]);
    command.arg(&config);
    // A shell knows the number that the daemon will have, and makes its input the first of the passed descriptors.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.env("NOTIFY_SOCKET", &notify).env("LISTEN_FDS", "1").env("WATCHDOG_USEC", "1000000");
    shell.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = shell.spawn().unwrap();
    let told = |wanted: &str| {
        let mut buffer = [0; 4096];
        loop {
            let read = notified.recv(&mut buffer).unwrap_or_else(|error| panic!("{wanted}: {error}"));
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return text;
            }
        }
    };
    assert!(told("READY=1").contains("STATUS=0 of 0 watches profile 0 processes"));
    told("WATCHDOG=1");
    let sessions = EndedProgram::of(ccsd(["daemon", "status"]).env("CCSD_SOCKET", &socket));
    assert!(sessions.status.success(), "{sessions:?}");
    let signal = |signal| kill(Pid::from_raw(daemon.id().cast_signed()), signal).unwrap();
    signal(Signal::SIGHUP);
    assert!(told("RELOADING=1").contains("MONOTONIC_USEC="));
    told("READY=1");
    signal(Signal::SIGTERM);
    told("STOPPING=1");
    assert!(daemon.wait().unwrap().success());
    assert!(socket.exists(), "the socket is systemd's");
}

fn all_watches() {
    let mut service = WatchedService::start("rate_hz = 499");
    let other = service.path("other");
    fs::copy(&service.program, &other).unwrap();
    let text = fs::read_to_string(service.path("ccsd.toml")).unwrap();
    let second = text[text.find("[[watch]]").unwrap()..text.find("[budget]").unwrap()]
        .replace("\"busy\"", "\"other\"")
        .replace(service.program.to_str().unwrap(), other.to_str().unwrap());
    fs::write(service.path("ccsd.toml"), format!("{text}\n{second}")).unwrap();
    service.signal(Signal::SIGHUP);
    let _fixtures = [Running::start(&service.program, &[]), Running::start(&other, &[])];
    service.until("both have samples", || {
        let list: Value = serde_json::from_str(&service.stored(&["daemon", "watches", "--json"]).stdout).unwrap();
        let watches = list["watches"].as_array().unwrap();
        watches.len() == 2 && watches.iter().all(|watch| watch["status"]["samples"].as_u64() >= Some(300))
    });
    service.stop();
    let received = |watch: &str| {
        let ended = service.stored(&["report", "--json", "--watch", watch]);
        assert!(ended.status.success(), "{ended:?}");
        let json: Value = serde_json::from_str(&ended.stdout).unwrap();
        (json["accounting"]["received"].as_u64().unwrap(), json)
    };
    let (sum, json) = received("all");
    assert_eq!(sum, received("busy").0 + received("other").0);
    assert_eq!(json["file"]["stored"]["watches"], serde_json::json!(["busy", "other"]));
    assert!(service.stored(&["report", "--watch", "all"]).stdout.contains("all watches (busy, other)"));
    let timeline = service.stored(&["report", "--watch", "all", "--view", "timeline"]);
    assert!(timeline.status.success() && timeline.stdout.contains(" forever"), "{timeline:?}");
    // The list has the CPU time of each watch, as the profiles have it.
    let list: Value = serde_json::from_str(&service.stored(&["daemon", "watches", "--json"]).stdout).unwrap();
    for watch in list["watches"].as_array().unwrap() {
        let parts = watch["cpu"]["cpu_ns"].as_array().unwrap();
        let cpu: u64 = parts.iter().map(|part| part.as_u64().unwrap()).sum();
        let stored = received(watch["name"].as_str().unwrap()).1["accounting"]["target_cpu_ns"].as_u64().unwrap();
        assert_eq!(parts.len(), 12);
        assert!(cpu.abs_diff(stored) <= 24, "rounded down in each part: {cpu} and {stored}");
    }
    let table = service.stored(&["daemon", "watches", "--since", "-3h", "--until", "-2h"]).stdout;
    assert!(table.lines().filter(|line| line.contains(" 0.00 ")).count() == 2, "{table}");
    service.stored(&["daemon", "watches", "--since", "-1h", "--until", "-2h"]).assert_refused(2, &["swapped"]);
}

fn add_watches(service: &WatchedService, watches: &str) {
    let text = fs::read_to_string(service.path("ccsd.toml")).unwrap();
    fs::write(service.path("ccsd.toml"), format!("{text}\n{watches}")).unwrap();
    service.signal(Signal::SIGHUP);
}

fn status_of(service: &WatchedService, name: &str) -> Value {
    let list: Value = serde_json::from_str(&service.stored(&["daemon", "watches", "--json"]).stdout).unwrap();
    let watches = list["watches"].as_array().unwrap();
    watches.iter().find(|watch| watch["name"] == name).map_or(Value::Null, |watch| watch["status"].clone())
}

fn short_processes() {
    let service = WatchedService::start("rate_hz = 499");
    let short = service.path("short-lived");
    fs::copy(&service.program, &short).unwrap();
    add_watches(
        &service,
        &format!(
            "[[watch]]\nname = \"chosen\"\ncomm = \"short-lived\"\nrate_hz = 499\ninterval = \"1s\"\n\
             [[watch]]\nname = \"cpus\"\nexe = {short:?}\nlayout = \"cpus\"\nrate_hz = 499\ninterval = \"1s\"\n"
        ),
    );
    service.until("CPUs are sampled before anything matches", || status_of(&service, "cpus")["profiling"] == true);
    assert_eq!(status_of(&service, "chosen")["profiling"], false);
    // The shell that runs them matches neither.
    let script = format!("while :; do {} 10 < /dev/null; done", short.display());
    let mut shell = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    service.until("a watch samples CPUs by itself", || {
        let status = status_of(&service, "chosen");
        status["samples_cpus"] == true && samples(&status) > 500
    });
    let (chosen, cpus) = (status_of(&service, "chosen"), status_of(&service, "cpus"));
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!(service.log().contains("ccsd samples CPUs from now on"), "{}", service.log());
    for status in [&chosen, &cpus] {
        // What is missing was lost by a busy machine.
        let missing = status["missing"].as_u64().unwrap();
        assert!(missing < samples(status) && status["warning"].is_null(), "{status}");
    }
    // Events on CPUs were there from the first process on, found by an executable, although each has ended soon.
    assert!(samples(&cpus) > samples(&chosen), "{cpus} {chosen}");
    let table = service.stored(&["daemon", "watches"]).stdout;
    assert!(table.lines().next().is_some_and(|head| head.contains("samples  expected")), "{table}");
    let report = service.stored(&["report", "--watch", "cpus", "--since", "-1h"]);
    assert!(report.stdout.contains(" forever") && report.stdout.contains(" short-lived "), "{report:?}");
    let report = service.stored(&["report", "-v", "--watch", "chosen", "--since", "-1h"]);
    assert!(report.stdout.contains("ccsd samples CPUs and drops samples of other processes"), "{report:?}");
    assert!(!report.stdout.contains("-F"), "{report:?}");
}

fn a_group() {
    let tree = CgroupTree::new();
    let service = WatchedService::start("");
    let fixture = Running::start(&service.program, &[]);
    let outside = Running::start(&service.program, &[]);
    tree.join("watched.service", fixture.pid());
    let path = format!("{}/watched.service", tree.path);
    add_watches(
        &service,
        &format!(
            "[[watch]]\nname = \"grouped\"\ncgroup = {path:?}\nlayout = \"cpus\"\nrate_hz = 499\ninterval = \"1s\"\n"
        ),
    );
    service.until("the group is sampled", || samples(&status_of(&service, "grouped")) > 200);
    let report = service.stored(&["report", "-v", "--by", "process", "--watch", "grouped", "--since", "-1h"]);
    let note = format!("only what ran in control groups was sampled: {path}");
    assert!(report.stdout.contains(&note), "{report:?}");
    let number = |pid: u32| format!("({pid})");
    assert!(report.stdout.contains(&number(fixture.pid())), "{report:?}");
    assert!(!report.stdout.contains(&number(outside.pid())), "{report:?}");
}

fn everything() {
    let service = WatchedService::start("");
    let fixture = Running::start(&service.program, &[]);
    add_watches(&service, "[[watch]]\nname = \"host\"\nmatch = \"everything\"\nrate_hz = 499\ninterval = \"1s\"\n");
    // The programs of all that runs are read first, by a debug build perhaps.
    let began = std::time::Instant::now();
    while samples(&status_of(&service, "host")) < 200 {
        assert!(began.elapsed() < 4 * PATIENCE, "{}", service.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let status = status_of(&service, "host");
    assert!(status["samples_cpus"] == true && status["processes"].as_u64() > Some(1), "{status}");
    let json = service.stored(&["report", "--watch", "host", "--since", "-1h", "--by", "process", "--json"]).stdout;
    assert!(json.contains(&format!("({})", fixture.pid())), "{json}");
}

fn a_hung_service() {
    let service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("it is written", |status| status["bytes"].as_u64() > Some(500));
    service.signal(Signal::SIGSTOP);
    let list = service.stored(&["daemon", "watches"]);
    service.signal(Signal::SIGCONT);
    assert!(list.stdout.contains("no answer") && !list.stdout.contains("profiling"), "{list:?}");
    assert!(list.stdout.contains("# the service does not answer"), "{list:?}");
}

fn gaps_are_listed() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 100);
    assert_eq!(service.report(&[])["file"]["stored"]["gaps"], serde_json::json!([]));
    service.stop();
    let ended = std::time::SystemTime::now();
    while ended.elapsed().unwrap() < std::time::Duration::from_millis(1_500) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let command = service.command();
    service.begin(command);
    service.until_status("some more", |status| samples(status) >= 100);
    service.stop();
    let report = service.report(&[]);
    let gaps = report["file"]["stored"]["gaps"].as_array().unwrap();
    let length = gaps[0]["until_unix_ns"].as_u64().unwrap() - gaps[0]["from_unix_ns"].as_u64().unwrap();
    assert!(gaps.len() == 1 && length >= 1_000_000_000, "{report}");
    let text = service.stored(&["report", "--watch", "busy"]).stdout;
    assert!(text.contains("# gaps") && text.contains("in 1 gap") && text.contains(" UTC to "), "{text}");
}

/// As on Debian, where redis-server is a link to redis-check-rdb.
fn a_link_is_watched() {
    let service = WatchedService::start("");
    let own = nix::unistd::geteuid();
    let program = service.path("real-name");
    fs::rename(&service.program, &program).unwrap();
    std::os::unix::fs::symlink(&program, &service.program).unwrap();
    let fixture = Running::start(&service.program, &[]);
    service.until_status("it is found by the name of the link", |status| status["processes"] == 1);
    let check = || EndedProgram::of(service.command().arg("--check-config")).stdout;
    assert!(check().contains(": 1 now"), "{}", check());
    // One that runs as another user.
    let text = fs::read_to_string(service.path("ccsd.toml")).unwrap();
    let other =
        if own.is_root() { "interval = \"1s\"\nuser = \"65533\"".to_owned() } else { "interval = \"1s\"".to_owned() };
    let text = text.replace(&format!("user = {own}\n"), "user = 65533\n");
    fs::write(service.path("ccsd.toml"), text.replace("interval = \"1s\"", &other)).unwrap();
    let near = format!("PID {} (watched) matches but for its user, {own}", fixture.pid());
    assert!(check().contains(&format!("none now; {near}")), "{}", check());
    service.signal(Signal::SIGHUP);
    service.until_status("it is told what nearly matches", |status| {
        status["hint"].as_str().is_some_and(|hint| hint.contains(&near))
    });
    assert!(service.stored(&["daemon", "watches"]).stdout.contains(&near));
}

fn metrics() {
    let service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 50);
    let printed = EndedProgram::of(&mut service.ccsd(&["daemon", "metrics"])).stdout;
    let value = |text: &str, name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(value(&printed, "ccsd_watch_samples_total{watch=\"busy\"}") >= 50.0);
    assert!(value(&printed, "ccsd_watch_profiling{watch=\"busy\"}") == 1.0);
    assert!(value(&printed, "ccsd_cpu_seconds_total") > 0.0);
    // The file has been written when it began, at least.
    let file = fs::read_to_string(service.path("ccsd.prom")).unwrap();
    assert!(file.ends_with("# EOF\n"), "{file}");
    assert!(value(&file, "ccsd_start_time_seconds") == value(&printed, "ccsd_start_time_seconds"));
    assert!(!Path::new(&service.path("ccsd.prom.tmp")).exists());
}

fn beyond_the_budget() {
    // A client's session takes more than that by itself, and counts.
    let service = WatchedService::start("rate_hz = 499\n[budget]\ncpu_percent = 0.1\nwindow = \"1s\"");
    let fixture = Running::start(&service.program, &[]);
    let attached =
        EndedProgram::of(&mut service.ccsd(&["attach", "--detach", "-F", "4999", &fixture.pid().to_string()]));
    assert!(attached.status.success(), "{attached:?}");
    // First the rate is halved, and that some times, then the kernel is left out; each time a new segment says why.
    service.until_status("the rate is as low as it gets", |status| status["rate_hz"] == 31);
    service.until("a profile says so", || {
        let report = service.stored(&["report", "--watch", "busy", "--since", "-1h"]).stdout;
        let parts = ["instead of 499 samples per second: the service used", "its budget is 0.1%", "user code only"];
        parts.iter().all(|part| report.contains(part))
    });
    let printed = EndedProgram::of(&mut service.ccsd(&["daemon", "metrics"])).stdout;
    assert!(printed.contains("ccsd_budget_step 5\n"), "{printed}");
}
