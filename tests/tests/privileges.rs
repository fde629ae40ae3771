//! An ordinary user can profile own programs, root all programs, and refusals state the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_profile::notes;

use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, RecordCommand, as_user, ccsd};
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, Need, Suite};

/// For twelve functions in 51 turns, on a busy machine.
const ALLOWANCE: f64 = 0.15;

fn main() -> ExitCode {
    Suite::new()
        .test("root_records", &[CC, Need::Root], || {
            assert_eq!(user_only(&record(None, &[])), None);
            let recorded =
                RecordCommand::new(build("motion.c", &["-O1", "-pthread"]), &["kernel", "0", "100000"]).run();
            assert!(recorded.flat().rows.iter().any(|row| row.image == "[kernel]"), "{:?}", recorded.names());
        })
        .test("root_records_user_code_on_demand", &[CC, Need::Root], || {
            let recorded = record(None, &["--user"]);
            assert!(recorded.profile.session().event.ends_with(":u"));
            assert!(recorded.flat().rows.iter().all(|row| row.image != "[kernel]"), "{:?}", recorded.names());
        })
        .test("user_records", &[CC, Need::Root], || {
            let recorded = record(Some(NOBODY), &[]);
            if paranoid() <= 1 {
                return;
            }
            assert!(user_only(&recorded).is_some(), "{:?}", recorded.profile.session());
            assert!(recorded.profile.session().event.ends_with(":u"));
            assert!(recorded.flat().rows.iter().all(|row| row.image != "[kernel]"), "{:?}", recorded.names());
            // The loss is known although the kernel's part of the time is not.
            let accounting = recorded.profile.accounting();
            let expected = accounting.expected.unwrap();
            assert!(accounting.received * 100 >= expected * 85, "{accounting:?}");
        })
        .test("user_attaches_to_his_own", &[CC, Need::Root], || {
            let recorded = attach(Some(NOBODY), Some(NOBODY));
            assert_eq!(paranoid() > 1, user_only(&recorded).is_some());
        })
        .test("root_attaches_to_a_user_s", &[CC, Need::Root], || drop(attach(None, Some(NOBODY))))
        .test("root_attaches_to_its_own", &[CC, Need::Root], || drop(attach(None, None)))
        .test("user_is_refused_the_kernel", &[CC, Need::Root], || {
            let mut command = ccsd(["record", "--kernel", "--no-output", "--", "true"]);
            let ended = EndedProgram::of(as_user(&mut command, NOBODY));
            if paranoid() <= 1 {
                assert!(ended.status.success(), "{ended:?}");
            } else {
                ended.assert_refused(2, &["kernel", "kernel.perf_event_paranoid=1"]);
            }
        })
        .test("setuid_programs_are_followed_where_cpus_are_sampled", &[CC, Need::Root], || {
            let dir = scratch();
            let (suid, plain) = (setuid(dir.path(), NOBODY), dir.path().join("plain"));
            copy_program(build("weights.c", &["-O1"]), &plain);
            let (suid, plain) = (suid.to_str().unwrap(), plain.to_str().unwrap());
            let recorded = RecordCommand::new("sh", &["-c", "\"$0\" 500; \"$1\" 500", suid, plain])
                .options(&["-F", "1999", "--per-cpu"])
                .run();
            recorded.assert_whole();
            // What each says that it took.
            let took = recorded.ended.stdout.lines().filter_map(|line| line.strip_prefix("weight_"));
            let took: Vec<f64> = took.map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect();
            let (of_suid, all) = (took[..12].iter().sum::<f64>(), took.iter().sum::<f64>());
            let samples = |name: &str| {
                let rows =
                    recorded.flat().rows.into_iter().filter(|row| row.image == name && row.name.contains("weight_"));
                rows.map(|row| row.samples_self).sum::<u64>()
            };
            let (suid, plain) = (samples("suid"), samples("plain"));
            assert_share("suid", suid, suid + plain, of_suid / all, ALLOWANCE);
            let notes = &recorded.profile.session().notes;
            assert!(!notes.iter().any(|note| note.starts_with(notes::OTHER_RIGHTS)), "{notes:?}");
        })
        .test("setuid_programs_whose_events_end_are_named", &[CC, Need::Root], || {
            let dir = scratch();
            for (user, owner) in [(None, NOBODY), (Some(NOBODY), 0)] {
                let program = setuid(dir.path(), owner);
                let record = RecordCommand::new(program, &["400"]);
                let recorded = user.into_iter().fold(record, RecordCommand::user).run();
                let accounting = recorded.profile.accounting();
                let notes = &recorded.profile.session().notes;
                assert!(notes.iter().any(|note| note.starts_with(notes::OTHER_RIGHTS)), "{notes:?}");
                // Before it is executed there may be a sample by chance.
                assert!(accounting.received <= 2, "{accounting:?}");
                if user.is_none() {
                    // Both lines of a report are of the same CPU time.
                    let (expected, used) = (accounting.expected.unwrap(), accounting.target_cpu_ns.unwrap());
                    assert!(expected.abs_diff(used * 999 / 1_000_000_000) <= 2 && expected > 100, "{accounting:?}");
                }
                if accounting.received == 0 {
                    let said = format!("no samples: {}", notes::OTHER_RIGHTS);
                    assert!(
                        recorded.ended.stderr.contains(&said) || recorded.ended.stdout.contains(&said),
                        "{:?}",
                        recorded.ended
                    );
                    let by_user = EndedProgram::of(ccsd(["report", "--by", "user"]).arg(&recorded.file));
                    assert!(!by_user.stdout.contains("[unknown]"), "{by_user:?}");
                }
            }
        })
        .run()
}

/// A program that is executed with the rights of `owner`.
fn setuid(dir: &Path, owner: u32) -> PathBuf {
    let path = dir.join("suid");
    let _ = fs::remove_file(&path);
    copy_program(build("weights.c", &["-O1"]), &path);
    chown(&path, Some(owner), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    path
}

fn record(user: Option<u32>, options: &[&str]) -> Recorded {
    let mut record =
        RecordCommand::new(build("weights.c", &["-O1"]), &["2000"]).options(&["-F", "1999"]).options(options);
    if let Some(user) = user {
        record = record.user(user);
    }
    let recorded = record.run();
    recorded.assert_whole().assert_complete();
    let names: Vec<String> = (1..=12).map(|i| format!("weight_{i:02}")).collect();
    let parts: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(1..).collect();
    recorded.assert_proportions(&parts, ALLOWANCE);
    recorded
}

fn attach(user: Option<u32>, target: Option<u32>) -> Recorded {
    let mut command = Command::new(build("forever.c", &["-O1"]));
    if let Some(target) = target {
        as_user(&mut command, target);
    }
    let mut fixture = Running::start_command(&mut command);
    let mut collecting = Collecting::attach_as(user, &[], &[fixture.pid()]);
    collecting.wait_for_samples(20);
    fixture.go();
    assert_eq!(fixture.end().1.code(), Some(5));
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole().assert_complete();
    let forever = recorded.samples("forever").inherited;
    // The rest is the end of the program, which may take long on a busy machine.
    assert!(forever > 0 && forever * 2 > recorded.total(), "{:?}", recorded.names());
    recorded
}

fn user_only(recorded: &Recorded) -> Option<&str> {
    let notes = &recorded.profile.session().notes;
    notes.iter().find(|note| note.contains("user code only")).map(String::as_str)
}

fn paranoid() -> i32 {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim().parse().unwrap()
}
