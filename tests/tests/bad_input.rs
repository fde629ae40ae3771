//! Wrong requests and failures have a message with the cause and the right exit status; collected data is not lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;

use ccsd_profile::{Recovery, read_profile};
use ccsd_tests::ccsd::{EndedProgram, NOBODY, RecordCommand, as_user, binary, ccsd};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::{Recorded, with_commas};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE, cpus};
use ccsd_tests::wait::until;

/// A user only of this test: the kernel counts locked memory by user.
const WITHOUT_MEMORY: u32 = 64_101;
const HOGGED: u32 = 64_102;

fn main() -> ExitCode {
    let suite = targets(Suite::new());
    let suite = programs(suite);
    let suite = files(suite);
    let suite = outputs(suite);
    let suite = rates(suite);
    machines(suite).run()
}

fn targets(suite: Suite) -> Suite {
    suite
        .test("no_such_process", &[], || {
            let pid = free_pid();
            attach(&pid).assert_refused(2, &["no process", &pid]);
        })
        .test("not_a_process_id", &[], || {
            for word in ["0", "-1", "abc", "99999999999"] {
                let ended = attach(word);
                assert_eq!(ended.status.code(), Some(2), "{ended:?}");
                assert!(ended.stderr.contains(word), "{ended:?}");
            }
        })
        .test("kernel_thread", &[Need::Root], || {
            // 2 is kthreadd in the first PID namespace; in others there are no kernel threads.
            match fs::read_to_string("/proc/2/stat") {
                Ok(stat) if stat.contains("(kthreadd)") => attach("2").assert_refused(2, &["PID 2", "kernel thread"]),
                _ => attach("2").assert_refused(2, &["2"]),
            }
        })
        .test("zombie", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            fixture.go();
            let _ = fixture.rest_of_output();
            let stat = || fs::read_to_string(format!("/proc/{}/stat", fixture.pid())).unwrap();
            until(|| stat().contains(") Z "));
            let pid = fixture.pid().to_string();
            attach(&pid).assert_refused(2, &[&pid, "zombie"]);
        })
        .test("thread_of_a_process", &[CC], || {
            let fixture = Running::start(&build("threads.c", &["-O1", "-pthread"]), &["late"]);
            let pid = fixture.pid().to_string();
            let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let mut threads = threads.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let thread = threads.find(|thread| *thread != pid).unwrap();
            attach(&thread).assert_refused(2, &[&thread, &pid]);
        })
        .test("process_of_another_user", &[CC, Need::Root], || {
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let pid = fixture.pid().to_string();
            let mut command = ccsd(["attach", "--no-output", &pid]);
            EndedProgram::of(as_user(&mut command, NOBODY)).assert_refused(2, &[&pid, "root", "CAP_PERFMON"]);
        })
        .test("target_dies_during_attach", &[CC], || {
            // The target ends before ccsd finds it, while its events are opened, or later: each is correct if reported.
            let mut ends = BTreeSet::new();
            for _ in 0..30 {
                let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
                let pid = fixture.pid().to_string();
                let child = spawn(ccsd(["attach", "--no-output", "--quiet", &pid]));
                fixture.go();
                // In half of the cases it stays a zombie.
                if ends.len() % 2 == 0 {
                    let _ = fixture.end();
                }
                let ended = finish(child);
                match ended.status.code() {
                    Some(0) => assert!(ended.stderr.is_empty(), "{ended:?}"),
                    Some(1) => ended.assert_refused(1, &[&pid, "exited while"]),
                    _ => {
                        let message = if ended.stderr.contains("zombie") { "zombie" } else { "no process" };
                        ended.assert_refused(2, &[&pid, message]);
                    }
                }
                ends.insert(ended.stderr);
            }
        })
}

fn programs(suite: Suite) -> Suite {
    suite
        .test("program_not_found", &[], || {
            for program in ["/nowhere/at/all", "no-such-program-anywhere"] {
                record(program).assert_refused(127, &[program, "not found"]);
            }
            record("").assert_refused(127, &["not found"]);
        })
        .test("program_of_this_folder", &[CC], || {
            let dir = scratch();
            fs::copy(build("weights.c", &["-O1"]), dir.path().join("slow")).unwrap();
            let ended = EndedProgram::of(ccsd(["record", "--no-output", "slow"]).current_dir(dir.path()));
            ended.assert_refused(127, &["slow", "not found", "did you mean ./slow?"]);
            let ended = EndedProgram::of(ccsd(["record", "--no-output", "slower"]).current_dir(dir.path()));
            ended.assert_refused(127, &["slower", "not found"]);
            assert!(!ended.stderr.contains("did you mean"), "{}", ended.stderr);
        })
        .test("values_that_are_none", &[], || {
            for (line, message) in [
                ("report -n abc", "-n takes a number of rows"),
                ("top --plain -n abc x", "-n takes a number of rows"),
                ("diff a b -n 1.5", "-n takes a number of rows"),
                ("dump -n abc 1", "number of lines"),
                ("record -e nothing -- true", "nothing"),
                ("report --since soon", "is no time"),
                ("report --hide /(/", "expression"),
                ("daemon stop session:first", "number of a session"),
            ] {
                EndedProgram::of(&mut ccsd(line.split(' '))).assert_refused(2, &[message]);
            }
        })
        .test("options_of_other_profilers", &[], || {
            for option in ["-p", "-p1", "--pid"] {
                let ended = EndedProgram::of(&mut ccsd(["record", option, "1"]));
                ended.assert_refused(2, &[option, "unknown option", "ccsd attach PID"]);
            }
            EndedProgram::of(&mut ccsd(["record", "-g", "--", "true"]))
                .assert_refused(2, &["-g", "ccsd record --help"]);
        })
        .test("program_not_executable", &[], || {
            let dir = scratch();
            let plain = dir.path().join("plain");
            fs::write(&plain, "no program").unwrap();
            record(&plain.to_string_lossy()).assert_refused(126, &["plain", "cannot be executed"]);
            record(&dir.path().to_string_lossy()).assert_refused(126, &["cannot be executed"]);
            // For a script with a missing interpreter the kernel says "not found", and a shell the same.
            let script = dir.path().join("script");
            fs::write(&script, "#!/nowhere/at/all\n").unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            record(&script.to_string_lossy()).assert_refused(126, &["script", "cannot be executed"]);
        })
        .test("nothing_is_left_of_a_program_that_did_not_start", &[], || {
            let dir = scratch();
            let file = dir.path().join("p.ccsd");
            let ended = EndedProgram::of(ccsd(["record", "-o"]).arg(&file).args(["--", "/nowhere/at/all"]));
            ended.assert_refused(127, &["/nowhere/at/all"]);
            assert!(!file.exists());
        })
}

fn files(suite: Suite) -> Suite {
    suite
        .test("file_missing", &[], || report(Path::new("/nowhere/p.ccsd")).assert_refused(2, &["/nowhere/p.ccsd"]))
        .test("file_is_a_directory", &[], || {
            let dir = scratch();
            report(dir.path()).assert_refused(2, &[&dir.path().to_string_lossy(), "directory"]);
        })
        .test("file_is_a_device", &[], || report(Path::new("/dev/zero")).assert_refused(2, &["/dev/zero", "regular"]))
        .test("file_empty", &[], || report_bytes(b"").assert_refused(2, &["p.ccsd", "empty"]))
        .test("file_not_a_profile", &[CC], || {
            report_bytes(&[b'x'; 100_000]).assert_refused(2, &["p.ccsd", "not a ccsd profile"]);
            report(&binary()).assert_refused(2, &["not a ccsd profile", "program"]);
            for (bytes, what) in [
                (&b"hello\n"[..], "text"),
                (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
                (b"<!DOCTYPE html><title>x</title>", "web page"),
                (b"{\"a\": 1}", "JSON"),
                (&[1; 4096], "no format"),
                (&[0; 4096], "no format that ccsd knows"),
            ] {
                report_bytes(bytes).assert_refused(2, &["p.ccsd", "not a ccsd profile", what]);
                let dir = scratch();
                let file = dir.path().join("p.data");
                fs::write(&file, bytes).unwrap();
                let ended = EndedProgram::of(ccsd(["import"]).arg(&file).arg("-o").arg(dir.path().join("p.ccsd")));
                ended.assert_refused(2, &["p.data", "perf.data", what]);
            }
            let imported = EndedProgram::of(ccsd(["import", "-o", "/dev/null"]).arg(&good().file));
            imported.assert_refused(2, &["is a profile of ccsd already"]);
        })
        .test("file_of_a_newer_version", &[CC], || {
            let mut bytes = good().bytes();
            bytes[8] = 99; // after eight bytes of magic
            report_bytes(&bytes).assert_refused(2, &["p.ccsd", "version 99", "version 3"]);
        })
        .test("file_cut_short", &[CC], || {
            let bytes = good().bytes();
            // At every position near the ends, and at many between.
            let points =
                (0..40).chain((40..bytes.len()).step_by(bytes.len() / 60 + 1)).chain(bytes.len() - 20..bytes.len());
            let mut shown = 0;
            for point in points {
                let cut = &bytes[..point];
                let ended = report_bytes(cut);
                match read_profile(cut) {
                    Err(_) => ended.assert_refused(2, &["p.ccsd"]),
                    Ok(loaded) => {
                        shown += 1;
                        assert!(ended.status.success(), "cut at {point}: {ended:?}");
                        match loaded.recovery {
                            Recovery::Cut { bytes_used, .. } => {
                                let says =
                                    format!("{} of {} bytes", with_commas(bytes_used), with_commas(point as u64));
                                assert!(ended.stdout.contains("cut short"), "cut at {point}: {}", ended.stdout);
                                assert!(ended.stdout.contains(&says), "cut at {point}: {}", ended.stdout);
                            }
                            Recovery::Whole => assert!(ended.stdout.contains("interrupted"), "{}", ended.stdout),
                        }
                    }
                }
            }
            assert!(shown > 40, "{shown} points were after the first record");
        })
        .test("file_with_one_flipped_bit", &[CC], || {
            let good = good();
            let bytes = good.bytes();
            let whole = good.profile.accounting().received;
            for point in (0..32).chain((32..bytes.len()).step_by(bytes.len() / 100 + 1)) {
                let mut bytes = bytes.clone();
                bytes[point] ^= 1 << (point % 8);
                let ended = report_bytes(&bytes);
                match read_profile(&bytes[..]) {
                    Err(_) => ended.assert_refused(2, &["p.ccsd"]),
                    Ok(loaded) => {
                        assert!(matches!(loaded.recovery, Recovery::Cut { .. }), "bit {point} is not noticed");
                        assert!(ended.status.success(), "bit {point}: {ended:?}");
                        let noticed = ended.stdout.contains("damaged") || ended.stdout.contains("cut short");
                        assert!(noticed, "bit {point}: {}", ended.stdout);
                        assert!(loaded.profile.accounting().received <= whole);
                    }
                }
            }
        })
        .test("views_that_exclude_each_other", &[CC], || {
            let ended = EndedProgram::of(ccsd(["report", "--flat", "--graph"]).arg(&good().file));
            assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        })
        .test("function_that_is_not_there", &[CC], || {
            let file = good().file.to_str().unwrap();
            for words in [
                &["report", "--function", "quicksilver", file][..],
                &["report", "--graph", "--function", "quicksilver", file],
                &["report", "--view", "butterfly", "--function", "quicksilver", file],
                &["report", "--view", "timeline", "--function", "quicksilver", file],
                &["report", "--json", "--function", "quicksilver", file],
                &["report", "--focus", "quicksilver", file],
                &["report", "--hide", "quicksilver", file],
                &["export", "folded", "--only", "quicksilver", file],
                &["annotate", "quicksilver", file],
                &["diff", "--function", "quicksilver", file, file],
                &["diff", "--json", "--function", "quicksilver", file, file],
                &["diff", "--focus", "quicksilver", file, file],
            ] {
                EndedProgram::of(&mut ccsd(words)).assert_refused(2, &["quicksilver"]);
            }
            let recorded = RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["300"]).run();
            let file = recorded.file.to_str().unwrap();
            for option in ["--function", "--hide", "--focus"] {
                for (pattern, parts) in [
                    ("wieght_12", &["did you mean", "weight_12"][..]),
                    ("module:wieghts*", &["module:wieghts*"]),
                    ("/^quick/", &["/^quick/"]),
                ] {
                    EndedProgram::of(&mut ccsd(["report", option, pattern, file])).assert_refused(2, parts);
                }
            }
            for pattern in ["weight_1*", "/^weight_(11|12)$/", "file:weights.c"] {
                for command in [&["report", "--function"][..], &["diff", file, "--function"], &["annotate"]] {
                    let ended = EndedProgram::of(ccsd(command).args([pattern, file]));
                    assert!(ended.status.success() && ended.stdout.contains("weight_12"), "{pattern}: {ended:?}");
                }
            }
            EndedProgram::of(&mut ccsd(["report", "--function", "thread:x", file])).assert_refused(2, &["--focus"]);
            EndedProgram::of(&mut ccsd(["export", "html", "--view", "graph", file]))
                .assert_refused(2, &["#view=graph"]);
        })
        .test("metric_that_is_not_there", &[CC], || {
            let ended = EndedProgram::of(ccsd(["report", "--metric", "joules"]).arg(&good().file));
            ended.assert_refused(2, &["joules"]);
        })
}

/// Unwritable destinations. A file that cannot become a profile is refused before the program runs; later failures show
/// the report, and the exit status says that the profile was not saved.
fn outputs(suite: Suite) -> Suite {
    suite
        .test("output_is_a_directory", &[CC], || {
            let dir = scratch();
            let ended = record_to(dir.path(), None);
            ended.assert_refused(2, &[&dir.path().to_string_lossy(), "no regular file"]);
            assert_eq!(ended.stdout, "");
        })
        .test("output_in_no_directory", &[CC], || {
            for path in ["/nowhere/at/all/p.ccsd", "/dev/null/p.ccsd"] {
                let ended = record_to(Path::new(path), None);
                ended.assert_refused(2, &[path]);
                assert_eq!(ended.stdout, "");
            }
        })
        .test("output_not_permitted", &[CC, Need::Root], || {
            let dir = scratch();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            let file = dir.path().join("p.ccsd");
            let not_permitted = |file: &Path| {
                let ended = record_to(file, Some(NOBODY));
                ended.assert_refused(2, &[&file.to_string_lossy()]);
                assert_eq!(ended.stdout, "");
            };
            not_permitted(&file);
            fs::write(&file, "").unwrap();
            not_permitted(&file);
            let mut record = ccsd(["record", "--"]);
            record.arg(build("weights.c", &["-O1"])).arg("300").current_dir(dir.path());
            as_user(&mut record, NOBODY);
            assert_shown_but_not_saved(&EndedProgram::of(&mut record), "profile.ccsd");
        })
        .test("output_is_something_else", &[CC], || {
            let dir = scratch();
            let file = dir.path().join("thesis.txt");
            fs::write(&file, "years of work").unwrap();
            // Overwriting it is refused before the program runs.
            let ended = record_to(&file, None);
            ended.assert_refused(2, &["thesis.txt", "not a ccsd profile"]);
            assert_eq!(ended.stdout, "");
            assert_eq!(fs::read_to_string(&file).unwrap(), "years of work");
        })
        .test("output_replaces_an_older_profile", &[CC], || {
            let dir = scratch();
            let file = dir.path().join("p.ccsd");
            fs::write(&file, good().bytes()).unwrap();
            assert!(record_to(&file, None).status.success());
            let loaded = read_profile(fs::File::open(&file).unwrap()).unwrap();
            assert!(loaded.finished && loaded.profile.session().command[0].contains("weights"));
            assert_ne!(loaded.profile.session().pids, good().profile.session().pids);
        })
        .test("no_room_at_all", &[CC], || {
            assert_shown_but_not_saved(&record_to(Path::new("/dev/full"), None), "/dev/full");
        })
        .test("disk_full", &[CC, Need::Root, UNSHARE], || {
            // One page is enough for the first record but not for the first update.
            let dir = scratch();
            let (disk, kept) = (dir.path().join("disk"), dir.path().join("kept"));
            fs::create_dir(&disk).unwrap();
            let script = "mount -t tmpfs -o size=4k none \"$1\" && \"$3\" record -F 1999 -o \"$1/p.ccsd\" -- \"$4\" recurse 1500; \
                          status=$?; cp \"$1/p.ccsd\" \"$2\"; exit $status";
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, "sh"]).arg(&disk).arg(&kept).arg(binary());
            let ended = EndedProgram::of(command.arg(build("hostile.c", &["-O1", "-pthread", "-ldl"])));
            assert_shown_but_not_saved(&ended, "p.ccsd");
            assert!(ended.stderr.contains("No space left"), "{}", ended.stderr);
            let loaded = read_profile(fs::File::open(&kept).unwrap()).unwrap();
            assert!(!loaded.finished);
            let report = report(&kept);
            assert!(report.status.success(), "{report:?}");
        })
}

fn rates(suite: Suite) -> Suite {
    suite.test("rates", &[], || {
        let max = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").unwrap();
        let max: u64 = max.trim().parse().unwrap();
        for rate in ["0", "-5", "x", "", "1.5", &(max + 1).to_string(), "18446744073709551616"] {
            let ended = EndedProgram::of(&mut ccsd(["record", "--no-output", "-F", rate, "--", "true"]));
            ended.assert_refused(2, &[&max.to_string()]);
        }
        let ended = EndedProgram::of(&mut ccsd(["record", "--no-output", "--duration", "0", "--", "true"]));
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    })
}

fn machines(suite: Suite) -> Suite {
    suite
        .test("no_perf_events", &[CC], || {
            for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
                let ended = EndedProgram::of(refuse(errno).arg(binary()).args(["record", "--no-output", "--", "true"]));
                ended.assert_refused(2, &["perf events", "perf_event_open"]);
            }
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let pid = fixture.pid().to_string();
            let ended = EndedProgram::of(refuse(libc::EPERM).arg(binary()).args(["attach", "--no-output", &pid]));
            ended.assert_refused(2, &["perf events"]);
        })
        .test("the_program_does_not_run_where_it_cannot_be_sampled", &[CC], || {
            let dir = scratch();
            let trace = dir.path().join("trace");
            let mut command = refuse(libc::EPERM);
            command.arg(binary()).args(["record", "--no-output", "--", "touch"]).arg(&trace);
            EndedProgram::of(&mut command).assert_refused(2, &[]);
            assert!(!trace.exists());
        })
        .test("proc_of_another_namespace", &[Need::Root, UNSHARE], || {
            // Process 2 is another one in /proc, which was mounted outside.
            for what in ["record --no-output -- true", "attach --no-output 2", "dump 2"] {
                let mut command = Command::new("unshare");
                command.args(["--pid", "--fork"]).arg(binary()).args(what.split(' '));
                EndedProgram::of(&mut command).assert_refused(2, &["/proc belongs to another PID namespace"]);
            }
        })
        .test("paranoid", &[CC, Need::Root, UNSHARE], || {
            // Few kernels know levels above 2; simulated by a file with the level and a refusal.
            let dir = scratch();
            let three = dir.path().join("three");
            fs::write(&three, "3\n").unwrap();
            let script = "mount --bind \"$1\" /proc/sys/kernel/perf_event_paranoid && shift && exec \"$@\"";
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, "sh"]).arg(&three).arg(build("refuse.c", &[]));
            command.arg(libc::EACCES.to_string()).arg(binary()).args(["record", "--no-output", "--", "true"]);
            EndedProgram::of(&mut command)
                .assert_refused(2, &["perf_event_paranoid is 3", "sysctl kernel.perf_event_paranoid=2"]);
        })
        .test("no_locked_memory_of_ones_own", &[CC, Need::Root], || {
            // The kernel grants every user some memory beside the limit (perf_event_mlock_kb).
            let dir = scratch();
            let file = dir.path().join("p.ccsd");
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -l 0; exec \"$@\"", "sh"]).arg(binary()).args(["record", "-v", "-o"]).arg(&file);
            shell.arg("--").arg(build("weights.c", &["-O1"])).arg("500");
            let ended = EndedProgram::of(as_user(&mut shell, WITHOUT_MEMORY));
            assert!(ended.status.success(), "{ended:?}");
            assert!(ended.stderr.contains("locked-memory allowance"), "{}", ended.stderr);
            let loaded = read_profile(fs::File::open(&file).unwrap()).unwrap();
            let accounting = loaded.profile.accounting();
            assert!(accounting.received > 200 && accounting.truncated_total() * 100 <= accounting.received);
        })
        .test("no_locked_memory_at_all", &[CC, Need::Root], || {
            let hog = build("hog.c", &[]);
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -l 0; exec \"$1\"", "sh"]).arg(hog);
            let _hog = Running::start_command(as_user(&mut shell, HOGGED));
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -l 0; exec \"$@\"", "sh"]).arg(binary());
            shell.args(["record", "--no-output", "--", "true"]);
            let ended = EndedProgram::of(as_user(&mut shell, HOGGED));
            ended.assert_refused(2, &["locked", "perf_event_mlock_kb", "ulimit -l"]);
        })
        .test("event_that_is_not_there", &[], || {
            let ended = EndedProgram::of(&mut ccsd(["record", "--no-output", "-e", "no-such-event", "--", "true"]));
            assert_eq!(ended.status.code(), Some(2), "{ended:?}");
            assert!(ended.stderr.contains("no-such-event") && ended.stderr.contains("cpu-clock"), "{ended:?}");
        })
        .test("too_few_descriptors", &[CC], || {
            let fixture = Running::start(&build("threads.c", &["-O1", "-pthread"]), &["late"]);
            // One less than the open files, four for each CPU's rings, and two events on each. The message names limit
            // and remedy.
            let limit = 3 + 6 * usize::try_from(cpus()).unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]).arg(binary());
            let ended = EndedProgram::of(shell.args(["attach", "--no-output", &fixture.pid().to_string()]));
            ended.assert_refused(1, &[&format!("{limit} files"), "ulimit"]);
        })
}

fn attach(pid: &str) -> EndedProgram {
    EndedProgram::of(&mut ccsd(["attach", "--no-output", "--", pid]))
}

fn record(program: &str) -> EndedProgram {
    EndedProgram::of(&mut ccsd(["record", "--no-output", "--", program]))
}

fn report(file: &Path) -> EndedProgram {
    EndedProgram::of(ccsd(["report"]).arg(file))
}

fn report_bytes(bytes: &[u8]) -> EndedProgram {
    let dir = scratch();
    let file = dir.path().join("p.ccsd");
    fs::write(&file, bytes).unwrap();
    report(&file)
}

fn good() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let recorded = RecordCommand::new(build("many.c", &["-O1"]), &["2500"]).run();
        recorded.assert_whole();
        recorded
    })
}

fn record_to(file: &Path, user: Option<u32>) -> EndedProgram {
    let mut record = RecordCommand::new(build("weights.c", &["-O1"]), &["300"]);
    if let Some(user) = user {
        record = record.user(user);
    }
    EndedProgram::of(&mut record.command(file))
}

fn assert_shown_but_not_saved(ended: &EndedProgram, name: &str) {
    ended.assert_refused(1, &[name]);
    let shown =
        ended.stderr.contains(" samples ") && ended.stderr.lines().filter(|line| line.contains('%')).count() > 0;
    assert!(shown, "the profile is not shown: {}", ended.stderr);
    assert!(!ended.stderr.contains("saved in"), "{}", ended.stderr);
}

fn refuse(errno: i32) -> Command {
    let mut command = Command::new(build("refuse.c", &[]));
    command.arg(errno.to_string());
    command
}

fn free_pid() -> String {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id().to_string()
}

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(child: Child) -> EndedProgram {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ended = EndedProgram { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) };
    ended.assert_no_panic();
    ended
}
