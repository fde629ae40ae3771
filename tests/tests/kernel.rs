//! The kernel's part of a stack: above the program's part, with names, or refused with a reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ccsd_profile::view::FlatRow;
use ccsd_tests::ccsd::{EndedProgram, NOBODY, RecordCommand, binary};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};

const SETPRIV: Need = Need::Program("setpriv", "util-linux");

fn main() -> ExitCode {
    Suite::new()
        .test("above_the_program", &[CC, Need::Root], || above_the_program(&[]))
        .test("above_the_program_per_cpu", &[CC, Need::Root], || above_the_program(&["--per-cpu"]))
        .test("kernel_is_not_sampled_on_demand", &[CC, Need::Root], || {
            let recorded = record(&["--user"]).run();
            assert_eq!(kernel_rows(recorded.assert_whole()).len(), 0);
        })
        .test("user_may_not", &[CC, Need::Root], || {
            let recorded = record(&[]).user(NOBODY).run();
            recorded.assert_whole();
            if number("perf_event_paranoid") > 1 {
                assert_eq!(kernel_rows(&recorded).len(), 0);
                assert_eq!(notes(&recorded, "user code only: kernel stacks need root").len(), 1);
                assert_eq!(notes(&recorded, "have no names").len(), 0);
            }
        })
        .test("names_are_hidden", &[CC, Need::Root, SETPRIV], || {
            let dir = scratch();
            let file = dir.path().join("profile.ccsd");
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-syslog", "--inh-caps=-syslog"]).arg(binary()).args(["record", "-o"]);
            let ended = EndedProgram::of(command.arg(&file).arg("--").arg(motion()).args(READ));
            assert!(ended.status.success(), "{ended:?}");
            let recorded = Recorded::open(dir, &file, ended);
            recorded.assert_whole().assert_complete();
            if number("perf_event_paranoid") <= 1 && number("kptr_restrict") == 0 {
                // The addresses are not hidden from anyone.
                return;
            }
            let rows = kernel_rows(&recorded);
            // Each by its own address, never by another's name.
            let names: HashSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
            assert!(names.iter().all(|name| name.starts_with("[kernel]+0xffff")), "{names:?}");
            assert!(names.len() > 5, "{names:?}");
            assert_eq!(notes(&recorded, "kernel functions have no names").len(), 1);
            assert_eq!(notes(&recorded, "CAP_SYSLOG").len(), 1);
            assert!(recorded.profile.accounting().unsymbolised * 10 > recorded.total() * 5);
        })
        .run()
}

const READ: [&str; 3] = ["kernel", "0", "500000"];

fn motion() -> PathBuf {
    build("motion.c", &["-O1", "-pthread"])
}

fn record(options: &[&str]) -> RecordCommand {
    RecordCommand::new(motion(), &READ).options(options)
}

fn above_the_program(options: &[&str]) {
    let recorded = record(options).run();
    recorded.assert_whole().assert_complete();
    let rows = kernel_rows(&recorded);
    let own: u64 = rows.iter().map(|row| row.samples_self).sum();
    assert!(own * 10 >= recorded.total() * 7, "{own} of {} samples are the kernel's", recorded.total());
    for row in &rows {
        assert!(!row.name.contains("+0x"), "{row:?}");
        assert!(!row.name.contains("_etext"), "{row:?}");
    }
    // The program calls the kernel, never the reverse: no signal handler runs here.
    let graph = recorded.graph();
    let kernel: HashSet<_> = rows.iter().map(|row| row.function).collect();
    let below = recorded.samples("read_zeroes").inherited;
    assert!(below * 10 >= recorded.total() * 9, "{below} of {}", recorded.total());
    let mut entered = 0;
    for node in recorded.flat().rows.iter().filter_map(|row| graph.node(row.function)) {
        for arc in &node.callers {
            if kernel.contains(&node.function) {
                entered += if kernel.contains(&arc.function) { 0 } else { arc.samples };
            } else {
                assert!(!kernel.contains(&arc.function), "{} calls {}", arc.name, node.name);
            }
        }
    }
    assert!(entered * 10 >= own * 9, "{entered} of {own} samples came from the program");
    assert_eq!(notes(&recorded, "have no names").len(), 0);
}

fn kernel_rows(recorded: &Recorded) -> Vec<FlatRow> {
    recorded.flat().rows.into_iter().filter(|row| row.image == "[kernel]").collect()
}

fn notes<'a>(recorded: &'a Recorded, part: &str) -> Vec<&'a str> {
    let notes = recorded.profile.session().notes.iter();
    notes.filter(|note| note.contains(part)).map(String::as_str).collect()
}

fn number(name: &str) -> i32 {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().parse().unwrap()
}
