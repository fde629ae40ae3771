//! A recorded program finds and does what it would without ccsd (I11).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Output, Stdio};

use ccsd_tests::ccsd::ccsd;
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::suite::{CC, Suite};
use nix::sys::signal::{SigSet, Signal};

fn main() -> ExitCode {
    Suite::new()
        .test("normal_exit", &[CC], || drop(assert_same("normal", |status| status.code() == Some(0))))
        .test("exit_status", &[CC], || drop(assert_same("three", |status| status.code() == Some(3))))
        .test("abort", &[CC], || drop(assert_same("abort", |status| status.signal() == Some(libc::SIGABRT))))
        .test("kill_by_itself", &[CC], || drop(assert_same("kill", |status| status.signal() == Some(libc::SIGKILL))))
        .test("segmentation_fault", &[CC], || {
            assert_same("segfault", |status| status.signal() == Some(libc::SIGSEGV));
        })
        .test("large_output", &[CC], || {
            let plain = assert_same("large", ExitStatus::success);
            assert!(plain.stdout.len() > 4_000_000);
        })
        .test("broken_pipe", &[CC], || {
            // The reader leaves after one line; what counts is how the program ends.
            for mut command in [plain("pipe"), recorded("pipe")] {
                let mut child =
                    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
                drop(child.stdout.take());
                assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGPIPE), "{command:?}");
            }
        })
        .test("input", &[CC], || {
            let input: Vec<u8> = (0..2_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
            let plain = with_input(plain("input"), &input);
            assert!(plain.status.success() && plain.stdout.starts_with(b"2000000 bytes"));
            assert_eq!(plain, with_input(recorded("input"), &input));
        })
        .test("closed_streams", &[CC], || {
            // A program started without a standard stream must not find one, least of all the profile.
            for (redirections, closed) in [("<&-", 1), (">&-", 2), ("2>&-", 4), ("<&- >&- 2>&-", 7)] {
                let closing = |command: &Command| {
                    let mut shell = Command::new("sh");
                    shell.args(["-c", &format!("exec \"$@\" {redirections}"), "sh"]);
                    shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
                    shell.output().unwrap().status.code()
                };
                assert_eq!(closing(&plain("closed")), Some(16 + closed), "{redirections}");
                assert_eq!(closing(&recorded("closed")), Some(16 + closed), "{redirections}");
            }
        })
        .test("surroundings", &[CC], || {
            // Signals, mask, descriptors, limits, environment, directory and more, as the fixture prints them.
            let plain = assert_same("surroundings", ExitStatus::success);
            let text = String::from_utf8(plain.stdout).unwrap();
            for line in ["signal 13 default", "open 0 ", "open 1 ", "open 2 ", "limit 7 ", "environment PATH="] {
                assert!(text.contains(line), "{line}: {text}");
            }
            assert!(!text.contains("open 3 ") && !text.contains("blocked"), "{text}");
        })
        .test("surroundings_that_are_unusual", &[CC], || {
            // The same where ccsd itself is started with ignored and blocked signals and low limits.
            let unusual = |command: &Command| {
                let mut shell = Command::new("sh");
                let script = "trap '' HUP INT PIPE USR1; ulimit -n 200; ulimit -c 0; umask 77; cd /; exec \"$@\"";
                shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
                shell.env_clear().env("PATH", "/usr/bin:/bin").env("ODD", "a\nb").stdin(Stdio::null());
                // SAFETY: between fork and exec this makes one system call and nothing else.
                unsafe {
                    shell.pre_exec(|| {
                        let mut blocked = SigSet::empty();
                        blocked.add(Signal::SIGWINCH);
                        Ok(blocked.thread_set_mask()?)
                    });
                }
                shell.output().unwrap()
            };
            let plain = unusual(&plain("surroundings"));
            let text = String::from_utf8_lossy(&plain.stdout);
            assert!(text.contains("signal 1 ignored") && text.contains("limit 7 200 200"), "{text}");
            assert!(text.contains("signal 13 ignored") && text.contains("blocked 28"), "{text}");
            assert_same_output(&plain, &unusual(&recorded("surroundings")));
        })
        .test("its_report_goes_to_standard_error_alone", &[CC], || {
            let dir = scratch();
            let mut command = ccsd(["record", "-o"]);
            command.arg(dir.path().join("p")).arg("--").arg(build("behave.c", &[])).arg("three");
            let output = command.stdin(Stdio::null()).output().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"leaving\n"[..]));
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.starts_with("this is an error\n") && stderr.contains(" at 999 Hz"), "{output:?}");
        })
        .run()
}

fn plain(how: &str) -> Command {
    let mut command = Command::new(build("behave.c", &[]));
    // As `ccsd` is started by these tests, to keep it from a daemon that the machine may have.
    command.arg(how).env("CCSD_SOCKET", "");
    command
}

fn recorded(how: &str) -> Command {
    let mut command = ccsd(["record", "--quiet", "--no-output", "--"]);
    command.arg(build("behave.c", &[])).arg(how);
    command
}

/// Asserts that the program ends so, and that it does and prints the same when recorded. Returns what that is.
fn assert_same(how: &str, as_expected: impl Fn(&ExitStatus) -> bool) -> Output {
    let run = |mut command: Command| command.stdin(Stdio::null()).output().unwrap();
    let plain = run(plain(how));
    assert!(as_expected(&plain.status), "{plain:?}");
    assert_same_output(&plain, &run(recorded(how)));
    plain
}

fn assert_same_output(plain: &Output, recorded: &Output) {
    let status = |output: &Output| (output.status.code(), output.status.signal());
    assert_eq!(status(plain), status(recorded), "{}", String::from_utf8_lossy(&recorded.stderr));
    // Not as a whole: a difference of megabytes is no message.
    for (what, plain, recorded) in
        [("output", &plain.stdout, &recorded.stdout), ("errors", &plain.stderr, &recorded.stderr)]
    {
        let (plain, recorded) = (String::from_utf8_lossy(plain), String::from_utf8_lossy(recorded));
        for (number, (plain, recorded)) in plain.lines().zip(recorded.lines()).enumerate() {
            assert_eq!(plain, recorded, "line {number} of the {what}");
        }
        assert_eq!(plain.len(), recorded.len(), "length of the {what}");
    }
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}
