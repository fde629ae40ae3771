//! `ccsd dump`: the stack of every thread, without disturbing the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build};
use ccsd_tests::suite::{CC, Need, Suite};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

const FLAGS: [&str; 4] = ["-O1", "-g", "-fno-optimize-sibling-calls", "-pthread"];
/// Frames of the deep recursion. At 48 bytes or less each they fit the usual 8 MiB of stack.
const DEEP: usize = 100_000;
/// Dumps of one program that must not be disturbed.
const MANY: usize = 20;
/// strace, as another tracer.
const STRACE: Need = Need::Program("strace", "strace");

fn main() -> ExitCode {
    Suite::new()
        .test("by_a_daemon_for_who_may", &[CC, Need::Root], by_a_daemon)
        .test("sleeping", &[CC], || {
            let fixture = waiting("inlined", None);
            let threads = threads(&fixture);
            let [thread] = threads.as_slice() else { panic!("{threads:#?}") };
            assert_eq!((thread["state"].as_str(), thread["complete"].as_bool()), (Some("sleeping"), Some(true)));
            assert_eq!(thread["tid"].as_u64(), Some(fixture.pid().into()));
            assert!(thread["stopped_ns"].as_u64().is_some_and(|ns| ns > 0), "{thread:#}");
            let functions = functions(thread);
            assert_eq!(functions.last(), Some(&"_start"));
        })
        .test("inlined_functions_and_lines", &[CC], || {
            let fixture = waiting("inlined", None);
            let threads = threads(&fixture);
            let frames = threads[0]["frames"].as_array().unwrap();
            let at = frames.iter().position(|frame| frame["function"] == "innermost").expect("innermost");
            let row = |offset: usize| {
                let frame = &frames[at + offset];
                assert!(frame["file"].as_str().unwrap().ends_with("dump.c"), "{frame}");
                let line = usize::try_from(frame["line"].as_u64().unwrap()).unwrap();
                (frame["function"].as_str().unwrap(), frame["inlined"].as_bool().unwrap(), source_line(line))
            };
            assert_eq!(row(0), ("innermost", true, "wait_here();".to_owned()));
            assert_eq!(row(1), ("middle", true, "innermost();".to_owned()));
            assert_eq!(row(2), ("outer", false, "middle();".to_owned()));
        })
        .test("running", &[CC], || {
            let fixture = waiting("burning", None);
            let threads = threads(&fixture);
            let thread = &threads[0];
            assert!(functions(thread).contains(&"main"), "{thread:#}");
            assert_eq!(thread["complete"].as_bool(), Some(true));
            assert_eq!((thread["sampled"].as_bool(), thread["stopped_ns"].as_u64()), (Some(true), None), "{thread:#}");
        })
        .test("deep_recursion_is_a_dozen_lines", &[CC], || {
            let fixture = waiting("recursion", Some(DEEP));
            let text = dump(&fixture, &[]).stdout;
            let stack = text.lines().filter(|line| line.starts_with("    ")).count();
            assert!(stack <= 16, "{text}");
            assert!(text.contains("[99,9") && text.contains("frames of recursion:"), "{text}");
            for function in ["p", "q", "r"] {
                // The count, among the few that are shown separately.
                let line = text.lines().find(|line| line.contains(&format!(" x {function} at "))).expect("a count");
                let count: usize = line.split(" x ").next().unwrap().trim().replace(',', "").parse().unwrap();
                assert!(count.abs_diff(DEEP / 3) <= 3, "{line}");
            }
            assert!(text.contains("main at ") && text.contains("_start"), "{text}");
            assert!(!text.contains("truncated"), "{text}");
        })
        .test("every_frame_of_deep_recursion", &[CC], || {
            let fixture = waiting("recursion", Some(DEEP));
            let threads = threads(&fixture);
            let functions = functions(&threads[0]);
            let recursive = functions.iter().filter(|name| ["p", "q", "r"].contains(name)).count();
            assert_eq!(recursive, DEEP + 1);
            // The real order, known only from the depth.
            let inner = functions.iter().position(|name| ["p", "q", "r"].contains(name)).unwrap();
            let expected = ["p", "q", "r"];
            for (i, name) in functions[inner..inner + recursive].iter().rev().enumerate() {
                assert_eq!(*name, expected[i % 3], "call {i}");
            }
        })
        .test("threads_with_one_stack_are_one_group", &[CC], || {
            let fixture = waiting("threads", Some(200));
            let threads = threads(&fixture);
            assert_eq!(threads.len(), 201);
            until("all threads wait", || {
                let text = dump(&fixture, &[]).stdout;
                let group = text.lines().find(|line| line.starts_with("200 threads, sleeping"));
                assert!(group.is_none_or(|group| group.ends_with("\"worker\" and 192 more")), "{text}");
                group.is_some()
            });
            let full = dump(&fixture, &["--full"]).stdout;
            assert_eq!(full.matches("\"worker\"").count(), 200);
        })
        .test("the_kernel_s_wait_function", &[CC, Need::Root], || {
            let fixture = waiting("inlined", None);
            until("it reads", || {
                let text = dump(&fixture, &["--kernel"]).stdout;
                text.contains("sleeping in ") && text.contains("pipe_read") && text.contains("[kernel] ")
            });
        })
        .test("system_calls_are_not_interrupted", &[CC], || {
            let mut fixture = waiting("calls", None);
            let mut stopped = 0;
            for _ in 0..MANY {
                let threads = threads(&fixture);
                assert_eq!(threads.len(), 10);
                stopped += threads.iter().filter(|thread| thread["stopped_ns"].as_u64().is_some()).count();
                // A thread that would be disturbed is not stopped, but is still shown.
                let writing = threads.iter().find(|thread| thread["name"] == "writing").unwrap();
                assert!(!functions(writing).is_empty(), "{writing:#}");
            }
            assert!(stopped >= MANY, "{stopped}");
            fixture.go();
            assert_eq!(fixture.finish(), "0 interrupted, 0 short\n");
        })
        .test("calls_that_take_long_are_not_cut_short", &[CC], || {
            let mut fixture = waiting("moves", None);
            let mut seen = 0;
            // (The fixture leaves few CPUs to the dumps.)
            for _ in 0..MANY / 2 {
                let threads = threads(&fixture);
                assert_eq!(threads.len(), 5);
                seen += threads.iter().filter(|thread| thread["sampled"].as_bool() == Some(true)).count();
            }
            assert!(seen > 0);
            fixture.go();
            assert_eq!(fixture.finish(), "0 short\n");
        })
        .test("calls_of_a_supervisor_are_made_once", &[CC], || {
            const CALLS: usize = 3;
            let mut fixture = waiting("supervised", Some(CALLS));
            for call in 0..CALLS {
                let threads = threads(&fixture);
                let supervised = threads.iter().find(|thread| thread["name"] == "supervised").unwrap();
                assert!(supervised["not_stopped"].is_string(), "{supervised:#}");
                fixture.go();
                if call + 1 < CALLS {
                    fixture.wait_until_told();
                }
            }
            assert_eq!(fixture.finish(), "");
        })
        .test("stopped_processes_stay_stopped", &[CC], || {
            let mut fixture = waiting("threads", Some(3));
            let pid = Pid::from_raw(fixture.pid().cast_signed());
            // A thread that has not run yet has no stack.
            until("all have begun to wait", || tasks(fixture.pid()).iter().all(|&(_, state, _)| state == 'S'));
            kill(pid, Signal::SIGSTOP).unwrap();
            assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
            for _ in 0..5 {
                let threads = threads(&fixture);
                assert_eq!(threads.len(), 4);
                for thread in &threads {
                    assert_eq!(thread["state"], "stopped");
                    assert!(functions(thread).len() >= 3, "{thread:#}");
                }
            }
            // No other process is notified.
            let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
            assert_eq!(waitpid(pid, Some(flags)), Ok(WaitStatus::StillAlive));
            let states: Vec<char> = tasks(fixture.pid()).into_iter().map(|(_, state, _)| state).collect();
            assert_eq!(states, ['T'; 4]);
            kill(pid, Signal::SIGCONT).unwrap();
            fixture.go();
            let _ = fixture.finish();
        })
        .test("another_tracer_holds_it", &[CC, STRACE], || {
            let fixture = waiting("inlined", None);
            let mut strace = Command::new("strace");
            strace.args(["-f", "-o", "/dev/null", "-p", &fixture.pid().to_string()]);
            let mut strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            until("strace has attached", || tasks(fixture.pid()).iter().all(|&(_, _, tracer)| tracer == strace.id()));
            until("it is blocked again", || {
                let ended = dump(&fixture, &[]);
                let text = &ended.stdout;
                // What was not saved on the stack is unknown, and not guessed.
                assert!(text.contains("_start") || text.contains("[truncated: "), "{text}");
                let traced = text.contains(&format!("traced by strace ({}) already", strace.id()));
                traced && text.contains(" read ") && text.contains("wait_here")
            });
            assert_eq!(tasks(fixture.pid())[0].2, strace.id(), "strace keeps it");
            strace.kill().unwrap();
            strace.wait().unwrap();
        })
        .test("killed_in_the_middle", &[CC], || {
            let mut fixture = waiting("threads", Some(500));
            for _ in 0..5 {
                let mut dumping = dump_that_traces(fixture.pid());
                let _ = dumping.kill();
                dumping.wait().unwrap();
                until("nothing is held", || {
                    tasks(fixture.pid()).iter().all(|&(_, state, tracer)| tracer == 0 && !"tT".contains(state))
                });
            }
            fixture.go();
            let _ = fixture.finish();
        })
        .test("ended_in_the_middle", &[CC], || {
            let mut fixture = waiting("epolls", Some(300));
            for _ in 0..MANY {
                let mut dumping = dump_that_traces(fixture.pid());
                let _ = kill(Pid::from_raw(dumping.id().cast_signed()), Signal::SIGTERM);
                let status = dumping.wait().unwrap();
                assert!(status.success() || status.signal() == Some(libc::SIGTERM), "{status}");
            }
            fixture.go();
            assert_eq!(fixture.finish(), "0 interrupted\n");
        })
        .test("the_main_thread_has_ended", &[CC], || {
            let fixture = waiting("without_main", None);
            until("it has", || tasks(fixture.pid()).iter().any(|&(_, state, _)| state == 'Z'));
            let threads = threads(&fixture);
            assert_eq!(threads[0]["missing"], "it has ended");
            assert_eq!(threads[1]["name"], "last");
            assert!(functions(&threads[1]).contains(&"last"), "{:#}", threads[1]);
        })
        .test("uninterruptible_sleep", &[CC], || {
            let mut fixture = waiting("vfork", None);
            until("it waits for its child", || tasks(fixture.pid())[0].1 == 'D');
            let threads = threads(&fixture);
            let thread = &threads[0];
            assert_eq!(thread["state"], "uninterruptible");
            assert_eq!(thread["not_stopped"], "it is in uninterruptible sleep");
            // Its return address is in a register, which only a stop would reveal: marked, not guessed.
            assert!(functions(thread)[0].contains("vfork"), "{thread:#}");
            assert!(thread["complete"].as_bool() == Some(true) || thread["truncated"].is_string(), "{thread:#}");
            fixture.go();
            let _ = fixture.finish();
        })
        .test("another_program_during_the_dump", &[CC], || {
            // Frames belong to whichever of the two programs it is found to run.
            let script = "while :; do exec sh -c \"$1\" sh \"$1\"; done";
            let mut child = Command::new("sh").args(["-c", script, "sh", script]).spawn().unwrap();
            for _ in 0..5 {
                let ended = EndedProgram::of(&mut ccsd(["dump", &child.id().to_string()]));
                assert!(matches!(ended.status.code(), Some(0 | 1)), "{ended:?}");
            }
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        })
        .test("refused_users", &[CC, Need::Root], || {
            let fixture = waiting("inlined", None);
            let mut command = ccsd(["dump", &fixture.pid().to_string()]);
            let ended = EndedProgram::of(as_user(&mut command, NOBODY));
            ended.assert_refused(2, &["not permitted", "user root", "CAP_SYS_PTRACE"]);
        })
        .test("other_ids_than_processes", &[CC], || {
            EndedProgram::of(&mut ccsd(["dump", "2147483647"])).assert_refused(2, &["no process with PID 2147483647"]);
            let mut child = Command::new("true").spawn().unwrap();
            until("it has ended", || {
                fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ")
            });
            EndedProgram::of(&mut ccsd(["dump", &child.id().to_string()])).assert_refused(2, &["zombie"]);
            child.wait().unwrap();
            let fixture = waiting("inlined", None);
            let ended = EndedProgram::of(&mut ccsd(["dump", "2147483647", &fixture.pid().to_string()]));
            ended.assert_refused(1, &["no process with PID 2147483647"]);
            assert!(ended.stdout.contains("wait_here"), "{ended:?}");
        })
        .test("kernel_threads", &[Need::Root], || {
            // Kernel threads, unless this is a container.
            if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
                EndedProgram::of(&mut ccsd(["dump", "2"])).assert_refused(2, &["kernel thread"]);
            }
        })
        .test("the_process_ends_as_it_would", &[CC], || {
            let mut fixture = waiting("recursion", Some(10));
            for _ in 0..MANY {
                let _ = dump(&fixture, &["--stats"]);
            }
            assert!(fixture.is_alive());
            kill(Pid::from_raw(fixture.pid().cast_signed()), Signal::SIGTERM).unwrap();
            assert_eq!(fixture.end().1.signal(), Some(libc::SIGTERM));
        })
        .run()
}

/// The fixture, where it says that it has got.
fn by_a_daemon() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let of_root = waiting("inlined", None);
    let mut command = Command::new(build("dump.c", &FLAGS));
    let of_nobody = Running::start_command(as_user(command.arg("inlined"), NOBODY));
    let dump = |user: u32, args: &[&str], pid: u32| {
        let mut command = daemon.ccsd(["dump"]);
        EndedProgram::of(as_user(command.args(args).arg(pid.to_string()), user))
    };
    let mut command = Command::new(build("dump.c", &FLAGS));
    let burning = Running::start_command(as_user(command.arg("burning"), NOBODY));
    let ended = dump(NOBODY, &["--daemon", "--json"], burning.pid());
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let thread = &document["processes"][0]["threads"][0];
    assert_eq!(thread["sampled"].as_bool(), Some(true), "{thread:#}");
    assert!(functions(thread).contains(&"main"), "{thread:#}");
    drop(burning);
    let own = threads(&of_root);
    for (user, pid) in [(0, of_root.pid()), (NOBODY, of_nobody.pid())] {
        let ended = dump(user, &["--daemon", "--json"], pid);
        assert!(ended.status.success(), "{ended:?}");
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let process = &document["processes"][0];
        assert!(process["notes"].to_string().contains("taken by the daemon at"), "{process:#}");
        let thread = &process["threads"][0];
        assert_eq!(functions(thread), functions(&own[0]));
        if user == NOBODY {
            assert_eq!(thread["kernel_stack"], Value::Array(Vec::new()));
        }
    }
    // What JSON escapes fits, too.
    let command = "\"\\".repeat(30_000);
    let wordy = Running::start_command(Command::new("sh").args(["-c", "printf r; read line", &command]));
    let ended = dump(0, &["--daemon", "--json"], wordy.pid());
    assert!(ended.status.success() && ended.stdout.len() > 2 * command.len(), "{}", ended.stderr);
    // The daemon does not lend its rights.
    for (args, parts) in [(&[][..], &["nor by a daemon", "may not profile"][..]), (&["--daemon"], &["may not profile"])]
    {
        let ended = dump(NOBODY, args, of_root.pid());
        ended.assert_refused(2, parts);
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
    let ended = dump(NOBODY, &["--no-daemon"], of_root.pid());
    ended.assert_refused(2, &["root"]);
    assert!(!ended.stderr.contains("daemon"), "{ended:?}");
    // A user who may dump the process does not ask the daemon.
    let ended = dump(0, &[], of_root.pid());
    assert!(ended.status.success() && !ended.stdout.contains("taken by"), "{ended:?}");
    dump(0, &["--daemon"], u32::MAX / 2).assert_refused(2, &["no process"]);
    daemon.stop();
}

fn waiting(mode: &str, number: Option<usize>) -> Running {
    let number = number.map(|number| number.to_string());
    let args: Vec<&str> = std::iter::once(mode).chain(number.as_deref()).collect();
    Running::start(&build("dump.c", &FLAGS), &args)
}

fn dump(fixture: &Running, options: &[&str]) -> EndedProgram {
    let ended = EndedProgram::of(ccsd(["dump"]).args(options).arg(fixture.pid().to_string()));
    assert!(ended.status.success(), "{ended:?}");
    ended
}

fn threads(fixture: &Running) -> Vec<Value> {
    let document: Value = serde_json::from_str(&dump(fixture, &["--json"]).stdout).unwrap();
    let process = &document["processes"][0];
    assert_eq!(process["pid"].as_u64(), Some(fixture.pid().into()));
    process["threads"].as_array().unwrap().clone()
}

/// Innermost first.
fn functions(thread: &Value) -> Vec<&str> {
    let frames = thread["frames"].as_array().unwrap();
    frames.iter().map(|frame| frame["function"].as_str().unwrap()).collect()
}

fn source_line(number: usize) -> String {
    let source = include_str!("../fixtures/dump.c");
    source.lines().nth(number - 1).unwrap_or_default().trim().to_owned()
}

/// A dump that is in progress, or just done: a thread has been seen traced.
fn dump_that_traces(pid: u32) -> Child {
    let mut command = ccsd(["dump", &pid.to_string()]);
    let mut dumping = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it traces or is done", || {
        dumping.try_wait().unwrap().is_some() || tasks(pid).iter().any(|&(_, _, tracer)| tracer == dumping.id())
    });
    dumping
}

fn tasks(pid: u32) -> Vec<(u32, char, u32)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    tids.filter_map(|tid| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        Some((tid, field("State:")?.chars().next()?, field("TracerPid:")?.parse().ok()?))
    })
    .collect()
}

/// Polls until a condition holds: the kernel reports such changes in no other way.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed().as_secs() < 60, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
