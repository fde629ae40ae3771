//! `ccsd top` on a real terminal: tmux, which understands what is drawn and says what stands where.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, binary, ccsd};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, PERF, Suite};
use serde_json::Value;
use tempfile::TempDir;

const TMUX: Need = Need::Program("tmux", "tmux");

const PATIENCE: Duration = Duration::from_secs(60);

struct Tmux {
    dir: TempDir,
}

impl Tmux {
    fn start(size: (u16, u16), environment: &str, arguments: &str) -> Tmux {
        let tmux = Tmux { dir: scratch() };
        let command = format!(
            "cd {} && env CCSD_SOCKET= {environment} {} top {arguments}; echo ended with $?; exec sleep 1000",
            tmux.dir.path().display(),
            binary().display()
        );
        let (columns, lines) = (size.0.to_string(), size.1.to_string());
        tmux.run(&["-f", "/dev/null", "-u", "new-session", "-d", "-x", &columns, "-y", &lines, &command]);
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // Settings of tmux itself, so that it ignores the user's and draws everything.
        command.arg("-S").arg(self.dir.path().join("socket")).args(arguments);
        let ended = EndedProgram::of(command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR"));
        assert!(ended.status.success(), "{arguments:?}: {ended:?}");
        ended.stdout
    }

    fn keys(&self, keys: &[&str]) {
        for key in keys {
            self.run(&["send-keys", key]);
        }
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    fn until(&self, what: &str, good: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if good(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "{what} never comes: {screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn until_shown(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.dir.path().join("socket")).arg("kill-server").status();
    }
}

fn recorded() -> Recorded {
    RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["1000"]).run()
}

fn row<'a>(screen: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let mut rows = screen.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|words| words.contains(&function))
}

fn main() -> ExitCode {
    Suite::new()
        .test("a_file_in_every_view_at_80_columns", &[CC, TMUX], || {
            let recorded = recorded();
            let tmux = Tmux::start((80, 24), "", recorded.file.to_str().unwrap());
            let flat = tmux.until_shown("ENDED");
            assert!(flat.lines().count() <= 24, "{flat}");
            let own = recorded.samples("weight_12").own as f64 / recorded.profile.accounting().received as f64;
            let shown: f64 = row(&flat, "weight_12").unwrap_or_else(|| panic!("{flat}"))[0].parse().unwrap();
            assert!((shown - own * 100.0).abs() < 1.0, "{shown} of {own}: {flat}");
            tmux.keys(&["2"]);
            let tree = tmux.until("the tree", |screen| screen.contains("\u{25be} main"));
            assert!(tree.contains("weight_12"), "{tree}");
            tmux.keys(&["Left", "Left"]);
            tmux.keys(&["/", "weight_0", "Enter"]);
            tmux.until("the filter", |screen| screen.contains("weight_09") && !screen.contains("weight_12"));
            tmux.keys(&["Escape", "1"]);
            tmux.until("no filter", |screen| screen.contains("weight_12"));
            tmux.keys(&["Enter"]);
            let callers = tmux.until("the callers", |screen| screen.contains("main") && !screen.contains("weight_11"));
            assert!(callers.contains("weight_12"), "{callers}");
            tmux.keys(&["4"]);
            tmux.until_shown("process, thread");
            tmux.keys(&["5"]);
            let flame = tmux.until("the flame graph", |screen| screen.contains("\u{2502}main"));
            assert!(flame.contains("\u{2502}weight_12"), "{flame}");
            tmux.keys(&["C-l", "?"]);
            tmux.until_shown("stacks of all threads, now");
            tmux.keys(&["Escape", "d"]);
            tmux.until_shown("runs here any more");
            tmux.keys(&["?"]);
            tmux.until_shown("stacks of all threads, now");
            tmux.keys(&["q"]);
            tmux.until_shown("ended with 0");
        })
        .test("a_flame_graph_is_zoomed_and_searched", &[CC, TMUX], || {
            let recorded = recorded();
            let tmux = Tmux::start((80, 24), "", &format!("--flame {}", recorded.file.display()));
            let whole = tmux.until("the flame graph", |screen| screen.contains("\u{2502}main"));
            // The heaviest function is the widest, in proportion: a border at both ends is a column of the next.
            let all = recorded.profile.accounting().received as f64;
            let own = recorded.samples("weight_12").own as f64 / all;
            let row = whole.lines().find(|line| line.contains("\u{2502}weight_12")).unwrap();
            let after = row.split("\u{2502}weight_12").nth(1).unwrap();
            let width = 1 + "weight_12".len() + after.chars().take_while(|&c| c == ' ').count();
            assert!((width as f64 - own * 79.0).abs() <= 1.5, "{width} of {own}: {whole}");
            tmux.keys(&["/", "weight_1", "Enter"]);
            let found = tmux.until_shown("/weight_1  matched ");
            let share: f64 = found.split("matched ").nth(1).unwrap().split('%').next().unwrap().parse().unwrap();
            let ones = ["weight_10", "weight_11", "weight_12"];
            let ones: u64 = ones.iter().map(|name| recorded.samples(name).own).sum();
            assert!((share / 100.0 - ones as f64 / all).abs() < 0.02, "{share} of {ones}: {found}");
            tmux.keys(&["n"]);
            tmux.until("the match", |screen| screen.lines().rev().nth(1).is_some_and(|line| line.contains("weight_1")));
            tmux.keys(&["Enter"]);
            let zoomed = tmux.until_shown(" > weight_1");
            assert!(!zoomed.contains("\u{2502}main"), "{zoomed}");
            tmux.keys(&["BSpace"]);
            tmux.until("all of it", |screen| screen.contains("\u{2502}main"));
            tmux.run(&["resize-window", "-x", "40", "-y", "10"]);
            tmux.until("the smaller graph", |screen| {
                screen.lines().all(|line| line.chars().count() <= 40) && screen.contains("\u{2502}main")
            });
            tmux.keys(&["q"]);
            tmux.until_shown("ended with 0");
        })
        .test("a_recording_of_perf", &[CC, TMUX, PERF], || {
            let dir = scratch();
            let data = dir.path().join("perf.data");
            let mut perf = Command::new("perf");
            perf.args(["record", "-q", "-e", "cpu-clock", "-g", "-o"]).arg(&data);
            let ended = EndedProgram::of(perf.arg("--").arg(build("weights.c", &["-O1", "-g"])).arg("1000"));
            assert!(ended.status.success(), "{ended:?}");
            let tmux = Tmux::start((80, 24), "", data.to_str().unwrap());
            let flat = tmux.until_shown("weight_12");
            assert!(flat.contains("self% total%"), "{flat}");
            tmux.keys(&["q"]);
            tmux.until_shown("ended with 0");
        })
        .test("it_resizes_and_needs_no_colour", &[CC, TMUX], || {
            let recorded = recorded();
            let tmux = Tmux::start((200, 50), "NO_COLOR=1 LC_ALL=C", recorded.file.to_str().unwrap());
            let wide = tmux.until_shown("ENDED");
            assert!(wide.is_ascii(), "{wide}");
            let has_bar = |screen: &str| row(screen, "weight_12").is_some_and(|words| words[3].starts_with('#'));
            assert!(has_bar(&wide), "{wide}");
            let coloured = tmux.run(&["capture-pane", "-p", "-e"]);
            let codes = coloured.split("\x1b[").skip(1).flat_map(|part| part.split('m').next().unwrap().split(';'));
            // 39 and 49 are what the terminal has by itself.
            let own = ["0", "1", "2", "7", "22", "27", "39", "49"];
            assert_eq!(codes.filter(|code| !own.contains(code)).collect::<Vec<_>>(), [""; 0]);
            tmux.keys(&["5"]);
            let flame = tmux.until("the flame graph", |screen| screen.contains("|main"));
            assert!(flame.is_ascii(), "{flame}");
            tmux.keys(&["1"]);
            tmux.until("the rows", has_bar);
            tmux.run(&["resize-window", "-x", "60", "-y", "12"]);
            tmux.until("the smaller screen", |screen| {
                screen.lines().all(|line| line.chars().count() <= 60) && !has_bar(screen)
            });
            tmux.keys(&["C-c"]);
            tmux.until_shown("ended with 0");
        })
        .test("a_process_live_frozen_paused_dumped_and_saved", &[CC, TMUX], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1", "-g"]), &[]);
            let tmux = Tmux::start((100, 30), "", &format!("--no-daemon {}", fixture.pid()));
            let first = tmux.until("samples", |screen| row(screen, "forever").is_some());
            assert!(first.contains("CPUs"), "{first}");
            tmux.keys(&["p"]);
            let paused = tmux.until_shown("PAUSED");
            tmux.keys(&["p"]);
            let line = |screen: &str| screen.lines().next().map(str::to_owned);
            let now = tmux.until("more", |screen| !screen.contains("PAUSED") && line(screen) != line(&paused));
            assert!(row(&now, "forever").is_some(), "{now}");
            tmux.keys(&["f"]);
            tmux.until("the comparison", |screen| {
                screen.contains("since ")
                    && row(screen, "forever").is_some_and(|words| words[1].starts_with(['+', '-']))
            });
            tmux.keys(&["d"]);
            let dump = tmux.until_shown(&format!("Process {} (", fixture.pid()));
            assert!(dump.contains("forever at "), "{dump}");
            tmux.keys(&["Escape", "s"]);
            tmux.until_shown("save as: top.ccsd");
            tmux.keys(&["Enter"]);
            tmux.until_shown("saved in top.ccsd");
            tmux.keys(&["q"]);
            tmux.until_shown("ended with 0");
            assert!(fixture.is_alive());
            let report = EndedProgram::of(&mut ccsd([Path::new("report"), &tmux.dir.path().join("top.ccsd")]));
            assert!(report.status.success() && report.stdout.contains("forever"), "{report:?}");
        })
        .test("crashes_are_shown", &[CC, TMUX, Need::Root, Need::Tracefs], || {
            let program = build("crash.c", &["-g", "-O0", "-pthread"]);
            let record = RecordCommand::new(program, &["fault"]);
            let recorded = Collecting::start(|file| record.command(file)).wait();
            assert_eq!(recorded.profile.crashes().len(), 1, "{:?}", recorded.ended);
            let tmux = Tmux::start((80, 24), "", recorded.file.to_str().unwrap());
            let first = tmux.until_shown("ENDED");
            assert!(first.lines().next().unwrap().contains("1 died: c"), "{first}");
            tmux.keys(&["c"]);
            let stack = tmux.until_shown("Died: ");
            assert!(stack.contains("SIGSEGV") && stack.contains(" third at "), "{stack}");
            tmux.keys(&["x", "q"]);
            tmux.until_shown("ended with 0");
            let quiet = self::recorded();
            let tmux = Tmux::start((80, 24), "", quiet.file.to_str().unwrap());
            let none = tmux.until_shown("ENDED");
            assert!(!none.contains("died"), "{none}");
            tmux.keys(&["c"]);
            tmux.until_shown("no process has died");
        })
        .test("lines_of_intervals_are_the_whole", &[CC], || {
            let mut fixture = Running::start(&build("phases.c", &["-O1"]), &[]);
            let mut live = ccsd(["top", "--attach", "--json", "--interval", "-n", "0", &fixture.pid().to_string()]);
            let mut live = live.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(live.stdout.take().unwrap()).lines().map(|line| {
                let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
                line
            });
            // It ends some time after a line.
            let mut all = vec![lines.next().unwrap()];
            while all.last().unwrap()["received"] == 0 {
                all.push(lines.next().unwrap());
            }
            fixture.go();
            fixture.go();
            assert!(fixture.end().1.success());
            all.extend(lines);
            assert!(live.wait().unwrap().success());
            let last = all.last().unwrap();
            assert!(last["ended"].is_string() && last["elapsed_ns"].as_u64() > Some(0), "{last}");
            let sum = |number: &dyn Fn(&Value) -> u64| all.iter().map(number).sum::<u64>();
            assert_eq!(sum(&|line| line["total"]["samples"].as_u64().unwrap()), last["received"].as_u64().unwrap());
            assert_eq!(sum(&|line| line["interval_ns"].as_u64().unwrap()), last["elapsed_ns"].as_u64().unwrap());
            let weight = |line: &Value| line["total"]["weight"].as_u64().unwrap();
            for line in &all {
                let rows = line["rows"].as_array().unwrap();
                let own = rows.iter().map(|row| row["self_weight"].as_u64().unwrap()).sum::<u64>();
                assert_eq!(own, weight(line), "{line}");
                assert!(line["interval_ns"] != 0 || weight(line) == 0, "{line}");
            }
        })
        .test("a_file_that_is_cut_is_shown_as_far_as_it_goes", &[CC], || {
            let recorded = RecordCommand::new(build("recursion.c", &["-O1"]), &["shared", "0", "60"]).run();
            let cut = recorded.dir.path().join("cut.ccsd");
            let whole = std::fs::read(&recorded.file).unwrap();
            std::fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
            let mut top = ccsd(["top", "--json", cut.to_str().unwrap()]);
            let mut top = top.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
            let line = BufReader::new(top.stdout.take().unwrap()).lines().next().unwrap().unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["received"].as_u64(), Some(recorded.profile.accounting().received), "{line}");
            // More may be written to it.
            assert!(line["ended"].is_null(), "{line}");
            assert!(top.try_wait().unwrap().is_none());
            top.kill().unwrap();
            top.wait().unwrap();
        })
        .test("refuses_without_a_terminal", &[], || {
            EndedProgram::of(&mut ccsd(["top", "1"])).assert_refused(2, &["terminal", "ccsd top --plain"]);
        })
        .run()
}
