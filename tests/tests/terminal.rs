//! Ctrl-C, Ctrl-Z and the keyboard, on a real pseudo-terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{binary, ccsd};
use ccsd_tests::fixture::{Running, build};
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::terminal::{CTRL_C, CTRL_Z, Terminal};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In every final report: in its one line of accounting, or in the whole.
const REPORT: &str = " at 999 Hz";
/// Shown once a second while it collects.
const STATUS: &str = "Ctrl-C: stacks; twice";

const MAN: Need = Need::Program("man", "man-db");

fn main() -> ExitCode {
    Suite::new()
        .test("attach_dumps_and_goes_on", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1", "-g"]), &[]);
            let mut terminal = attach(&fixture);
            terminal.expect(STATUS);
            for _ in 0..2 {
                terminal.type_keys(CTRL_C);
                terminal.expect(&format!("Process {} (", fixture.pid()));
                terminal.expect("forever at ");
                let shown = terminal.expect(" _start");
                assert!(!shown.contains(REPORT), "{shown}");
                // Three updates later it is no second one.
                for _ in 0..3 {
                    terminal.expect(STATUS);
                }
            }
            terminal.type_ctrl_c_twice(" _start", REPORT);
            assert!(terminal.end().1.success());
            assert!(fixture.is_alive());
        })
        .test("a_manual_page_on_a_terminal_goes_to_the_pager", &[MAN], || {
            let mut terminal = Terminal::run(ccsd(["man", "record"]).env("MANPAGER", "cat").env_remove("PAGER"));
            terminal.expect("Samples per second");
            let (shown, status) = terminal.end();
            assert!(status.success() && !shown.contains(".TH"), "{shown}");
        })
        .test("attach_ends_by_q", &[CC], || {
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let mut terminal = attach(&fixture);
            terminal.expect("or q Enter: end");
            terminal.type_keys("x\nq\n");
            terminal.expect(REPORT);
            assert!(terminal.end().1.success());
        })
        .test("attach_to_one_that_has_died", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let mut terminal = attach(&fixture);
            terminal.expect(STATUS);
            // It stays a zombie.
            kill(Pid::from_raw(fixture.pid().cast_signed()), Signal::SIGKILL).unwrap();
            terminal.type_keys(CTRL_C);
            terminal.expect(REPORT);
            assert!(terminal.end().1.success());
            assert_eq!(fixture.end().1.signal(), Some(libc::SIGKILL));
        })
        .test("killing_attach_by_signal_ends_it_at_once", &[CC], || {
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let mut terminal = attach(&fixture);
            terminal.expect(STATUS);
            kill(pid_of(&terminal), Signal::SIGINT).unwrap();
            let shown = terminal.expect(REPORT);
            assert!(!shown.contains("Process "), "{shown}");
            assert!(terminal.end().1.success());
        })
        .test("record_dumps_and_passes_the_second_on", &[CC], || {
            let (mut terminal, _) = record("catch");
            terminal.expect(STATUS);
            terminal.type_keys(CTRL_C);
            let shown = terminal.expect("busy at ");
            assert!(!shown.contains("interrupted"), "{shown}");
            let mut shown = terminal.type_ctrl_c_twice("busy at ", "interrupted");
            let (rest, status) = terminal.end();
            shown.push_str(&rest);
            assert!(shown.contains(REPORT), "{shown}");
            assert_eq!(status.code(), Some(9), "as the program ended");
        })
        .test("record_of_one_that_ends_by_the_signal", &[CC], || {
            let (mut terminal, _) = record("die");
            terminal.type_ctrl_c_twice("busy at ", REPORT);
            assert_eq!(terminal.end().1.signal(), Some(libc::SIGINT));
        })
        .test("record_of_one_that_ignores_it", &[CC], || {
            let (mut terminal, program) = record("ignore");
            terminal.expect(STATUS);
            terminal.type_ctrl_c_twice("busy at ", REPORT);
            terminal.expect("still runs");
            kill(program, Signal::SIGTERM).unwrap();
            assert_eq!(terminal.end().1.signal(), Some(libc::SIGTERM));
        })
        .test("a_third_leaves_it_running", &[CC], || {
            let (mut terminal, program) = record("ignore");
            terminal.type_ctrl_c_twice("busy at ", "still runs");
            terminal.type_keys(CTRL_C);
            let status = terminal.child.wait().unwrap();
            assert_eq!(status.code(), Some(130));
            kill(program, Signal::SIGKILL).unwrap();
        })
        .test("record_of_one_that_reads_the_terminal", &[CC], || {
            let (mut terminal, _) = record("read");
            for line in ["hello", "again"] {
                terminal.type_keys(&format!("{line}\n"));
                terminal.expect(&format!("got {line}"));
            }
            terminal.type_keys("end\n");
            terminal.expect("got end");
            terminal.expect(REPORT);
            assert_eq!(terminal.end().1.code(), Some(7));
        })
        .test("ctrl_c_is_its_own_in_the_foreground", &[CC], || {
            let (mut terminal, _) = record("read");
            terminal.type_keys("hello\n");
            terminal.expect("got hello");
            terminal.type_keys(CTRL_C);
            terminal.expect(REPORT);
            assert_eq!(terminal.end().1.signal(), Some(libc::SIGINT));
        })
        .test("suspended_and_continued_by_a_shell", &[CC], || {
            for mode in ["busy", "read"] {
                let script = "set -m; \"$@\"; echo \"[left $?]\"; fg >/dev/null; echo \"[ended $?]\"";
                let mut terminal = Terminal::run(&mut in_shell(script, mode));
                terminal.expect("ready ");
                if mode == "read" {
                    terminal.type_keys("hello\n");
                    terminal.expect("got hello");
                } else {
                    terminal.expect(STATUS);
                }
                terminal.type_keys(CTRL_Z);
                // As the shell says of a job that was stopped.
                terminal.expect("[left 14");
                if mode == "read" {
                    terminal.type_keys("end\n");
                    terminal.expect("got end");
                    terminal.expect("[ended 7]");
                } else {
                    terminal.expect(STATUS);
                    terminal.type_ctrl_c_twice("busy at ", REPORT);
                }
                let _ = terminal.end();
            }
        })
        .test("in_a_pipeline_ctrl_c_ends_all_of_it", &[CC], || {
            for set in ["set -m;", ""] {
                let script = format!("trap : INT; {set} \"$@\" | cat; echo \"[ended]\"");
                let mut terminal = Terminal::run(&mut in_shell(&script, "busy"));
                terminal.expect("ready ");
                terminal.type_keys(CTRL_C);
                terminal.expect("[ended]");
                let (shown, _) = terminal.end();
                assert!(!shown.contains("busy at "), "{shown}");
            }
        })
        .test("in_a_script_ctrl_c_is_what_it_was", &[CC], || {
            let mut terminal = Terminal::run(&mut in_shell("trap : INT; \"$@\"; echo \"[ended $?]\"", "catch"));
            terminal.expect("ready ");
            terminal.type_keys(CTRL_C);
            terminal.expect("interrupted");
            terminal.expect("[ended 9]");
            let _ = terminal.end();
        })
        .run()
}

fn attach(fixture: &Running) -> Terminal {
    Terminal::run(ccsd(["attach", "--no-output"]).arg(fixture.pid().to_string()))
}

fn record(mode: &str) -> (Terminal, Pid) {
    let program = build("terminal.c", &["-O1", "-g"]);
    let mut terminal = Terminal::run(ccsd(["record", "--no-output", "--"]).arg(program).arg(mode));
    terminal.expect("ready ");
    let line = terminal.expect("\n");
    (terminal, Pid::from_raw(line.trim().parse().unwrap()))
}

fn in_shell(script: &str, mode: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(binary()).args(["record", "--no-output", "--"]);
    command.arg(build("terminal.c", &["-O1", "-g"])).arg(mode);
    command
}

fn pid_of(terminal: &Terminal) -> Pid {
    Pid::from_raw(terminal.child.id().cast_signed())
}
