//! Programs that try to fill every table: each stays within its budget, overflow is counted in a named row, and no
//! weight is lost (I1, I10).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ccsd_profile::view::{Selection, ThreadsView};
use ccsd_profile::{CostCentreId, Shed};
use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, binary, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite, cpus};
use serde_json::Value;

const PRLIMIT: Need = Need::Program("prlimit", "util-linux");

/// Minimum memory of a session.
const MEMORY: u64 = 16 << 20;

fn main() -> ExitCode {
    Suite::new()
        .test("contexts_without_end", &[CC], || {
            let recorded = record("4999", "recurse", "2500", &[]);
            let accounting = recorded.profile.accounting();
            // 512 KiB and lent budgets: some tens of thousands of contexts, while each sample creates dozens. The file
            // has all, in generations.
            assert!(accounting.contexts.bytes <= MEMORY / 8, "{accounting:?}");
            assert!(accounting.contexts.new_contexts > 2 * accounting.contexts.contexts, "{accounting:?}");
            assert!(recorded.profile.has_generations());
            assert!(accounting.elided * 100 <= accounting.received, "{accounting:?}");
            // That of the C library is too much, if a sample is in it.
            let mut full = recorded.ended.stderr.lines().filter(|line| line.contains("no room for all"));
            assert!(full.all(|line| line.contains("for all debug information (1 times)")), "{:?}", recorded.ended);
            let shown = recorded.samples("main").inherited;
            assert!(shown * 100 >= accounting.received * 99, "{shown} {accounting:?}");
            assert!(recorded.samples("bottom").own * 10 >= accounting.received * 8, "{:?}", recorded.names());
        })
        .test("contexts_without_end_in_a_daemon", &[CC], || {
            // Readers follow a session from one generation to the next, including late ones.
            let daemon = Daemon::start(&[]);
            let dir = scratch();
            let file = dir.path().join("profile.ccsd");
            let options = ["record", "--daemon", "--user", "-F", "4999", "-e", "cpu-clock", "--memory", "16M", "-o"];
            let mut record = daemon.ccsd(options);
            record.arg(&file).arg("--").arg(program()).args(["recurse", "8000"]);
            let mut record = record.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let session = loop {
                match daemon.sessions().first() {
                    Some(session) if session["received"].as_u64() > Some(6_000) => break session["id"].to_string(),
                    session => assert!(record.try_wait().unwrap().is_none(), "it has ended early: {session:?}"),
                }
                std::thread::sleep(Duration::from_millis(50));
            };
            let live = daemon.run(&["top", "--json", "-n", "0", &format!("session:{session}")]);
            assert!(live.status.success(), "{live:?}");
            let last: Value = serde_json::from_str(live.stdout.lines().last().unwrap()).unwrap();
            assert!(record.wait().unwrap().success());
            let recorded = Recorded::open(dir, &file, live);
            let accounting = recorded.profile.accounting();
            assert_eq!(recorded.sampled().total.samples, accounting.received, "{accounting:?}");
            assert!(recorded.profile.has_generations() && accounting.elided * 100 <= accounting.received);
            let main = |rows: &Value| {
                let rows = rows.as_array().unwrap();
                rows.iter()
                    .find(|row| row["name"] == "main")
                    .map_or(0, |row| row["samples_inherited"].as_u64().unwrap())
            };
            assert!(main(&last["rows"]) * 100 >= accounting.received * 98, "{accounting:?} {last}");
        })
        .test("contexts_without_end_in_a_pipe", &[CC], || {
            let recorded = piped("2500");
            let accounting = recorded.profile.accounting();
            assert!(!recorded.profile.has_generations());
            assert!(accounting.contexts.bytes <= MEMORY / 8, "{accounting:?}");
            assert!(accounting.shed.get(Shed::Contexts) > 0 && accounting.elided > 0, "{accounting:?}");
            // Callers keep their time, and the leaf is known.
            let inherited = recorded.samples("main").inherited;
            assert!(inherited * 100 >= accounting.received * 99, "{inherited} {accounting:?}");
            assert!(recorded.samples("bottom").own * 10 >= accounting.received * 8, "{:?}", recorded.names());
        })
        .test("threads_one_after_the_other", &[CC], || {
            let recorded = record("4999", "threads", "2500", &[]);
            // 256 KiB hold 2,048 threads; the others share one entry. There are about 5,000.
            let threads = recorded.profile.threads();
            assert!(threads.len() <= 2_048, "{}", threads.len());
            let shed = recorded.profile.accounting().shed.get(Shed::Threads);
            assert!(shed > 0 && threads.iter().any(|thread| thread.name == "[other]"), "{shed}");
        })
        .test("libraries_without_end", &[CC], || {
            let dir = scratch();
            let copied = dir.path().join("library.so");
            std::fs::copy(library(), &copied).unwrap();
            let recorded = record("999", "libraries", "2000", &[copied.to_str().unwrap()]);
            let images = recorded.profile.images();
            assert!(images.len() <= 128, "{}", images.len());
            let shed = recorded.profile.accounting().shed.get(Shed::Images);
            assert!(
                shed > 0 && images.iter().any(|image| image.name == "[other]" || image.name == "[unknown]"),
                "{shed}"
            );
        })
        .test("generated_code_without_end", &[CC], || {
            let recorded = record("1999", "jit", "2500", &[]);
            let shed = recorded.profile.accounting().shed;
            assert!(shed.get(Shed::GeneratedCode) > 0, "{shed:?}");
        })
        .test("many_deep_stacks", &[CC], || {
            // 24 threads of 3,000 frames, where 8,192 may be remembered.
            let recorded = record("999", "deep", "4000", &[]);
            let accounting = recorded.profile.accounting();
            assert!(accounting.shed.get(Shed::Stacks) > 0, "{accounting:?}");
            assert!(accounting.truncated_total() * 10 <= accounting.received, "{accounting:?}");
        })
        .test("more_live_threads_than_are_followed", &[CC], || {
            // A MiB holds at most 1,024: the working threads come last, and share one row.
            let recorded = record("999", "alive", "1500", &["1100"]);
            let accounting = recorded.profile.accounting();
            assert!(accounting.shed.get(Shed::LiveThreads) >= 80, "{accounting:?}");
            let threads = ThreadsView::new(&recorded.profile, &Selection::all()).processes.remove(0).threads;
            let others = threads.iter().find(|thread| thread.name == "[other]").map_or(0, |thread| thread.samples);
            assert!(others * 10 >= accounting.received * 7, "{others} of {accounting:?}");
            // Their stacks are as complete as those of others.
            assert!(recorded.samples("awake").inherited * 10 >= others * 9, "{:?}", recorded.names());
            assert!(accounting.truncated_total() * 10 <= accounting.received, "{accounting:?}");
        })
        .test("threads_that_are_not_followed_without_inheritance", &[CC, Need::Root], || {
            // Working threads are known by number only. Each is sampled, and none is counted twice.
            let mut fixture = hold("alive", &["1500", "1100", "held"]);
            let options = ["--no-daemon", "--memory", "16M", "--per-cpu", "--no-inherit", "--user"];
            let collecting = Collecting::attach(&options, &[fixture.pid()]);
            fixture.go();
            let _ = fixture.finish();
            let recorded = collecting.wait();
            let accounting = recorded.assert_whole().profile.accounting();
            let shed = accounting.shed.get(Shed::LiveThreads);
            assert!((80..=1_105).contains(&shed), "{accounting:?}");
            // Part of the 1.5 s may be lost.
            assert!(recorded.samples("awake").inherited >= 300, "{accounting:?} {:?}", recorded.names());
        })
        .test("more_mappings_than_there_is_room_for", &[CC], || {
            // A MiB holds at most 16,384. The libraries are among them: stacks are complete.
            let library = library();
            let library = library.to_str().unwrap();
            let recorded = record("999", "mappings", "1500", &[library, "20000"]);
            let assert_known = |recorded: &Recorded| {
                let accounting = recorded.profile.accounting();
                assert!(accounting.shed.get(Shed::Mappings) > 0, "{accounting:?}");
                assert!(accounting.truncated_total() * 10 <= accounting.received, "{accounting:?}");
            };
            assert_known(&recorded);
            let mut fixture = hold("mappings", &["700", library, "20000", "held"]);
            let options = ["--no-daemon", "--memory", "16M", "--user"];
            let collecting = Collecting::attach(&options, &[fixture.pid()]);
            fixture.go();
            let _ = fixture.finish();
            let recorded = collecting.wait();
            recorded.assert_whole();
            assert_known(&recorded);
            // Each new mapping costs much here: on a busy machine most samples are lost.
            let accounting = recorded.profile.accounting();
            let bottom = recorded.samples("bottom").own;
            assert!(bottom >= 5 && bottom * 10 >= accounting.received * 9, "{bottom}: {accounting:?}");
        })
        .test("more_libraries_than_files_may_be_open", &[CC, PRLIMIT], || {
            // More libraries than open files: the program and the C library are read. (A ring takes files on each CPU.)
            let files = 128 + 16 * usize::try_from(cpus()).unwrap();
            let libraries = 300 + 2 * files;
            let dir = scratch();
            let library = library();
            for i in 0..libraries {
                std::fs::copy(&library, dir.path().join(i.to_string())).unwrap();
            }
            let mut fixture = hold("files", &["700", dir.path().to_str().unwrap(), &libraries.to_string(), "held"]);
            let mut collecting = Collecting::start(|file| {
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={files}:{files}")).arg(binary()).args([
                    "attach",
                    "--no-daemon",
                    "--no-adapt",
                    "--user",
                    "-o",
                ]);
                command.arg(file).arg(fixture.pid().to_string());
                command
            });
            collecting.wait_for_writes(1);
            fixture.go();
            let _ = fixture.finish();
            let recorded = collecting.wait();
            let accounting = recorded.assert_whole().profile.accounting();
            assert!(recorded.samples("bottom").own >= 50, "{accounting:?} {:?}", recorded.names());
            assert!(accounting.truncated_total() * 10 <= accounting.received, "{accounting:?}");
            let notes = &recorded.profile.session().notes;
            assert!(notes.iter().any(|note| note.contains("ulimit -Hn")), "{notes:?}");
        })
        .test("full_tables_are_shown", &[CC], || {
            let recorded = piped("1500");
            let report = |args: &[&str]| {
                let ended = EndedProgram::of(ccsd(["report"]).arg(&recorded.file).args(args));
                assert!(ended.status.success(), "{ended:?}");
                ended.stdout
            };
            let stats = report(&["--stats"]);
            let limits = stats.lines().find(|line| line.starts_with("# limits")).unwrap_or_else(|| panic!("{stats}"));
            assert!(limits.contains("16.0 MiB") && limits.contains("contexts ("), "{limits}");
            assert!(stats.contains("full: contexts") && stats.contains("memory of all tables"), "{stats}");
            let json = report(&["--json", "--stats"]);
            assert!(json.contains("\"shed\":") && json.contains("\"memory_bytes\":16777216"), "{json}");
        })
        .test("too_little_memory_is_refused", &[], || {
            let mut command: Command = ccsd(["record", "--memory", "15MiB", "--", "true"]);
            EndedProgram::of(&mut command).assert_refused(2, &["15MiB", "16 MiB"]);
        })
        .run()
}

fn piped(milliseconds: &str) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let options = ["record", "--no-daemon", "--user", "-F", "4999", "-e", "cpu-clock", "--memory", "16M"];
    let ended = EndedProgram::of(
        Command::new("sh")
            .args(["-c", "file=$1; shift; \"$@\" 3>&1 >/dev/null | cat >\"$file\"", "sh"])
            .arg(&file)
            .arg(binary())
            .args(options)
            .args(["-o", "/dev/fd/3", "--"])
            .arg(program())
            .args(["recurse", milliseconds]),
    );
    Recorded::open(dir, &file, ended)
}

fn library() -> PathBuf {
    build("hostile_library.c", &["-shared", "-fPIC"])
}

fn program() -> PathBuf {
    build("hostile.c", &["-O1", "-pthread", "-ldl"])
}

fn hold(what: &str, args: &[&str]) -> Running {
    let args: Vec<&str> = [what].iter().chain(args).copied().collect();
    Running::start(&program(), &args)
}

/// Records with minimum memory: every received sample is charged, and the row `[elided]` exists only if something was
/// elided.
fn record(rate: &str, what: &str, milliseconds: &str, more: &[&str]) -> Recorded {
    let args: Vec<&str> = [what, milliseconds].iter().chain(more).copied().collect();
    let recorded = RecordCommand::new(program(), &args)
        .options(&["--user", "-F", rate, "-e", "cpu-clock", "--memory", "16M"])
        .run();
    for process in recorded.processes() {
        let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", process.pid));
    }
    let accounting = recorded.profile.accounting();
    let total = recorded.sampled().total;
    let period = 1_000_000_000 / rate.parse::<u64>().unwrap();
    // Most samples of deep stacks are lost: with so little memory the queue is soon full.
    assert!(accounting.received > 20, "{accounting:?}");
    assert_eq!((total.samples, total.weight), (accounting.received, accounting.received * period), "{accounting:?}");
    assert_eq!(accounting.own.memory_bytes, MEMORY);
    // Tables alone: the libraries' debug information is counted, too, and one image may exceed its part twice.
    assert!(accounting.own.held_bytes <= MEMORY, "{accounting:?}");
    let elided = recorded.flat().row(CostCentreId::ELIDED).is_some();
    assert_eq!(elided, accounting.elided > 0, "{accounting:?}");
    recorded
}
